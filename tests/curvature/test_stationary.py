"""What is left of the gradient: its size, its reasons, and the full step that takes it away."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression, Ridge

from noshadow import LastLayer, NoshadowWarning, audit, score
from noshadow.curvature.stationary import Fit
from noshadow.diagnostics import concerns
from noshadow.scoring import score_with_diagnostics


def stationarity(*arguments, **options):
    return score_with_diagnostics(LastLayer(*arguments, **options))[1].stationarity


def test_stationarity_is_measured_in_units_of_the_targets():
    """Rounding of an exact fit is nothing, and a tenth of the targets is something, whatever the targets' unit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    exact = x @ rng.normal(size=4) + 1.0
    wrong = exact + 0.1 * x[:, 0]
    for unit in (1e-12, 1e-6, 1.0, 1e6, 1e12):
        assert stationarity(x, unit * exact * (1 + 1e-15), unit * exact, "squared") == 0.0
        assert stationarity(x, unit * wrong, unit * exact, "squared") == pytest.approx(
            stationarity(x, wrong, exact, "squared"), rel=1e-6
        )
    assert stationarity(x, wrong, exact, "squared") > 1


def told(layer):
    """The first word of each concern: what is at fault."""
    return [message.split(":")[0] for message in concerns(layer, score_with_diagnostics(layer)[1])]


@pytest.fixture(scope="module")
def digits():
    """600 digits in random order, a tenth of the labels wrong: (x, y)."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(x))[:600]
    x, y = x[chosen] / 16.0, y[chosen].copy()
    wrong = rng.random(600) < 0.1
    y[wrong] = rng.integers(0, 10, wrong.sum())
    return x, y


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8)) * np.array([1e-9, 1e-3, 1.0, 1.0, 1.0, 1.0, 10.0, 1e6])
    return x, x @ (rng.normal(size=8) / x.std(0)) + rng.normal(size=300)


@pytest.fixture(scope="module")
def estimators(digits, regression):
    """(features, outputs, targets, head, the ridge it was fitted with), the bias free."""
    (x, y), (r, t) = digits, regression
    softmax = LogisticRegression(C=0.1, max_iter=2000).fit(x, y)
    binary = LogisticRegression(C=2.0, max_iter=2000, tol=1e-6).fit(x, y % 2)
    linear = Ridge(20.0).fit(r, t)
    return [
        (x, softmax.decision_function(x), y, "softmax", 10.0),
        (x, binary.decision_function(x), y % 2, "logistic", 0.5),
        (r, linear.predict(r), t, "squared", 40.0),
    ]


def test_estimators_under_their_own_ridge_are_not_told_anything(estimators):
    for x, z, y, head, ridge in estimators:
        assert told(LastLayer(x, z, y, head, ridge, penalize_bias=False)) == []


@pytest.mark.parametrize("times", [0.0, 0.1, 0.5, 2.0, 100.0])
def test_another_ridge_than_that_of_the_fit_is_named_with_the_right_one(estimators, times):
    for x, z, y, head, ridge in estimators:
        layer = LastLayer(x, z, y, head, times * ridge, penalize_bias=False)
        assert told(layer)[0] == "ridge"
        assert score_with_diagnostics(layer)[1].best_ridge == pytest.approx(ridge, rel=0.02)
        with pytest.warns(NoshadowWarning, match=re.escape(f"ridge: under {layer.ridge:.3g} the gradient left over")):
            score(layer, ["leverage"])


@pytest.mark.parametrize("times", [0.0, 1.0, 10.0])
def test_a_ridge_that_leaves_the_bias_out_is_told_from_one_that_covers_it(times):
    """The arrays of a LogisticRegression, its ridge forgotten or the bias taken for penalised; and the other way."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5))
    y = (x @ rng.normal(size=5) + 2.0 + rng.logistic(size=300) > 0).astype(int)
    free = LogisticRegression(C=1 / 3, tol=1e-10, max_iter=2000).fit(x, y).decision_function(x)
    ones = np.c_[x, np.ones(300)]
    covered = LogisticRegression(C=1 / 30, tol=1e-10, max_iter=2000, fit_intercept=False).fit(ones, y)
    for z, ridge, covers in ((free, 3.0, False), (covered.decision_function(ones), 30.0, True)):
        layer = LastLayer(x, z, y, "logistic", times * ridge, penalize_bias=not covers)
        found = score_with_diagnostics(layer)[1]
        assert found.best_ridge == pytest.approx(ridge, rel=1e-3)
        assert [note.split(":")[0] for note in concerns(layer, found)] == ["ridge"]
        assert f"penalize_bias={covers}" in concerns(layer, found)[0]
        assert told(LastLayer(x, z, y, "logistic", ridge, penalize_bias=covers)) == []


