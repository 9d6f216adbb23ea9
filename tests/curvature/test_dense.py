"""The exact Hessian: pseudo-inverse answers on ugly features, and independence of chunks, order and memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import noshadow.curvature.dense as dense
from noshadow import InputError, LastLayer, score
from noshadow.curvature import build_curvature
from noshadow.curvature.dense import dense_curvature
from noshadow.curvature.gram import KroneckerSum, QuadraticForms, use_pairs
from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.symmetric import add_gram, mirrored, quadratic_form
from noshadow.scoring import score_with_diagnostics

CURVED = ["leverage", "influence", "newton", "leave_one_out"]


def make(head="softmax", n=80, p=5, m=5, seed=0):
    """A layer's arrays with outputs that are a linear function of the features."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    m = {"softmax": m, "logistic": 1, "squared": 2}[head]
    z = x @ rng.normal(size=(p, m)) + rng.normal(size=m)
    if head == "squared":
        return x, z, z + rng.normal(size=z.shape)
    return x, z, rng.integers(0, max(m, 2), n)


def reference(x, z, y, head, ridge=0.0, bias=True, penalize_bias=True):
    """Leverage and influence from a Kronecker-product Hessian and NumPy's pseudo-inverse."""
    design = np.hstack([x, np.ones((len(x), 1))]) if bias else x
    m = z.shape[1]
    if head == "squared":
        g, w = 2 * (z - y), np.broadcast_to(2 * np.eye(m), (len(x), m, m))
    elif head == "logistic":
        p = 1 / (1 + np.exp(-z))
        g, w = p - y[:, None], (p * (1 - p))[:, :, None]
    else:
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        g, w = p - np.eye(m)[y], np.einsum("ij,jk->ijk", p, np.eye(m)) - np.einsum("ij,ik->ijk", p, p)
    penalty = np.full(design.shape[1], ridge)
    if bias and not penalize_bias:
        penalty[-1] = 0
    hessian = sum(np.kron(np.outer(d, d), v) for d, v in zip(design, w, strict=True))
    inverse = np.linalg.pinv(hessian + np.kron(np.diag(penalty), np.eye(m)), hermitian=True, rcond=1e-12)
    leverage, influence = [], []
    for d, v, grad in zip(design, w, g, strict=True):
        wide = np.kron(d[:, None], np.eye(m))
        block = wide.T @ inverse @ wide
        leverage.append(np.trace(v @ block) / (m if head == "squared" else 1))
        influence.append(grad @ block @ grad)
    return np.array(leverage), np.array(influence)


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (1.5, True), (1.5, False)])
@pytest.mark.parametrize("ugly", ["plain", "dead", "duplicated", "constant", "collinear", "all_zero"])
def test_ugly_features_get_the_pseudo_inverse_answer(head, ridge, penalize_bias, ugly):
    x, z, y = make(head)
    if ugly == "dead":
        x[:, 2] = 0.0
    elif ugly == "duplicated":
        x[:, 3] = x[:, 1]
    elif ugly == "constant":
        x[:, 0] = 7.0
    elif ugly == "collinear":
        x[:, 4] = x[:, 0] - 2 * x[:, 1] + 0.5
    elif ugly == "all_zero":
        x[:] = 0.0
    design = np.hstack([x, np.ones((len(x), 1))])
    z = design @ np.linalg.lstsq(design, z, rcond=None)[0]
    leverage, influence = reference(x, z, y, head, ridge, penalize_bias=penalize_bias)
    layer = LastLayer(x, z, y, head, ridge, penalize_bias=penalize_bias)
    got, found = score_with_diagnostics(layer)
    np.testing.assert_allclose(got["leverage"], leverage, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(got["influence"], influence, rtol=1e-7, atol=1e-12)
    assert found.rank == {"plain": 6, "all_zero": 1}.get(ugly, 5)
    assert np.isfinite(got.to_numpy()).all()


@pytest.mark.parametrize(
    ("head", "m"), [("squared", 2), ("logistic", 1), ("softmax", 3), ("softmax", 4), ("softmax", 6)]
)
def test_the_result_does_not_depend_on_chunks_or_order(head, m, monkeypatch):
    x, z, y = make(head, n=101, m=m)
    whole = score(LastLayer(x, z, y, head, 0.5), CURVED)
    order = np.random.default_rng(0).permutation(101)
    shuffled = score(LastLayer(x[order], z[order], y[order], head, 0.5), CURVED)
    np.testing.assert_allclose(shuffled, whole.iloc[order], rtol=1e-9)
    for rows in (1, 7, 100):
        monkeypatch.setattr(dense, "_chunk_rows", lambda *_, rows=rows: rows)
        np.testing.assert_allclose(score(LastLayer(x, z, y, head, 0.5), CURVED), whole, rtol=1e-9)


def test_chunks_shrink_with_the_memory_budget_and_too_little_is_an_error():
    x, z, y = make("softmax", n=2000, p=40, m=12)
    layer = LastLayer(x, z, y)
    roomy, tight = (build_curvature(layer, memory=memory) for memory in (4.0, 0.03))
    assert tight.chunk < roomy.chunk
    a, b = (torch.cat([chunk.block for chunk in curvature.chunks()]) for curvature in (roomy, tight))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)
    with pytest.raises(InputError, match=r"memory: the exact Hessian.*451 × 451"):
        build_curvature(layer, "dense", memory=0.001)
    with pytest.raises(InputError, match="memory: expected a positive"):
        build_curvature(layer, memory=0.0)


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_solve_applies_the_inverse_hessian(head):
    x, z, y = make(head)
    layer = LastLayer(x, z, y, head, 2.0)
    m = z.shape[1]
    gradient = np.random.default_rng(9).normal(size=(6, m))
    if head == "softmax":
        gradient -= gradient.mean(1, keepdims=True)  # gradients of a softmax have no all-equal part
    got = build_curvature(layer).solve(torch.from_numpy(gradient)).numpy()
    design = np.hstack([x, np.ones((80, 1))])
    w = layer.kind.curvature(layer.outputs).numpy()
    hessian = sum(np.kron(np.outer(d, d), v) for d, v in zip(design, w, strict=True)) + 2.0 * np.eye(6 * m)
    np.testing.assert_allclose(got.ravel(), np.linalg.solve(hessian, gradient.ravel()), rtol=1e-9)


