"""RMIA against its O(n·|z|) definition in probabilities, extremes in logarithms, and bad input."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from noshadow import attacks
from noshadow.attacks.counterpart import counterparts
from noshadow.attacks.result import calibrate
from noshadow.attacks.rmia import log_average
from noshadow.errors import InputError, NoshadowWarning
from tests.attacks.definitions import counterpart, half_splits, rmia_loop


def draw(seed, n_models=9, n_records=12, size=17, digits=None):
    rng = np.random.default_rng(seed)
    membership = half_splits(rng, n_models, n_records, fewest=2)
    signal = rng.normal(size=(n_models, n_records)) * 2 + membership
    population = rng.normal(size=(n_models, size)) * 2
    return (signal, membership, population) if digits is None else (signal.round(digits), membership, population)


@pytest.mark.parametrize("variant", ["online", "offline"])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_equals_the_definition(variant, gamma, a):
    signal, membership, population = draw(1)
    found = attacks.rmia(signal, membership, population, variant, gamma=gamma, a=a)
    p, p_z = special.expit(signal), special.expit(population)
    np.testing.assert_array_equal(found.scores, rmia_loop(p, membership, p_z, variant, gamma, a))


@pytest.mark.parametrize("variant", ["online", "offline"])
def test_decisions_leave_the_counterpart_out(variant):
    """The fair scores are not kept: where they part the records as the definition's do, the decisions are the same."""
    signal, membership, population = draw(11, 12, 60)
    found = attacks.rmia(signal, membership, population, variant)
    p, p_z = special.expit(signal), special.expit(population)
    fair = torch.from_numpy(rmia_loop(p, membership, p_z, variant, fair=True))
    cut = calibrate(fair, torch.from_numpy(membership), fair=True)
    np.testing.assert_array_equal(found.decisions > 0, (fair > cut[:, None]).numpy())
    assert not np.array_equal(found.decisions > 0, found.scores > found.thresholds[:, None])


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("spread", [1.0, 400.0])  # by sums of probabilities, and by logarithms
def test_averages_without_the_counterpart(online, spread):
    signal, membership, _ = draw(12)
    log_p, inside = torch.from_numpy(special.log_expit(spread * signal)), torch.from_numpy(membership)
    found = log_average(log_p, inside, online, 1.0, counterparts(inside)).numpy()
    with mpmath.workdps(50):
        for k, i in np.ndindex(*signal.shape):
            left_out = {k, counterpart(membership, k, i)}
            means = []
            for side in (False, True) if online else (False,):
                p = [mpmath.exp(float(log_p[j, i])) for j in range(9) if j not in left_out and membership[j, i] == side]
                means.append(sum(p) / len(p))
            expected = float(mpmath.log(sum(means) / len(means)))
            assert found[k, i] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e250])
def test_extreme_signals_are_told_apart_or_refused(size):
    signal, membership, _ = draw(12)
    if size > 1.0:
        result = attacks.rmia(signal * size, membership)
        assert np.isfinite(result.scores).all()
        assert np.isfinite(result.separation).all()
        with pytest.raises(InputError, match=r"temperature: signals as large as .* overflow"):
            attacks.rmia(signal * size, membership, temperature=1e-70)
    else:
        with pytest.raises(InputError, match="signal: the likelihood ratio at temperature 1 is the same for all"):
            attacks.rmia(signal * size, membership)
        scaled = attacks.rmia(signal * size, membership, temperature=size)
        np.testing.assert_array_equal(scaled.success_rate, attacks.rmia(signal, membership).success_rate)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_models=st.integers(6, 12),
    size=st.integers(1, 30),
    gamma=st.floats(0.2, 5.0),
    variant=st.sampled_from(["online", "offline"]),
)
def test_equals_the_definition_at_any_size(seed, n_models, size, gamma, variant):
    signal, membership, population = draw(seed, n_models, 7, size)
    found = attacks.rmia(signal, membership, population, variant, gamma=gamma)
    p, p_z = special.expit(signal), special.expit(population)
    np.testing.assert_array_equal(found.scores, rmia_loop(p, membership, p_z, variant, gamma))


@pytest.mark.parametrize("gamma", [0.8, 1.5])
def test_without_a_population_the_pool_serves_and_no_record_meets_itself(gamma):
    signal, membership, _ = draw(2)
    found = attacks.rmia(signal, membership, gamma=gamma)
    expected = rmia_loop(special.expit(signal), membership, None, "online", gamma)
    np.testing.assert_allclose(found.scores, expected, atol=1e-15)


def test_equal_ratios_count_at_gamma_one():
    """LR ≥ γ includes equality: twins have LR = 1 and count for each other, but not just above γ = 1."""
    signal, membership, _ = draw(3)
    signal[:, 1], membership[:, 1] = signal[:, 0], membership[:, 0]
    at_one = attacks.rmia(signal, membership, gamma=1.0).scores
    above = attacks.rmia(signal, membership, gamma=1.0 + 1e-9).scores
    np.testing.assert_allclose(at_one, rmia_loop(special.expit(signal), membership, None), atol=1e-15)
    np.testing.assert_array_equal(at_one[:, 0], at_one[:, 1])
    np.testing.assert_allclose(at_one[:, :2] - above[:, :2], 1 / 11, atol=1e-15)


