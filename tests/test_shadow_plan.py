"""The plan: balanced, reproducible from one seed, and indifferent to how many models there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noshadow.errors import InputError
from noshadow.shadow import ModelKey, Plan

sizes = st.integers(2, 300)
seeds = st.integers(0, 2**64)
numbers = st.integers(0, 10_000)


@given(sizes, seeds, numbers)
def test_a_pair_of_models_splits_the_records(n_samples, seed, pair):
    plan = Plan(n_samples, seed)
    first, second = (plan.members(ModelKey("shadow", 2 * pair + i)) for i in (0, 1))
    assert sorted([*first, *second]) == list(range(n_samples))
    assert abs(len(first) - len(second)) == n_samples % 2


@given(sizes, seeds, numbers)
def test_members_are_sorted_rows_and_agree_with_the_mask(n_samples, seed, number):
    plan = Plan(n_samples, seed)
    for role in ("shadow", "target"):
        members = plan.members(ModelKey(role, number))
        assert (np.diff(members) > 0).all()
        assert np.array_equal(np.flatnonzero(plan.mask(ModelKey(role, number))), members)


@given(st.integers(20, 200), seeds, st.integers(1, 12))
def test_every_record_is_in_exactly_half_of_the_models(n_samples, seed, pairs):
    plan = Plan(n_samples, seed)
    membership = np.stack([plan.mask(ModelKey("shadow", k)) for k in range(2 * pairs)])
    assert (membership.sum(axis=0) == pairs).all()


@given(st.integers(40, 200), seeds)
def test_models_targets_and_seeds_are_all_different(n_samples, seed):
    plan = Plan(n_samples, seed)
    keys = [ModelKey(role, k) for role in ("shadow", "target") for k in range(10)]
    assert len({plan.mask(key).tobytes() for key in keys}) == len(keys)
    assert len({plan.seed_of(key) for key in keys}) == len(keys)
    assert Plan(n_samples, seed + 1).seed_of(keys[0]) != plan.seed_of(keys[0])


def test_splits_are_pinned():
    """Stored studies are continued with these very splits, whatever the version of NumPy."""
    plan = Plan(10, 0)
    assert plan.members(ModelKey("shadow", 0)).tolist() == [1, 2, 4, 6, 8]
    assert plan.members(ModelKey("target", 3)).tolist() == [0, 2, 3, 5, 6]
    assert [plan.seed_of(ModelKey("shadow", k)) for k in (0, 1)] == [1246905493, 1812439554]


def test_which_half_is_unbiased():
    """Over many models each pair of records lands on the same side just under half of the time."""
    membership = np.stack([Plan(20, 5).mask(ModelKey("target", k)) for k in range(2000)]).astype(float)
    together = membership.T @ membership / len(membership)
    off_diagonal = together[~np.eye(20, dtype=bool)]
    assert np.abs(np.diag(together) - 0.5).max() < 5 * 0.5 / np.sqrt(2000)
    assert np.abs(off_diagonal - 9 / 38).max() < 5 * 0.43 / np.sqrt(2000)


@pytest.mark.parametrize(("n_samples", "seed", "named"), [(1, 0, "n_samples"), (10, -1, "seed")])
def test_bad_plans_are_named(n_samples, seed, named):
    with pytest.raises(InputError, match=named):
        Plan(n_samples, seed)