def test_precision_of_the_features_sets_their_rank():
    """Layer-normalised features satisfy a linear constraint up to their own rounding: that direction is not real."""
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.layer_norm(torch.randn(500, 16, generator=generator), (16,))
    z = x.double() @ torch.randn(16, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (500,), generator=generator)
    assert build_curvature(LastLayer(x, z, y)).rank == 16  # 16 columns and the constant, one constraint
    exact = torch.nn.functional.layer_norm(x.double(), (16,))
    noise = exact + 1e-3 * torch.randn(500, 16, dtype=torch.float64, generator=generator)
    assert build_curvature(LastLayer(noise, z, y)).rank == 17


def test_psd_inverse_of_regular_and_singular_matrices():
    rng = np.random.default_rng(0)
    for rank in (1300, 700):
        root = rng.normal(size=(1300, rank)) * 10.0 ** rng.uniform(-3, 3, (1300, 1))
        matrix = torch.from_numpy(root @ root.T + (0 if rank < 1300 else 1e-9) * np.eye(1300))
        inverse, null, root_of_it = psd_inverse(matrix.clone(), rooted=True)
        assert null == 1300 - rank
        assert torch.allclose(root_of_it @ root_of_it.T, inverse, rtol=1e-9, atol=1e-12 * float(inverse.abs().max()))
        again = matrix @ inverse @ matrix
        scale = matrix.diagonal().sqrt()
        error = ((again - matrix) / (scale * scale.unsqueeze(1))).abs().max()
        assert error < 1e-6
    inverse, null, _ = psd_inverse(torch.zeros(3, 3, dtype=torch.float64))
    assert null == 3
    assert not inverse.any()


@pytest.mark.parametrize("columns", [1, 5, 191, 192, 385, 800])
def test_a_triangle_of_a_gram_matrix_is_the_whole(columns):
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros((columns, columns), dtype=torch.float64)
    whole = torch.zeros_like(total)
    for _ in range(2):
        x = torch.randn((7, columns), generator=generator, dtype=torch.float64)
        weight = torch.rand((7, 1), generator=generator, dtype=torch.float64)
        add_gram(total, x, x * weight)
        whole += x.T @ (x * weight)
    assert torch.allclose(mirrored(total), whole, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("k", "r", "n", "pairs"),
    [(3, 2, 9, True), (385, 4, 5, True), (5, 4, 3, False), (5, 4, 40, False), (2, 30, 7, False)],
)
def test_sums_and_forms_are_those_of_kronecker_products(k: int, r: int, n: int, pairs: bool):
    """Each way to take them: a matrix per pair of outputs, packed triangles, and these the tall and the wide way."""
    assert use_pairs(k, r) == pairs
    rng = np.random.default_rng(k)
    x, w, root = rng.normal(size=(n, k)), rng.normal(size=(n, r, r)), rng.normal(size=(r * k, r * k))
    w, matrix = w + w.transpose(0, 2, 1), root + root.T
    upper = np.triu_indices(r)
    total = KroneckerSum(k, r, torch.empty(0, dtype=torch.float64))
    for rows in (slice(0, 2), slice(2, n)):
        total.add(torch.from_numpy(x[rows]), torch.from_numpy(w[rows][:, *upper]))
    expected = sum(np.kron(own, np.outer(row, row)) for row, own in zip(x, w, strict=True))
    np.testing.assert_allclose(total.matrix().numpy(), expected, rtol=1e-12, atol=1e-12)
    forms = QuadraticForms(torch.from_numpy(matrix), k, r)(torch.from_numpy(x)).numpy()
    blocks = np.einsum("ij,ajbl,il->iab", x, matrix.reshape(r, k, r, k), x, optimize=True)
    np.testing.assert_allclose(forms, blocks[:, *upper], rtol=1e-10, atol=1e-10 * np.abs(blocks).max())


