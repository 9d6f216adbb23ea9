"""Shokri's classifiers and the threshold baselines: no leak, what they find, definitions, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.metrics import balanced_accuracy_score

from noshadow import attacks
from noshadow.attacks.result import calibrate
from noshadow.errors import InputError, NoshadowWarning
from tests.attacks.definitions import balanced_rates, counterpart, half_splits


def study(seed, n_models=16, n_records=120, n_classes=3, shift=3.0):
    """Logits in which a member's own class is raised, and classes 1, 2 … are harder than class 0."""
    rng = np.random.default_rng(seed)
    membership = half_splits(rng, n_models, n_records)
    targets = rng.integers(0, n_classes, n_records)
    logits = rng.normal(size=(n_models, n_records, n_classes))
    own = np.eye(n_classes)[targets]
    logits += own * (shift * membership + 2.0 * (targets == 0))[..., None]
    return logits, membership, targets


def regression(seed, shrink=0.3):
    rng = np.random.default_rng(seed)
    membership = half_splits(rng, 16, 120)
    targets = rng.normal(size=120)
    noise = rng.normal(size=membership.shape)
    return targets + noise * np.where(membership, shrink, 1.0), membership, targets


@pytest.mark.parametrize("classifier", ["boosting", "logistic"])
def test_shokri_finds_members_and_only_those_there_are(classifier):
    logits, membership, targets = study(0)
    found = attacks.shokri(logits, membership, targets, "softmax", classifier, folds=4)
    assert found.auc > 0.85
    assert found.success_rate.mean() > 0.78
    logits, membership, targets = study(1, shift=0.0)
    nothing = attacks.shokri(logits, membership, targets, "softmax", classifier, folds=4)
    assert abs(nothing.auc - 0.5) < 0.04


def test_shokri_never_trains_on_its_target():
    """Change everything about one model: the others' scores move, its own classifier does not."""
    logits, membership, targets = study(2, n_models=6)
    first = attacks.shokri(logits, membership, targets, "softmax", "logistic", rows=10**6)
    membership[4] = ~membership[4]
    second = attacks.shokri(logits, membership, targets, "softmax", "logistic", rows=10**6)
    np.testing.assert_allclose(second.scores[4], first.scores[4], atol=2e-3)  # row order differs, not the rows
    assert np.abs(second.scores[0] - first.scores[0]).max() > 0.05


def test_shokri_log_odds_do_not_lean_towards_the_larger_side():
    """Three in four pairs are members and nothing tells them: the log-odds must be about 0, not log 3."""
    logits, _, targets = study(14)
    membership = np.random.default_rng(14).random(logits.shape[:2]) < 0.75
    membership[:2] = [[True], [False]]
    found = attacks.shokri(logits, membership, targets, "softmax", "logistic", folds=4)
    assert abs(np.median(found.scores)) < 0.25


def test_shokri_is_reproducible_from_its_seed():
    logits, membership, targets = study(3)
    first, again, other = (
        attacks.shokri(logits, membership, targets, "softmax", rows=300, folds=3, seed=s).scores for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_shokri_reads_regressions_and_single_logits():
    outputs, membership, targets = regression(4)
    assert attacks.shokri(outputs, membership, targets, "squared", folds=4).auc > 0.7
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, 120)
    z = rng.normal(size=membership.shape) + 3 * (2 * labels - 1) * membership
    assert attacks.shokri(z, membership, labels, "logistic", "logistic", folds=4).auc > 0.9


