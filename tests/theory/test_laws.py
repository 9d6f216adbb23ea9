"""The laws of losses and leverage against real refits, mpmath and SciPy."""

from __future__ import annotations

import functools

import mpmath
import numpy as np
import pytest
from scipy import stats

from noshadow import theory
from noshadow.errors import InputError
from tests.theory.refits import P, refit, refit_many

POINTS = {5: (2.0, 1.5, 0.8), 20: (6.0, -1.0, 1.3), 200: (30.0, 2.0, 1.0)}  # k: leverage, error, sigma


@pytest.fixture(scope="module", params=sorted(POINTS))
def refits(request):
    k = request.param
    return k, POINTS[k], refit(k, *POINTS[k], count=20000, seed=k)


@pytest.mark.parametrize("side", ["in", "out"])
def test_loss_laws_of_real_refits(refits, side):
    k, (leverage, error, sigma), truth = refits
    losses = truth.loss_in if side == "in" else truth.loss_out

    def law(exact):
        return lambda loss: theory.loss_cdf(loss, leverage, error, k + P, P, sigma, side=side, exact=exact)

    assert stats.kstest(losses, law(True)).pvalue > 0.01
    if k == 5:  # the same sample rejects the large-sample form, so the test has the power to fail
        assert stats.kstest(losses, law(False)).pvalue < 1e-6
    if k == 200:
        assert stats.kstest(losses, law(False)).statistic < 0.03


def test_leverage_law_of_real_refits(refits):
    k, (leverage, _, _), truth = refits
    law = theory.leverage_law(leverage, k + P, P)
    assert stats.kstest(truth.leverage, law.cdf).pvalue > 0.01
    assert stats.kstest(truth.leverage, theory.leverage_law(1.1 * leverage, k + P, P).cdf).pvalue < 1e-6
    error = truth.leverage.std() / np.sqrt(len(truth.leverage))
    assert abs(law.mean() - truth.leverage.mean()) < 3 * error
    levels = np.array([1e-6, 0.1, 0.5, 0.999])
    np.testing.assert_allclose(law.cdf(law.quantile(levels)), levels, rtol=1e-10)


def test_draws_follow_real_refits():
    noise = np.array([[1.0, 0.5], [0.5, 2.0]])
    error = np.array([1.0, -0.4])
    truth = refit_many(8, 3.0, error, noise, count=6000, seed=3)
    draws = theory.sample_losses(3.0, error, 8 + P, P, size=6000, seed=4, covariance=noise)
    for drawn, real in zip(draws, truth, strict=True):
        assert drawn.shape == (6000,)
        assert stats.ks_2samp(drawn, real).pvalue > 0.01
    np.testing.assert_allclose(draws.loss_in, (1 - draws.leverage) ** 2 * draws.loss_out, rtol=1e-12)
    # the joint law, not only the margins: how the losses' ratio goes with the loss
    ours = stats.spearmanr(draws.loss_in, draws.leverage).statistic
    theirs = stats.spearmanr(truth.loss_in, truth.leverage).statistic
    assert abs(ours - theirs) < 0.05


def test_scalar_draws_have_the_exact_law_and_broadcast():
    leverage, sigma = np.array([[0.5], [4.0]]), np.array([0.5, 1.0, 2.0])
    draws = theory.sample_losses(leverage, 1.0, 12, 5, sigma, size=4000, seed=0)
    assert draws.loss_in.shape == (4000, 2, 3)
    for i in range(2):
        for j in range(3):
            for losses, side in ((draws.loss_in, "in"), (draws.loss_out, "out")):
                cdf = functools.partial(theory.loss_cdf, leverage=leverage[i, 0], error=1.0, n=12, p=5, side=side)
                cdf = functools.partial(cdf, sigma=sigma[j], exact=True)
                assert stats.kstest(losses[:, i, j], cdf).pvalue > 1e-3
    again = theory.sample_losses(leverage, 1.0, 12, 5, sigma, size=4000, seed=0)
    assert np.array_equal(draws.loss_in, again.loss_in)


def _member_cdf(r, h, error, k):
    """E_V[P(|e_in| < r | V)] at 30 digits."""
    h, error, r = mpmath.mpf(h), mpmath.mpf(error), mpmath.mpf(r)
    constant = mpmath.mpf(2) ** (-mpmath.mpf(k) / 2) / mpmath.gamma(mpmath.mpf(k) / 2)

    def integrand(t):
        v = mpmath.exp(t)
        spread, stretch = mpmath.sqrt(h / v), 1 + h / v
        inside = mpmath.ncdf((r * stretch - error) / spread) - mpmath.ncdf((-r * stretch - error) / spread)
        return constant * mpmath.exp(k * t / 2 - v / 2) * inside

    centre = mpmath.log(k)
    return mpmath.quad(integrand, [centre - 60, centre - 20, *(centre + i for i in range(-10, 6))])


