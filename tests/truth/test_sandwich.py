"""Spreads of converged heads over data: against their definition as a double loop, and against refits on halves."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

from noshadow import LastLayer, attacks, audit, evaluate
from noshadow.curvature import build_curvature
from noshadow.curvature.dense import dense_curvature
from noshadow.predict import converged_rates
from noshadow.sandwich import Spreads, spreads_over_data


def layer_of(head, n=25, p=3, ridge=0.4, weighted=False):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, p))
    m = 4 if head == "softmax" else 1
    z = x @ rng.normal(size=(p, m)) + rng.normal(size=(n, m)) * 0.3
    y = z[:, 0] + rng.normal(size=n) if head == "squared" else rng.integers(0, max(m, 2), n)
    weights = {"sample_weight": rng.uniform(0.3, 2.0, n)} if weighted else {}
    return LastLayer(x, z, y, head=head, ridge=ridge, **weights), np.column_stack([x, np.ones(n)]), z, y


def by_definition(head, design, z, y, ridge, weights):
    """θ without record j is θ + H⁻¹(x̃_j ⊗ u_j), in plain class coordinates with a pseudo-inverse."""
    n, m = z.shape
    if head == "squared":
        g, w, slope = 2.0 * (z - y[:, None]), np.full((n, 1, 1), 2.0), np.ones((n, 1))
    elif head == "logistic":
        p = 1.0 / (1.0 + np.exp(-z))
        g, w, slope = p - y[:, None], (p * (1 - p))[:, :, None], np.where(y == 1, 1.0, -1.0)[:, None]
    else:
        p, hot = softmax(z, axis=1), np.eye(m)[y]
        g, w = p - hot, np.einsum("ij,jk->ijk", p, np.eye(m)) - p[:, :, None] * p[:, None, :]
        slope = hot - (1 - hot) * p / (1 - (p * hot).sum(1, keepdims=True))  # of z_y − log Σ_others exp z
    g, w = g * weights[:, None], w * weights[:, None, None]
    big = [np.kron(x[:, None], np.eye(m)) for x in design]  # (P·m, m)
    hessian = sum(b @ c @ b.T for b, c in zip(big, w, strict=True)) + ridge * np.eye(design.shape[1] * m)
    inverse = np.linalg.pinv(hessian, rcond=1e-12)
    blocks = [b.T @ inverse @ b for b in big]
    effects = [
        inverse @ b @ np.linalg.solve(np.eye(m) - c @ a, v) for b, c, a, v in zip(big, w, blocks, g, strict=True)
    ]
    variances = np.zeros((4, n))  # found: in, out; expected: in, out
    for i in range(n):
        without = np.linalg.solve(np.eye(m) - w[i] @ blocks[i], slope[i])
        for side, direction in enumerate((slope[i], without)):
            for j in range(n):
                if j != i:
                    answer = direction @ big[i].T @ inverse @ big[j]
                    variances[side, i] += 0.5 * (direction @ big[i].T @ effects[j]) ** 2
                    variances[2 + side, i] += 0.5 * answer @ w[j] @ answer
    return np.sqrt(variances)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ridge", [0.4, 30.0])
@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_spreads_are_those_of_the_definition(head, ridge, weighted):
    layer, design, z, y = layer_of(head, ridge=ridge, weighted=weighted)
    weights = layer.sample_weight.numpy() if weighted else np.ones(len(y))
    found = spreads_over_data(dense_curvature(layer, 1.0), 1.0)
    for one, wanted in zip(found, by_definition(head, design, z, y, ridge, weights), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-8)


def test_there_is_none_of_an_approximation_and_none_beyond_memory():
    layer, *_ = layer_of("softmax")
    assert spreads_over_data(build_curvature(layer, "kronecker"), 1.0) is None
    assert spreads_over_data(dense_curvature(layer, 1.0), 1e-9) is None


def rare_levels(n, seed):
    """Five numbers, and sixty levels of which each has a handful of records."""
    rng = np.random.default_rng(seed)
    level = rng.integers(0, 300, n)
    x = np.concatenate([rng.normal(size=(n, 5)), level[:, None] == np.arange(60)], axis=1).astype(float)
    return x, x @ rng.normal(size=65) * 0.5, rng


@pytest.mark.parametrize(
    ("what", "alpha"), [("noise that grows", 0.0), ("a strong ridge", 300.0), ("rare levels", 0.01), ("outliers", 0.0)]
)
def test_rates_of_regressions_are_those_of_refits(what, alpha):
    """Where the variance does not go with the curvature: taken to do so, the highest rates are off by 0.03 to 0.10."""
    rng = np.random.default_rng(2)
    if what == "rare levels":
        x, mean, rng = rare_levels(1000, 1)
        y = mean + rng.normal(size=1000)
    else:
        x = rng.normal(size=(400, 12))
        x[:3] *= 30.0 if what == "outliers" else 1.0
        grows = np.exp(1.5 * x[:, 0]) if what == "noise that grows" else 1.0
        y = x @ rng.normal(size=12) * 0.3 + rng.normal(size=400) * grows
    n, model = len(y), Ridge(alpha) if alpha else LinearRegression()
    inside = np.stack([np.isin(np.arange(n), rng.permutation(n)[: n // 2]) for _ in range(400)])
    outputs = np.stack([model.fit(x[m], y[m]).predict(x)[:, None] for m in inside])
    signal = attacks.signal(outputs, y, "squared")
    truth = attacks.lira(signal, inside, members="lower").success_rate
    gaps, tops = [], []
    for m in inside[:4]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = audit(model.fit(x[m], y[m]), (x[m], y[m]), progress=False)
        assert result.metadata["calibration"]["source"] == "converged"
        found = evaluate.reliability(result.table["attack_accuracy"].to_numpy(), truth[m])
        gaps.append(found.error)
        tops.append(found.predicted[-1] - found.measured[-1])
    assert np.mean(gaps) < 0.0125, gaps
    assert abs(np.mean(tops)) < 0.028, tops


def test_rates_of_logistic_regressions_are_those_of_refits_for_rare_levels():
    """Records that alone have a level: taken to vary as 1/ridge there, which no data does, they looked half as safe."""
    rng = np.random.default_rng(3)
    n, alone = 600, 30
    x = np.concatenate([rng.normal(size=(n, 4)), np.eye(n)[:, :alone]], axis=1)
    y = (x[:, :4] @ rng.normal(size=4) + rng.logistic(size=n) > 0).astype(int)
    model = LogisticRegression(C=10.0, tol=1e-8, max_iter=2000)
    inside = np.stack([np.isin(np.arange(n), rng.permutation(n)[: n // 2]) for _ in range(250)])
    outputs = np.stack([model.fit(x[m], y[m]).decision_function(x)[:, None] for m in inside])
    truth = attacks.lira(attacks.signal(outputs, y, "logistic"), inside).success_rate
    stated, measured = [], []
    for m in inside[:4]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            table = audit(model.fit(x[m], y[m]), (x[m], y[m]), progress=False).table
        rare = np.flatnonzero(m) < alone
        stated.append([table["attack_accuracy"][rare].mean(), table["attack_accuracy"][~rare].mean()])
        measured.append([truth[m][rare].mean(), truth[m][~rare].mean()])
    assert np.mean(measured, axis=0)[0] > 0.85
    np.testing.assert_allclose(np.mean(stated, axis=0), np.mean(measured, axis=0), atol=0.03)


def test_records_that_alone_have_a_column_do_nothing_to_the_spreads_of_others():
    """Without a ridge their leverage is 1, and what they do is not defined."""
    rng = np.random.default_rng(4)
    x, alone = rng.normal(size=(80, 3)), 8
    y = x @ rng.normal(size=3) + rng.normal(size=80)
    wide = np.concatenate([x, np.eye(80)[:, :alone]], axis=1)
    plain = LinearRegression().fit(x[alone:], y[alone:])
    model = LinearRegression().fit(wide, y)
    layers = [
        LastLayer(features, fit.predict(features)[:, None], targets, head="squared")
        for features, fit, targets in ((x[alone:], plain, y[alone:]), (wide, model, y))
    ]
    without, beside = (spreads_over_data(dense_curvature(layer, 1.0), 1.0) for layer in layers)
    for one, other in zip(without, beside, strict=True):
        np.testing.assert_allclose(other[alone:], one, rtol=1e-6)


def test_classes_take_the_mean_of_both_variances():
    known = {
        "influence": np.array([0.2, 0.4]),
        "newton": np.array([0.25, 0.5]),
        "leverage": np.array([0.2, 0.2]),
        "signal_variance": np.array([1.0, 1.0]),
        "signal_shift": np.array([0.5, 0.0]),
    }
    jackknife = 0.6 / 0.8**2 / 0.6
    kappa = jackknife * 0.6 / 0.4
    spreads = Spreads(*(np.array([value, 0.0]) for value in (0.3, 0.5, 0.2, 0.6)))
    found, rates = converged_rates(0.6, known, spreads)
    inside, outside = np.sqrt((0.09 + kappa * 0.04) / 2), np.sqrt((0.25 + kappa * 0.36) / 2)
    assert found.jackknife == pytest.approx(jackknife)
    assert rates.power[0] == pytest.approx(0.5 / np.sqrt((inside**2 + outside**2) / 2))
    assert (rates.power[1], rates.accuracy[1]) == (0.0, 0.5)  # nothing moves it, and its absence neither
    firm = converged_rates(0.6, known, Spreads(*(np.array([value, 1.0]) for value in (0.0, 0.5, 0.0, 0.6))))[1]
    assert np.isfinite(firm.tpr).all()
