"""The law of squared error against draws from it, and what a network has beyond its last layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from statsmodels.api import OLS

from noshadow import LastLayer, score
from noshadow.heads import make_head
from noshadow.predict import HeldOut
from noshadow.sandwich import Spreads
from noshadow.scoring import score_with_diagnostics
from noshadow.squared_law import calibrate_law, converged_law, mean_size, rates_of_law


def test_the_law_of_squared_error_against_draws():
    """e_out ~ N(ε, τ²), e_in = (1 − h) e_out: the best threshold on e², and at 1 % FPR the test of largest power."""
    generator = np.random.default_rng(0)
    h, error, tau = np.array([0.02, 0.3, 0.8]), np.array([1.0, 0.5, 0.1]), np.array([0.3, 0.4, 0.2])
    found = rates_of_law(h, error, tau)
    for i in range(3):
        outside = error[i] / (1 - h[i]) + tau[i] * generator.standard_normal(200_000)
        inside = (1 - h[i]) * (error[i] / (1 - h[i]) + tau[i] * generator.standard_normal(200_000))
        levels = np.quantile(np.abs(np.concatenate([inside, outside])), np.linspace(0, 1, 2001))
        below = [np.searchsorted(np.sort(np.abs(side)), levels) / 200_000 for side in (inside, outside)]
        assert found.accuracy[i] == pytest.approx(0.5 + 0.5 * np.max(below[0] - below[1]), abs=4e-3)
        middle = error[i] / (1 - h[i])

        def ratio(e, keep=1 - h[i], middle=middle, tau=tau[i]):
            """Of the densities of |e| with the record and without it."""
            on_either_side = [stats.norm(side * middle, tau).pdf for side in (1, -1)]
            with_it, without = (sum(f(one) for f in on_either_side) for one in (np.abs(e) / keep, np.abs(e)))
            return with_it / without

        level = np.quantile(ratio(outside), 0.99)
        assert found.tpr[i] == pytest.approx(np.mean(ratio(inside) > level), abs=8e-3)


def test_the_power_of_squared_error_is_the_distance_of_the_residuals_in_their_spread():
    """d′ = |mean_in − mean_out| over the root mean square of the two spreads, from draws of the law."""
    h, error, tau = np.array([0.02, 0.3, 0.8]), np.array([1.0, 0.5, 0.1]), np.array([0.3, 0.4, 0.2])
    outside = error / (1 - h) + tau * np.random.default_rng(1).standard_normal((400_000, 1))
    inside = (1 - h) * outside
    wanted = (outside.mean(0) - inside.mean(0)) / np.sqrt((outside.var(0) + inside.var(0)) / 2.0)
    np.testing.assert_allclose(rates_of_law(h, error, tau).power, wanted, rtol=5e-3)


def test_the_spreads_of_a_converged_regression_are_those_of_members_and_of_others():
    """With the record its residual varies (1 − h) times as much as without it."""
    h, spread = np.array([0.1, 0.5, 0.75]), np.array([1.0, 2.0, 4.0])
    known = {"leverage": h, "loss": np.ones(3)}
    found, _ = converged_law(1.0, known, Spreads(spread, spread, spread, spread))
    assert found.spread_out == pytest.approx((1.0 + 2.0 + 4.0) / 3)
    assert found.spread_in == pytest.approx((0.9 * 1.0 + 0.5 * 2.0 + 0.25 * 4.0) / 3)


@pytest.fixture(scope="module")
def regression():
    """Members and held-out records of a network drawn from its law, with what they were drawn by.

    The last layer shows odds a of the leverage, the network has c = 5 times as much of them; residuals without the
    record are k = 1.3 times those of the run; the seed's variance is 0.04, that of other data goes with a.
    """
    generator = np.random.default_rng(11)
    n, scale, size, seed = 4000, 5.0, 1.3, 0.2
    x = generator.normal(size=(n, 160)) * generator.lognormal(0, 0.5, (n, 1))
    h = score(LastLayer(x, np.zeros(n), np.ones(n), head="squared"), ["leverage"])["leverage"].to_numpy()
    odds = h / (1 - h)
    own = scale * odds / (1 + scale * odds)
    of_run, of_others = generator.exponential(0.6, (2, n))
    # half of V is a quarter of the gap of the losses, which it is part of itself
    fixed = size**2 * of_run**2 + seed**2
    grown = np.mean((1 - own) ** 2 * odds / odds.mean())
    of_data = (fixed.mean() - np.mean((1 - own) ** 2 * fixed)) / (3 + grown)
    variance = seed**2 + of_data * odds / odds.mean()
    inside = (1 - own) * (size * of_run + np.sqrt(variance) * generator.standard_normal(n))
    others = size * of_others + np.sqrt(generator.permutation(variance)) * generator.standard_normal(n)
    layer = LastLayer(x, np.zeros(n), inside, head="squared")
    return layer, of_run, others, seed, rates_of_law(own, (1 - own) * size * of_run, np.sqrt(variance)), (scale, size)


def test_what_a_network_has_beyond_its_last_layer_is_found_without_an_attack(regression):
    layer, of_run, others, seed, truth, (scale, size) = regression
    losses = np.stack([of_run**2, of_run**2])
    frame, found = score_with_diagnostics(
        layer, None, losses, spread=(seed, seed), held_out=(np.zeros(len(others)), others), progress=False
    )
    assert found.calibration.scale == pytest.approx(scale, rel=0.15)
    assert found.calibration.error_scale == pytest.approx(size, rel=0.05)
    assert np.abs(frame["attack_accuracy"] - truth.accuracy).mean() < 0.01
    assert np.abs(frame["attack_tpr"] - truth.tpr).mean() < 0.02


def test_a_record_that_decides_its_own_fit_does_not_decide_those_of_others(regression):
    layer, of_run, others, seed, truth, _ = regression
    x = layer.features.clone()
    x = torch.cat([x, torch.zeros(len(x), 1, dtype=x.dtype)], 1)
    x[0, -1] = 1.0  # the only one with this feature
    lone = LastLayer(x, layer.outputs, layer.targets, head="squared")
    losses = np.stack([of_run**2, of_run**2])
    found = score(lone, None, losses, spread=(seed, seed), held_out=(np.zeros(len(others)), others))
    assert found["attack_accuracy"][0] > 0.999
    assert np.isfinite(found["exposure"]).all()
    assert np.abs(found["attack_accuracy"][1:] - truth.accuracy[1:]).mean() < 0.03


@pytest.mark.parametrize("rerun", [True, False])
def test_no_gap_of_squared_error_predicts_a_coin(rerun):
    generator = np.random.default_rng(12)
    x, z, y = generator.normal(size=(3000, 5)), generator.normal(size=3000), generator.normal(size=3000)
    layer = LastLayer(x[:1500], z[:1500], y[:1500], head="squared")
    order = np.argsort((y - z)[1500:] ** 2)[:-5]  # held-out records fit a little better, and worse below
    better, worse = 1500 + order, np.arange(1500, 3000)
    about = {"spread": (0.3, 0.3)} if rerun else {}
    if rerun:
        found = score(layer, ["attack_accuracy"], held_out=(z[better], y[better]), **about)["attack_accuracy"]
        np.testing.assert_allclose(found, 0.5, atol=1e-6)
        found = score(layer, ["attack_accuracy"], held_out=(z[worse], y[worse]), **about)["attack_accuracy"]
        assert float(found.mean()) < 0.52
    else:
        found = score(layer, ["attack_accuracy"], held_out=(z[better], y[better]))["attack_accuracy"]
        np.testing.assert_allclose(found, 0.5, atol=1e-6)


def _members(count=300):
    generator = np.random.default_rng(4)
    leverage, error = generator.uniform(0.02, 0.2, count), np.abs(generator.normal(size=count)) + 0.05
    held = HeldOut(np.zeros((200, 1)), np.full(200, 1.5), np.full(200, 2.0))
    return leverage, error, np.full(count, 0.7), held


def test_one_record_that_decides_its_own_fit_does_not_decide_the_rates_of_others():
    leverage, error, loss, held = _members()
    head = make_head("squared", 1)
    without = calibrate_law(head, leverage, error, loss, held, (0.3, 0.4))[1]
    leverage[0] = 1.0 - 1e-8  # its odds are a billion times those of a typical record
    rates = calibrate_law(head, leverage, error, loss, held, (0.3, 0.4))[1]
    assert np.abs(rates.accuracy[1:] - without.accuracy[1:]).max() < 0.03


def test_runs_that_differ_by_more_than_the_loss_leave_errors_of_some_size():
    """σ_out = 2 beyond held-out residuals of 1.5: 5 % of the loss, π/2 · 1.5², are taken for error, and k says so."""
    leverage, error, size, held = _members()
    found, rates = calibrate_law(make_head("squared", 1), leverage, error, size, held, (2.0, 2.0))
    assert found.error_scale**2 * np.mean(error**2) == pytest.approx(0.05 * np.pi / 2 * 1.5**2)
    assert np.isfinite(rates.accuracy).all()


@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 40.0])
def test_the_mean_size_is_that_of_a_folded_normal(spread):
    middle = np.array([0.0, 1e-12, 0.2, 3.0, 1e6])
    wanted = [stats.foldnorm(one / spread, scale=spread).mean() if spread > 0 and one < 1e3 else one for one in middle]
    np.testing.assert_allclose(mean_size(middle, np.full(5, spread)), wanted, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("columns", [5, 60])
def test_without_a_sandwich_the_noise_is_that_of_the_degrees_of_freedom_that_are_left(columns):
    """Against statsmodels' estimate of the variance: σ_out² = ½ σ̂² h/(1 − h)."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(120, columns))
    fit = OLS(x.sum(1) + generator.normal(size=120), x).fit()
    layer = LastLayer(x, fit.fittedvalues, fit.model.endog, "squared", bias=False)
    known = score(layer, ["leverage", "loss", "influence"])
    h = fit.get_influence().hat_matrix_diag
    # H = 2 XᵀX: the variance of the prediction per unit of information is h/2, and each gradient is twice the residual
    scores = {"leverage": h, "loss": known["loss"].to_numpy(), "signal_variance": h / 2.0}
    found, _ = converged_law(float(known["influence"].sum()), scores)
    wanted = np.sqrt(0.5 * fit.mse_resid * h / (1.0 - h))
    assert found.spread_out == pytest.approx(wanted.mean(), rel=0.06)  # noise at the records' own leverages
    if columns == 60:
        assert found.spread_out > 1.2 * np.sqrt(np.mean(fit.resid**2)) * np.sqrt(0.5 * h / (1.0 - h)).mean()


