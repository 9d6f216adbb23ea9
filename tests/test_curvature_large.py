"""Curvatures of large heads: each against its definition with dense Kronecker products, and against the exact one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noshadow import LastLayer, score
from noshadow.curvature import build_curvature
from noshadow.curvature.kronecker import without_own
from noshadow.curvature.outputs import CoupledCurvature
from noshadow.scoring import score_with_diagnostics

CURVED = ["leverage", "influence", "newton", "leave_one_out"]
HEADS = ["squared", "logistic", "two", "labels", "softmax", "weighted"]
EXACT = {"blocks": {"squared", "logistic", "two", "labels"}, "kronecker": {"squared", "logistic", "two"}}


def make(kind="softmax", n=60, p=5, ridge=0.7, penalize_bias=True, ugly="plain", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    if ugly == "deficient":
        x[:, 2], x[:, 3] = 0.0, x[:, 1] + 0.5
    elif ugly == "units":
        x *= 10.0 ** np.linspace(-9, 9, p)
    elif ugly == "outlier":
        x[0] = 40.0 * rng.normal(size=p)
    m = {"logistic": 1, "two": 2, "squared": 3, "labels": 3}.get(kind, 4)
    sizes = np.sqrt((x**2).mean(0))
    z = (x / np.where(sizes > 0, sizes, 1)) @ rng.normal(size=(p, m)) + rng.normal(size=m)
    if ugly == "outlier":
        z[0] = rng.normal(size=m)
    options = {"ridge": ridge, "penalize_bias": penalize_bias}
    if kind == "squared":
        return LastLayer(x, z, z + rng.normal(size=z.shape), "squared", **options)
    if kind == "logistic":
        return LastLayer(x, z, rng.integers(0, 2, n), "logistic", **options)
    if kind == "labels":
        weights = {"sample_weight": rng.uniform(0.2, 2.0, n), "class_weight": rng.uniform(0.5, 2.0, (m, 2))}
        return LastLayer(x, z, rng.integers(0, 2, (n, m)), "logistic", **options, **weights)
    y = rng.integers(0, m, n)
    if kind != "weighted":
        return LastLayer(x, z, y, "softmax", **options)
    weights = {"sample_weight": rng.uniform(0.2, 2.0, n), "class_weight": rng.uniform(0.5, 2.0, m)}
    return LastLayer(x, z, y, "softmax", **options, **weights, label_smoothing=0.1)


def terms(layer):
    """X̃ (n, P), W' (n, m, m) and g' (n, m) in plain class coordinates, in NumPy, without the code of the curvatures."""
    x = layer.features.double().numpy()
    design = np.hstack([x, np.ones((layer.n, 1))])
    z = layer.outputs.numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    w = np.einsum("ij,jk->ijk", p, np.eye(p.shape[1])) - np.einsum("ij,ik->ijk", p, p)
    weights = np.ones((layer.n, 1)) if layer.weights is None else layer.weights.numpy()
    g = layer.trained.gradient(layer.outputs, layer.targets).numpy()
    return design, weights[:, :, None] * w, weights * g


def pieces(layer, curvature):
    found = list(build_curvature(layer, curvature).chunks())
    pull = torch.cat([chunk.records.pull for chunk in found])
    head = layer.kind
    removal = torch.cat([chunk.removal(chunk.records.pull).shift for chunk in found])
    first = torch.cat([chunk.first_order_shift(chunk.records.pull) for chunk in found])
    return pull.numpy(), head.expand(removal).numpy(), head.expand(first).numpy()


@pytest.mark.parametrize("kind", ["softmax", "weighted"])
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (0.7, True), (0.7, False)])
@pytest.mark.parametrize("ugly", ["plain", "outlier"])
def test_kronecker_is_the_diagonal_of_the_others_hessian_in_its_basis(kind, ridge, penalize_bias, ugly):
    layer = make(kind, ridge=ridge, penalize_bias=penalize_bias, ugly=ugly)
    design, w, g = terms(layer)
    m = w.shape[1]
    curvature = build_curvature(layer, "kronecker")
    basis, frame = curvature.basis.vectors.numpy(), curvature.basis.frame.numpy()
    hessian = sum(np.kron(np.outer(x, x), v) for x, v in zip(design, w, strict=True))
    hessian += np.kron(np.diag(layer.penalty().numpy()), np.eye(m))
    # the frame: orthonormal, off the all-equal direction, and the eigenvectors of ΣW'
    np.testing.assert_allclose(frame.T @ frame, np.eye(m - 1), atol=1e-12)
    np.testing.assert_allclose(frame.sum(0), 0.0, atol=1e-12)
    turned = frame.T @ w.sum(0) @ frame
    np.testing.assert_allclose(turned, np.diag(np.diag(turned)), atol=1e-10 * turned.max())
    # the basis: diagonal for the mean curvature with the penalty
    mean = design.T @ (np.trace(w, axis1=1, axis2=2)[:, None] * design) / (m - 1) + np.diag(layer.penalty().numpy())
    turned = basis.T @ mean @ basis
    np.testing.assert_allclose(turned, np.diag(np.diag(turned)), atol=1e-10)
    both = np.kron(basis, frame)
    np.testing.assert_allclose(np.diag(both.T @ hessian @ both), curvature.basis.values.numpy().ravel(), rtol=1e-9)
    _, removal, first = pieces(layer, "kronecker")
    for i, x in enumerate(design):
        others = hessian - np.kron(np.outer(x, x), w[i])
        wide = np.kron(x[:, None], np.eye(m))
        size = np.diag(both.T @ others @ both)
        block = wide.T @ both @ np.diag(1 / size) @ both.T @ wide
        np.testing.assert_allclose(removal[i], block @ g[i], rtol=2e-4, atol=1e-12)
        np.testing.assert_allclose(
            first[i], np.linalg.solve(np.eye(m) + block @ w[i], block @ g[i]), rtol=2e-4, atol=1e-12
        )


@pytest.mark.parametrize("kind", ["softmax", "weighted"])
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (0.7, False)])
def test_blocks_are_class_hessians_with_the_mean_coupling(kind, ridge, penalize_bias):
    layer = make(kind, ridge=ridge, penalize_bias=penalize_bias)
    design, w, g = terms(layer)
    n, m = g.shape
    penalty = np.diag(layer.penalty().numpy())
    blocks = [design.T @ (w[:, k, k, None] * design) + penalty for k in range(m)]
    a = np.stack([np.einsum("ij,jk,ik->i", design, np.linalg.inv(block), design) for block in blocks], axis=1)
    without = [[design[i] @ np.linalg.solve(blocks[k] - w[i, k, k] * np.outer(design[i], design[i]), design[i])
                for k in range(m)] for i in range(n)]  # fmt: skip
    coupling = sum(np.sqrt(a[i])[:, None] * w[i] * np.sqrt(a[i]) for i in range(n)) / design.shape[1]
    np.fill_diagonal(coupling, 1.0)
    unit = np.linalg.inv(np.linalg.cholesky(design.T @ design + penalty)).T
    equal = np.array([np.trace(unit.T @ block @ unit) for block in blocks]) ** -0.5
    complement = np.linalg.svd(equal[None])[2][1:].T
    inverse = complement @ np.linalg.inv(complement.T @ coupling @ complement) @ complement.T
    project = np.eye(m) - 1 / m
    _, removal, first = pieces(layer, "blocks")
    leverage = score(layer, ["leverage"], curvature="blocks")["leverage"]
    for i in range(n):
        root, own = np.sqrt(without[i]), np.sqrt(a[i])
        block = project @ (root[:, None] * inverse * root) @ project
        np.testing.assert_allclose(removal[i], block @ g[i], rtol=1e-7, atol=1e-12)
        wanted = np.linalg.solve(np.eye(m) + block @ w[i], block @ g[i])
        np.testing.assert_allclose(first[i], wanted, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(leverage[i], np.trace(w[i] @ (own[:, None] * inverse * own)), rtol=1e-7)


def test_blocks_are_exact_where_all_records_have_the_same_curvature():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(80, 4)), rng.integers(0, 5, 80)
    layer = LastLayer(x, np.broadcast_to([0.3, -1.0, 2.0, 0.0, 0.5], (80, 5)).copy(), y)
    exact, got = score(layer, CURVED, curvature="dense"), score(layer, CURVED, curvature="blocks")
    np.testing.assert_allclose(got, exact, rtol=1e-7)


@pytest.mark.parametrize("method", ["blocks", "kronecker", "iterative"])
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (2.0, True), (2.0, False)])
@pytest.mark.parametrize("ugly", ["plain", "deficient", "units"])
def test_exact_where_it_says_so_and_close_elsewhere(method, kind, ridge, penalize_bias, ugly):
    layer = make(kind, n=120, ridge=ridge, penalize_bias=penalize_bias, ugly=ugly)
    exact = score(layer, CURVED, curvature="dense")
    got, found = score_with_diagnostics(layer, CURVED, curvature=method)
    if method == "iterative" or kind in EXACT[method]:
        np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-12)
    else:
        assert got.corrwith(exact, method="spearman").min() > 0.85
    assert found.rank == (4 if ugly == "deficient" else 6)


@pytest.mark.parametrize("method", ["blocks", "kronecker", "iterative"])
@pytest.mark.parametrize("kind", ["squared", "labels", "softmax"])
def test_a_record_that_decides_its_own_fit_is_flagged_and_finite(method, kind):
    layer = make(kind, n=50, ridge=0.0)
    x = layer.features.clone()
    x[:, 1] = 0.0
    x[7, 1] = 3.0  # the only record that knows this column
    z = layer.outputs.numpy()
    layer = LastLayer(x, z, layer.targets, layer.head)
    got, found = score_with_diagnostics(layer, CURVED, curvature=method)
    assert found.flagged == (7,)
    assert np.isfinite(got.to_numpy()).all()
    assert got["newton"].argmax() == 7
    assert (got["leverage"] <= layer.kind.width(layer.n_outputs) * max(1, layer.kind.parts(layer.n_outputs))).all()


def test_the_series_without_the_own_term_is_the_sum():
    rng = np.random.default_rng(1)
    squares, values = rng.exponential(size=(40, 7)) * 10.0 ** rng.uniform(-4, 0, (40, 1)), rng.uniform(1, 5, (7, 3))
    weights = rng.uniform(0, 0.25, (40, 3))
    squares[0] *= 20 / squares[0].max()  # one whose own term is more than half of an eigenvalue
    values = np.maximum(values, 5.01)
    wanted = (squares[:, :, None] / (values - squares[:, :, None] * weights[:, None, :])).sum(1)
    got = without_own(torch.tensor(squares), 1 / torch.tensor(values), torch.tensor(weights))
    np.testing.assert_allclose(got, wanted, rtol=2e-5)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_products_with_the_output_curvature_keep_their_digits(scale):
    rng = np.random.default_rng(5)
    layer = LastLayer(rng.normal(size=(20, 2)), scale * rng.normal(size=(20, 4)), rng.integers(0, 4, 20))
    records = layer.records(slice(0, 20))
    found = CoupledCurvature.of(records)
    w = layer.kind.curvature(layer.outputs)
    v, q = torch.randn(20, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(found.apply(v), (w @ v.unsqueeze(2)).squeeze(2), rtol=1e-9, atol=1e-300)
    many = torch.randn(20, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(found.apply(many), many @ w, rtol=1e-9, atol=1e-300)
    torch.testing.assert_close(found.along(q), torch.einsum("ka,ikl,la->ia", q, w, q), rtol=1e-7, atol=1e-300)
    torch.testing.assert_close(found.total(), w.sum(0), rtol=1e-9, atol=1e-300)
    s = torch.rand(20, 4, dtype=torch.float64)
    torch.testing.assert_close(found.total(s), (s.unsqueeze(1) * w * s.unsqueeze(2)).sum(0), rtol=1e-9, atol=1e-300)
    torch.testing.assert_close(found.diagonal, w.diagonal(dim1=1, dim2=2), rtol=1e-9, atol=1e-300)
