"""What must hold for every layer, whatever its numbers."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from noshadow import LastLayer, NoshadowWarning, score

CURVED = ["leverage", "influence", "newton", "leave_one_out"]
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)
heads = st.sampled_from(["squared", "logistic", "softmax"])


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        yield


def make(head, seed, n=40, p=4, spread=1.0):
    rng = np.random.default_rng(seed)
    m = {"softmax": int(rng.integers(2, 7)), "logistic": 1, "squared": int(rng.integers(1, 4))}[head]
    x = rng.normal(size=(n, p))
    z = x @ (spread * rng.normal(size=(p, m))) + rng.normal(size=m)
    y = z + rng.normal(size=z.shape) if head == "squared" else rng.integers(0, max(m, 2), n)
    return x, z, y


@FEW
@given(heads, seeds, st.floats(0.1, 10), st.booleans())
def test_invertible_feature_maps_change_nothing(head, seed, scale, shift):
    x, z, y = make(head, seed)
    rng = np.random.default_rng(seed + 1)
    mapping = rng.normal(size=(4, 4)) + 3 * np.eye(4)
    assume(np.linalg.cond(mapping) < 1e4)
    moved = scale * x @ mapping + (rng.normal(size=4) if shift else 0)  # the constant column absorbs a shift
    before, after = score(LastLayer(x, z, y, head), CURVED), score(LastLayer(moved, z, y, head), CURVED)
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-12)


@FEW
@given(seeds, st.floats(0, 5))
def test_class_names_do_not_matter(seed, ridge):
    x, z, y = make("softmax", seed)
    order = np.random.default_rng(seed).permutation(z.shape[1])
    renamed = np.argsort(order)[y]
    before = score(LastLayer(x, z, y, "softmax", ridge))
    after = score(LastLayer(x, z[:, order], renamed, "softmax", ridge))
    np.testing.assert_allclose(after, before, rtol=1e-8, atol=1e-13)


@FEW
@given(seeds, st.floats(-1e3, 1e3), st.booleans())
def test_a_constant_added_to_all_logits_changes_nothing(seed, constant, per_record):
    x, z, y = make("softmax", seed)
    shift = constant * np.random.default_rng(seed).normal(size=(len(x), 1)) if per_record else constant
    before, after = score(LastLayer(x, z, y), CURVED), score(LastLayer(x, z + shift, y), CURVED)
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-12)


@FEW
@given(heads, seeds, st.integers(0, 39), st.floats(0, 3))
def test_a_duplicate_lowers_the_leverage(head, seed, i, ridge):
    x, z, y = make(head, seed)
    again = [np.concatenate([v, v[i : i + 1]]) for v in (x, z, y)]
    before = score(LastLayer(x, z, y, head, ridge), ["leverage"])["leverage"][i]
    after = score(LastLayer(*again, head, ridge), ["leverage"])["leverage"]
    assert after[i] < before
    assert after[i] == pytest.approx(after[40], rel=1e-9)


@FEW
@example("logistic", 0, 3, 17.0, 0.0)  # weights of three records over many orders of magnitude
@example("softmax", 24, 24, 57.0, 0.0)
@given(heads, seeds, st.integers(1, 60), st.floats(0.1, 200), st.sampled_from([0.0, 1e-6, 1.0]))
def test_leverage_stays_in_its_range_and_newton_above_influence(head, seed, n, spread, ridge):
    x, z, y = make(head, seed, n=n, spread=spread)
    got = score(LastLayer(x, z, y, head, ridge))
    bound = z.shape[1] - 1 if head == "softmax" else 1
    assert np.isfinite(got.drop(columns="attack_power", errors="ignore").to_numpy()).all()
    assert not got.isna().to_numpy().any()  # the power of a flagged record is infinite
    assert (got["leverage"] >= -1e-9).all()
    assert (got["leverage"] <= bound + 1e-6).all()
    assert (got["influence"] >= -1e-12).all()
    assert (got["newton"] >= got["influence"] * (1 - 1e-7) - 1e-12).all()


@FEW
@given(st.sampled_from(["squared", "logistic"]), seeds)
def test_leverages_add_up_to_the_rank(head, seed):
    x, z, y = make(head, seed)
    assert score(LastLayer(x, z, y, head), ["leverage"])["leverage"].sum() == pytest.approx(5.0, rel=1e-8)


@FEW
@given(seeds)
def test_softmax_leverages_add_up_to_the_rank_times_classes_less_one(seed):
    x, z, y = make("softmax", seed)
    total = score(LastLayer(x, z, y), ["leverage"])["leverage"].sum()
    assert total == pytest.approx(5.0 * (z.shape[1] - 1), rel=1e-6)


@FEW
@given(seeds, st.floats(0.5, 1.0, exclude_max=True))
def test_newton_is_monotone_in_leverage_up_to_one(seed, share):
    """One record moved along its own direction: its leverage rises to 1, its Newton factor never falls."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 2))
    factors = []
    for size in 10.0 ** np.arange(0, 13, 2):
        moved = x.copy()
        moved[0] = size * share * np.array([1.0, 1.0])
        z = np.zeros(30)
        y = np.ones(30)
        got = score(LastLayer(moved, z, y, "squared"))
        assert np.isfinite(got.to_numpy()).all()
        factors.append(got["newton"][0])
    assert (np.diff(factors) >= -1e-6 * np.array(factors[1:])).all()
