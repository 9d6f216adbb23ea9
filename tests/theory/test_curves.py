"""Trade-off curves: the errata's numbers, brute force, real refits, mpmath, extremes."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from noshadow import theory
from noshadow.errors import InputError
from tests.theory.refits import P, refit

TESTS = ("threshold", "optimal")


def _point(a, m, k=10):
    """leverage, error, n, p with h̄/(n−p) = a and |ε|/τ = m for σ = 1."""
    return a * k, m * np.sqrt(a), k + 5, 5


def _brute_force(a, m, cells=200_001):
    """ROC corners of both tests from the masses of very many cells, whatever the ratio's shape."""
    z = np.linspace(-9, 9, cells)
    r = np.unique(np.abs(np.concatenate([[0.0], m + z, (m + z) / (1 + a)])))
    outsider, member = (np.diff(stats.norm.cdf(edge - m) - stats.norm.cdf(-edge - m)) for edge in (r, (1 + a) * r))
    real = outsider > 1e-13
    ratio = np.where(real, member / np.where(real, outsider, 1.0), 0.0)
    curves = {}
    for test, order in (("threshold", np.arange(len(r) - 1)), ("optimal", np.argsort(-ratio, kind="stable"))):
        curves[test] = np.cumsum(outsider[order]), np.cumsum(member[order])
    return curves


def test_the_errata_s_numbers():
    # ε = 1 and τ = σ√(h̄/(n−p)) = .5
    point = (2.5, 1.0, 15, 5)
    assert theory.tpr_at_fpr(0.001, *point, test="optimal") == pytest.approx(0.00154, abs=5e-6)
    assert theory.tpr_at_fpr(0.001, *point, test="threshold") == pytest.approx(0.00125, abs=5e-6)
    assert theory.tradeoff(0.001, *point) == pytest.approx(1 - 0.00125, abs=5e-6)


def test_threshold_is_corollary_3_3():
    h, error, n, p, sigma = 7.0, 1.2, 59, 9, 0.6
    tau2, c2 = sigma**2 * h / (n - p), ((n - p) / (n - p + h)) ** 2
    law = stats.ncx2(1, error**2 / tau2, scale=tau2)
    alpha = np.array([1e-6, 1e-3, 0.1, 0.5, 0.9])
    truth = law.sf(law.ppf(alpha) / c2)
    np.testing.assert_allclose(theory.tradeoff(alpha, h, error, n, p, sigma), truth, rtol=1e-7)


@pytest.mark.parametrize(
    ("a", "m"),
    [(0.1, 0.5), (0.25, 2.0), (1.0, 3.0), (0.01, 5.0), (3.0, 1.2), (0.05, 12.0), (20.0, 0.3), (0.002, 60.0)],
)
def test_figures_against_brute_force(a, m):
    point = _point(a, m)
    alpha = np.array([0.001, 0.01, 0.1, 0.5, 0.95])
    for test, (fpr, tpr) in _brute_force(a, m).items():
        np.testing.assert_allclose(
            theory.tpr_at_fpr(alpha, *point, test=test), np.interp(alpha, fpr, tpr), rtol=2e-6, err_msg=test
        )
        assert theory.auc(*point, test=test) == pytest.approx(integrate.trapezoid(tpr, fpr) + 1 - fpr[-1], abs=1e-6)
        assert theory.success_rate(*point, test=test) == pytest.approx(0.5 + 0.5 * np.max(tpr - fpr), abs=1e-7)


def test_optimal_beats_threshold_exactly_where_the_ratio_is_not_monotone():
    alpha = np.geomspace(1e-9, 0.999, 60)
    m = np.array([0.0, 0.3, 0.9, 1.0, 1.1, 1.5, 2.0, 4.0, 9.0, 30.0])[:, None]
    for a in (1e-4, 0.05, 0.25, 2.0, 50.0):
        point = _point(a, m)
        threshold, optimal = (theory.tpr_at_fpr(alpha, *point, test=test) for test in TESTS)
        assert (optimal >= threshold * (1 - 1e-12)).all()
        assert np.array_equal(optimal[m[:, 0] <= 1], threshold[m[:, 0] <= 1])
        gain = (optimal / threshold - 1)[:, 0]
        assert (gain[(m[:, 0] > 1) & (m[:, 0] < 5)] > 1e-7).all()
    assert theory.tpr_at_fpr(1e-3, *_point(0.25, 2.0), test="optimal") > 1.2 * theory.tpr_at_fpr(
        1e-3, *_point(0.25, 2.0)
    )


