"""Curvatures of large heads: each against its definition with dense Kronecker products, and against the exact one."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse

from noshadow import InputError, LastLayer, NoshadowWarning, Trace, score
from noshadow.curvature import Size, build_curvature, choose, exact_solver, kronecker
from noshadow.curvature.dense import dense_curvature
from noshadow.curvature.iterative import IterativeCurvature, Solver
from noshadow.curvature.kronecker import without_own
from noshadow.curvature.outputs import CoupledCurvature
from noshadow.curvature.sided import n_sided
from noshadow.diagnostics import concerns
from noshadow.scores import SCORES, Known
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


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
@pytest.mark.parametrize("apart", [300.0, 400.0, 700.0])
def test_outputs_hundreds_apart_have_scores_next_to_nothing(method, apart):
    """A pull of e⁻⁴⁰⁰ is a number and its square is none; those of other records are what they are without it."""
    layer, rows = make("softmax"), np.array([7, 30])

    def moved(by):
        z = layer.outputs.numpy().copy()
        z[rows, layer.targets.numpy()[rows]] += by
        return LastLayer(layer.features, z, layer.targets, ridge=0.7)

    far = moved(apart)
    found, near = (pd.DataFrame(score_by(build_curvature(one, method)), columns=CURVED) for one in (far, moved(100.0)))
    assert (found.iloc[rows].to_numpy() < 1e-100).all()
    pd.testing.assert_frame_equal(found.drop(index=rows), near.drop(index=rows), rtol=1e-9, atol=0.0)
    chunks = list(build_curvature(far, method).chunks())
    first, pull = (
        torch.cat(parts)
        for parts in zip(*((one.first_order_shift(one.records.pull), one.records.pull) for one in chunks), strict=True)
    )
    assert (
        first[rows].abs().amax(1) > 1e-3 * pull[rows].abs().amax(1)
    ).all()  # A is what it is, however small the pull


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
    light = without_own(torch.tensor(1e-3 * squares), 1 / torch.tensor(values), torch.tensor(weights))
    wanted = (1e-3 * squares[:, :, None] / (values - 1e-3 * squares[:, :, None] * weights[:, None, :])).sum(1)
    np.testing.assert_allclose(light, wanted, rtol=2e-6)  # the series ends early


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


def on_table(layer, x, z):
    """The same layer on another table x, with outputs z."""
    return LastLayer(
        x,
        z,
        layer.targets,
        layer.head,
        layer.ridge,
        penalize_bias=layer.penalize_bias,
        sample_weight=layer.sample_weight,
        class_weight=layer.class_weight,
        label_smoothing=layer.label_smoothing,
    )


def sparse_layer(kind, n=70, p=12, ridge=1.0, penalize_bias=True, seed=0):
    """A layer with many zeros among its features, as a dense and as a sparse table."""
    layer = make(kind, n=n, p=p, ridge=ridge, penalize_bias=penalize_bias, seed=seed)
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((n, p)) < 0.3, layer.features.numpy(), 0.0)
    design = np.hstack([x, np.ones((n, 1))])
    z = design @ np.linalg.lstsq(design, layer.outputs.numpy(), rcond=None)[0]
    return on_table(layer, x, z), on_table(layer, sparse.csr_matrix(x), z)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("method", ["dense", "blocks", "kronecker", "iterative"])
def test_sparse_features_get_the_scores_of_dense_ones(kind, method):
    dense, thin = sparse_layer(kind)
    assert thin.sparse
    columns = [*CURVED, "gradient_norm", "loss"]
    np.testing.assert_allclose(
        score(thin, columns, curvature=method), score(dense, columns, curvature=method), rtol=1e-9
    )


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.5, True), (0.5, False)])
@pytest.mark.parametrize("thin", [False, True])
def test_fewer_records_than_columns_take_the_n_sided_form(kind, ridge, penalize_bias, thin):
    layer = sparse_layer(kind, n=14, p=40, ridge=ridge, penalize_bias=penalize_bias)[thin]
    narrow = n_sided(layer)
    assert narrow.n_columns <= layer.n + 1 < layer.n_columns
    # the definition on all columns, without the choice of a side
    wanted = score_by(dense_curvature(layer, 4.0))
    np.testing.assert_allclose(score(layer, CURVED), wanted, rtol=1e-7, atol=1e-12)


def score_by(curvature):
    """The curved scores from a curvature, without the choice of one."""
    known = [Known(chunk.records, chunk) for chunk in curvature.chunks()]
    return np.stack([np.concatenate([SCORES[name].compute(one) for one in known]) for name in CURVED], axis=1)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("head", ["squared", "logistic"])
def test_wide_records_that_depend_on_each_other_are_not_taken_for_alone(head, dtype):
    """Features of rank 3 in 60 columns, and a record given twice: the leverages are those of the projection."""
    generator = np.random.default_rng(0)
    low = generator.normal(size=(40, 3)) @ generator.normal(size=(3, 60))
    twice = generator.normal(size=(40, 60))
    twice[7] = twice[31]
    for x in (low.astype(dtype), twice.astype(dtype)):
        z = generator.normal(size=40)
        y = z + generator.normal(size=40) if head == "squared" else generator.integers(0, 2, 40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoshadowWarning)
            found = score(LastLayer(x, z, y, head), ["leverage"])["leverage"].to_numpy()
            thin = score(LastLayer(sparse.csr_array(x), z, y, head), ["leverage"])["leverage"].to_numpy()
        chance = 1.0 / (1.0 + np.exp(-z))
        weight = np.ones(40) if head == "squared" else np.sqrt(chance * (1.0 - chance))
        left, sizes, _ = np.linalg.svd(weight[:, None] * np.column_stack([x, np.ones(40)]).astype(np.float64))
        seen = left[:, : len(sizes)][:, sizes > 1e-5 * sizes[0]]
        np.testing.assert_allclose(found, np.square(seen).sum(1), atol=2e-5)
        np.testing.assert_allclose(thin, np.square(seen).sum(1), atol=2e-5)


@pytest.mark.parametrize("place", [0, 12, 29])
def test_a_huge_sparse_record_does_not_swallow_the_others_in_the_n_sided_form(place):
    """Beside a record of 10⁸ times their length the others have what they have off its direction."""
    rng = np.random.default_rng(0)
    x, z, y = rng.normal(size=(30, 80)), rng.normal(size=30), rng.integers(0, 2, 30)
    x *= rng.random(x.shape) < 0.3
    huge = rng.normal(size=80)
    x[place] = 1e8 * huge
    theta = np.append(rng.normal(size=80), 0.3)
    found = score(LastLayer(sparse.csr_matrix(x), z, y, "logistic", 0.1, coefficients=theta), CURVED)
    np.testing.assert_allclose(found, score(LastLayer(x, z, y, "logistic", 0.1, coefficients=theta), CURVED), rtol=1e-9)
    others = np.arange(30) != place
    along = huge / np.linalg.norm(huge)
    off = x[others] - np.outer(x[others] @ along, along)
    expected = score(LastLayer(off, z[others], y[others], "logistic", 0.1), CURVED)
    np.testing.assert_allclose(found[others], expected, rtol=1e-6)


def test_the_n_sided_form_keeps_huge_columns_and_given_parameters_apart():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(10, 30))
    x[:, 4] *= 1e9
    theta = rng.normal(size=(31, 3))
    theta[4] *= 1e-9
    z = np.hstack([x, np.ones((10, 1))]) @ theta
    layer = LastLayer(x, z, rng.integers(0, 3, 10), ridge=0.3, coefficients=theta)
    narrow = n_sided(layer)
    assert narrow.n_columns == 12
    design = narrow.records(slice(0, 10)).design
    torch.testing.assert_close(design @ narrow.coefficients, layer.outputs, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(score_by(dense_curvature(narrow, 4.0)), score_by(dense_curvature(layer, 4.0)), rtol=1e-6)


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.5, True), (0.5, False)])
@pytest.mark.parametrize("thin", [False, True])
def test_a_part_of_the_directions_is_close_and_its_systems_are_exact(kind, ridge, penalize_bias, thin, monkeypatch):
    layer = sparse_layer(kind, n=60, p=24, ridge=ridge, penalize_bias=penalize_bias)[thin]
    wanted = score(layer, CURVED, curvature="dense")
    monkeypatch.setattr(kronecker, "kronecker_memory", lambda size: 1e9)  # no basis of all columns fits
    part = kronecker.kronecker_curvature(layer, 4.0)
    assert part.basis.rest is not None
    assert part.basis.vectors.shape[1] == 12
    assert not part.exact
    found = pd.DataFrame(score_by(part), columns=CURVED)
    assert found["newton"].corr(wanted["newton"], method="spearman") > 0.8
    solver = Solver.of(part, 4.0)
    np.testing.assert_allclose(score_by(IterativeCurvature(layer, solver)), wanted, rtol=1e-6, atol=1e-12)
    assert solver.effort.unconverged == 0
    assert solver.effort.residual <= 1e-7
    exact = dense_curvature(layer, 4.0)
    assert part.stationarity.decrement == pytest.approx(exact.stationarity.decrement, rel=1e-2)
    leftover = torch.cat([chunk.leftover for chunk in part.chunks()])
    torch.testing.assert_close(leftover, torch.cat([chunk.leftover for chunk in exact.chunks()]), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("thin", [False, True])
def test_a_part_of_the_directions_knows_a_converged_head_of_fewer_records_than_columns(
    penalize_bias, thin, monkeypatch
):
    """Any bias gives its outputs then; the one of the least penalty is that of the fit, in closed form here."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(30, 50)) * (rng.uniform(size=(30, 50)) < 0.3) + 0.5, rng.normal(size=30) + 4.0
    design = np.hstack([x, np.ones((30, 1))])
    penalty = np.diag([2.0] * 50 + [2.0 * penalize_bias])
    z = design @ np.linalg.solve(2.0 * design.T @ design + penalty, 2.0 * design.T @ y)
    layer = LastLayer(sparse.csr_matrix(x) if thin else x, z, y, "squared", 2.0, penalize_bias=penalize_bias)
    monkeypatch.setattr(kronecker, "kronecker_memory", lambda size: 1e9)
    part = kronecker.kronecker_curvature(layer, 4.0)
    assert part.basis.rest is not None
    scale = np.linalg.norm(y)
    assert part.stationarity.decrement < 1e-6 * scale
    assert part.stationarity.best_ridge == pytest.approx(2.0, rel=1e-6)
    leftover = torch.cat([chunk.leftover for chunk in part.chunks()])
    assert float(leftover.abs().max()) < 1e-6 * scale