def test_scales_and_temperatures_are_the_same_probabilities():
    signal, membership, population = draw(4)
    logit = attacks.rmia(signal, membership, population, temperature=3.0).scores
    logs = [special.log_expit(v / 3.0) for v in (signal, population)]
    np.testing.assert_array_equal(attacks.rmia(logs[0], membership, logs[1], scale="log_probability").scores, logit)
    halved = attacks.rmia(2 * logs[0], membership, 2 * logs[1], scale="log_probability", temperature=2.0)
    np.testing.assert_array_equal(halved.scores, logit)


@pytest.mark.parametrize("online", [True, False])
def test_averages_survive_probabilities_of_any_size(online):
    """log p(x) with probabilities from 1 to e^−3000 in one record, against mpmath."""
    rng = np.random.default_rng(5)
    membership = half_splits(rng, 8, 5, fewest=3)
    log_p = -np.array([0.0, 1e-3, 1.0, 40.0, 300.0, 900.0, 2000.0, 3000.0])[
        rng.permuted(np.tile(np.arange(8), (5, 1)), axis=1).T
    ]
    found = log_average(torch.from_numpy(log_p), torch.from_numpy(membership), online, 1.0).numpy()
    with mpmath.workdps(50):
        for k in range(8):
            for i in range(5):
                means = []
                for side in (False, True) if online else (False,):
                    p = [mpmath.exp(log_p[j, i]) for j in range(8) if j != k and membership[j, i] == side]
                    means.append(sum(p) / len(p))
                expected = float(mpmath.log(sum(means) / len(means)))
                assert found[k, i] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_confident_models_do_not_tie():
    """Signals of thousands: probabilities round to 1 and 0, their ratios must still be told apart."""
    signal, membership, population = draw(6, 10, 40, 200)
    result = attacks.rmia(1000 * signal - 5000, membership, 1000 * population - 5000)
    assert np.isfinite(result.scores).all()
    assert len(np.unique(result.scores)) > 30
    assert np.isfinite(result.separation).all()


def test_a_target_does_not_see_its_own_membership():
    signal, membership, population = draw(7, 12)
    flipped = membership.copy()
    flipped[3] = ~flipped[3]
    for variant in ("online", "offline"):
        first, second = (attacks.rmia(signal, m, population, variant).scores[3] for m in (membership, flipped))
        np.testing.assert_array_equal(first, second)


def test_separates_what_can_be_separated_and_nothing_else():
    rng = np.random.default_rng(8)
    membership = half_splits(rng, 40, 300)
    difficulty = rng.normal(size=300) * 2
    population = rng.normal(size=(40, 500)) + rng.normal(size=500) * 2
    noise = rng.normal(size=membership.shape) + difficulty
    for variant in ("online", "offline"):
        assert abs(attacks.rmia(noise, membership, population, variant).auc - 0.5) < 0.02
        assert attacks.rmia(noise + 2.0 * membership, membership, population, variant).auc > 0.75


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"population": np.zeros((3, 5))}, "population: 3 models, but signal has 9"),
        ({"population": np.full((9, 5), np.nan)}, "population: NaN or infinite"),
        ({"population": np.zeros(5)}, r"population: expected shape \(K, N\)"),
        ({"gamma": 0.0}, "gamma: expected a number > 0"),
        ({"a": 1.5}, "a: expected a number between 0 and 1"),
        ({"temperature": -1.0}, "temperature: expected a number > 0"),
        ({"variant": "both"}, "variant: 'both' is not one of"),
        ({"scale": "probability"}, "scale: 'probability' is not one of"),
        ({"scale": "log_probability"}, "signal: log-probabilities are at most 0"),
    ],
)
def test_bad_input_is_named(change, message):
    signal, membership, population = draw(9)
    with pytest.raises(InputError, match=message):
        attacks.rmia(**{"signal": signal, "membership": membership, "population": population, **change})


def test_lone_record_needs_a_population():
    with pytest.raises(InputError, match="no other record"):
        attacks.rmia(np.arange(6.0)[:, None], np.array([[1], [0]] * 3))


def test_too_few_references_are_named():
    signal, membership, population = draw(10)
    membership[:, 5] = np.arange(9) < 1
    with pytest.warns(NoshadowWarning, match="member of 1 of 9 models in row 5"):
        result = attacks.rmia(signal, membership, population)
    assert result.success_rate[5] == 0.5
    others = np.arange(12) != 5
    alone = attacks.rmia(signal[:, others], membership[:, others], population)
    np.testing.assert_array_equal(result.success_rate[others], alone.success_rate)


@pytest.mark.parametrize("variant", ["online", "offline"])
@pytest.mark.parametrize("depth", [300.0, 400.0, 730.0, 900.0, 1e5])
def test_a_side_far_below_the_other_keeps_its_digits(variant, depth):
    """Beside the members' probabilities of 1 those of the others underflow, all of them: no sum of them is left."""
    rng = np.random.default_rng(0)
    member = np.arange(8)[:, None] < [3, 4, 5]
    log_p = np.where(member, 0.0, -depth) - rng.random((8, 3))
    found = log_average(torch.tensor(log_p), torch.tensor(member), variant == "online", 1.0).numpy()
    for k, i in np.ndindex(log_p.shape):
        sides = [log_p[(member[:, i] == side) & (np.arange(8) != k), i] for side in (True, False)]
        with_it, without = (np.logaddexp.reduce(side) - np.log(len(side)) for side in sides)
        expected = np.logaddexp(with_it, without) - np.log(2.0) if variant == "online" else without
        assert found[k, i] == pytest.approx(expected, rel=1e-13)