def test_shokri_lends_rare_classes_the_common_classifier():
    logits, membership, targets = study(6)
    targets[targets == 2] = 0
    targets[:2] = 2
    logits[:, :2, 2] += 3.0 * membership[:, :2]
    result = attacks.shokri(logits, membership, targets, "softmax", folds=4)
    assert np.isfinite(result.scores).all()
    assert result.scores[:, :2][membership[:, :2]].mean() > result.scores[:, :2][~membership[:, :2]].mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "folds: expected 2 … 16"),
        ({"folds": 17}, "folds: expected 2 … 16"),
        ({"rows": 10}, "rows: a classifier needs at least"),
        ({"classifier": "forest"}, "classifier: 'forest' is not one of"),
        ({"outputs": np.zeros((16, 120, 2, 3))}, "one query per record"),
        ({"membership": np.ones((16, 120))}, "member of all models"),
    ],
)
def test_shokri_bad_input_is_named(options, message):
    logits, membership, targets = study(7)
    with pytest.raises(InputError, match=message):
        attacks.shokri(
            **{"outputs": logits, "membership": membership, "targets": targets, "head": "softmax", **options}
        )


def others_of(scores, membership, k, fair):
    """All pairs of other models and records, but for k's counterparts where the threshold is to be fair."""
    keep = np.ones(scores.shape, dtype=bool)
    keep[k] = False
    if fair:
        keep[[counterpart(membership, k, i) for i in range(scores.shape[1])], np.arange(scores.shape[1])] = False
    return scores[keep], membership[keep]


def best_advantage(rest, truth):
    """The best balanced accuracy, as true less false positive rate, at every score that occurs."""
    return max((rest[truth] > t).mean() - (rest[~truth] > t).mean() for t in np.unique(rest))


@pytest.mark.parametrize("fair", [False, True])
def test_calibrated_threshold_is_best_on_the_other_models(fair):
    rng = np.random.default_rng(8)
    membership = half_splits(rng, 6, 30)
    scores = np.round(rng.normal(size=membership.shape) + membership, 2)  # 180 scores, all of them candidates
    cut = calibrate(torch.from_numpy(scores), torch.from_numpy(membership), fair).numpy()
    for k in range(6):
        rest, truth = others_of(scores, membership, k, fair)
        reached = (rest[truth] > cut[k]).mean() - (rest[~truth] > cut[k]).mean()
        assert reached == pytest.approx(best_advantage(rest, truth), abs=1e-12)
        assert not (scores == cut[k]).any()


def test_threshold_scores_are_the_statistics():
    logits, membership, targets = study(9)
    p = special.softmax(logits, -1)
    own = np.eye(3)[targets]
    loss = -np.log((p * own).sum(-1))
    gradient = np.linalg.norm(p - own, axis=-1)
    norms = np.random.default_rng(10).uniform(1, 2, (16, 120))
    for statistic, expected, more in (
        ("loss", -loss, {}),
        ("entropy", (p * np.log(p)).sum(-1), {}),
        ("output_gradient_norm", -gradient, {}),
        ("gradient_norm", -gradient * norms, {"feature_norms": norms}),
        ("gradient_norm", -gradient * norms[0], {"feature_norms": norms[0]}),
    ):
        found = attacks.threshold(logits, membership, targets, "softmax", statistic, **more)
        np.testing.assert_allclose(found.scores, expected, rtol=1e-10, atol=1e-12)
        assert found.balanced_accuracy == pytest.approx(
            balanced_accuracy_score(membership.ravel(), (found.scores > found.thresholds[:, None]).ravel())
        )
        fair = calibrate(*map(torch.from_numpy, (found.scores, membership)), fair=True).numpy()
        decided = found.scores > fair[:, None]
        np.testing.assert_allclose(found.success_rate, balanced_rates(decided, membership), rtol=1e-12)


def test_class_thresholds_serve_classes_of_different_difficulty():
    logits, membership, targets = study(11, n_models=30, n_records=300, shift=1.5)
    logits += np.eye(3)[targets] * (3.0 * (targets == 0) - 3.0 * (targets == 1))[:, None]
    overall, by_class = (attacks.threshold(logits, membership, targets, "softmax", s) for s in ("loss", "class_loss"))
    assert by_class.balanced_accuracy > overall.balanced_accuracy + 0.03
    np.testing.assert_array_equal(by_class.thresholds, 0.0)
    np.testing.assert_allclose(by_class.separation, overall.separation, rtol=1e-12)


