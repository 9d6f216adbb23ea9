"""A few models with a prediction: against known truth, in the limits, and where there is nothing to find."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, optimize, stats

from noshadow import InputError, attacks
from noshadow.attacks.gaussians import best_accuracy, expected_accuracy
from noshadow.attacks.prior import _fit_prior, _moderated, _Prior, _Scatter, _update


def study(n_models, n=4000, gamma=0.6, c=1.5, relative=0.4, floor=0.2, seed=0, spread_freedom=None):
    """Predictions, true shifts, signals and membership drawn from the model that is assumed, on another scale."""
    rng = np.random.default_rng(seed)
    p = np.exp(rng.normal(size=n))
    f = c * p**gamma
    s = f + np.hypot(floor, relative * f) * rng.normal(size=n)
    inside = rng.random((n_models, n)) < 0.5
    sigma = np.stack([np.full(n, 1.4), np.full(n, 0.8)])
    if spread_freedom is not None:
        sigma = sigma * np.sqrt(spread_freedom / rng.chisquare(spread_freedom, (2, n)))
    level = 3.0 * rng.normal(size=n)
    signal = level + s * inside + np.where(inside, sigma[1], sigma[0]) * rng.normal(size=(n_models, n))
    return 1e-3 * p, s, signal, inside, sigma


def rmse(guess, truth):
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


@pytest.mark.parametrize("n_models", [2, 3, 4, 7, 16])
def test_the_posterior_is_nearer_than_both_parents(n_models):
    p, s, signal, inside, _ = study(n_models)
    found = attacks.with_prior(signal, inside, p)
    both = inside.any(0) & ~inside.all(0)
    together, models, prediction = (rmse(v[both], s[both]) for v in (found.shift, found.measured, found.prior))
    assert together < 0.97 * min(models, prediction)
    if n_models < 5:  # else nearly all records have models on both sides
        assert rmse(found.shift[~both], s[~both]) < 1.1 * prediction


@pytest.mark.parametrize("spread_freedom", [None, 8])
@pytest.mark.parametrize("n_models", [2, 5, 12])
def test_intervals_hold_what_they_promise(n_models, spread_freedom):
    """Over studies, since τ of a single one is off by a tenth with two models, which also show little of the tails of
    the noise: their intervals come out a little wide."""
    tolerance = 0.06 if n_models == 2 else 0.04
    standard = {True: [], False: []}
    for seed in range(6):
        p, s, signal, inside, _ = study(n_models, n=4000, seed=seed, spread_freedom=spread_freedom)
        found = attacks.with_prior(signal, inside, p)
        both = inside.any(0) & ~inside.all(0)
        for side in (True, False):
            standard[side].append(((s - found.shift) / found.spread)[both == side])
    for side, values in standard.items():
        off = np.abs(np.concatenate(values))
        if side or len(off) > 5000:
            for level in (0.5, 0.8, 0.95):
                assert np.mean(off < stats.norm.ppf(0.5 + level / 2)) == pytest.approx(level, abs=tolerance)


def test_the_posterior_is_the_integral():
    """Mean and variance of s on a grid: normal prior times a mixture of normal likelihoods."""
    rng = np.random.default_rng(0)
    noises = rng.exponential(size=(7, 5)) + 0.05
    prior = _Prior(rng.normal(size=5), rng.exponential(size=5) + 0.1, 1.0)
    d = np.array([-3.0, 0.0, 0.5, 2.0, 9.0])
    weight, variance = _update(prior, d, noises)
    s = np.linspace(-30, 40, 70_001)[:, None]
    density = stats.norm.pdf(s, prior.mean, np.sqrt(prior.variance))
    density = density * sum(stats.norm.pdf(d, s, np.sqrt(v)) for v in noises)
    density /= density.sum(0)
    mean = (s * density).sum(0)
    np.testing.assert_allclose(prior.mean + weight * (d - prior.mean), mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(variance, ((s - mean) ** 2 * density).sum(0), rtol=1e-8)


def test_the_constants_are_a_maximum_of_the_likelihood():
    """To scale f with τ held, to scale τ, to turn f about its middle: all are in the family, none is likelier."""
    rng = np.random.default_rng(1)
    logs, noises = rng.normal(size=3000), rng.exponential(size=(5, 3000)) + 0.1
    f = np.exp(0.8 * logs)
    d = f + np.hypot(0.1, 0.5 * f) * rng.normal(size=3000) + np.sqrt(noises[0]) * rng.normal(size=3000)
    both = np.ones(3000, dtype=bool)

    def likelihood(mean, variance):
        return np.log(sum(stats.norm.pdf(d, mean, np.sqrt(variance + v)) for v in noises)).mean()

    found = _fit_prior(logs, d, noises, both)
    best = likelihood(found.mean, found.variance)
    for by in (-0.02, 0.02):
        assert likelihood(found.mean * (1 + by), found.variance) < best
        assert likelihood(found.mean, found.variance * (1 + 2 * by)) < best
        turned = np.exp(by * logs)
        relative = found.variance - found.variance.min()
        assert likelihood(found.mean * turned, found.variance.min() + relative * turned**2) < best + 1e-5


def test_constants_are_found_again():
    p, _, signal, inside, sigma = study(8, n=20_000)
    found = attacks.with_prior(signal, inside, p)
    assert found.exponent == pytest.approx(0.6, abs=0.03)
    np.testing.assert_allclose(found.prior, 1.5 * (1e3 * p) ** 0.6, rtol=0.08)
    np.testing.assert_allclose(np.median(found.spread_out), sigma[0, 0], rtol=0.02)
    np.testing.assert_allclose(np.median(found.spread_in), sigma[1, 0], rtol=0.02)


def test_many_models_leave_liras_own_estimate():
    p, _, signal, inside, sigma = study(1500, n=200, spread_freedom=8)
    found = attacks.with_prior(signal, inside, p)
    means = [np.where(side, signal, 0).sum(0) / side.sum(0) for side in (inside, ~inside)]
    np.testing.assert_allclose(found.measured, means[0] - means[1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.shift, found.measured, atol=0.1)
    assert np.median(found.weight) > 0.97
    np.testing.assert_allclose(found.spread_in, sigma[1], rtol=0.15)
    lira = attacks.lira(signal, inside, variance="per_sample", progress=False)
    assert np.abs(found.success_rate - lira.success_rate).mean() < 0.015


def test_a_prediction_that_says_nothing_is_not_believed():
    _, s, signal, inside, _ = study(6)
    noise = np.exp(np.random.default_rng(5).normal(size=len(s)))
    found = attacks.with_prior(signal, inside, noise)
    both = inside.any(0) & ~inside.all(0)
    assert found.exponent < 0.05
    assert rmse(found.shift[both], s[both]) < rmse(found.measured[both], s[both])


@pytest.mark.parametrize("n_models", [2, 5, 16])
def test_where_nothing_leaks_it_predicts_guessing(n_models):
    rng = np.random.default_rng(1)
    signal = rng.normal(size=(n_models, 5000)) + rng.normal(size=5000)
    inside = rng.random((n_models, 5000)) < 0.5
    found = attacks.with_prior(signal, inside, rng.exponential(size=5000))
    assert found.success_rate.mean() < 0.525
    assert np.abs(found.shift).mean() < 0.05


@pytest.mark.parametrize("members", ["higher", "lower"])
def test_scales_do_not_matter(members):
    p, _, signal, inside, _ = study(4, n=1000)
    plain = attacks.with_prior(signal, inside, p)
    sign = 1.0 if members == "higher" else -1.0
    other = attacks.with_prior(sign * 1e90 * signal + 1e92, inside, 37.0 * p, members=members)
    np.testing.assert_allclose(other.shift / 1e90, plain.shift, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(other.spread / 1e90, plain.spread, rtol=1e-3)
    np.testing.assert_allclose(other.success_rate, plain.success_rate, atol=1e-3)


def test_records_on_one_side_have_the_prediction_alone():
    p, _, signal, inside, _ = study(6, n=500)
    inside[:, 0], inside[:, 1] = True, False
    found = attacks.with_prior(signal, inside, p)
    assert (found.shift[:2] == found.prior[:2]).all()
    assert (found.spread[:2] == found.prior_spread[:2]).all()
    assert (found.weight[:2] == 0).all()
    assert np.isnan(found.measured[:2]).all()
    assert np.isinf(found.measured_error[:2]).all()
    assert np.isfinite(found.success_rate).all()
    assert (found.spread < found.prior_spread)[found.weight > 0].mean() > 0.95


def test_an_explosion_of_the_prediction_does_no_harm():
    p, s, signal, inside, _ = study(4)
    quiet = attacks.with_prior(signal, inside, p)
    p[:4] *= 1e9
    p[4:8] = -1.0
    loud = attacks.with_prior(signal, inside, p)
    assert rmse(loud.shift[8:], s[8:]) < 1.03 * rmse(quiet.shift[8:], s[8:])


def test_the_table_and_the_words():
    p, _, signal, inside, _ = study(4, n=100)
    found = attacks.with_prior(signal, inside, p)
    assert list(found.table) == ["shift", "spread", "success_rate", "prior", "measured", "weight"]
    assert len(found.table) == 100
    assert repr(found).startswith("Posterior(records=100, mean success rate 0.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(predicted=a["predicted"][:-1]), r"predicted: expected shape \(100,\)"),
        (lambda a: a["predicted"].__setitem__(3, np.nan), r"predicted: NaN or infinite in row 3"),
        (lambda a: a.update(predicted=-a["predicted"]), "predicted: no value is positive"),
        (lambda a: a.update(members="either"), "members: 'either' is not one of"),
        (lambda a: a.update(membership=a["membership"][:, :50]), r"membership: expected shape \(4, 100\)"),
        (lambda a: a.update(signal=a["signal"][:1], membership=a["membership"][:1]), "membership: 1 models"),
        (lambda a: a["membership"].__setitem__(slice(None), True), "membership: 0 records have models on both sides"),
        (
            lambda a: a.update(signal=a["signal"][:2], membership=np.stack([a["membership"][0], ~a["membership"][0]])),
            "membership: 0 records have two models or more with them",
        ),
        (lambda a: a["signal"].__setitem__(slice(None), a["signal"][0]), "signal: the models with a record all say"),
    ],
)
def test_what_cannot_be_done_is_refused(change, message):
    p, _, signal, inside, _ = study(4, n=100)
    arguments = {"signal": signal, "membership": inside, "predicted": p}
    change(arguments)
    with pytest.raises(InputError, match=message):
        attacks.with_prior(**arguments)


@pytest.mark.parametrize("shift", [0.0, 0.3, -2.0, 8.0])
@pytest.mark.parametrize("spread_in", [0.2, 0.999999, 1.0, 1.5, 4.0])
def test_the_best_test_is_half_of_one_plus_the_distance_of_the_laws(shift, spread_in):
    """By integration of |density − density|."""
    gap = integrate.quad(
        lambda x: abs(stats.norm.pdf(x, shift, 2 * spread_in) - stats.norm.pdf(x, 0, 2)),
        -60,
        60,
        limit=2000,
        points=[0],
    )[0]
    assert best_accuracy(shift, 2 * spread_in, 2.0) == pytest.approx(0.5 + gap / 4, abs=1e-6)


def test_the_expected_rate_is_that_of_draws():
    rng = np.random.default_rng(0)
    draws = best_accuracy(rng.normal(1.0, 0.7, 400_000), 0.8, 1.2).mean()
    assert expected_accuracy(*np.array([[1.0], [0.7], [0.8], [1.2]]))[0] == pytest.approx(draws, abs=2e-3)


def test_variances_of_any_size_are_still_taken_for_a_distribution_with_a_variance():
    """Over ten orders of magnitude likelihood asks for d₀ near 0; held at 3, so that the noise of d has a variance."""
    rng = np.random.default_rng(0)
    freedom = np.full(400, 6.0)
    squares = rng.chisquare(6, 400) * np.exp(rng.normal(scale=5.0, size=400))
    found = _moderated(_Scatter(squares, freedom), np.ones((400, 1)))
    np.testing.assert_allclose(found.freedom, 3.0 + freedom)


def test_a_prediction_that_pandas_has_in_another_order_is_refused():
    p, _, signal, inside, _ = study(4, n=100)
    names = [f"record {row}" for row in range(100)]
    frame, predicted = pd.DataFrame(signal, columns=names), pd.Series(p, index=names)
    want = attacks.with_prior(signal, inside, p).shift
    np.testing.assert_array_equal(attacks.with_prior(frame, inside, predicted).shift, want)
    with pytest.raises(InputError, match=r"^predicted: its index has the labels of signal.T in another order"):
        attacks.with_prior(frame, inside, predicted.iloc[::-1])


@pytest.mark.parametrize("free", [None, 8])
def test_gradients_are_those_of_finite_differences(free, monkeypatch):
    """Of both likelihoods: a wrong term lets L-BFGS-B stop short, somewhere that still looks like a fit."""
    asked = []
    plain = optimize.minimize

    def minimize(cost, start, **options):
        found = plain(cost, start, **options)
        asked.append((cost, np.asarray(start), found.x))
        return found

    monkeypatch.setattr("noshadow.attacks.prior.optimize.minimize", minimize)
    p, _, signal, inside, _ = study(6, n=400, spread_freedom=free)
    attacks.with_prior(signal, inside, p)
    assert len(asked) >= 4  # two sides, two starts of the prior
    for cost, start, end in asked:
        for at in (start, 0.7 * start + 0.3 * end):
            numbers = optimize.approx_fprime(at, lambda constants, cost=cost: cost(constants)[0], 1e-6)
            np.testing.assert_allclose(cost(at)[1], numbers, rtol=1e-3, atol=1e-4)