@settings(max_examples=60, deadline=None)
@given(st.floats(-6, 4).map(lambda x: 10.0**x), st.floats(0, 60))
def test_curves_are_convex_trade_offs(a, m):
    point = _point(a, m)
    alpha = np.linspace(0, 1, 201)
    beta = theory.tradeoff(alpha, *point, test="optimal")
    assert beta[0] == pytest.approx(1, abs=1e-15)
    assert beta[-1] == 0
    assert (np.diff(beta) <= 1e-14).all()
    assert (np.diff(beta, 2) >= -1e-12).all()  # only an optimal curve has to be convex
    assert (beta <= 1 - alpha + 1e-12).all()
    # the rate of a success is that of the curve's best point
    success = theory.success_rate(*point)
    assert success >= 0.5 + 0.5 * np.max(1 - beta - alpha) - 1e-12
    assert theory.auc(*point, test="optimal") >= theory.auc(*point) - 1e-12


def _tpr(fpr, point, test):
    return theory.tpr_at_fpr(fpr, *point, test=test)


def test_auc_is_the_area_under_the_curve():
    for a, m in ((0.25, 2.0), (2.0, 0.4), (0.05, 6.0)):
        for test in TESTS:
            curve = functools.partial(_tpr, point=_point(a, m), test=test)
            area, _ = integrate.quad(curve, 0, 1, epsabs=1e-10, limit=200)
            assert theory.auc(*_point(a, m), test=test) == pytest.approx(area, abs=1e-8)


def test_epsilon_is_the_best_that_the_curve_proves():
    alpha = np.concatenate([np.geomspace(1e-13, 0.01, 20000), np.linspace(0.01, 0.99, 20000)])
    alpha = np.concatenate([alpha, 1 - np.geomspace(0.01, 1e-6, 20000)])
    for a, m in ((0.01, 0.5), (0.02, 3.0), (0.05, 12.0), (0.002, 60.0), (0.25, 2.0)):
        for test in TESTS:
            tpr, fnr = (f(alpha, *_point(a, m), test=test) for f in (theory.tpr_at_fpr, theory.tradeoff))
            for delta in (1e-5, 1e-3):
                found, rejected = tpr - delta, 1 - alpha - delta
                good, other = found > 0, (rejected > 0) & (fnr > 0)
                truth = max(
                    0.0,
                    np.max(np.log(found[good] / alpha[good])),
                    np.max(np.log(rejected[other] / fnr[other])),
                )
                bound = theory.epsilon_lower_bound(delta, *_point(a, m), test=test)
                assert truth <= bound * (1 + 1e-9)
                assert bound == pytest.approx(truth, rel=2e-3)
    assert theory.epsilon_lower_bound(0.0, 1.0, 1.0, 20, 3) == np.inf
    assert theory.epsilon_lower_bound(0.0, 0.0, 1.0, 20, 3) == 0.0
    assert theory.epsilon_lower_bound(0.9, 0.1, 1.0, 20, 3) == 0.0
    assert theory.epsilon_lower_bound(np.array([1e-5, 1e-3]), np.ones((3, 1)), 1.0, 20, 3).shape == (3, 2)


def test_real_refits_reach_the_exact_curve():
    """Attack 40,000 real refits of n − p = 5 with a threshold and with an interval of losses."""
    k, h, error, sigma = 5, 2.0, 2.0, 1.0
    point = (h, error, k + P, P, sigma)
    truth = refit(k, h, error, sigma, count=40000, seed=21)
    for alpha in (0.01, 0.1, 0.5):
        border = np.quantile(truth.loss_out, alpha)
        found = (truth.loss_in < border).mean()
        exact = theory.tpr_at_fpr(alpha, *point, exact=True)
        spread = np.sqrt(found * (1 - found) / 40000 + (found / alpha) ** 2 * alpha * (1 - alpha) / 40000)
        assert abs(found - exact) < 4 * spread
    large_sample = theory.tpr_at_fpr(0.1, *point)
    found = (truth.loss_in < np.quantile(truth.loss_out, 0.1)).mean()
    assert abs(found - large_sample) > 5 * np.sqrt(found * (1 - found) / 40000)
    # nothing that the real losses allow beats the optimal exact test
    pooled = np.quantile(np.concatenate([truth.loss_in, truth.loss_out]), np.linspace(0, 1, 21))
    member, outsider = (np.histogram(x, pooled)[0] / 40000 for x in (truth.loss_in, truth.loss_out))
    order = np.argsort(-member / outsider)
    fpr, tpr = np.cumsum(outsider[order]), np.cumsum(member[order])
    best = theory.tpr_at_fpr(np.minimum(fpr, 1), *point, test="optimal", exact=True)
    assert (tpr <= best + 0.01).all()
    assert np.max(np.abs(tpr - best)) < 0.03
    success = 0.5 + 0.5 * np.max(tpr - fpr)
    assert theory.success_rate(*point, exact=True, test="optimal") == pytest.approx(success, abs=0.01)
    assert theory.auc(*point, exact=True) == pytest.approx(
        np.mean(truth.loss_in[:, None] < np.sort(truth.loss_out)[::40]), abs=0.01
    )


