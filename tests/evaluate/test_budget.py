"""The curve over the number of models: against a plain loop, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from noshadow import InputError, attacks, evaluate


@pytest.fixture(scope="module")
def study():
    rng = np.random.default_rng(0)
    n_models, n = 48, 600
    shift = rng.exponential(size=n)
    membership = rng.random((n_models, n)) < 0.5
    signal = rng.normal(size=(n_models, n)) + shift * membership
    members = rng.random((2, n)) < 0.5
    predicted = np.where(members, shift * np.exp(0.7 * rng.normal(size=(2, n))), np.nan)
    return signal, membership, predicted, members


def lira(signal, membership):
    return attacks.lira(signal, membership, progress=False)


@pytest.mark.filterwarnings("ignore::noshadow.NoshadowWarning")
def test_it_is_the_protocol_written_out(study):
    signal, membership, predicted, members = study
    options = {"top": 0.05, "keep": 0.1}
    found = evaluate.budget(lira, attacks.with_prior, *study, models=(0, 3, 6), draws=2, seed=4, **options)
    rng = np.random.default_rng(4)
    for draw in range(2):
        order = rng.permutation(48)
        truth = lira(signal[np.sort(order[6:])], membership[np.sort(order[6:])])
        for row, count in enumerate((0, 3, 6)):
            for target in range(2):
                own = members[target]

                def value(score, own=own, truth=truth):
                    return evaluate.recall(score, truth.success_rate[own], tiebreak=truth.tiebreak[own], **options)

                got = [getattr(found, name)[row, draw, target] for name in ("together", "measured", "attack")]
                if not count:
                    assert got[0] == value(predicted[target, own])
                    assert np.isnan(got[1:]).all()
                    continue
                few = order[:count]
                both = attacks.with_prior(signal[few][:, own], membership[few][:, own], predicted[target, own])
                assert got[:2] == [value(both.shift), value(np.where(np.isnan(both.measured), 0.0, both.measured))]
                if count < 4:
                    assert np.isnan(got[2])
                else:
                    alone = lira(signal[few], membership[few])
                    assert got[2] == value(evaluate.ordering(alone.success_rate, alone.tiebreak)[own])


def test_few_models_and_a_prediction_find_more_than_either(study):
    found = evaluate.budget(lira, attacks.with_prior, *study, models=(0, 2, 4, 8), draws=4, top=0.1, keep=0.2)
    mean = found.table
    assert list(mean.index) == [0, 2, 4, 8]
    assert mean.together[8] > mean.together[0]
    assert (mean.together > mean.measured)[[2, 4]].all()
    assert mean.together[4] > mean.attack[4]
    assert found.together.shape == (4, 4, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models": (4, 2)}, "models: expected ascending numbers"),
        ({"models": (0, 1)}, "models: expected ascending numbers"),
        ({"models": (0, 2.7)}, r"models: expected whole numbers, got \[0, 2.7\]"),
        ({"models": ()}, "models: expected ascending numbers"),
        ({"models": (0, 46)}, "models: 46 of 48 models leave 2 for the reference"),
        ({"draws": 0}, "draws: expected a whole number, 1 or more"),
        ({"draws": 2.5}, "draws: expected a whole number, 1 or more"),
        ({"models": 4}, "models: expected a list of whole numbers, got 4"),
        ({"models": (0, float("nan"))}, "models: expected a list of whole numbers"),
        ({"members": np.zeros((2, 600), dtype=bool)}, "members: target 0 has none"),
        ({"members": np.ones((2, 600), dtype=bool)}, "predicted: NaN or infinite for target 0, row"),
        ({"predicted": np.ones((3, 600))}, r"predicted, members: expected shape \(T, 600\)"),
        ({"signal": np.ones((3, 600))}, r"signal, membership: expected shape \(K, N\)"),
    ],
)
def test_what_cannot_be_done_is_refused(study, change, message):
    names = ("signal", "membership", "predicted", "members")
    arguments = dict(zip(names, study, strict=True)) | change
    with pytest.raises(InputError, match=message):
        evaluate.budget(lira, attacks.with_prior, **arguments)


@pytest.mark.parametrize("place", [1, 3])
def test_members_that_are_not_booleans_are_refused(study, place):
    """Of −1 and 1 every record would count as a member; 0 and 1 are taken."""
    name, parts = {1: "membership", 3: "members"}[place], list(study)
    how = {"models": (0, 4), "draws": 1, "top": 0.1, "keep": 0.2}
    whole = evaluate.budget(lira, attacks.with_prior, *parts, **how)
    parts[place] = study[place].astype(int)
    np.testing.assert_array_equal(evaluate.budget(lira, attacks.with_prior, *parts, **how).together, whole.together)
    parts[place] = 2 * study[place].astype(int) - 1
    with pytest.raises(
        InputError, match=f"^{name}: expected booleans, got other values than 0 and 1; pass {name} == 1"
    ):
        evaluate.budget(lira, attacks.with_prior, *parts, **how)
