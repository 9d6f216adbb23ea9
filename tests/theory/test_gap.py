"""The expected gap: real refits, mpmath's confluent hypergeometric function, the expansion's order."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from noshadow import theory
from noshadow.errors import InputError
from tests.theory.refits import P, refit, refit_many


def _misprinted_gap(h, error, sigma, k):
    """The proof's formula, with √h̄ where h̄ belongs."""

    def integrand(v):
        share = h * (2 * v + h) / (v + h) ** 2
        return (error**2 + sigma**2 * np.sqrt(h) / v) * share * stats.chi2.pdf(v, k)

    return integrate.quad(integrand, 0, np.inf, limit=500)[0]


def test_gap_of_real_refits_and_not_the_misprint():
    k, h, error, sigma = 20, 8.0, 0.5, 1.0
    truth = refit(k, h, error, sigma, count=40000, seed=11)
    gap = truth.loss_out - truth.loss_in
    mean, spread = gap.mean(), gap.std() / np.sqrt(len(gap))
    assert abs(theory.expected_gap(h, error, k + P, P, sigma) - mean) < 3 * spread
    assert abs(_misprinted_gap(h, error, sigma, k) - mean) > 20 * spread


def test_gap_of_real_refits_with_three_responses():
    noise = np.array([[1.0, 0.3, 0.0], [0.3, 0.5, -0.1], [0.0, -0.1, 2.0]])
    error = np.array([0.4, -1.0, 0.2])
    truth = refit_many(12, 5.0, error, noise, count=40000, seed=12)
    gap = truth.loss_out - truth.loss_in
    mean, spread = gap.mean(), gap.std() / np.sqrt(len(gap))
    assert abs(theory.expected_gap(5.0, error, 12 + P, P, covariance=noise) - mean) < 3 * spread
    # the multivariate slip (h̄ for √h̄ in e = ε + √(h̄/V) Z) would multiply the noise's part by h̄
    without_noise = theory.expected_gap(5.0, error, 12 + P, P, covariance=np.zeros((3, 3)))
    assert abs(without_noise - mean) > 20 * spread


def _inverse_moment(h, k, j):
    """E[(V + h)⁻ʲ] = h^{k/2−j} U(k/2, k/2+1−j, h/2) / 2^{k/2}."""
    half = mpmath.mpf(k) / 2
    return h ** (half - j) * mpmath.hyperu(half, half + 1 - j, h / 2) / mpmath.mpf(2) ** half


def _gap(h, square, variance, k):
    """The gap from partial fractions of 1/V and 1/(V + h̄)."""
    h = mpmath.mpf(h)
    one, two = _inverse_moment(h, k, 1), _inverse_moment(h, k, 2)
    plain = 1 / mpmath.mpf(k - 2)
    mixed = (plain - one) / h  # E[1/(V(V+h))]
    mixed_two = (mixed - two) / h  # E[1/(V(V+h)²)]
    return square * (2 * h * one - h**2 * two) + variance * h * (2 * h * mixed - h**2 * mixed_two)


@pytest.mark.parametrize("k", [3, 4, 5, 20, 201, 5000])
@pytest.mark.parametrize("h", [1e-9, 0.1, 3.0, 1e3, 1e9])
def test_gap_to_ten_digits_everywhere(k, h):
    for error in (0.0, 1.0, 30.0):
        with mpmath.workdps(80):
            truth = float(_gap(h, mpmath.mpf(error) ** 2, mpmath.mpf("2.25"), k))
        assert theory.expected_gap(h, error, k + 6, 6, 1.5) == pytest.approx(truth, rel=1e-10)