def test_threshold_on_regressions():
    outputs, membership, targets = regression(12)
    assert attacks.threshold(outputs, membership, targets, "squared").auc > 0.7
    for statistic in ("entropy", "class_loss"):
        with pytest.raises(InputError, match=f"statistic: '{statistic}' needs classes"):
            attacks.threshold(outputs, membership, targets, "squared", statistic)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"statistic": "gradient_norm"}, "feature_norms: needed"),
        ({"statistic": "loss", "feature_norms": np.ones(120)}, "feature_norms: needed"),
        ({"statistic": "gradient_norm", "feature_norms": np.ones(7)}, "feature_norms: expected shape"),
        ({"statistic": "gradient_norm", "feature_norms": -np.ones(120)}, "finite and at least 0"),
        ({"statistic": "margin"}, "statistic: 'margin' is not one of"),
        ({"outputs": np.zeros((16, 120, 2, 3))}, "one query per record"),
        ({"membership": np.zeros((16, 120))}, "member of no model"),
    ],
)
def test_threshold_bad_input_is_named(options, message):
    logits, membership, targets = study(13)
    with pytest.raises(InputError, match=message):
        attacks.threshold(
            **{"outputs": logits, "membership": membership, "targets": targets, "head": "softmax", **options}
        )


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_outputs_that_cannot_be_squared_or_told_apart_are_refused(size):
    outputs, membership, targets = regression(15)
    for attack in (
        lambda: attacks.threshold(outputs * size, membership, targets * size, "squared"),
        lambda: attacks.shokri(outputs * size, membership, targets * size, "squared"),
        lambda: attacks.signal(outputs * size, targets * size, "squared"),
    ):
        with pytest.raises(InputError, match=r"outputs: residuals up to .* cannot be squared; divide"):
            attack()
    signed = attacks.signal(outputs * size, targets * size, "squared", "signed_residual")
    plain = attacks.signal(outputs, targets, "squared", "signed_residual")
    rates = [attacks.lira(s, membership, members="either").success_rate for s in (signed, plain)]
    np.testing.assert_array_equal(*rates)


def test_logits_that_give_one_number_for_all_are_refused():
    logits, membership, targets = study(16)
    for statistic in ("loss", "class_loss", "entropy", "output_gradient_norm"):
        with pytest.raises(InputError, match=f"outputs: the {statistic} is the same for all models and records"):
            attacks.threshold(1e-200 * logits, membership, targets, "softmax", statistic)
    with pytest.raises(InputError, match="outputs: nothing that the classifiers read"):
        attacks.shokri(1e-200 * logits, membership, targets, "softmax")
    with pytest.raises(InputError, match="outputs: what the classifiers read of them is as large as"):
        attacks.shokri(1e200 * logits, membership, targets, "softmax")
    assert attacks.threshold(1e200 * logits, membership, targets, "softmax").success_rate.mean() > 0.6


@pytest.mark.parametrize("attack", ["threshold", "gradient", "shokri"])
def test_records_of_all_or_no_models_are_undecided_and_named(attack):
    logits, membership, targets = study(17)
    membership[:, 3], membership[:, 8] = True, False
    run = {
        "threshold": lambda z, m, y: attacks.threshold(z, m, y, "softmax", "class_loss"),
        "gradient": lambda z, m, y: attacks.threshold(
            z, m, y, "softmax", "gradient_norm", feature_norms=np.ones(m.shape)
        ),
        "shokri": lambda z, m, y: attacks.shokri(z, m, y, "softmax", "logistic", folds=2),
    }[attack]
    with pytest.warns(NoshadowWarning, match="member of all models in rows 3, 8 .*undecided"):
        result = run(logits, membership, targets)
    others = ~np.isin(np.arange(120), [3, 8])
    alone = run(logits[:, others], membership[:, others], targets[others])
    np.testing.assert_array_equal(result.success_rate[others], alone.success_rate)
    np.testing.assert_array_equal(result.success_rate[[3, 8]], 0.5)
    assert np.isfinite(list(result.summary().values())).all()
