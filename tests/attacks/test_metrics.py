"""ROC, AUC and TPR with ties, and the ε bound's level and power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from noshadow import attacks
from noshadow.errors import InputError
from tests.attacks.definitions import balanced_rates, half_splits

INSIDE, OUTSIDE = np.arange(100) + 9.5, np.arange(100)
SCORES = np.r_[INSIDE, OUTSIDE]
LABELS = np.r_[np.ones(100), np.zeros(100)]


def test_golden_auc_and_tpr():
    """Of the 100 · 100 pairs 5,905 are in the right order; the hull also wins the corners of the stairs."""
    curve = attacks.roc(SCORES, LABELS)
    assert curve.auc == pytest.approx(0.5905, abs=1e-12)
    assert curve.hull_auc == pytest.approx(0.595, abs=1e-12)
    assert attacks.auc(np.r_[OUTSIDE + 10, OUTSIDE], LABELS) == pytest.approx(0.595, abs=1e-12)  # 90 ties, half each
    assert attacks.tpr_at_fpr(SCORES, LABELS, 0.01) == pytest.approx(0.11, abs=1e-12)


def test_hull_is_the_best_mixture_of_thresholds():
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 2, 60)
    curve = attacks.roc(rng.normal(size=60) + labels, labels)
    grid = np.linspace(0, 1, 20001)
    best = np.interp(grid, curve.fpr, curve.tpr)
    for i in range(len(curve.fpr)):
        for j in range(i + 1, len(curve.fpr)):
            if curve.fpr[j] > curve.fpr[i]:
                inside = (grid >= curve.fpr[i]) & (grid <= curve.fpr[j])
                chord = np.interp(grid[inside], curve.fpr[[i, j]], curve.tpr[[i, j]])
                best[inside] = np.maximum(best[inside], chord)
    assert curve.hull_auc == pytest.approx(best.mean(), abs=2e-4)
    assert attacks.roc(np.zeros(4), [0, 1, 0, 1]).hull_auc == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 300), levels=st.sampled_from([1, 2, 7, 10**6]))
def test_auc_and_curve_equal_scikit_learn(seed, n, levels):
    rng = np.random.default_rng(seed)
    labels = np.r_[1, 0, rng.integers(0, 2, n - 2)]
    scores = rng.integers(0, levels, n) + labels * (levels // 3)
    assert attacks.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    curve = attacks.roc(scores, labels)
    fpr, tpr, thresholds = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-15)
    np.testing.assert_array_equal(curve.thresholds, thresholds)


def test_auc_with_sixty_percent_ties():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 5000)
    scores = np.where(rng.random(5000) < 0.6, 0.0, rng.normal(size=5000) + labels)
    assert (scores == 0).mean() > 0.57
    assert attacks.auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-13)


def test_the_order_of_rows_does_not_matter():
    shuffle = np.random.default_rng(1).permutation(200)
    tied = np.round(SCORES / 30)
    for scores in (SCORES, tied):
        assert attacks.auc(scores, LABELS) == attacks.auc(scores[shuffle], LABELS[shuffle])
    assert attacks.tpr_at_fpr(np.zeros(200), LABELS, 0.5) == 0.0


def test_tpr_never_exceeds_its_false_positive_rate_budget():
    rng = np.random.default_rng(2)
    labels, scores = rng.integers(0, 2, 1000), np.round(rng.normal(size=1000))
    for fpr in (0.0, 1e-4, 1e-3, 0.01, 0.3, 1.0):
        best = max(
            (scores[labels == 1] > t).mean()
            for t in np.r_[np.unique(scores), -9.0]
            if (scores[labels == 0] > t).mean() <= fpr
        )
        assert attacks.tpr_at_fpr(scores, labels, fpr) == pytest.approx(best)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros(3), np.zeros(4), "membership: shape"),
        (np.array([0.0, np.nan]), [0, 1], "scores: NaN"),
        (np.zeros(3), np.ones(3), "both members and non-members"),
    ],
)
def test_bad_input_is_named(scores, labels, message):
    with pytest.raises(InputError, match=message):
        attacks.roc(scores, labels)
    with pytest.raises(InputError, match="fpr: expected a rate"):
        attacks.tpr_at_fpr(SCORES, LABELS, 1.5)


def test_result_summary_is_its_parts():
    rng = np.random.default_rng(3)
    membership = half_splits(rng, 12, 40)
    result = attacks.lira(rng.normal(size=membership.shape) + membership, membership)
    summary = result.summary()
    assert summary["auc"] == pytest.approx(roc_auc_score(membership.ravel(), result.scores.ravel()))
    assert summary["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(membership.ravel(), result.scores.ravel() > 0)
    )
    assert summary["tpr_at_1_percent_fpr"] == result.roc().tpr_at_fpr(0.01)
    assert summary["epsilon_lower_bound"] == result.epsilon_lower_bound()
    assert list(result.table["success_rate"]) == list(result.success_rate)
    assert result.table["models_in"].tolist() == membership.sum(0).tolist()
    assert "models=12, records=40" in repr(result)
    np.testing.assert_allclose(result.success_rate, balanced_rates(result.decisions > 0, membership), rtol=1e-14)


def test_where_the_sides_are_equal_the_balanced_rate_is_the_plain_one():
    """To the bit: of 12 models it is a multiple of 1/12, and records that tied still tie."""
    rng = np.random.default_rng(10)
    membership = np.stack([rng.permutation(12) < 6 for _ in range(200)], 1)
    result = attacks.lira(rng.normal(size=membership.shape) + membership, membership)
    right = (result.decisions > 0) == membership
    np.testing.assert_array_equal(result.success_rate, right.sum(0) / 12)
    assert len(np.unique(result.success_rate)) <= 13


class TestEpsilonLowerBound:
    def test_null_rate_of_one_target(self, capsys):
        """1,000 null draws, scores with ties and in an order that follows membership."""
        rng = np.random.default_rng(4)
        labels = np.r_[np.zeros(500), np.ones(500)]
        claims = sum(
            attacks.epsilon_lower_bound(np.round(rng.normal(size=1000)), labels, seed=s) > 0 for s in range(1000)
        )
        with capsys.disabled():
            print(f"\nnull rate of the ε bound, one target: {claims / 1000:.3f}")
        assert claims <= 50

    def test_null_rate_of_unbalanced_targets(self):
        """80 % members: "member" is right in 80 % of the cases, and says nothing about ε."""
        rng = np.random.default_rng(9)
        draws = ((rng.normal(size=500), rng.random(500) < 0.8) for _ in range(500))
        assert sum(attacks.epsilon_lower_bound(scores, bits) > 0 for scores, bits in draws) <= 25
        assert attacks.epsilon_lower_bound(np.arange(500.0), np.ones(500)) == 0.0
        bits = rng.random(5000) < 0.8
        assert attacks.epsilon_lower_bound(rng.normal(size=5000) + 4.0 * bits, bits) > 0.5

    def test_null_rate_of_a_whole_attack(self, capsys):
        """500 null studies through LiRA online, whose targets and records depend on each other."""
        claims = {"median over targets": 0, "first target": 0}
        for seed in range(500):
            rng = np.random.default_rng(seed)
            membership = half_splits(rng, 12, 100, fewest=2)
            common = rng.normal(size=(12, 1))  # models differ as a whole: records of a model are dependent
            result = attacks.lira(rng.normal(size=membership.shape) + common, membership, variance="fixed")
            claims["median over targets"] += result.epsilon_lower_bound() > 0
            claims["first target"] += attacks.epsilon_lower_bound(result.scores[0], membership[0]) > 0
        with capsys.disabled():
            print(f"\nnull rates of the ε bound through LiRA, of 500: {claims}")
        assert max(claims.values()) <= 25

    @pytest.mark.parametrize("epsilon", [0.5, 2.0])
    def test_randomised_response_is_bounded_and_found(self, epsilon):
        """Bits flipped with probability 1/(1+e^ε) are ε-private: of 200 runs at most 5 % + 3σ claim more."""
        over, found = 0, []
        for seed in range(200):
            rng = np.random.default_rng(seed)
            bits = rng.random(4000) < 0.5
            answer = bits ^ (rng.random(4000) < 1 / (1 + math.exp(epsilon)))
            bound = attacks.epsilon_lower_bound(answer + 0.0, bits, seed=seed)
            over += bound > epsilon
            found.append(bound)
        assert over <= 19
        assert np.median(found) > 0.7 * epsilon

    def test_pure_bound_is_clopper_pearson_at_its_share(self):
        scores, bits = np.arange(1000.0), np.arange(1000) >= 500
        share = 0.05 / 8
        best = max(stats.beta.ppf(share, r, 1) for r in (1, 2, 10, 20, 100, 200, 500, 1000))
        assert attacks.epsilon_lower_bound(scores, bits) == pytest.approx(math.log(best / (1 - best)), rel=1e-9)

    def test_delta_weakens_the_bound_and_vanishes_with_it(self):
        rng = np.random.default_rng(5)
        bits = rng.random(2000) < 0.5
        scores = rng.normal(size=2000) + 2.0 * bits
        pure, tiny, large = (attacks.epsilon_lower_bound(scores, bits, delta=d) for d in (0.0, 1e-12, 1e-4))
        assert tiny == pytest.approx(pure, rel=1e-6)
        assert 0 < large < pure

    def test_confidence_costs(self):
        rng = np.random.default_rng(6)
        bits = rng.random((5, 500)) < 0.5
        scores = rng.normal(size=(5, 500)) + 2.0 * bits
        loose, usual, strict = (attacks.epsilon_lower_bound(scores, bits, c) for c in (0.5, 0.95, 0.999))
        assert loose > usual > strict > 0

    @pytest.mark.parametrize(("records", "least", "most"), [(20, 0.0, 0.8), (100, 1.6, 2.4), (500, 3.3, 3.8)])
    def test_how_much_a_perfect_attack_can_prove_goes_by_records_and_not_by_targets(self, records, least, most):
        """As the how-to on canaries and the docstring say."""
        rng = np.random.default_rng(8)
        for targets in (8, 48, 200):
            bits = rng.random((targets, records)) < 0.5
            assert least <= attacks.epsilon_lower_bound(bits + 0.0, bits) <= most

    def test_median_over_targets_needs_half_of_them(self):
        rng = np.random.default_rng(7)
        bits = rng.random((10, 2000)) < 0.5
        scores = rng.normal(size=bits.shape)
        scores[:4] += 9.0 * bits[:4]
        assert attacks.epsilon_lower_bound(scores, bits) == 0.0
        scores[4] += 9.0 * bits[4]
        assert attacks.epsilon_lower_bound(scores, bits) > 1.0

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((np.zeros(4), np.zeros(5)), "scores: expected shape"),
            ((np.zeros(1), np.ones(1)), "scores: one record"),
            ((np.full(4, np.nan), np.zeros(4)), "scores: NaN"),
            ((np.zeros(4), np.zeros(4), 1.0), "confidence: expected"),
            ((np.zeros(4), np.zeros(4), 0.9, -0.1), "delta: expected"),
        ],
    )
    def test_bad_input_is_named(self, arguments, message):
        with pytest.raises(InputError, match=message):
            attacks.epsilon_lower_bound(*arguments)
