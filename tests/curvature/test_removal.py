"""Records of many coupled outputs taken out by a few products, against refits of the Hessian and plain solves."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import noshadow.curvature.dense as dense
from noshadow import LastLayer, score
from noshadow.curvature.dense import dense_curvature
from noshadow.curvature.removal import remove_by_steps, remove_coupled


def blocks(leverages, r=30, seed=0):
    """A, W and pulls of records: W of random probabilities, A scaled to the largest eigenvalue of AW that is asked."""
    rng = np.random.default_rng(seed)
    a, w = [], []
    for largest in leverages:
        p = rng.dirichlet(np.full(r, 0.3))
        curvature = np.diag(p) - np.outer(p, p)
        root = rng.normal(size=(r, r))
        block = root @ root.T
        a.append(block * largest / np.abs(np.linalg.eigvals(block @ curvature)).max())
        w.append(curvature)
    return np.array(a), np.array(w), rng.normal(size=(len(a), r))


def taken_out(a, w, pulls, wanted=None):
    """Shifts, for which records they were found, and how many products with W that took."""
    tensors = [torch.from_numpy(one) for one in (a, w, pulls)]
    start = (tensors[0] @ tensors[2].unsqueeze(2)).squeeze(2)
    wanted = torch.ones(len(a), dtype=torch.bool) if wanted is None else torch.tensor(wanted)
    products = []

    def curved(v):
        products.append(v)
        return (tensors[1] @ v.unsqueeze(2)).squeeze(2)

    shift, found = remove_by_steps(tensors[0], curved, tensors[2], start, wanted)
    return shift.numpy(), found.tolist(), len(products)


def test_a_few_products_give_what_a_system_gives():
    a, w, pulls = blocks([1e-6, 0.01, 0.1, 0.5, 0.9, 0.985])
    shift, found, _ = taken_out(a, w, pulls)
    assert all(found)
    for one, block, curvature, pull in zip(shift, a, w, pulls, strict=True):
        truth = np.linalg.solve(np.eye(30) - block @ curvature, block @ pull)
        np.testing.assert_allclose(one, truth, rtol=1e-11, atol=1e-12 * np.abs(truth).max())


def test_records_without_pull_or_curvature_stay_where_they_are():
    a, w, pulls = blocks([0.3, 0.3, 0.3])
    pulls[0] = 0.0
    w[1] = 0.0
    shift, found, _ = taken_out(a, w, pulls)
    assert all(found)
    np.testing.assert_array_equal(shift[0], 0.0)
    np.testing.assert_allclose(shift[1], a[1] @ pulls[1], rtol=1e-14)


def test_a_record_that_does_not_count_neither_delays_nor_spoils_the_others():
    a, w, pulls = blocks([0.2, 1.0, 0.4, 0.5])
    a[1] *= 50.0
    alone, _, products = taken_out(a[[0, 2]], w[[0, 2]], pulls[[0, 2]])
    shift, found, with_others = taken_out(a, w, pulls, [True, False, True, False])
    assert found == [True, False, True, False]
    assert with_others == products
    np.testing.assert_allclose(shift[[0, 2]], alone, rtol=1e-12)


def test_what_is_not_found_in_time_is_said(monkeypatch):
    monkeypatch.setattr("noshadow.curvature.removal._MOST_STEPS", 3)
    a, w, pulls = blocks([1e-9, 0.9])
    assert taken_out(a, w, pulls)[1] == [True, False]


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_many_classes_are_those_of_hessians_without_the_record(monkeypatch, weighted):
    """The explicit Hessian of all records but one; most of them go the short way, outliers the other."""
    rng = np.random.default_rng(3)
    n, p, m, ridge = 500, 3, 26, 0.7
    x = rng.normal(size=(n, p))
    x[:4] *= 12.0  # of high leverage
    theta = 0.5 * rng.normal(size=(p + 1, m))
    design = np.hstack([x, np.ones((n, 1))])
    z = design @ theta
    y, weight = rng.integers(0, m, n), rng.uniform(0.3, 2.0, n) if weighted else np.ones(n)
    probability = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    w = np.einsum("ij,jk->ijk", probability, np.eye(m)) - np.einsum("ij,ik->ijk", probability, probability)
    hessian = sum(k * np.kron(np.outer(d, d), v) for k, d, v in zip(weight, design, w, strict=True))
    hessian = hessian + ridge * np.eye(len(hessian))
    layer = LastLayer(x, z, y, ridge=ridge, sample_weight=weight if weighted else None)
    ways = []
    real = dense.remove_coupled
    monkeypatch.setattr(dense, "remove_coupled", lambda a, w, start: ways.append(len(a)) or real(a, w, start))
    found = score(layer, ["newton", "leverage"], curvature="dense")
    assert 1 <= sum(ways) < 100
    inverse = np.linalg.inv(hessian)
    for row in [0, 1, 2, 3, *range(4, n, 25)]:
        wide = np.kron(design[row][:, None], np.eye(m))
        without = np.linalg.inv(hessian - weight[row] * np.kron(np.outer(design[row], design[row]), w[row]))
        gradient = probability[row] - np.eye(m)[y[row]]
        newton = weight[row] * gradient @ (wide.T @ without @ wide) @ gradient
        assert found["newton"][row] == pytest.approx(newton, rel=1e-9)
        leverage = np.trace(weight[row] * w[row] @ (wide.T @ inverse @ wide))
        assert found["leverage"][row] == pytest.approx(leverage, rel=1e-9)


def test_the_short_way_gives_the_numbers_of_the_long_one(monkeypatch):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(800, 4))
    z = x @ rng.normal(size=(4, 40)) * 3.0
    layer = LastLayer(x, z, rng.integers(0, 40, 800))
    names = ["newton", "leave_one_out", "signal_shift", "leverage"]
    short = score(layer, names, curvature="dense")
    monkeypatch.setattr(dense, "_MANY_OUTPUTS", 10**6)
    long = score(layer, names, curvature="dense")
    for name in names:
        np.testing.assert_allclose(short[name], long[name], rtol=1e-11, atol=1e-14)


def test_a_record_that_decides_its_own_fit_is_flagged_among_others():
    """Record 0 alone has its feature: without it and without a ridge, nothing is left along it."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(700, 3))
    x[:, 2] = 0.0
    x[0, 2] = 1.0
    layer = LastLayer(x, 0.3 * x @ rng.normal(size=(3, 30)), rng.integers(0, 30, 700))
    for chunk in dense_curvature(layer, 1.0).chunks():
        short, pull = chunk.removal(chunk.records.pull), chunk.records.pull
        long = remove_coupled(chunk.block, chunk.curvature, chunk.first_order_shift(pull))
        assert short.undefined.nonzero().flatten().tolist() == [0]
        assert int((chunk.leverage < 0.99).sum()) > 600
        torch.testing.assert_close(short.shift[1:], long.shift[1:], rtol=1e-9, atol=1e-12)
        apart = torch.linalg.vector_norm(short.shift[0] - long.shift[0])  # 10⁸ times a rounding
        assert float(apart) < 1e-7 * float(torch.linalg.vector_norm(long.shift[0]))


@pytest.mark.parametrize(("classes", "weighted"), [(6, False), (30, False), (30, True)])
def test_leverage_from_triangles_and_from_whole_blocks(classes: int, weighted: bool):
    """From the packed W' of a few outputs, from the deficits of many, and from the matrices themselves; outputs that
    are sure of their class keep their digits."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 3))
    x[::7] *= 12.0
    weights = rng.uniform(0.3, 3.0, 60) if weighted else None
    outputs = x @ rng.normal(size=(3, classes))
    layer = LastLayer(x, outputs, rng.integers(0, classes, 60), ridge=1.0, sample_weight=weights)
    curvature = dense_curvature(layer, 1.0)
    for chunk in curvature.chunks():
        whole = dense.DenseLeverages(chunk.records, chunk.block, chunk.leftover)
        assert chunk.packed is not None
        assert float(whole.leverage.min()) < 1e-6 < 1e-2 < float(whole.leverage.max())
        torch.testing.assert_close(chunk.leverage, whole.leverage, rtol=1e-12, atol=0.0)
