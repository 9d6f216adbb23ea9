"""The plan: fair, reproducible from one seed, and indifferent to how many models there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noshadow.attacks import lira
from noshadow.errors import InputError
from noshadow.shadow import ModelKey, Plan, Study, load
from noshadow.shadow.plan import SPLITS

sizes = st.integers(2, 300)
seeds = st.integers(0, 2**64)
numbers = st.integers(0, 10_000)


@given(sizes, seeds, numbers)
def test_every_model_has_half_of_the_records(n_samples, seed, number):
    plan = Plan(n_samples, seed)
    for role in ("shadow", "target"):
        assert len(plan.members(ModelKey(role, number))) == n_samples // 2


@given(sizes, seeds, numbers)
def test_members_are_sorted_rows_and_agree_with_the_mask(n_samples, seed, number):
    plan = Plan(n_samples, seed)
    for role in ("shadow", "target"):
        members = plan.members(ModelKey(role, number))
        assert (np.diff(members) > 0).all()
        assert np.array_equal(np.flatnonzero(plan.mask(ModelKey(role, number))), members)


@given(st.integers(40, 200), seeds)
def test_models_targets_and_seeds_are_all_different(n_samples, seed):
    plan = Plan(n_samples, seed)
    keys = [ModelKey(role, k) for role in ("shadow", "target") for k in range(10)]
    reruns = [ModelKey("rerun", k) for k in range(10)]
    assert len({plan.mask(key).tobytes() for key in keys}) == len(keys)
    assert len({plan.seed_of(key) for key in [*keys, *reruns]}) == 30
    assert all((plan.mask(rerun) == plan.mask(key)).all() for rerun, key in zip(reruns, keys[10:], strict=True))
    assert Plan(n_samples, seed + 1).seed_of(keys[0]) != plan.seed_of(keys[0])


def test_splits_are_pinned():
    """Stored studies are continued with these very splits, whatever the version of NumPy."""
    plan = Plan(10, 0)
    assert SPLITS == "independent halves"  # part of a study's identity: other splits need another name
    assert plan.members(ModelKey("shadow", 0)).tolist() == [1, 2, 4, 6, 8]
    assert plan.members(ModelKey("target", 3)).tolist() == [0, 2, 3, 5, 6]
    assert [plan.seed_of(ModelKey("shadow", k)) for k in (0, 1)] == [1246905493, 1812439554]


@pytest.mark.parametrize("role", ["shadow", "target"])
def test_which_half_is_unbiased(role):
    """Over many models each pair of records lands on the same side just under half of the time."""
    membership = np.stack([Plan(20, 5).mask(ModelKey(role, k)) for k in range(2000)]).astype(float)
    together = membership.T @ membership / len(membership)
    off_diagonal = together[~np.eye(20, dtype=bool)]
    assert np.abs(np.diag(together) - 0.5).max() < 5 * 0.5 / np.sqrt(2000)
    assert np.abs(off_diagonal - 9 / 38).max() < 5 * 0.43 / np.sqrt(2000)


def test_models_are_independent_of_each_other():
    """How many of 16 models have a record is binomial, and no model's split is told by the others'."""
    counts = np.concatenate(
        [sum(Plan(500, seed).mask(ModelKey("shadow", k)).astype(int) for k in range(16)) for seed in range(40)]
    )
    assert counts.mean() == pytest.approx(8.0, abs=5 * 2.0 / np.sqrt(len(counts)))
    assert counts.var() == pytest.approx(4.0, rel=0.06)  # in blocks of 16 it is 0
    membership = np.stack([Plan(4000, 9).mask(ModelKey("shadow", k)) for k in range(16)])
    correlations = np.corrcoef(membership)[np.triu_indices(16, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(4000)
    assert abs(correlations.mean()) < 5 / np.sqrt(4000 * 120)  # in blocks of 16 it is -1/15


def test_splits_do_not_give_the_left_out_model_away():
    """Models whose errors are those of a pool's halves, and signals that no record influences: LiRA must guess."""
    rates = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        plan = Plan(600, seed)
        membership = np.stack([plan.mask(ModelKey("shadow", k)) for k in range(48)])
        pool, directions = rng.normal(size=(600, 20)), rng.normal(size=(20, 600))
        signal = (membership @ pool / 300 - pool.mean(0)) @ directions
        own = (pool * directions.T).sum(1) / 300
        rates.append(lira(signal - membership * own, membership).success_rate.mean())
    assert np.mean(rates) == pytest.approx(0.5, abs=0.005)  # complementary pairs of models: 0.47


def test_a_store_with_other_splits_is_another_study(tmp_path, monkeypatch):
    """Models of a store from before the splits changed are not mixed with new ones."""
    study = Study(lambda members, seed: np.zeros(6), 6, 4, store=tmp_path, procedure="zeros")
    study.run("serial")
    assert load(tmp_path).store.study["splits"] == SPLITS
    monkeypatch.setattr("noshadow.shadow.study.SPLITS", "blocks of 16")
    with pytest.raises(InputError, match="splits"):
        Study(lambda members, seed: np.zeros(6), 6, 4, store=tmp_path, procedure="zeros").run("serial")


@pytest.mark.parametrize(("n_samples", "seed", "named"), [(1, 0, "n_samples"), (10, -1, "seed")])
def test_bad_plans_are_named(n_samples, seed, named):
    with pytest.raises(InputError, match=named):
        Plan(n_samples, seed)
