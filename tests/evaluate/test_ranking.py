"""Ranking metrics against definitions, ties against enumeration, targets, the bootstrap."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import ndcg_score

from noshadow import evaluate
from noshadow.errors import InputError

small = st.lists(st.integers(0, 3), min_size=5, max_size=5)


def recall_by_enumeration(score, truth, wanted, kept):
    """Mean recall over all pairs of row orders, one breaking the ties of truth, one those of score."""
    orders = list(itertools.permutations(range(len(score))))
    tops = [set(sorted(order, key=lambda i: -truth[i])[:wanted]) for order in orders]
    keeps = [set(sorted(order, key=lambda i: -score[i])[:kept]) for order in orders]
    return np.mean([len(a & b) / wanted for a in tops for b in keeps])


def test_recall_counts_the_overlap():
    truth = np.arange(1000.0)
    score = truth.copy()
    score[[999, 998]] = -1.0
    assert evaluate.recall(score, truth, 0.01, 0.05) == 0.8
    assert evaluate.recall(truth, truth, 0.01, 0.01) == 1.0
    assert evaluate.recall(-truth, truth) == 0.0


def test_an_infinite_score_ranks_highest():
    truth = np.arange(100.0)
    score = np.where(truth >= 98, np.inf, -truth)
    assert evaluate.recall(score, truth, 0.02, 0.02) == 1.0
    assert evaluate.spearman(score, truth) == evaluate.spearman(np.where(truth >= 98, 1.0, -truth), truth)


def test_one_percent_of_307_records_is_three():
    truth = np.arange(307.0)
    score = np.where(truth >= 305, truth, -truth)
    assert evaluate.recall(score, truth, 0.01, 0.01) == pytest.approx(2 / 3)


def test_shares_that_are_whole_in_decimal_stay_whole():
    truth = np.arange(100.0)  # 0.29 · 100 is 28.999999999999996
    assert evaluate.recall(np.where(truth >= 71, 1.0, 0.0), truth, 0.29, 0.29) == 1.0


@settings(max_examples=30, deadline=None)
@given(
    score=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    truth=st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_ties_are_averaged_over_their_orders(score, truth):
    found = evaluate.recall(score, truth, top=0.5, keep=0.75)
    assert found == pytest.approx(recall_by_enumeration(score, truth, 2, 3))


def test_tiebreak_orders_equal_success_rates():
    truth = np.r_[np.full(10, 0.9), np.full(90, 0.5)]
    separation = np.r_[np.arange(10.0), np.zeros(90)]
    score = np.zeros(100)
    score[9] = 1.0
    assert evaluate.recall(score, truth, 0.01, 0.01, tiebreak=separation) == 1.0
    assert evaluate.recall(score, truth, 0.01, 0.01) == pytest.approx(0.1)


@settings(max_examples=50, deadline=None)
@given(value=small, tiebreak=small)
def test_ordering_is_lexicographic(value, tiebreak):
    rank = evaluate.ordering(value, tiebreak)
    for i, j in itertools.combinations(range(5), 2):
        first, second = (value[i], tiebreak[i]), (value[j], tiebreak[j])
        assert np.sign(rank[i] - rank[j]) == (first > second) - (first < second)


def test_precision_at_k():
    truth = np.arange(100.0)
    assert evaluate.precision_at_k(truth, truth, 10, top=0.05) == 0.5
    assert evaluate.precision_at_k(truth, truth, 0.05, top=0.05) == 1.0
    assert evaluate.precision_at_k(-truth, truth, 50, top=0.05) == 0.0


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), levels=st.sampled_from([2, 5, 1000]))
def test_spearman_and_ndcg_equal_the_reference_implementations(seed, levels):
    rng = np.random.default_rng(seed)
    score, truth = rng.integers(0, levels, 60), rng.integers(0, levels, 60) + 0.0
    score[:2], truth[:2] = (0, 1), (0, 1)
    assert evaluate.spearman(score, truth) == pytest.approx(stats.spearmanr(score, truth).statistic, abs=1e-12)
    for k in (None, 7):
        expected = ndcg_score(truth[None], score[None], k=k)
        assert evaluate.ndcg(score, truth, k) == pytest.approx(expected, abs=1e-12)


def test_ndcg_counts_only_what_is_above_the_baseline():
    truth = np.array([0.9, 0.5, 0.4])
    assert evaluate.ndcg([3, 2, 1], truth, baseline=0.5) == 1.0
    assert evaluate.ndcg([1, 3, 2], truth, baseline=0.5) == pytest.approx(0.5)  # third place: 1/log₂4


def test_over_targets_ranks_members_only():
    truth = np.array([5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    members = np.array([[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]], dtype=bool)
    scores = np.array([[0, 9, 2, 9, 1, 9], [9, 3, 9, 2, 9, 1]])
    found = evaluate.over_targets(evaluate.recall, scores, truth, members, top=0.4, keep=0.4)
    np.testing.assert_array_equal(found.values, [0.0, 1.0])
    assert (found.mean, found.std) == (0.5, pytest.approx(np.sqrt(0.5)))
    assert str(found) == "0.5000 ± 0.7071"
    broken = evaluate.over_targets(evaluate.recall, scores, np.zeros(6), members, tiebreak=-truth, top=0.4, keep=0.4)
    np.testing.assert_array_equal(broken.values, [0.0, 0.0])


def test_each_target_may_have_its_own_truth_and_tiebreak():
    rng = np.random.default_rng(7)
    scores, truth, tiebreak = rng.integers(0, 9, (3, 40)), rng.integers(0, 3, (3, 40)), rng.normal(size=(3, 40))
    members = rng.random((3, 40)) < 0.6
    how = {"top": 0.2, "keep": 0.3}
    expected = []
    for t in range(3):
        rows = [i for i in range(40) if members[t, i]]
        order = sorted(rows, key=lambda i: (truth[t, i], tiebreak[t, i]))
        rank = np.array([order.index(i) for i in rows])
        expected.append(evaluate.recall(scores[t, rows], rank, **how))
    found = evaluate.over_targets(evaluate.recall, scores, truth, members, tiebreak=tiebreak, **how)
    np.testing.assert_allclose(found.values, expected)
    shared = evaluate.over_targets(evaluate.recall, scores, truth[0], members, tiebreak=tiebreak[0], **how)
    spread = [np.tile(values[0], (3, 1)) for values in (truth, tiebreak)]
    same = evaluate.over_targets(evaluate.recall, scores, spread[0], members, tiebreak=spread[1], **how)
    np.testing.assert_array_equal(shared.values, same.values)
    other = evaluate.paired_bootstrap(
        evaluate.recall, scores, -scores, truth, members, unit="targets", tiebreak=tiebreak, draws=5, **how
    )
    against = evaluate.over_targets(evaluate.recall, -scores, truth, members, tiebreak=tiebreak, **how)
    assert other.difference == pytest.approx(found.mean - against.mean)
    by_record = evaluate.paired_bootstrap(
        evaluate.recall, scores, -scores, truth, members, tiebreak=tiebreak, draws=5, **how
    )
    assert by_record.difference == pytest.approx(found.mean - against.mean)


def test_bootstrap_sees_a_difference_and_claims_none_where_there_is_none():
    rng = np.random.default_rng(2)
    truth = rng.normal(size=400)
    good, bad = truth + rng.normal(size=400), truth + 3 * rng.normal(size=400)
    found = evaluate.paired_bootstrap(evaluate.spearman, good, bad, truth, draws=300)
    assert found.low > 0
    assert found.p_value < 0.02
    assert found.difference == pytest.approx(evaluate.spearman(good, truth) - evaluate.spearman(bad, truth))
    same = evaluate.paired_bootstrap(evaluate.spearman, good, good, truth, draws=50)
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)


def test_bootstrap_interval_holds_its_level():
    """Two equally good scores, 150 draws: the 90 % interval misses 0 in about 10 % (≤ 18 % at 3 σ)."""
    misses = 0
    for seed in range(150):
        rng = np.random.default_rng(seed)
        truth = rng.normal(size=80)
        first, second = (truth + rng.normal(size=80) for _ in range(2))
        found = evaluate.paired_bootstrap(evaluate.spearman, first, second, truth, draws=80, confidence=0.9, seed=seed)
        misses += not found.low <= 0 <= found.high
    assert 0.03 < misses / 150 < 0.18


def test_bootstrap_over_targets():
    rng = np.random.default_rng(3)
    truth = rng.normal(size=60)
    members = rng.random((8, 60)) < 0.5
    good, bad = (truth + s * rng.normal(size=(8, 60)) for s in (0.3, 3.0))
    found = evaluate.paired_bootstrap(evaluate.spearman, good, bad, truth, members, unit="targets", draws=200)
    pairs = [evaluate.over_targets(evaluate.spearman, s, truth, members).mean for s in (good, bad)]
    assert found.difference == pytest.approx(pairs[0] - pairs[1])
    assert found.low > 0
    values = [evaluate.over_targets(evaluate.spearman, s, truth, members).values for s in (good, bad)]
    assert evaluate.paired_difference(*values, draws=200) == found  # the same resamples of the same differences


def test_the_interval_of_a_paired_difference_is_that_of_every_resample():
    first, second = np.array([0.5, 0.9, 0.4]), np.array([0.3, 0.2, 0.5])
    every = np.array([np.mean(trio) for trio in itertools.product(first - second, repeat=3)])
    found = evaluate.paired_difference(first, second, confidence=0.5, draws=40_000)
    assert found.difference == pytest.approx((0.2 + 0.7 - 0.1) / 3)
    assert (found.low, found.high) == pytest.approx(np.quantile(every, [0.25, 0.75], method="inverted_cdf"), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate.recall([1, 2], [1, 2, 3]), "score: 2 records, but truth has 3"),
        (lambda: evaluate.recall([1, np.nan], [1, 2]), "score: cannot rank NaN values, in row 1"),
        (lambda: evaluate.recall([[1, 2]], [1, 2]), r"score: expected shape \(n,\)"),
        (lambda: evaluate.recall([1, 2], [1, 2], top=1.5), "top: expected a share"),
        (lambda: evaluate.recall([1, 2], [1, 2], keep=0.0), "keep: expected a share"),
        (lambda: evaluate.recall([1, 2], [1, 2], tiebreak=[1]), "tiebreak: 1 records"),
        (lambda: evaluate.recall("ab", [1, 2]), "score: expected numbers"),
        (lambda: evaluate.precision_at_k([1, 2], [1, 2], 3), "k: expected 1 … 2"),
        (lambda: evaluate.spearman([1, 1], [1, 2]), "score: constant"),
        (lambda: evaluate.spearman([1, 2], [1, 1]), "truth: constant"),
        (lambda: evaluate.ndcg([1, 2], [0, 0]), "nothing is above the baseline"),
        (lambda: evaluate.ndcg([1, 2], [0, 1], k=0), "k: expected 1 … 2"),
        (lambda: evaluate.over_targets(evaluate.recall, [[1, 2]], [1, 2], [[1]]), "scores: expected shape"),
        (lambda: evaluate.over_targets(evaluate.recall, [[1, 2]], [1], [[1, 1]]), "truth: expected shape"),
        (lambda: evaluate.over_targets(evaluate.recall, [[1, 2]], [1, 2], [[0, 0]]), "target 0 has none"),
        (lambda: evaluate.paired_bootstrap(evaluate.recall, [1], [1], [1], unit="models"), "unit: 'models'"),
        (lambda: evaluate.paired_difference([0.5], [0.25]), "first, second: expected the values of two targets"),
        (lambda: evaluate.paired_difference([0.5, 1.0], [0.25, 0.5], draws=0), "draws, confidence"),
        (
            lambda: evaluate.paired_bootstrap(evaluate.recall, [1], [1], [1], unit="targets"),
            "needs two targets",
        ),
        (lambda: evaluate.paired_bootstrap(evaluate.recall, [1], [1], [1], draws=0), "draws, confidence"),
        (
            lambda: evaluate.paired_bootstrap(evaluate.recall, [1, 2], [[1, 2]] * 2, [1, 2]),
            r"second: shape \(2, 2\), but first has \(1, 2\)",
        ),
        (
            lambda: evaluate.over_targets(evaluate.recall, [[1, 2]], [1, 2], [[1, 1]], tiebreak=[1]),
            r"tiebreak: expected shape \(2,\) or \(1, 2\), got \(1,\)",
        ),
        (
            lambda: evaluate.over_targets(evaluate.recall, [[1, 2]], [1, 2], [[-1, 1]]),
            "members: expected booleans, got other values than 0 and 1; pass members == 1, or members > 0",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("metric", [evaluate.recall, evaluate.spearman, evaluate.ndcg])
def test_series_in_another_order_are_refused(metric):
    """A column that was sorted by its values keeps its labels, and was taken by position."""
    truth = pd.Series(np.arange(100.0), index=[f"r{row}" for row in range(100)])
    score = truth.sort_values(ascending=False)
    with pytest.raises(InputError, match=r"truth: its index has the labels of score in another order, first in row 0"):
        metric(score, truth)
    assert metric(score[truth.index], truth) == metric(truth.to_numpy(), truth) == pytest.approx(1.0)
    assert metric(score.reset_index(drop=True), truth) == metric(score.to_numpy(), truth)  # counted anew: by position


def test_series_beside_others_are_refused_by_their_names():
    truth = pd.Series(np.arange(20.0))
    turned = truth[::-1]
    with pytest.raises(InputError, match="tiebreak: its index has the labels of truth"):
        evaluate.recall(truth.to_numpy(), truth, tiebreak=turned)
    with pytest.raises(InputError, match="tiebreak: its index has the labels of value"):
        evaluate.ordering(truth, turned)
    for values in ((truth, turned, truth), (truth, truth, turned)):
        with pytest.raises(InputError, match=r"(second|truth): its index has the labels of first"):
            evaluate.paired_bootstrap(evaluate.recall, *values, draws=1)
