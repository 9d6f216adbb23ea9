"""The converged answers that large heads are measured against: what is excluded cannot be of the top."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import noshadow

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale
    import scale_exact
    import scale_heads

    yield scale, scale_exact, scale_heads
    for name in ("scale", "scale_exact", "scale_heads", "scale_peers"):
        sys.modules.pop(name, None)


def test_bounds_hold_and_the_top_is_that_of_the_exact_hessian(parts, tmp_path):
    scale, scale_exact, scale_heads = parts
    head = scale_heads.structured(300, 8, 5, 0.7, 1.5)
    truth = noshadow.score(head.layer, ["newton"], curvature="dense")["newton"].to_numpy()
    basis = torch.eye(9), torch.eye(5), torch.full((9, 5), 20.0)
    exact = scale_exact.ExactAnswers(head, basis, tmp_path / "exact.jsonl")
    some = np.random.default_rng(0).choice(300, 60, replace=False)
    values = np.full(300, np.nan)
    values[some] = exact("newton", some, 16)
    np.testing.assert_allclose(values[some], truth[some], rtol=1e-3)
    found = scale.established_top(exact, values, 16)["top"]
    assert found["established"]
    assert found["excluded_by_bound"] > 100
    bounds = {row: one["score"] for row, one in exact.known["newton bound"].items()}
    assert all(bound >= truth[row] for row, bound in bounds.items())
    unsolved = [row for row, one in exact.known["newton bound"].items() if one["steps"] == 0]
    assert found["of_them_without_a_step"] == len(unsolved) > 10
    features = np.hstack([head.features.double().numpy(), np.ones((300, 1))])
    gradients = torch.softmax(head.outputs.double(), 1).numpy() - np.eye(5)[head.targets]
    for row in unsolved:  # ‖x̃gᵀ‖²/Λ, and a thousandth for rounding
        size = np.linalg.norm(np.outer(features[row], gradients[row])) ** 2 / 1.5
        assert bounds[row] == pytest.approx(1.001 * size, rel=1e-5)
    assert set(np.argsort(-np.nan_to_num(values))[:3]) == set(np.argsort(-truth)[:3])
    again = scale_exact.ExactAnswers(head, basis, tmp_path / "exact.jsonl")  # what was found is kept
    assert again.known == exact.known