def test_a_ridge_that_outweighs_the_data_is_all_that_a_part_of_the_directions_sees(monkeypatch):
    """Along every direction, those that are left out too: A is then ‖x̃‖²/Λ, whatever the records are."""
    layer = sparse_layer("softmax", n=60, p=24, ridge=1e8)[True]
    monkeypatch.setattr(kronecker, "kronecker_memory", lambda size: 1e9)
    part = kronecker.kronecker_curvature(layer, 4.0)
    assert part.basis.rest is not None
    records = layer.records(slice(0, 60))
    expected = records.lengths.square() * (records.gradient * records.pull).sum(1) / 1e8
    found = pd.DataFrame(score_by(part), columns=CURVED)["newton"].to_numpy()
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4)


@pytest.mark.parametrize("n", [20, 60])
def test_what_is_left_of_a_record_has_the_mean_curvature_of_the_others(n, monkeypatch):
    """By its definition: the penalty and, of the others, what is left of them over the n − k directions left."""
    layer = sparse_layer("weighted", n=n, p=24, ridge=0.5)[True]
    monkeypatch.setattr(kronecker, "kronecker_memory", lambda size: 1e9)
    basis = kronecker.kronecker_curvature(layer, 4.0).basis
    assert basis.rest is not None
    records = layer.records(slice(0, n))
    x, weights = records.times(basis.vectors), basis.weights(records)
    seen = without_own(x.square(), 1.0 / basis.values, weights)
    found = (basis.others(records, x, weights) - seen).numpy()
    design, v, w = records.design.numpy() / np.sqrt(0.5), basis.rest.vectors.numpy(), weights.numpy()
    left = (design**2).sum(1) - ((design @ v) ** 2).sum(1)
    directions = min(n, 25) - v.shape[1]
    assert directions > 0
    for i in range(n):
        others = np.arange(n) != i
        curvature = 1.0 + left[others] @ w[others] / directions
        np.testing.assert_allclose(found[i], left[i] / curvature, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_a_part_of_the_directions_of_columns_without_a_length_is_refused(ridge, monkeypatch):
    monkeypatch.setattr(kronecker, "kronecker_memory", lambda size: 1e9)
    layer = make("softmax", n=60, p=24, ridge=ridge)
    x = layer.features.numpy().copy()
    x[:, 3] *= 1e200
    with pytest.raises(InputError, match="features: the length of column 3"):
        kronecker.kronecker_curvature(on_table(layer, x, layer.outputs), 4.0)


def test_the_n_sided_form_is_taken_where_it_fits():
    layer = sparse_layer("softmax", n=40, p=90, ridge=0.5)[True]
    assert build_curvature(layer, "kronecker", 4.0).layer.n_features == 40
    narrow = build_curvature(layer, "auto", 1e-6)  # no room for 40 × 40
    assert narrow.layer is layer
    wanted = score(layer, ["newton"], curvature="dense", memory=4.0)["newton"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        found = score(layer, ["newton"], memory=1e-6, refine=1.0)["newton"]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_what_the_chosen_curvature_is_and_why():
    size = Size(50_000, 2049, 1000, "softmax")
    assert choose("auto", Size(1797, 129, 10, "softmax"), 4.0) == ("dense", "the exact Hessian fits into memory")
    assert choose("auto", Size(50_000, 513, 100, "softmax"), 4.0).name == "blocks"
    assert choose("auto", size, 8.0).name == "kronecker"
    assert "dense needs" in choose("auto", size, 8.0).why
    assert "blocks takes" in choose("auto", size, 8.0).why
    small = choose("auto", Size(200, 50, 1, "logistic"), 1e-4)
    assert "needs 0.0 GiB" not in small.why
    assert "kronecker needs 0.00" in small.why
    part = choose("auto", Size(20_000, 50_001, 1, "logistic"), 8.0)
    assert part.name == "kronecker"
    assert part.why.endswith("so that it keeps the largest directions of the columns")
    assert choose("auto", Size(200, 50_001, 5, "softmax"), 8.0).name == "dense"  # n-sided
    assert choose("auto", Size(10_000, 2049, 500, "logistic"), 8.0).name in ("blocks", "kronecker")
    with pytest.raises(InputError, match=r"memory: the exact Hessian of this head has 2,046,951 × 2,046,951"):
        choose("dense", size, 8.0)
    with pytest.raises(InputError, match="curvature: 'full' is not one of"):
        choose("full", size)
    with pytest.raises(InputError, match="memory: expected a positive"):
        choose("auto", size, 0.0)


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
def test_an_approximation_states_its_error_and_refine_finds_the_exact_top(method):
    layer = make("softmax", n=400, p=6, ridge=0.1, ugly="outlier", seed=4)
    exact = score(layer, CURVED, curvature="dense")
    plain, found = score_with_diagnostics(layer, CURVED, curvature=method)
    off = found.accuracy
    assert (found.curvature, found.exact, found.chosen) == (method, False, "as asked")
    assert (off.score, off.sampled, off.refined, off.stable) == ("leave_one_out", 100, 0, None)
    error = ((plain - exact).abs() / exact)["leave_one_out"]
    assert off.median_error == pytest.approx(error.median(), rel=0.5)
    assert off.error_95 == pytest.approx(error.quantile(0.95), rel=0.6)
    assert off.spearman == pytest.approx(
        plain["leave_one_out"].corr(exact["leave_one_out"], method="spearman"), abs=0.02
    )
    refined, found = score_with_diagnostics(layer, CURVED, curvature=method, refine=0.05)
    assert found.accuracy.stable
    top = exact["leave_one_out"].nlargest(20).index
    assert set(refined["leave_one_out"].nlargest(20).index) == set(top)
    for name in ("influence", "newton", "leave_one_out"):
        np.testing.assert_allclose(refined.loc[top, name], exact.loc[top, name], rtol=1e-5)
    kept = len(set(plain["leave_one_out"].nlargest(20).index) & set(top)) / 20
    assert found.accuracy.top_kept == kept
    assert found.accuracy.refined >= 20
    notes = concerns(layer, found)
    assert any(method in note and "records were scored exactly" in note for note in notes)


def test_an_approximation_without_a_kronecker_one_beside_it_is_checked_all_the_same():
    layer = make("softmax", n=200)
    blocks = build_curvature(layer, "blocks")
    rows = torch.tensor([3, 70, 150])

    class Alone:
        exact, beside = False, None

        def __init__(self):
            self.layer = layer

    found = []
    for curvature in (blocks, Alone()):
        solver = exact_solver(curvature, 4.0)
        records = solver.gather(rows)
        found.append(solver.leverages(records).removal(records.pull).shift)
    torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-9)
    assert exact_solver(build_curvature(layer, "dense"), 4.0) is None


def test_refine_must_be_a_share_and_exact_curvatures_say_nothing():
    layer = make("softmax")
    with pytest.raises(InputError, match="refine: expected a share"):
        score(layer, curvature="kronecker", refine=3)
    assert score_with_diagnostics(layer, refine=0.1)[1].accuracy is None
    exact, found = score(layer, ["leverage"]), score_with_diagnostics(layer, ["leverage"], curvature="kronecker")
    off = found[1].accuracy
    assert (off.score, off.sampled) == ("leverage", 60)
    wanted = np.median((found[0]["leverage"] - exact["leverage"]).abs() / exact["leverage"])
    assert off.median_error == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("ridge", [0.0, 1.0])
@pytest.mark.parametrize("method", ["blocks", "kronecker", "iterative"])
def test_features_that_are_all_zero_decide_nothing(method, ridge):
    rng = np.random.default_rng(0)
    targets = {"softmax": rng.integers(0, 3, 20), "logistic": rng.integers(0, 2, (20, 3))}
    for head, y in targets.items():
        layer = LastLayer(np.zeros((20, 4)), rng.normal(size=(20, 3)), y, head=head, ridge=ridge, bias=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = score(layer, CURVED, curvature=method, progress=False)
        assert not found.to_numpy().any()


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
def test_refined_scores_of_tilted_targets_are_as_exact_as_others(method):
    """With class weights and smoothing the pull of a record is no multiple of its gradient."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    outputs, y = x @ rng.normal(size=(4, 5)), rng.integers(0, 5, 120)
    layer = LastLayer(x, outputs, y, ridge=1.0, class_weight=[1.0, 2.0, 0.1, 1.0, 5.0], label_smoothing=0.2)
    names = ["influence", "newton"]
    exact = score(layer, names, curvature="dense", progress=False)
    found = score(layer, names, curvature=method, refine=1.0, progress=False)
    for name in names:
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-6, atol=1e-6 * exact[name].abs().median())


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
def test_with_a_run_the_exposure_is_what_is_checked_and_refined(method):
    """It is ranked by; the final outputs' scores stay as the approximation has them."""
    layer = make("softmax", n=400, p=6, ridge=0.1, ugly="outlier", seed=4)
    rng = np.random.default_rng(1)
    trace = Trace.from_outputs(layer.outputs.numpy() * rng.uniform(0.0, 1.5, size=(5, 400, 1)))
    names = ["newton", "signal_shift", "exposure"]
    exact, plain, refined = (
        score_with_diagnostics(layer, names, trace, **how, progress=False)
        for how in ({"curvature": "dense"}, {"curvature": method}, {"curvature": method, "refine": 0.05})
    )
    assert not np.allclose(exact[0]["exposure"], exact[0]["newton"], rtol=0.1)
    error = ((plain[0] - exact[0]).abs() / exact[0])["exposure"]
    off = plain[1].accuracy
    assert (off.score, off.sampled) == ("exposure", 100)
    assert off.median_error == pytest.approx(error.median(), rel=0.5)
    assert off.error_95 == pytest.approx(error.quantile(0.95), rel=0.6)
    top = exact[0]["exposure"].nlargest(20).index
    assert refined[1].accuracy.stable
    assert set(refined[0]["exposure"].nlargest(20).index) == set(top)
    for name in ("exposure", "signal_shift"):
        np.testing.assert_allclose(refined[0].loc[top, name], exact[0].loc[top, name], rtol=1e-5)
    np.testing.assert_array_equal(refined[0]["newton"], plain[0]["newton"])
    alone = score_with_diagnostics(layer, ["exposure"], trace, curvature=method, progress=False)
    assert alone[1].accuracy.median_error == pytest.approx(off.median_error)