@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-12, 1e-7])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
def test_a_record_that_nothing_moves_is_a_coin(size, unit):
    """Without a constant and with next to no feature it has neither leverage nor spread: it was rated certain."""
    generator = np.random.default_rng(4)
    x = generator.normal(size=(80, 3))
    x[7] *= size
    fit = OLS(unit * (x.sum(1) + generator.normal(size=80)), x).fit()
    layer = LastLayer(x, fit.fittedvalues, fit.model.endog, "squared", bias=False)
    rates = score(layer)[["attack_power", "attack_accuracy", "attack_tpr"]]
    assert np.isfinite(rates.to_numpy()).all()
    np.testing.assert_allclose(rates.iloc[7], [0.0, 0.5, 0.01], atol=1e-6)
    assert rates["attack_accuracy"].drop(7).max() > 0.6


@pytest.mark.parametrize("spreads", [None, (0.3, 0.4)])
def test_the_two_mean_sizes_that_are_seen_are_those_of_the_law(spreads):
    """c and k by bisection of their definitions; without a rerun all of the spread goes with the odds."""
    leverage, error, size_in, held = _members()
    found, rates = calibrate_law(make_head("squared", 1), leverage, error, size_in, held, spreads)
    odds, inside, outside = leverage / (1.0 - leverage), size_in.mean(), held.loss.mean()
    gap = np.pi / 2.0 * (outside**2 - inside**2)
    variance = gap / 2.0 / 2.0 * odds / odds.mean() + (0.0 if spreads is None else spreads[1] ** 2)

    def others_are(size):
        return stats.foldnorm(size * error / np.sqrt(variance), scale=np.sqrt(variance)).mean()

    def bisected(of, goal, low, high):
        """Where a function that falls has a value."""
        for _ in range(100):
            middle = (low + high) / 2.0
            low, high = (middle, high) if of(middle) > goal else (low, middle)
        return low

    size = bisected(lambda k: -others_are(k).mean(), -outside, 0.0, 1e3)
    without = others_are(size)
    assert without.mean() == pytest.approx(outside)

    def members_are(scale):
        return np.mean((1.0 - scale * odds / (1.0 + scale * odds)) * without)

    low = bisected(members_are, inside, 0.0, 1e6)
    assert members_are(low) == pytest.approx(inside)
    assert (found.scale, found.error_scale) == pytest.approx((low, size), rel=1e-6)
    own = low * odds / (1.0 + low * odds)
    wanted = rates_of_law(own, (1.0 - own) * size * error, np.sqrt(variance))
    np.testing.assert_allclose(rates.accuracy, wanted.accuracy, rtol=1e-6)
    np.testing.assert_allclose(rates.power, wanted.power, rtol=1e-6)
    assert found.gap == pytest.approx(outside - inside)  # in units of the target


def test_a_few_records_far_off_decide_nothing():
    """One held-out residual 300 times the others: of squares it would be the mean, and the standard error all of it."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(600, 12))
    y = x.sum(1) + generator.normal(size=600)
    z = np.concatenate([x[:300].sum(1) + 0.6 * (y - x.sum(1))[:300], x[300:].sum(1)])
    layer = LastLayer(x[:300], z[:300], y[:300], head="squared")
    far = y[300:].copy()
    far[5] += 300.0

    def rates(held_out):
        found = score(layer, ["attack_accuracy"], spread=(0.2, 0.2), held_out=held_out)["attack_accuracy"]
        return found.to_numpy()

    usual, beside = rates((z[300:], y[300:])), rates((z[300:], far))
    assert np.isfinite(beside).all()
    assert usual.mean() > 0.55
    assert abs(beside.mean() - usual.mean()) < 0.1
    assert np.isfinite(rates((z[300:330], far[:30] * 1e3))).all()