def test_exact_figures_agree_with_each_other():
    alpha = np.array([1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.9])
    for k, h, error in ((3, 10.0, 0.0), (5, 1.0, 5.0), (20, 0.1, 1.0), (200, 10.0, 1.0)):
        point = (h, error, k + 5, 5)
        threshold, optimal = (theory.tpr_at_fpr(alpha, *point, test=test, exact=True) for test in TESTS)
        assert (optimal >= threshold).all()
        area, _ = integrate.quad(lambda u, p=point: float(theory.tpr_at_fpr(u, *p, exact=True)), 0, 1, epsabs=1e-7)
        assert theory.auc(*point, exact=True) == pytest.approx(area, abs=2e-5)
        assert theory.auc(*point, exact=True, test="optimal") >= theory.auc(*point, exact=True) - 1e-9
        grid = np.linspace(0.001, 0.999, 1999)
        curve = theory.tpr_at_fpr(grid, *point, exact=True)
        assert theory.success_rate(*point, exact=True) == pytest.approx(0.5 + 0.5 * np.max(curve - grid), abs=2e-5)
        delta = 1e-3
        found = curve - delta > 0
        proof = np.max(np.log((curve[found] - delta) / grid[found]))
        assert theory.epsilon_lower_bound(delta, *point, exact=True) >= proof - 1e-6


def test_exact_tends_to_the_large_sample_form():
    alpha = np.array([0.001, 0.1, 0.6])
    for test in TESTS:
        ours = [theory.tpr_at_fpr(alpha, 0.01 * k, 0.3, k + 5, 5, test=test) for k in (100, 20000)]
        exact = [theory.tpr_at_fpr(alpha, 0.01 * k, 0.3, k + 5, 5, test=test, exact=True) for k in (100, 20000)]
        gaps = [np.max(np.abs(a - b)) for a, b in zip(ours, exact, strict=True)]
        assert gaps[1] < 1e-4
        assert gaps[1] < gaps[0] / 20


@pytest.mark.parametrize(("a", "m"), [(0.25, 0.0), (0.25, 2.0), (0.01, 6.5), (100.0, 3.0), (0.5, 12.0)])
def test_tiny_levels_against_mpmath(a, m):
    alpha = 1e-12
    with mpmath.workdps(40):
        centre, grow = mpmath.mpf(m), 1 + mpmath.mpf(a)

        def below(r):
            return mpmath.ncdf(r - centre) - mpmath.ncdf(-r - centre)

        start = float(np.sqrt(theory.loss_quantile(alpha, *_point(a, m), side="out") / a))
        edge = mpmath.findroot(lambda r: below(r) / alpha - 1, (0.99 * start, 1.01 * start), solver="ridder")
        truth = float(below(edge * grow))
        # the optimal test at so small a level is the neighbourhood of the largest ratio
        densities = [lambda r, s=s: s * (mpmath.npdf(s * r - centre) + mpmath.npdf(s * r + centre)) for s in (grow, 1)]
        largest, width = mpmath.mpf(0), mpmath.mpf(max(1, m))
        for _ in range(3):  # zoom in on the top
            grid = [max(largest + width * i / 500, mpmath.mpf(0)) for i in range(-500, 501)]
            largest, width = max(grid, key=lambda r: densities[0](r) / densities[1](r)), width / 100
        ratio = float(densities[0](largest) / densities[1](largest))
    assert theory.tpr_at_fpr(alpha, *_point(a, m)) == pytest.approx(truth, rel=1e-9)
    optimal = theory.tpr_at_fpr(alpha, *_point(a, m), test="optimal")
    assert truth * (1 - 1e-9) <= optimal <= min(1.0, alpha * ratio * (1 + 1e-9))
    if m in (0.0, 2.0):
        assert optimal == pytest.approx(alpha * ratio, rel=1e-9)