@pytest.mark.parametrize(
    ("k", "h", "error", "r"),
    [(3, 5.0, 1.0, 1e-9), (3, 1e4, 1.0, 0.01), (5, 0.1, 30.0, 29.5), (200, 5.0, 1.0, 1.0)],
)
def test_exact_member_law_against_mpmath(k, h, error, r):
    with mpmath.workdps(30):
        truth = float(_member_cdf(r, h, error, k))
    ours = theory.loss_cdf(r * r, h, error, k + 4, 4, side="in", exact=True)
    assert ours == pytest.approx(truth, rel=1e-11)


def test_large_sample_law_is_scaled_noncentral_chi2():
    h, error, sigma, k = 7.0, 1.2, 0.6, 50
    tau2 = sigma**2 * h / k
    loss = np.array([1e-4, 0.1, 1.0, 3.0])
    for side, shrink in (("out", 1.0), ("in", (k / (k + h)) ** 2)):
        truth = stats.ncx2(1, error**2 / tau2, scale=tau2 * shrink)
        ours = theory.loss_cdf(loss, h, error, k + 9, 9, sigma, side=side)
        np.testing.assert_allclose(ours, truth.cdf(loss), rtol=1e-9)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("side", ["in", "out"])
@pytest.mark.parametrize(("h", "error"), [(0.5, 0.0), (0.5, 1.0), (1e4, 1.0), (1e-3, 0.5)])
def test_quantile_inverts_the_cdf(side, exact, h, error):
    levels = np.array([1e-12, 1e-5, 0.1, 0.5, 0.9])
    for k in (3, 50):
        losses = theory.loss_quantile(levels, h, error, k + 2, 2, side=side, exact=exact)
        back = theory.loss_cdf(losses, h, error, k + 2, 2, side=side, exact=exact)
        np.testing.assert_allclose(back, levels, rtol=1e-9)


def test_no_leverage_means_a_fixed_loss():
    for exact in (False, True):
        for side in ("in", "out"):
            below = theory.loss_cdf([3.99, 4.0, 5.0], 0.0, -2.0, 10, 3, side=side, exact=exact)
            assert below.tolist() == [0.0, 1.0, 1.0]
            assert theory.loss_quantile(0.3, 0.0, -2.0, 10, 3, side=side, exact=exact) == 4.0
    law = theory.leverage_law([0.0, 1.0], 10, 3)
    assert law.cdf(0.0).tolist() == [1.0, 0.0]
    assert law.quantile(0.5)[0] == 0.0
    assert law.mean()[0] == 0.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 5, "p": 5}, r"n: 5 records cannot fix p = 5 parameters"),
        ({"n": 5, "p": 7}, r"the laws need n > p"),
        ({"n": 10.0}, r"n: expected a whole number"),
        ({"p": 0}, r"p: expected at least one"),
        ({"leverage": [1.0, -1.0]}, r"leverage: got -1 in row 1"),
        ({"error": float("nan")}, r"error: got nan"),
        ({"sigma": 0.0}, r"sigma: got 0"),
        ({"leverage": [1.0, 2.0], "error": [1.0, 2.0, 3.0]}, r"do not broadcast"),
        ({"leverage": "high"}, r"leverage: expected numbers"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"leverage": 1.0, "error": 1.0, "n": 10, "p": 3, "sigma": 1.0} | change
    with pytest.raises(InputError, match=message):
        theory.loss_cdf(1.0, **arguments, side="in")
    with pytest.raises(InputError, match=message):
        theory.sample_losses(**arguments, size=2)


def test_bad_choices_are_named():
    with pytest.raises(InputError, match="side: 'both' is not known"):
        theory.loss_cdf(1.0, 1.0, 1.0, 10, 3, side="both")
    with pytest.raises(InputError, match=r"level: got 1\.5"):
        theory.loss_quantile(1.5, 1.0, 1.0, 10, 3, side="in")
    with pytest.raises(InputError, match="size: expected a whole number"):
        theory.sample_losses(1.0, 1.0, 10, 3, size=0)