def test_expansion_error_falls_with_the_third_power(capsys):
    k = np.array([100, 200, 400, 800, 1600, 3200])
    h, error, sigma = 2.0, 1.5, 0.7
    exact = np.array([theory.expected_gap(h, error, i + 5, 5, sigma) for i in k])
    slopes = []
    for order in (1, 2):
        series = np.array([theory.gap_expansion(h, error, i + 5, 5, sigma, order=order) for i in k])
        slopes.append(np.polyfit(np.log(k[2:]), np.log(np.abs(exact - series)[2:]), 1)[0])
    with capsys.disabled():
        print(f"\n  slope of the expansion's error: first order {slopes[0]:.3f}, second order {slopes[1]:.3f}")
    assert slopes[0] == pytest.approx(-2, abs=0.03)
    assert slopes[1] == pytest.approx(-3, abs=0.03)


def test_multivariate_is_scalar_for_one_response():
    scalar = [f(3.0, 1.2, 40, 5, 0.7) for f in (theory.expected_gap, theory.gap_expansion)]
    vector = [f(3.0, [1.2], 40, 5, covariance=[[0.49]]) for f in (theory.expected_gap, theory.gap_expansion)]
    np.testing.assert_allclose(vector, scalar, rtol=1e-14)
    points = theory.expected_gap(np.array([1.0, 2.0, 3.0]), np.ones((3, 2)), 40, 5, covariance=np.eye(2))
    assert points.shape == (3,)
    assert points[2] == theory.expected_gap(3.0, [1.0, 1.0], 40, 5, covariance=np.eye(2))


def test_gap_limits():
    assert theory.expected_gap(0.0, 5.0, 10, 3) == 0.0
    # h̄ ≫ n−p: the fit passes through the point, and all of the left-out loss is the gap
    assert theory.expected_gap(1e12, 3.0, 10, 3) == pytest.approx(9.0 + 1e12 / 5, rel=1e-9)
    batch = theory.expected_gap(np.linspace(0, 50, 20001), 1.0, 30, 3)
    assert batch[777] == theory.expected_gap(np.linspace(0, 50, 20001)[777], 1.0, 30, 3)
    assert (np.diff(batch) > 0).all()


def test_gap_arguments():
    with pytest.raises(InputError, match=r"finite only for n − p > 2"):
        theory.expected_gap(1.0, 1.0, 5, 3)
    with pytest.raises(InputError, match=r"needs n − p > 4"):
        theory.gap_expansion(1.0, 1.0, 7, 3)
    with pytest.raises(InputError, match="order: expected 1 or 2"):
        theory.gap_expansion(1.0, 1.0, 20, 3, order=3)
    with pytest.raises(InputError, match="covariance takes its place"):
        theory.expected_gap(1.0, [1.0], 20, 3, 2.0, covariance=[[1.0]])
    with pytest.raises(InputError, match="error: its last axis must hold the 2"):
        theory.expected_gap(1.0, [1.0], 20, 3, covariance=np.eye(2))
    with pytest.raises(InputError, match="positive semi-definite"):
        theory.expected_gap(1.0, [1.0, 1.0], 20, 3, covariance=[[1.0, 2.0], [2.0, 1.0]])


def test_ratios_of_section_4_3():
    h, e = np.array([0.1, 0.5, 0.82, 0.999]), 0.7
    true = e**2 / (1 - h) ** 2 - e**2  # e_out = e/(1 − h)
    np.testing.assert_allclose(theory.influence_ratio(h), 2 * e**2 * h / true, rtol=1e-12)
    np.testing.assert_allclose(theory.newton_ratio(h), 2 * e**2 * h / (1 - h) / true, rtol=1e-12)
    rest = 1e-7
    assert theory.influence_ratio(1 - rest) == pytest.approx(2 * rest**2, rel=1e-6)
    assert theory.newton_ratio(1 - rest) == pytest.approx(2 * rest, rel=1e-6)
    assert theory.influence_ratio(1.0) == 0.0
    assert theory.newton_ratio(0.0) == 1.0
    with pytest.raises(InputError, match="h: the empirical leverage"):
        theory.newton_ratio(1.5)