@pytest.mark.parametrize("test", TESTS)
def test_extremes_stay_finite_and_right(test):
    alpha = np.array([0.0, 1e-12, 1e-6, 0.01, 0.5, 0.99, 1 - 1e-12, 1.0])
    for n in (8, 1000):  # n − p = 3 and 995
        for h in (0.0, 1e-12, 1.0, 1e3, 1e9):
            for error in (0.0, 1e-9, -1.0, 1e6):
                beta = theory.tradeoff(alpha, h, error, n, 5, test=test)
                tpr = theory.tpr_at_fpr(alpha, h, error, n, 5, test=test)
                np.testing.assert_allclose(tpr + beta, 1.0, atol=1e-14)
                assert (np.diff(beta) <= 1e-15).all()
                assert (tpr >= alpha * (1 - 1e-9)).all()
                assert 0.5 - 1e-12 <= theory.auc(h, error, n, 5, test=test) <= 1.0
                assert 0.5 <= theory.success_rate(h, error, n, 5, test=test) <= 1.0
                assert 0.0 <= theory.epsilon_lower_bound(1e-5, h, error, n, 5, test=test) < np.inf
    no_leverage = theory.tradeoff(alpha, 0.0, 1.0, 10, 5, test=test)
    np.testing.assert_allclose(no_leverage, 1 - alpha, rtol=1e-12)
    assert theory.success_rate(0.0, 1.0, 10, 5, test=test) == 0.5
    assert theory.auc(0.0, 1.0, 10, 5, test=test) == pytest.approx(0.5, abs=1e-15)
    # ε = 0: two centred normals of scales 1 and 1/(1+a)
    edge = stats.norm.isf((1 - 0.3) / 2)
    assert theory.tpr_at_fpr(0.3, 20.0, 0.0, 15, 5, test=test) == pytest.approx(2 * stats.norm.cdf(3 * edge) - 1)
    # h̄ ≫ n−p: a member is fitted exactly
    assert theory.tpr_at_fpr(1e-3, 1e12, 1.0, 8, 5, test=test) > 1 - 1e-6
    assert theory.success_rate(1e12, 1.0, 8, 5, test=test) > 1 - 1e-4


def test_exact_extremes():
    alpha = np.array([0.0, 1e-12, 0.01, 0.5, 1.0])
    for test in TESTS:
        for h, error, n in ((0.0, 1.0, 8), (1e9, 1.0, 8), (1.0, 0.0, 8), (0.1, 30.0, 8), (1.0, 1.0, 6)):
            tpr = theory.tpr_at_fpr(alpha, h, error, n, 5, test=test, exact=True)
            beta = theory.tradeoff(alpha, h, error, n, 5, test=test, exact=True)
            np.testing.assert_allclose(tpr + beta, 1.0, atol=1e-12)
            assert tpr[0] == 0.0
            assert tpr[-1] == pytest.approx(1.0, abs=1e-12)
            assert (tpr >= alpha * (1 - 1e-6)).all()
    assert theory.auc(0.0, 1.0, 8, 5, exact=True) == 0.5
    assert theory.epsilon_lower_bound(0.0, 1.0, 1.0, 8, 5, exact=True) == np.inf


def test_broadcasting_and_blocks_do_not_change_the_answer():
    rng = np.random.default_rng(0)
    h, error, sigma = rng.chisquare(5, 900), rng.standard_normal(900), rng.uniform(0.5, 2, 900)
    alpha = np.geomspace(1e-5, 0.9, 100)
    for test in TESTS:
        together = theory.tradeoff(alpha, h[:, None], error[:, None], 200, 5, sigma[:, None], test=test)
        assert together.shape == (900, 100)
        for i in (0, 450, 899):
            alone = theory.tradeoff(alpha, h[i], error[i], 200, 5, sigma[i], test=test)
            np.testing.assert_allclose(together[i], alone, rtol=1e-11)
    assert theory.auc(h, error, 200, 5, sigma).shape == (900,)
    assert np.ndim(theory.success_rate(1.0, 1.0, 200, 5)) == 0
    exact = theory.tpr_at_fpr(alpha[:3], h[:2, None], error[:2, None], 200, 5, test="optimal", exact=True)
    assert exact.shape == (2, 3)
    assert exact[1, 2] == theory.tpr_at_fpr(alpha[2], h[1], error[1], 200, 5, test="optimal", exact=True)


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match=r"alpha: got 1\.5"):
        theory.tradeoff(1.5, 1.0, 1.0, 10, 3)
    with pytest.raises(InputError, match=r"fpr: got -0\.1 in row 1"):
        theory.tpr_at_fpr([0.1, -0.1], 1.0, 1.0, 10, 3)
    with pytest.raises(InputError, match="test: 'best' is not known"):
        theory.auc(1.0, 1.0, 10, 3, test="best")
    with pytest.raises(InputError, match=r"leverage\[:, None\]"):
        theory.tradeoff([0.1, 0.2, 0.3], [1.0, 2.0], 1.0, 10, 3)
    for function in (theory.auc, theory.success_rate):
        with pytest.raises(InputError, match="n: 3 records cannot fix p = 3"):
            function(1.0, 1.0, 3, 3)
