"""Columns of any size, alone and together, with and without a ridge: against 60-digit arithmetic and against refits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge

from noshadow import LastLayer, score
from noshadow.extract import extract
from noshadow.objective import Objective
from noshadow.scoring import score_with_diagnostics

CURVED = ["leverage", "influence", "newton", "leave_one_out"]
TOO_WIDE = [1e-12, 1e12, 1.0, 1e-6, 1e6]
SHARED_BY_COPIES = [1e9, 1e12, 1e-12, 1e12, 1e-9]


@pytest.fixture
def digits():
    """60 digits for the time of a test."""
    with mp.workdps(60):
        yield


def output_derivatives(z, y, head):
    """Loss, gradient and curvature of one record, as functions of its outputs."""
    m = len(z)
    if head == "squared":
        return (
            sum((z[a] - y[a]) ** 2 for a in range(m)),
            mp.matrix([2 * (z[a] - y[a]) for a in range(m)]),
            2 * mp.eye(m),
        )
    if head == "logistic":
        p = 1 / (1 + mp.exp(-z[0]))
        return mp.log1p(mp.exp(z[0])) - int(y) * z[0], mp.matrix([p - int(y)]), mp.matrix([[p * (1 - p)]])
    total = mp.fsum(mp.exp(v) for v in z)
    p = [mp.exp(v) / total for v in z]
    curvature = mp.matrix(m, m)
    for a in range(m):
        for b in range(m):
            curvature[a, b] = p[a] * ((a == b) - p[b])
    return mp.log(total) - z[int(y)], mp.matrix([p[a] - (a == int(y)) for a in range(m)]), curvature


def reference(design, z, y, head, penalty):
    """The four scores by their definitions, from the whole Hessian: no whitening, no packing, no reduction."""
    n, columns = design.shape
    m = z.shape[1]
    x = [[mp.mpf(float(v)) for v in row] for row in design]
    z = [[mp.mpf(float(v)) for v in row] for row in z]
    y = [[mp.mpf(float(v)) for v in row] for row in y] if head == "squared" else y
    parts = [output_derivatives(z[i], y[i], head) for i in range(n)]
    hessian = mp.matrix(columns * m, columns * m)
    for j in range(columns):
        for k in range(columns):
            for a in range(m):
                for b in range(m):
                    value = mp.fsum(x[i][j] * x[i][k] * parts[i][2][a, b] for i in range(n))
                    if j == k:
                        value += mp.mpf(float(penalty[j])) * (a == b)
                        if head == "softmax":  # all classes moving together change nothing: any curvature there will do
                            value += mp.fsum(x[i][j] ** 2 for i in range(n))
                    hessian[j * m + a, k * m + b] = value
    inverse = hessian**-1
    rows = []
    for i in range(n):
        wide = mp.matrix(columns * m, m)
        for j in range(columns):
            for a in range(m):
                wide[j * m + a, a] = x[i][j]
        block = wide.T * inverse * wide
        before, gradient, curvature = parts[i]
        shift = mp.lu_solve(mp.eye(m) - block * curvature, block * gradient)
        after = output_derivatives([z[i][a] + shift[a] for a in range(m)], y[i], head)[0]
        trace = sum((curvature * block)[a, a] for a in range(m)) / (m if head == "squared" else 1)
        rows.append([trace, (gradient.T * block * gradient)[0], (gradient.T * shift)[0], after - before])
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (1.0, True), (1.0, False), (1e-7, True)])
@pytest.mark.parametrize("ugly", ["plain", "dead", "copied", "constant"])
@pytest.mark.parametrize("sizes", [TOO_WIDE, SHARED_BY_COPIES])
@pytest.mark.usefixtures("digits")
def test_scores_at_any_column_size_are_those_of_sixty_digits(head, ridge, penalize_bias, ugly, sizes):
    rng = np.random.default_rng(0)
    n, m = 11, {"squared": 1, "logistic": 1, "softmax": 3}[head]
    x = np.abs(rng.normal(size=(n, 5)))
    z = x @ rng.normal(size=(5, m)) + rng.normal(size=m)
    y = z + rng.normal(size=z.shape) if head == "squared" else rng.integers(0, max(m, 2), n)
    lost = {"plain": None, "dead": 2, "copied": 3, "constant": 0}[ugly]
    if ugly == "dead":
        x[:, 2] = 0.0
    elif ugly == "copied":
        x[:, 3] = x[:, 1]
    elif ugly == "constant":
        x[:, 0] = 1.0
    x = x * 2.0 ** np.round(np.log2(sizes))  # powers of two: a copy stays a copy to the last digit
    design = np.hstack([x, np.ones((n, 1))])
    penalty = np.array([ridge] * 5 + [ridge * penalize_bias])
    kept = [j for j in range(6) if j != lost or (ridge and ugly != "dead")]  # without a ridge a copy adds nothing
    want = reference(design[:, kept], z, y, head, penalty[kept])
    got, found = score_with_diagnostics(LastLayer(x, z, y, head, ridge, penalize_bias=penalize_bias))
    np.testing.assert_allclose(got[CURVED], want, rtol=1e-9)
    assert found.rank == 6 - (ugly != "plain")


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-7, 1e-4, 1.0, 1e4, 1e12])
@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_converged_ridge_fit_is_stationary_at_any_column_size(size, penalize_bias, known):
    """With the parameters, and without them; and away from the fit it is not."""
    rng = np.random.default_rng(0)
    n = 400
    x = np.abs(rng.normal(size=(n, 6)))
    y = x @ rng.normal(size=6) + rng.normal(size=n)
    x[:, 0] *= size
    design = np.hstack([x, np.ones((n, 1))])
    penalty = np.array([1.0] * 6 + [float(penalize_bias)])
    unit = np.sqrt((design**2).sum(0) + penalty)
    system = (design / unit).T @ (design / unit) + np.diag(penalty / unit**2)
    theta = np.linalg.solve(system, (design / unit).T @ y) / unit
    hat = np.einsum("ij,ji->i", design / unit, np.linalg.solve(system, (design / unit).T))

    def layer(ridge):
        own = theta if known else None
        return LastLayer(x, design @ theta, y, "squared", ridge, penalize_bias=penalize_bias, coefficients=own)

    got, found = score_with_diagnostics(layer(2.0))
    np.testing.assert_allclose(got["leverage"], hat, rtol=1e-9)
    assert found.stationarity < (1e-9 if known else 1e-4)
    # twice the ridge leaves DΘ: its size by the definition, in the same scaled algebra
    found = score_with_diagnostics(layer(4.0))[1]
    system += np.diag(penalty / unit**2)
    leftover = 2 * penalty * theta / unit
    each = 2 * (design @ theta - y) * (design / unit).T
    typical = np.sqrt(np.einsum("ji,ji->i", each, np.linalg.solve(2 * system, each)).mean())
    want = np.sqrt(leftover @ np.linalg.solve(2 * system, leftover)) / typical
    assert found.stationarity == pytest.approx(want, rel=1e-6 if known else 1e-4)
    assert found.best_ridge == pytest.approx(2.0, rel=1e-6 if known else 1e-4)


def test_an_almost_dead_unit_of_a_network_drops_out_smoothly():
    """A SiLU unit far in its tail, under weight decay: truth from the Hessian in columns of unit length."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(250, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (250,), generator=generator)
    ridge = 5e-4 * 250
    sums = []
    for centre in (-18.0, -26.0, -60.0, None):
        features = torch.nn.functional.silu(hidden)
        features[:, 0] = 0.0 if centre is None else torch.nn.functional.silu(centre + hidden[:, 0])
        z = features @ weight
        got = score(LastLayer(features, z, y, "softmax", ridge, coefficients=torch.cat((weight, torch.zeros(1, 4)))))
        design = np.hstack([features, np.ones((250, 1))])
        unit = np.sqrt((design**2).sum(0) + ridge)
        p = torch.softmax(z, 1).numpy()
        curvature = np.einsum("ij,jk->ijk", p, np.eye(4)) - np.einsum("ij,ik->ijk", p, p)
        scaled = design / unit
        hessian = np.einsum("ij,iab,ik->jakb", scaled, curvature, scaled).reshape(28, 28)
        inverse = np.linalg.inv(hessian + np.kron(np.diag(ridge / unit**2), np.eye(4))).reshape(7, 4, 7, 4)
        want = np.einsum("ij,jakb,ik,iba->i", scaled, inverse, scaled, curvature)
        np.testing.assert_allclose(got["leverage"], want, rtol=1e-9)
        sums.append(got["leverage"].sum())
    np.testing.assert_allclose(sums, sums[-1], rtol=1e-6)


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_a_column_in_nanometres_does_not_spoil_estimators(kind):
    """scikit-learn's own refits, record by record, for scores through the front door."""
    rng = np.random.default_rng(1)
    n = 120
    x = np.abs(rng.normal(size=(n, 5)))
    value = x @ rng.normal(size=5) + rng.normal(size=n)
    x[:, 2] *= 1e-9
    y = value if kind == "ridge" else (value > np.median(value)).astype(int)

    def fit(rows):
        model = (
            Ridge(1.0) if kind == "ridge" else LogisticRegression(tol=1e-12, max_iter=1000, solver="newton-cholesky")
        )
        return model.fit(x[rows], y[rows])

    def loss(model, i):
        if kind == "ridge":
            return float((model.predict(x[[i]])[0] - y[i]) ** 2)
        return float(np.logaddexp(0.0, -(2 * y[i] - 1) * model.decision_function(x[[i]])[0]))

    everything = fit(np.arange(n))
    refits = np.array([loss(fit(np.arange(n) != i), i) - loss(everything, i) for i in range(n)])
    got = score(extract(everything, (x, y), Objective()).layer)["leave_one_out"]
    assert spearmanr(got, refits).statistic > 0.999
    if kind == "ridge":
        np.testing.assert_allclose(got, refits, rtol=1e-7)


