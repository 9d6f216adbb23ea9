"""The Hessians of single classes: inverses against NumPy's, and systems that start from them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noshadow import LastLayer
from noshadow.curvature import build_curvature
from noshadow.curvature.class_blocks import affordable_blocks, class_weights
from noshadow.curvature.dense import dense_curvature
from noshadow.curvature.iterative import Solver, exact_solver
from noshadow.scores import Known, newton
from tests.curvature.test_large import make


def confident(n=240, p=9, m=5, seed=3):
    """A head that fits nearly all of its records, and confuses its classes to very different degrees; no ridge."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) * np.geomspace(1, 0.02, p)
    z = x @ rng.normal(size=(p, m)) * 8 + np.array([6.0, 3, 0, 0, -4])
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    return LastLayer(x, z, y)


@pytest.mark.parametrize("kind", ["softmax", "labels", "weighted"])
@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_the_preconditioner_is_the_inverse_of_each_class_without_the_record(kind, ridge):
    layer = make(kind, ridge=ridge)
    beside = build_curvature(layer, "kronecker").beside
    blocks = affordable_blocks(beside, 1.0)
    records = layer.records(slice(0, layer.n))
    x, w = records.times(beside.basis.vectors).numpy(), class_weights(records, beside.basis.kind).numpy()
    frame = np.eye(w.shape[1]) if beside.basis.frame is None else beside.basis.frame.numpy()
    some = [4, 17, 50]
    residual = np.random.default_rng(0).normal(size=(len(some), x.shape[1], frame.shape[1]))
    plain = blocks.precondition()
    without = blocks.precondition(torch.tensor(x[some]), torch.tensor(w[some]))
    for which in ([0, 1, 2], [2, 0]):  # systems that are done leave the block
        for apply, left_out in ((plain, False), (without, True)):
            got = apply(torch.tensor(residual[which]), torch.tensor(which)).numpy()
            for place, record in enumerate(which):
                full = residual[record] @ frame.T
                solved = np.empty_like(full)
                for k in range(w.shape[1]):
                    hessian = (x * w[:, [k]]).T @ x + beside.basis.penalty.numpy()
                    if left_out:
                        hessian -= w[some[record], k] * np.outer(x[some[record]], x[some[record]])
                    solved[:, k] = np.linalg.solve(hessian, full[:, k])
                np.testing.assert_allclose(got[place], solved @ frame, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["blocks", "kronecker"])
def test_exact_answers_of_a_head_that_fits_its_records_without_a_ridge(method):
    """From the Kronecker basis alone such systems run out of steps, and what they then say is too low."""
    layer = confident()
    wanted = torch.cat([newton(Known(chunk.records, chunk)) for chunk in dense_curvature(layer, 1.0).chunks()])
    solver = exact_solver(build_curvature(layer, method), 4.0)
    rows = torch.arange(layer.n)
    records = solver.gather(rows)
    got = newton(Known(records, solver.leverages(records)))
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-9)
    assert solver.effort.unconverged == 0
    without = Solver(solver.beside, None, solver.operator, solver.batch, solver.tolerance, solver.most_steps)
    without.leverages(records).first_order_shift(records.pull)
    assert without.effort.steps > 2 * layer.n * solver.effort.steps / solver.effort.systems


def test_blocks_are_kept_where_they_fit_and_built_where_they_may(monkeypatch):
    layer = make("softmax")
    blocks = build_curvature(layer, "blocks")
    assert exact_solver(blocks, 4.0).blocks is blocks.kept
    beside = blocks.beside
    assert affordable_blocks(beside, 4.0) is not None
    assert affordable_blocks(beside, 1e-9) is None
    monkeypatch.setattr("noshadow.curvature.class_blocks._PATIENCE", 10.0)
    assert affordable_blocks(beside, 4.0) is None
    assert exact_solver(build_curvature(layer, "kronecker"), 4.0).blocks is None