@pytest.mark.parametrize("k", [1, 7, 200, 391, 800])
def test_a_form_of_one_triangle_is_that_of_the_whole_matrix(k: int):
    rng = np.random.default_rng(k)
    x, root = rng.normal(size=(9, k)), rng.normal(size=(k, k))
    matrix = root + root.T
    found = quadratic_form(torch.from_numpy(x), torch.from_numpy(matrix)).numpy()
    size = np.abs(x) @ np.abs(matrix) * np.abs(x)
    assert np.all(np.abs(found - np.einsum("ij,jk,ik->i", x, matrix, x)) < 1e-14 * size.sum(1))


@pytest.mark.parametrize(
    ("head", "m", "facts"),
    [
        ("softmax", 2, {}),
        ("logistic", 3, {}),
        ("squared", 2, {"ridge": 2.0, "known": True}),
        ("softmax", 2, {"ridge": 2.0, "known": True, "penalize_bias": False}),
    ],
)
def test_sums_of_records_as_they_are_and_in_whitened_coordinates(monkeypatch, head, m, facts):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(400, 6)) + 0.3) * 10.0 ** np.arange(-3, 3)
    theta = rng.normal(size=(7, m)) / np.append(10.0 ** np.arange(-3, 3), 1.0).reshape(-1, 1)
    z = np.column_stack([x, np.ones(400)]) @ theta
    y = {"softmax": rng.integers(0, m, 400), "logistic": rng.integers(0, 2, (400, m)), "squared": z + 0.1}[head]
    facts = dict(facts)
    coefficients = theta if facts.pop("known", False) else None
    layer = LastLayer(x, z, y, head, coefficients=coefficients, **facts)
    raw = dense_curvature(layer, 1.0)
    assert dense._Moments(layer, raw._whitening).raw
    plain, told = score_with_diagnostics(layer, full_step=True)
    monkeypatch.setattr(dense, "_FAR", 2.0)
    assert not dense._Moments(layer, raw._whitening).raw
    whitened, same = score_with_diagnostics(layer, full_step=True)
    pd.testing.assert_frame_equal(plain, whitened, rtol=1e-9)
    assert told.stationarity == pytest.approx(same.stationarity, rel=1e-9)
    assert told.linearity == pytest.approx(same.linearity, abs=1e-12)


def test_columns_that_are_nearly_dependent_are_summed_in_whitened_coordinates():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x = np.column_stack([x, x[:, 0] + 1e-4 * rng.normal(size=200)])
    layer = LastLayer(x, x @ rng.normal(size=(4, 2)), rng.integers(0, 2, 200))
    assert not dense._Moments(layer, dense_curvature(layer, 1.0)._whitening).raw


@pytest.mark.parametrize("method", ["dense", "blocks", "kronecker", "iterative"])
@pytest.mark.parametrize("ridge", [0.0, 1.0])
def test_a_column_whose_length_is_no_number_is_refused_and_not_dropped(method, ridge):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 3))
    z = x @ rng.normal(size=(3, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    plain = score(LastLayer(x, z, y), ["newton"], curvature="dense")
    x[:, 1] *= 1e306
    if method == "dense" and not ridge:
        pd.testing.assert_frame_equal(score(LastLayer(x, z, y), ["newton"], curvature=method), plain)
    x[:, 1] *= 30
    assert np.isfinite(x).all()
    with pytest.raises(InputError, match=r"^features: the length of column 1 \(counted from 0\) overflows"):
        score(LastLayer(x, z, y, ridge=ridge), ["newton"], curvature=method)