@pytest.fixture(scope="module", params=[torch.bfloat16, torch.float16])
def half_precision_network(request):
    """Last hidden layer of a network trained on noisy nonlinear targets, in half precision: (features, outputs, y)."""
    generator = torch.Generator().manual_seed(0)
    dtype = request.param
    x = torch.randn(600, 10, generator=generator)
    y = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * torch.randn(600, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, last = torch.nn.Linear(10, 128), torch.nn.Linear(128, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        (last(torch.relu(first(x).to(dtype).float())).squeeze(1) - y).square().mean().backward()
        optimizer.step()
    features = torch.relu(first(x)).to(dtype).detach()
    return features, y.double()


def test_half_precision_features_keep_every_direction(half_precision_network):
    """The numbers given are the numbers: the same ones in single precision score the same, and refits agree."""
    features, y = half_precision_network
    design = np.hstack([features.double().numpy(), np.ones((600, 1))])
    z = design @ np.linalg.lstsq(design, y.numpy(), rcond=None)[0]
    half, found = score_with_diagnostics(LastLayer(features, z, y, "squared"))
    single = score(LastLayer(features.float(), z, y, "squared"))
    assert found.rank == np.linalg.matrix_rank(design) >= 120
    np.testing.assert_allclose(half, single, rtol=1e-12)
    for i in range(0, 600, 40):
        rest = np.arange(600) != i
        theta = np.linalg.lstsq(design[rest], y.numpy()[rest], rcond=None)[0]
        gap = (design[i] @ theta - float(y[i])) ** 2 - (z[i] - float(y[i])) ** 2
        assert half["leave_one_out"][i] == pytest.approx(gap, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_copies_are_recognised_in_every_precision(dtype):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator).to(dtype)
    x[:, 3] = x[:, 1]
    x[:, 5] = -2 * x[:, 0]
    z = x.double() @ torch.randn(6, 3, generator=generator).double()
    y = torch.randint(0, 3, (200,), generator=generator)
    assert score_with_diagnostics(LastLayer(x, z, y))[1].rank == 5


@pytest.mark.parametrize("size", [1e-200, 1e-170, 1e170, 1e200])
def test_gradients_of_any_size_have_a_length(size):
    rng = np.random.default_rng(5)
    x, z, y = rng.normal(size=(9, 3)), rng.normal(size=(9, 2)), rng.normal(size=(9, 2))
    table = score(LastLayer(x * size, z, y, head="squared", bias=False), scores=["gradient_norm"])
    lengths = np.linalg.norm(2 * (z - y), axis=1) * np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(table["gradient_norm"] / size, lengths, rtol=1e-12)
    table = score(LastLayer(x, z / size, y / size, head="squared"), scores=["output_gradient_norm"])
    np.testing.assert_allclose(table * size, np.linalg.norm(2 * (z - y), axis=1)[:, None], rtol=1e-12)
