"""On the Gaussian linear model LiRA's success rate converges to the theoretical optimum."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

PATH = Path(__file__).parents[2] / "benchmarks" / "attacks.py"
SPEC = importlib.util.spec_from_file_location("benchmark_of_attacks", PATH)
benchmark = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(benchmark)


def test_optimum_of_two_centred_gaussians_is_the_closed_form():
    """With n − p → ∞ and ε = 0 the laws are N(0, s²) and N(0, c²s²), which part at ±t."""
    n, p, leverage = 1_000_000, 10, 400_000.0
    s = np.sqrt(leverage / (n - p))
    c = s * (n - p) / (n - p + leverage)
    t = np.sqrt(2 * np.log(s / c) / (c**-2 - s**-2))
    expected = 0.5 + (stats.norm.cdf(t / c) - stats.norm.cdf(t / s))
    assert benchmark.optimum(leverage, 0.0, n, p) == pytest.approx((expected, expected), abs=2e-5)


def test_simulated_fits_have_the_stated_law():
    """Mean residuals in and out, against quadrature over V, within 5 standard errors."""
    leverage, error = np.array([5.0, 40.0]), np.array([2.0, 3.0])
    residual, membership = benchmark.simulate(leverage, error, 4096, 64, 60, 10, seed=0)
    v = stats.chi2(50).ppf((np.arange(20_000) + 0.5) / 20_000)
    for i in range(2):
        inside, outside = residual[membership[:, i], i], residual[~membership[:, i], i]
        for values, mean in ((outside, error[i]), (inside, error[i] * (v / (v + leverage[i])).mean())):
            assert abs(values.mean() - mean) < 5 * values.std() / np.sqrt(len(values))
        assert outside.var() == pytest.approx((leverage[i] / v).mean(), rel=0.12)


def test_lira_converges_to_the_optimum(capsys):
    with capsys.disabled():
        print()
        table = benchmark.convergence(total=2048, sizes=(8, 32, 128, 512))
    gaps, error = [row["gap"] for row in table], table[0]["standard_error"]
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3] - error
    assert gaps[3] < 0.006 + 3 * error
    assert all(row["per_sample"] < row["optimum"] + 3 * error for row in table)
    # what "auto" does with few models and with many is the better of the two choices
    assert table[0]["fixed"] > table[0]["per_sample"]
    assert table[2]["per_sample"] > table[2]["fixed"]
