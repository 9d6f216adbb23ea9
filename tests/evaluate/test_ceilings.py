"""What the attack finds again, and what a perfect score would find: definitions, and simulations with known answers."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import stats

from noshadow import attacks, evaluate
from noshadow.errors import InputError
from noshadow.evaluate.ceilings import enough_draws
from noshadow.evaluate.replica import Laws, Posteriors, population_of, wallace
from noshadow.shadow.plan import ModelKey, Plan
from tests.attacks.definitions import half_splits


def study(n_models, spread, seed=0, n_records=300):
    """Signals in which record i separates by δᵢ: half of the records do not, the rest up to ``spread``."""
    rng = np.random.default_rng(seed)
    membership = half_splits(rng, n_models, n_records, fewest=8)
    delta = np.maximum(np.linspace(-spread, spread, n_records), 0.0)
    return rng.normal(size=membership.shape) + delta * membership, membership, delta


def planned(n_models, n_records, seed=0):
    plan = Plan(n_records, seed)
    return np.array([plan.mask(ModelKey("shadow", number)) for number in range(n_models)])


def test_the_attack_again_rises_with_models_and_signal_and_is_chance_without():
    def lira_ceiling(n_models, spread, metric):
        signal, membership, _ = study(n_models, spread)
        return evaluate.ceiling(
            lambda models: attacks.lira(signal[models], membership[models], variance="fixed"),
            n_models,
            metric,
            splits=4,
        ).mean

    few, many = (lira_ceiling(k, 3.0, evaluate.spearman) for k in (48, 192))
    assert 0.3 < few < many < 1.0
    assert abs(lira_ceiling(96, 0.0, evaluate.spearman)) < 0.15


def test_the_attack_again_without_noise_finds_all_and_follows_members():
    class Exact:
        success_rate = np.linspace(0.5, 1.0, 200)
        tiebreak = np.zeros(200)

    members = np.random.default_rng(1).random((3, 200)) < 0.5
    seen = []
    found = evaluate.halves(lambda models: seen.append(models) or Exact(), 20, splits=3)
    np.testing.assert_array_equal(evaluate.over_predictions(evaluate.recall, found, members).values, 1.0)
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        np.testing.assert_array_equal(np.sort(np.r_[first, second]), np.arange(20))


def test_the_attack_again_is_reproducible_from_its_seed():
    signal, membership, _ = study(64, 2.0)

    def attack(models):
        return attacks.lira(signal[models], membership[models], variance="fixed")

    first, again, other = (evaluate.ceiling(attack, 64, splits=2, top=0.1, keep=0.2, seed=s).values for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("n_models", [8, 16])
@pytest.mark.parametrize("name", ["lira", "lira as it is", "rmia"])
def test_the_attack_again_works_with_few_models(n_models, name, recwarn):
    """As the docstring shows it, on the splits of a study: a half lacks models with some records, or without them."""
    membership = planned(n_models, 600)
    strong = np.arange(600) < 30
    signal = np.random.default_rng(0).normal(size=membership.shape) + 8.0 * strong * membership
    rule = attacks.lira_variance(n_models)
    attack = {
        "lira": lambda models: attacks.lira(signal[models], membership[models], variance=rule),
        "lira as it is": lambda models: attacks.lira(signal[models], membership[models]),
        "rmia": lambda models: attacks.rmia(signal[models], membership[models]),
    }[name]
    recwarn.clear()
    found = evaluate.ceiling(attack, n_models, splits=4, top=0.02, keep=0.05)
    assert len(recwarn) == 0  # it is the halves that lack models, of which the caller knows nothing
    assert 0.15 < found.mean <= 1.0  # chance is 0.05; of 4 models 3 in 8 records are on both sides twice


def test_a_record_too_few_models_have_is_undecided_in_that_half():
    """Against a loop: halves drawn with the seed, LiRA where it knows something, ½ and 0 elsewhere."""
    membership = planned(8, 60, seed=3)
    signal = np.random.default_rng(1).normal(size=membership.shape) + 2.0 * membership
    found = evaluate.halves(lambda models: attacks.lira(signal[models], membership[models]), 8, splits=1, seed=5)
    models = np.random.default_rng(5).permutation(8)
    ranks = []
    for half in (np.sort(models[:4]), np.sort(models[4:])):
        inside = membership[half]
        known = [i for i in range(60) if inside[:, i].sum() == 2]
        assert 0 < len(known) < 60
        of_known = attacks.lira(signal[half][:, known], inside[:, known], variance="fixed")
        rate, separation = np.full(60, 0.5), np.zeros(60)
        rate[known], separation[known] = of_known.success_rate, of_known.tiebreak
        ranks.append(evaluate.ordering(rate, separation))
    for score, truth in zip(found[0], (ranks, ranks[::-1]), strict=True):
        np.testing.assert_array_equal(score.score, truth[0])
        np.testing.assert_array_equal(score.truth, truth[1])


def test_halves_are_attacked_as_the_whole_is():
    """With 30 models LiRA has a variance per record, with 15 one for all; "auto" does not choose anew for halves."""
    signal, membership, _ = study(30, 2.0)
    assert attacks.lira_variance(30) == "per_sample"
    assert attacks.lira_variance(15) == "fixed"
    with pytest.raises(
        InputError, match=r"attack: 'lira online, variance per_sample' with all 30 models, but .*fixed'"
    ):
        evaluate.ceiling(lambda models: attacks.lira(signal[models], membership[models]), 30)
    rule = attacks.lira_variance(30)
    stated, explicit = (
        evaluate.ceiling(
            lambda models, how=how: attacks.lira(signal[models], membership[models], variance=how), 30, splits=2
        ).values
        for how in (rule, "per_sample")
    )
    np.testing.assert_array_equal(stated, explicit)


def known_laws(scenario, n, rng):
    """How exposed records are: not at all, weakly, strongly, a few very much, by their spread."""
    one, zero = np.ones(n), np.zeros(n)
    scale = np.exp(0.7 * rng.standard_normal(n))
    if scenario == "none":
        return Laws(zero, zero, scale, scale)
    if scenario == "weak":
        return Laws(0.2 * np.abs(rng.standard_normal(n)), zero, one, one)
    if scenario == "strong":
        return Laws(1.5 * scale * np.abs(rng.standard_normal(n)), 3.0 * rng.standard_normal(n), scale, scale)
    if scenario == "heavy":
        return Laws(0.15 * rng.pareto(2.0, n), zero, one, one)
    ratio = np.exp(0.4 * rng.standard_normal(n))
    return Laws(0.5 * scale * rng.exponential(1.0, n), zero, scale * ratio, scale)


def true_oracle(attack, laws, membership, metrics, draws=4):
    """What the perfect score reaches, the laws being known: mean over new studies of the same records."""
    values = []
    for draw in range(draws):
        rng = np.random.default_rng([99, draw])
        perfect, found = attack(*laws.study_without_noise(rng)), attack(laws.study(membership, rng), membership)
        score = evaluate.ordering(perfect.success_rate, perfect.tiebreak)
        values.append([metric(score, found.success_rate, tiebreak=found.tiebreak) for metric in metrics])
    return np.mean(values, axis=0)


@pytest.mark.parametrize("n_models", [16, 24, 48, 200])
@pytest.mark.parametrize("scenario", ["none", "weak", "strong", "heavy", "spread"])
def test_a_perfect_score_is_estimated_as_it_is(scenario, n_models):
    """1,500 records, a twentieth of them sought among a tenth: recall to 0.1, Spearman to 0.08, some three deviations.

    Most of that is the one study that the estimate is made from. No score does better: neither the attack again nor
    the records' true separations.
    """
    rng = np.random.default_rng(n_models)
    laws = known_laws(scenario, 1500, rng)
    membership = half_splits(rng, n_models, 1500)
    signal = laws.study(membership, rng)
    attack = partial(attacks.lira, variance=attacks.lira_variance(n_models))
    found_of_top = partial(evaluate.recall, top=0.05, keep=0.1)
    metrics = (found_of_top, evaluate.spearman)
    simulated = evaluate.oracle(attack, signal, membership, draws=4)
    recall, rank = (evaluate.over_predictions(metric, simulated).mean for metric in metrics)
    true_recall, true_rank = true_oracle(attack, laws, membership, metrics)
    assert recall == pytest.approx(true_recall, abs=0.1)
    assert rank == pytest.approx(true_rank, abs=0.08)
    if scenario == "none":
        assert recall == pytest.approx(0.1, abs=0.05)  # chance
    halves = evaluate.halves(lambda models: attack(signal[models], membership[models]), n_models, splits=1)
    found = attack(signal, membership)
    separation = (laws.mean_in - laws.mean_out) / np.sqrt((laws.sd_in**2 + laws.sd_out**2) / 2.0)
    truly = found_of_top(separation, found.success_rate, tiebreak=found.tiebreak)
    again = evaluate.over_predictions(found_of_top, halves).mean
    assert max(again, truly) < recall + 0.13  # of one study: more noise


def test_a_perfect_score_against_losses_is_simulated_from_predictions():
    """Squared error: residuals are normal, losses are not. Two outputs, RMIA and LiRA on the loss."""
    rng = np.random.default_rng(0)
    n, n_models = 800, 48
    residual = rng.standard_normal(2 * n)
    pull = np.repeat(np.minimum(0.06 * rng.exponential(1.0, n), 0.9), 2)
    laws = Laws(residual * (1.0 - pull), residual, 0.1 + 0.3 * pull, 0.1 + 0.33 * pull)
    membership = half_splits(rng, n_models, n)

    def attack(z, member):
        return attacks.lira((z**2).sum(2), member, members="lower", variance="per_sample")

    def shaped(flat):
        return flat.reshape(len(flat), n, 2)

    signal = shaped(laws.study(np.repeat(membership, 2, axis=1), rng))
    values = []
    for draw in range(4):
        rng = np.random.default_rng([7, draw])
        exact, dealt = laws.study_without_noise(rng, width=2)
        perfect = attack(shaped(exact), dealt)
        found = attack(shaped(laws.study(np.repeat(membership, 2, axis=1), rng)), membership)
        score = evaluate.ordering(perfect.success_rate, perfect.tiebreak)
        values.append(evaluate.spearman(score, found.success_rate, tiebreak=found.tiebreak))
    estimated = evaluate.oracle_ceiling(attack, signal, membership, evaluate.spearman, draws=4)
    assert estimated.mean == pytest.approx(np.mean(values), abs=0.05)


def test_a_perfect_score_against_rmia():
    rng = np.random.default_rng(4)
    n = 1000
    location = 2.0 * rng.standard_normal(n)
    laws = Laws(location + 0.5 * rng.exponential(1.0, n), location, np.ones(n), np.ones(n))
    membership = half_splits(rng, 32, n)
    signal = laws.study(membership, rng)
    (truth,) = true_oracle(attacks.rmia, laws, membership, (evaluate.spearman,))
    found = evaluate.oracle_ceiling(attacks.rmia, signal, membership, evaluate.spearman, draws=4)
    assert found.mean == pytest.approx(truth, abs=0.06)


def test_a_perfect_score_follows_its_seed_its_members_and_the_number_of_records():
    signal, membership, _ = study(32, 2.0)
    attack = partial(attacks.lira, variance="per_sample")
    first, again, other = (
        evaluate.oracle_ceiling(attack, signal, membership, draws=2, seed=s, top=0.1, keep=0.2).values
        for s in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    predictions = evaluate.oracle(attack, signal, membership, draws=1)
    ((score, truth),) = predictions[0]
    members = np.random.default_rng(2).random((3, 300)) < 0.5
    expected = np.mean([evaluate.recall(score[mask], truth[mask], 0.1, 0.2) for mask in members])
    found = evaluate.over_predictions(evaluate.recall, predictions, members, top=0.1, keep=0.2)
    assert found.values == pytest.approx([expected])


def test_as_many_studies_are_simulated_as_give_enough_records():
    assert [enough_draws(n) for n in (1, 200, 10_000, 20_000, 40_000, 10**6)] == [20, 20, 10, 5, 3, 3]
    signal, membership, _ = study(32, 2.0, n_records=200)
    assert len(evaluate.oracle(attacks.lira, signal, membership)) == 20


def test_records_that_say_nothing_do_no_harm():
    """A constant stays constant; one that a single model has is drawn as any other."""
    signal, membership, _ = study(32, 2.0, n_records=200)
    signal[:, 3] = 5.0
    membership[:, 7] = np.arange(32) == 0
    population = population_of(signal, membership)
    laws = population.draw(np.random.default_rng(0))
    assert (laws.sd_in[3], laws.sd_out[3], laws.mean_in[3], laws.mean_out[3]) == (0.0, 0.0, 5.0, 5.0)
    assert all(np.isfinite(values).all() for values in laws)
    tie = partial(attacks.lira, variance="per_sample", constant="tie")
    assert 0.0 <= evaluate.oracle_ceiling(tie, signal, membership, draws=2).mean <= 1.0
    still = population_of(np.ones((8, 5)), half_splits(np.random.default_rng(0), 8, 5)).draw(np.random.default_rng(0))
    np.testing.assert_array_equal(still.mean_in, 1.0)
    np.testing.assert_array_equal(still.sd_out, 0.0)


def test_one_side_without_spread_is_as_exposed_as_can_be():
    signal, membership, _ = study(32, 0.0, n_records=100)
    signal[:, 0] = membership[:, 0]  # tells membership exactly
    laws = population_of(signal, membership).draw(np.random.default_rng(0))
    separation = (laws.mean_in - laws.mean_out) / np.sqrt((laws.sd_in**2 + laws.sd_out**2) / 2.0)
    assert separation[0] > 100.0
    assert np.abs(separation[1:]).max() < 3.0


def test_drawn_laws_spread_as_the_truth_does():
    """Estimates are spread too widely, posterior means too little; what is drawn has the spread of the truth."""
    rng = np.random.default_rng(1)
    n = 8000
    true = 0.3 * rng.standard_normal(n)
    ratio, scale = np.exp(0.3 * rng.standard_normal(n)), np.exp(rng.standard_normal(n))
    laws = Laws(true * scale * np.sqrt((1.0 + ratio**2) / 2.0), np.zeros(n), scale * ratio, scale)
    membership = half_splits(rng, 48, n)
    signal = laws.study(membership, rng)
    population = population_of(signal, membership)
    drawn = population.draw(rng)
    found = (drawn.mean_in - drawn.mean_out) / np.sqrt((drawn.sd_in**2 + drawn.sd_out**2) / 2.0)
    assert attacks.lira(signal, membership).separation.std() > 0.4
    assert population.separation.mean(population.separation.grid).std() < 0.26
    assert found.std() == pytest.approx(0.3, abs=0.02)
    assert np.log(drawn.sd_in / drawn.sd_out).std() == pytest.approx(0.3, abs=0.03)
    assert np.log(drawn.sd_out).std() == pytest.approx(1.0, abs=0.04)


def test_no_spread_is_found_where_there_is_none():
    rng = np.random.default_rng(2)
    membership = half_splits(rng, 32, 3000)
    laws = population_of(rng.standard_normal((32, 3000)), membership).draw(rng)
    assert ((laws.mean_in - laws.mean_out) / laws.sd_out).std() < 0.1  # that of the estimates is 0.37
    assert np.log(laws.sd_in / laws.sd_out).std() < 0.1


@pytest.mark.parametrize(("freedom", "centre"), [(14, 0.0), (14, 3.0), (46, 1.0), (198, 6.0)])
def test_wallace_makes_a_noncentral_t_normal(freedom, centre):
    t = (
        stats.nct.rvs(freedom, centre, size=40_000, random_state=0)
        if centre
        else stats.t.rvs(freedom, size=40_000, random_state=0)
    )
    z, _ = wallace(t, np.full(len(t), float(freedom)))
    expected, deviation = wallace(np.array([centre]), np.array([float(freedom)]))
    assert z.mean() == pytest.approx(float(expected[0]), abs=0.05)
    assert z.std() == pytest.approx(float(deviation[0]), rel=0.05)
    if centre == 0.0:
        assert stats.kstest(z, "norm").pvalue > 0.01


def test_a_study_without_noise_has_the_moments_of_its_laws():
    rng = np.random.default_rng(3)
    laws = Laws(rng.normal(size=50), rng.normal(size=50), rng.uniform(0.5, 2.0, 50), rng.uniform(0.5, 2.0, 50))
    signal, membership = laws.study_without_noise(rng, width=2)
    assert membership.shape == (256, 25)
    np.testing.assert_array_equal(membership.sum(0), 128)
    assert abs(membership.mean(1) - 0.5).max() < 0.45  # no model has all records, or none
    member = np.repeat(membership, 2, axis=1)
    for column in range(50):
        for side, mean, deviation in ((True, laws.mean_in, laws.sd_in), (False, laws.mean_out, laws.sd_out)):
            values = signal[member[:, column] == side, column]
            assert values.mean() == pytest.approx(mean[column])
            assert values.std() == pytest.approx(deviation[column])


def test_draws_follow_the_posterior():
    grid = np.array([0.0, 1.0, 3.0])
    posteriors = Posteriors(grid, np.cumsum(np.tile([0.2, 0.5, 0.3], (20_000, 1)), axis=1))
    assert posteriors.mean(grid)[0] == pytest.approx(1.4)
    drawn = posteriors.draw(np.random.default_rng(0))
    shares = [np.mean(drawn < 0.5), np.mean((drawn >= 0.5) & (drawn < 2.0)), np.mean(drawn >= 2.0)]
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.015)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: evaluate.ceiling(None, 6), "two halves of at least 4"),
        (lambda: evaluate.halves(None, 8, splits=0), "splits: expected 1 or more"),
        (lambda: evaluate.oracle_ceiling(None, np.ones((8, 3)), np.ones((8, 4))), "signal, membership: expected"),
        (lambda: evaluate.oracle_ceiling(None, np.full((8, 3), np.nan), np.ones((8, 3))), "signal: NaN"),
        (lambda: evaluate.oracle_ceiling(None, np.ones((8, 3)), np.ones((8, 3)), draws=0), "draws: expected 1"),
        (
            lambda: evaluate.over_predictions(
                evaluate.recall, [(evaluate.Prediction(np.ones(3), np.ones(3)),)], np.ones((1, 4))
            ),
            r"members: expected shape \(T, 3\)",
        ),
        (
            lambda: evaluate.oracle_ceiling(None, np.ones((8, 3)), np.array([[1.0], [-1.0]] * 4) * np.ones(3)),
            "membership: expected booleans, got other values than 0 and 1",
        ),
        (
            lambda: evaluate.over_predictions(
                evaluate.recall, [(evaluate.Prediction(np.ones(3), np.ones(3)),)], np.full((1, 3), -1)
            ),
            "members: expected booleans, got other values than 0 and 1",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