def disturbed(y):
    """Targets of other records: in another order, one row off, several rows off."""
    order = np.random.default_rng(0).permutation(len(y))
    yield y[order]
    yield np.roll(y, 1)
    yield np.roll(y, -7)


def test_targets_of_other_records_are_named(estimators):
    for x, z, y, head, ridge in estimators:
        for other in disturbed(y):
            layer = LastLayer(x, z, other, head, ridge, penalize_bias=False)
            assert told(layer) == ["targets"]
    x, z, y, head, ridge = estimators[0]
    assert told(LastLayer(x, z, (y + 1) % 10, head, ridge, penalize_bias=False)) == ["targets"]
    with pytest.warns(NoshadowWarning, match="targets: the outputs fit them worse than .* same order"):
        score(LastLayer(x, z, np.roll(y, 1), head, ridge, penalize_bias=False))


def test_targets_in_another_unit_than_the_outputs_are_named(regression):
    """A model of standardised values that is shown the raw ones: halved outputs fit them no better."""
    x, t = regression
    z = Ridge(20.0).fit(x, (t - t.mean()) / t.std()).predict(x)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, len(x))
    for raw in (5.0 * t + 40.0, 1e5 * t + 2e5, t + 30.0):
        for given in (None, weights):
            assert told(LastLayer(x, z, raw, "squared", 40.0, sample_weight=given)) == ["targets"]
    layer = LastLayer(x, z, 5.0 * t + 40.0, "squared", 40.0)
    assert "their mean alone fits them better" in concerns(layer, score_with_diagnostics(layer)[1])[0]


def network(x, y, optimizer, epochs, hidden=32):
    """A network trained as people do, in single precision: its features and outputs."""
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, last = torch.nn.Linear(x.shape[1], hidden), torch.nn.Linear(hidden, int(y.max()) + 1)
    update = optimizer([*first.parameters(), *last.parameters()])
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator).split(64):
            update.zero_grad()
            torch.nn.functional.cross_entropy(last(torch.relu(first(x[batch]))), y[batch]).backward()
            update.step()
    features = torch.relu(first(x)).detach()
    return features, last(features).detach()


RECIPES = {
    "adam, 4 epochs": (lambda p: torch.optim.Adam(p, 3e-3), 4, 0.0),
    "adam, 20 epochs": (lambda p: torch.optim.Adam(p, 3e-3), 20, 0.0),
    "adam, 120 epochs": (lambda p: torch.optim.Adam(p, 3e-3), 120, 0.0),
    "sgd, 20 epochs": (lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), 20, 0.0),
    "sgd with weight decay, 120 epochs": (lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=5e-3), 120, 5e-3),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_networks_are_not_told_that_they_stopped_early_but_are_told_of_other_targets(recipe, digits):
    optimizer, epochs, decay = RECIPES[recipe]
    x, y = digits
    features, z = network(x, y, optimizer, epochs)
    layer = LastLayer(features, z, y, "softmax", decay * 600)
    found = score_with_diagnostics(layer)[1]
    assert found.stationarity > 5  # far from stationary, and nothing to worry about
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoshadowWarning)
        result = audit(layer)
    assert result.notes == ()
    assert result.metadata["stationarity"] == found.stationarity
    if decay:
        assert result.metadata["best_ridge"] == pytest.approx(decay * 600, rel=0.15)
    assert told(LastLayer(features, z, y, "softmax", 2000.0)) == ["ridge"]
    for other in disturbed(y):
        assert told(LastLayer(features, z, other, "softmax", decay * 600)) == ["targets"]


@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_the_full_step_of_squared_error_is_the_gap_between_two_converged_fits(alpha, penalize_bias):
    """Wherever the head stopped: exact refits with and without each record."""
    rng = np.random.default_rng(0)
    n = 40
    x = rng.normal(size=(n, 3))
    y = x[:, :2] + rng.normal(size=(n, 2))
    design = np.hstack([x, np.ones((n, 1))])
    penalty = np.diag([alpha] * 3 + [alpha * penalize_bias])
    stopped = design @ rng.normal(size=(4, 2))

    def losses(rows):
        theta = np.linalg.solve(design[rows].T @ design[rows] + penalty, design[rows].T @ y[rows])
        return ((design @ theta - y) ** 2).sum(1)

    layer = LastLayer(x, stopped, y, "squared", 2 * alpha, penalize_bias=penalize_bias)
    got = score(layer, ["leave_one_out"], full_step=True)["leave_one_out"]
    converged = losses(np.arange(n))
    want = [losses(np.arange(n) != i)[i] - converged[i] for i in range(n)]
    np.testing.assert_allclose(got, want, rtol=1e-9)


def test_the_full_step_foretells_converged_refits_and_the_plain_score_those_that_stop_as_early():
    """A logistic head stopped after two steps of its solver. An attack sees models that stop as early as this one."""
    rng = np.random.default_rng(0)
    n = 120
    x = rng.normal(size=(n, 5)) * np.array([1.0, 1.0, 1.0, 3.0, 1 / 3])
    y = (rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(size=5)))).astype(int)

    def logits(rows, steps):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LogisticRegression(max_iter=steps, tol=1e-10).fit(x[rows], y[rows]).decision_function(x)

    def gaps(steps):
        def loss(z):
            return np.logaddexp(0.0, -(2 * y - 1) * z)

        before = loss(logits(np.arange(n), steps))
        return np.array([loss(logits(np.arange(n) != i, steps))[i] - before[i] for i in range(n)])

    layer = LastLayer(x, logits(np.arange(n), 2), y, "logistic", 1.0, penalize_bias=False)
    plain, full = (score(layer, ["leave_one_out"], full_step=step)["leave_one_out"] for step in (False, True))
    stopped, converged = gaps(2), gaps(200)
    assert spearmanr(full, converged).statistic > 0.99
    assert np.median(np.abs(full / converged - 1)) < 0.15
    assert spearmanr(plain, converged).statistic < 0.8
    assert spearmanr(plain, stopped).statistic > 0.85 > 0.7 > spearmanr(full, stopped).statistic


def test_the_full_step_takes_a_mislabelled_record_far_on_the_wrong_side():
    """A logit gap of 52: exp(−52) is lost beside 1, the change of the loss is not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    z = 3 * x[:, 0]
    y = (z > 0).astype(int)
    x[0, 0], z[0], y[0] = 52 / 3, 52.0, 0
    for head, outputs in (("logistic", z), ("softmax", np.stack([-z / 2, z / 2], 1))):
        for full_step in (False, True):
            got = score(LastLayer(x, outputs, y, head, 0.1), full_step=full_step)
            assert np.isfinite(got.to_numpy()).all()
            assert got["leave_one_out"].idxmax() == 0


@pytest.mark.parametrize("size", [1.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 1e-6), (np.float32, 5e-3), (np.float16, 0.5)])
def test_rounded_outputs_of_a_converged_ridge_are_no_gradient(size, dtype, most):
    """Parameters are worked out from the outputs, whose rounding is large beside what a small column adds to them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * [1.0, 1.0, 1.0, size]
    y = x[:, :3] @ [1.0, -2.0, 0.5] + rng.normal(size=200)
    design = np.c_[x, np.ones(200)]
    theta = np.linalg.solve(2 * design.T @ design + np.eye(5), 2 * design.T @ y)  # Σ (y − z)² + ½‖θ‖²
    layer = LastLayer(x, (design @ theta).astype(dtype), y, head="squared", ridge=1.0)
    found = score_with_diagnostics(layer, ["influence"], progress=False)[1]
    assert found.stationarity < most
    assert found.best_ridge == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("times", "leaves", "notes"), [(2.0, 0.2, 1), (2.0, 0.4, 0), (0.5, 0.2, 0), (0.5, 0.05, 1)])
def test_a_ridge_that_is_too_small_is_told_of_on_stronger_evidence_than_one_that_is_too_large(
    estimators, times, leaves, notes
):
    """A head that was stopped after a few steps from zero looks like one of a larger ridge."""
    x, z, y, head, ridge = estimators[0]
    layer = LastLayer(x, z, y, head, times * ridge, penalize_bias=False)
    found = replace(score_with_diagnostics(layer)[1], best_ridge=ridge, best_ridge_leaves=leaves)
    assert len([note for note in concerns(layer, found) if note.startswith("ridge")]) == notes


@pytest.mark.parametrize(
    ("own", "other", "covers_bias"),
    [(0.9, 0.05, False), (0.9, 0.2, True), (0.15, 0.09, True), (1e-3, 1e-4, False)],
)
def test_a_ridge_of_the_other_kind_is_told_where_it_explains_the_gradient_and_this_one_does_not(
    own, other, covers_bias, monkeypatch
):
    """A fifth of the gradient that is left explains nothing, nor does a share that is hardly the smaller."""
    layer = LastLayer(np.eye(4)[:, :3], np.zeros(4), np.zeros(4), "squared", 1.0)
    fit = object.__new__(Fit)
    fit._layer = layer
    shares = {True: (2.0, own), False: (3.0, other)}
    monkeypatch.setattr(Fit, "_ridge_of_kind", lambda self, theta, penalize_bias: shares[penalize_bias])
    ridge, share = shares[covers_bias]
    assert fit._best_ridge(torch.zeros(4, 1)) == (ridge, share, covers_bias)
