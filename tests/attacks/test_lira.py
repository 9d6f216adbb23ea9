"""LiRA against its definition as a plain loop, its golden values, its invariances and its bad input."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from noshadow import attacks
from noshadow.attacks.lira import _fits, gaussian_nll
from noshadow.attacks.separation import sides
from noshadow.errors import InputError, NoshadowWarning
from tests.attacks.definitions import balanced_rates, half_splits, lira_loop


def draw(seed, n_models=13, n_records=9, shift=1.0):
    rng = np.random.default_rng(seed)
    membership = half_splits(rng, n_models, n_records)
    scale = rng.uniform(0.3, 3.0, n_records)
    return rng.normal(size=(n_models, n_records)) * scale + shift * membership, membership


def test_golden_value_of_the_in_term():
    references = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 2.0, 20.0], [5.0, 5.0, 5.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0] * 3, [1.0] * 3, [0.0] * 3], dtype=torch.float64)
    inside, _, _ = sides(references, weight)
    target = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    found = gaussian_nll(target - inside.mean, inside.variance)
    np.testing.assert_allclose(found, [1.41893853, 1.41893853, 3.72152363], atol=5e-9)


@pytest.mark.parametrize("variant", ["online", "offline", "offline_two_sided"])
@pytest.mark.parametrize("variance", ["per_sample", "fixed"])
@pytest.mark.parametrize("center", ["mean", "median"])
@pytest.mark.parametrize("n_models", [12, 13])
def test_equals_the_definition(variant, variance, center, n_models):
    signal, membership = draw(n_models, n_models)
    found = attacks.lira(signal, membership, variant, variance, center)
    np.testing.assert_allclose(
        found.scores, lira_loop(signal, membership, variant, variance, center), rtol=1e-9, atol=1e-9
    )
    fair = lira_loop(signal, membership, variant, variance, center, fair=True)
    if variant == "online":
        np.testing.assert_array_equal(found.decisions > 0, fair > 0)
        np.testing.assert_allclose(found.success_rate, balanced_rates(fair > 0, membership), rtol=1e-14)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n_models=st.integers(8, 15),
    digits=st.sampled_from([0, 1, 12]),  # rounding makes ties, which medians must get right
    center=st.sampled_from(["mean", "median"]),
)
def test_equals_the_definition_with_ties(seed, n_models, digits, center):
    signal, membership = draw(seed, n_models, 4)
    signal = np.round(signal, digits) + 1e-3 * np.arange(n_models)[:, None] % 2
    found = attacks.lira(signal, membership, "online", "fixed", center)
    np.testing.assert_allclose(
        found.scores, lira_loop(signal, membership, "online", "fixed", center), rtol=1e-8, atol=1e-8
    )


def test_members_lower_is_the_other_tail():
    signal, membership = draw(3, shift=-1.0)
    found = attacks.lira(signal, membership, "offline", "per_sample", members="lower")
    np.testing.assert_allclose(
        found.scores, lira_loop(signal, membership, "offline", members="lower"), rtol=1e-9, atol=1e-12
    )


def test_auto_variance_is_fixed_below_24_models_and_per_sample_from_there_and_the_default():
    for n_models, variance in ((23, "fixed"), (24, "per_sample")):
        signal, membership = draw(5, n_models)
        auto, expected = (attacks.lira(signal, membership, variance=v) for v in ("auto", variance))
        np.testing.assert_array_equal(auto.scores, expected.scores)
        np.testing.assert_array_equal(attacks.lira(signal, membership).scores, expected.scores)
        assert auto.attack == expected.attack == f"lira online, variance {variance}"


def test_queries_add_up():
    signal, membership = draw(6)
    other, _ = draw(7)
    both = attacks.lira(np.stack([signal, other], -1), membership)
    single = [attacks.lira(s, membership).scores for s in (signal, other)]
    np.testing.assert_allclose(both.scores, single[0] + single[1], rtol=1e-12, atol=1e-12)
    mean = attacks.lira((signal + other) / 2, membership)
    np.testing.assert_allclose(both.separation, mean.separation, rtol=1e-12)


def test_a_dominating_outlier_does_not_wash_out_the_rest():
    """Leaving out a signal of 1e9 must give back the others' mean and variance to full precision."""
    signal, membership = draw(8, 12, 6)
    k = int(np.flatnonzero(membership[:, 2])[0])
    outlier = signal.copy()
    outlier[k, 2] = 1e9
    own, *_ = _fits(torch.from_numpy(outlier), torch.from_numpy(membership), "mean")
    rest = np.delete(signal[:, 2], k)[np.delete(membership[:, 2], k)]
    np.testing.assert_allclose(float(own.variance[k, 2]), rest.var(), rtol=1e-12)
    # the other records do not feel it
    untouched, touched = (attacks.lira(s, membership, variance="per_sample").scores for s in (signal, outlier))
    np.testing.assert_array_equal(np.delete(touched, 2, 1), np.delete(untouched, 2, 1))


def test_an_offset_changes_nothing():
    signal, membership = draw(9)
    plain = attacks.lira(signal, membership).scores
    np.testing.assert_allclose(attacks.lira(signal + 1e6, membership).scores, plain, rtol=1e-6, atol=1e-6)


def test_a_target_does_not_see_its_own_membership():
    """Score k may depend on every membership row but row k: the bound on ε rests on it."""
    signal, membership = draw(10, 14, 6)
    flipped = membership.copy()
    flipped[4] = ~flipped[4]
    np.testing.assert_allclose(
        attacks.lira(signal, flipped, variance="fixed").scores[4],
        attacks.lira(signal, membership, variance="fixed").scores[4],
        rtol=1e-10,
    )


def test_success_is_the_sign_of_the_ratio_and_separation_its_formula():
    signal, membership = draw(11, 20, 30)
    result = attacks.lira(signal, membership, variance="per_sample")
    right = (result.scores > 0) == membership
    np.testing.assert_allclose(result.success_rate, balanced_rates(result.decisions > 0, membership), rtol=1e-14)
    for i in range(30):
        inside, outside = signal[membership[:, i], i], signal[~membership[:, i], i]
        expected = (inside.mean() - outside.mean()) / np.sqrt((inside.var() + outside.var()) / 2)
        assert result.separation[i] == pytest.approx(expected, rel=1e-12)
    accuracy = (right[membership].mean() + right[~membership].mean()) / 2
    assert result.balanced_accuracy == pytest.approx(accuracy, rel=1e-12)


def test_the_standard_error_of_the_separation_is_its_spread():
    """2,000 records of one law: the spread of d̂′ over them against the mean of the claimed errors."""
    rng = np.random.default_rng(12)
    membership = half_splits(rng, 80, 2000, fewest=20)
    signal = rng.normal(size=membership.shape) * np.where(membership, 1.5, 1.0) + 1.2 * membership
    result = attacks.lira(signal, membership)
    assert result.separation_error.mean() == pytest.approx(result.separation.std(), rel=0.06)


def test_a_loss_has_negative_separation_and_a_positive_tiebreak():
    signal, membership = draw(13, 40, 50, shift=-1.0)
    result = attacks.lira(signal, membership)
    assert result.separation.mean() < 0
    np.testing.assert_array_equal(result.tiebreak, -result.separation)


def test_signed_residuals_are_ordered_by_how_far_they_move_either_way():
    signal, membership = draw(24, 40, 60, shift=0.0)
    signal += membership * np.where(np.arange(60) % 2, 2.0, -2.0)
    told = attacks.lira(signal, membership, members="either")
    np.testing.assert_array_equal(told.tiebreak, np.abs(told.separation))
    np.testing.assert_array_equal(attacks.lira(signal, membership).tiebreak, told.tiebreak)  # seen from the records
    with pytest.raises(InputError, match="'offline' tests one direction"):
        attacks.lira(signal, membership, "offline", members="either")


SIZES = [2.0**-1000, 2.0**-660, 2.0**-500, 2.0**500, 2.0**660, 2.0**1000, 2.0**1018]


@pytest.mark.parametrize("variant", ["online", "offline", "offline_two_sided"])
@pytest.mark.parametrize("variance", ["per_sample", "fixed"])
def test_signals_of_any_size_are_squared_safely(variant, variance):
    """Powers of two from 1e-301 to 3e306: the very scores, but for the logarithm of the unit in a density."""
    signal, membership = draw(25, 24, 30)
    plain = attacks.lira(signal, membership, variant, variance)
    for size in SIZES:
        found = attacks.lira(signal * size, membership, variant, variance)
        unit = np.log(size) if variant == "offline_two_sided" else 0.0
        np.testing.assert_allclose(found.scores - unit, plain.scores, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(found.success_rate, plain.success_rate)
        np.testing.assert_allclose(found.separation, plain.separation, rtol=1e-12)
        np.testing.assert_allclose(found.separation_error, plain.separation_error, rtol=1e-12)


def test_every_record_may_have_its_own_size_and_offset():
    signal, membership = draw(26, 24, 30)
    sizes = 2.0 ** np.random.default_rng(26).integers(-900, 1000, 30)
    plain, found = (attacks.lira(s, membership) for s in (signal, signal * sizes))
    np.testing.assert_allclose(found.scores, plain.scores, rtol=1e-9, atol=1e-9)
    widest = np.where(membership, 1.7e308, -1.7e308) * np.random.default_rng(27).uniform(0.5, 1.0, signal.shape)
    for variance in ("per_sample", "fixed"):  # a range of 3.4e308 is not a float
        result = attacks.lira(widest, membership, variance=variance)
        assert (result.success_rate == 1.0).all()
        assert np.isfinite(result.scores).all()
        assert np.isfinite(result.separation).all()
    steps = np.round(signal * 8) + 0.0
    offset = attacks.lira(steps + 2.0**50, membership)
    np.testing.assert_allclose(offset.scores, attacks.lira(steps, membership).scores, rtol=1e-9, atol=1e-9)


def test_constant_records_count_half_when_asked():
    signal, membership = draw(14)
    signal[:, 3] = 0.7
    with pytest.raises(InputError, match="constant over all models in row 3 "):
        attacks.lira(signal, membership)
    for variance in ("per_sample", "fixed"):
        result = attacks.lira(signal, membership, variance=variance, constant="tie")
        np.testing.assert_array_equal(result.scores[:, 3], 0.0)
        assert result.success_rate[3] == 0.5
        assert result.separation[3] == 0.0
    offline = attacks.lira(signal, membership, "offline", constant="tie")
    assert offline.success_rate[3] == 0.5
    with pytest.raises(InputError, match="constant over all models in rows 0, 1, 2, 3, 4 and 4 more"):
        attacks.lira(np.ones_like(signal), membership, constant="tie")


def test_a_side_without_spread_gives_finite_scores_that_are_right():
    signal, membership = draw(15)
    signal[:, 2] = np.where(membership[:, 2], 1.0, signal[:, 2])
    result = attacks.lira(signal, membership, variance="per_sample")
    assert np.isfinite(result.scores).all()
    assert result.success_rate[2] == 1.0


def test_one_sided_test_in_the_wrong_direction_is_noticed():
    signal, membership = draw(16, 40, 50, shift=-2.0)
    with pytest.warns(NoshadowWarning, match="members='lower'"):
        attacks.lira(signal, membership, "offline")


def test_numpy_and_torch_single_and_double_strided_or_not_agree():
    signal, membership = draw(17)
    expected = attacks.lira(signal.astype(np.float32), membership).scores
    for array in (torch.from_numpy(signal).float(), np.asfortranarray(signal.astype(np.float32))):
        np.testing.assert_array_equal(attacks.lira(array, membership.astype(int)).scores, expected)


@pytest.mark.parametrize("attack", [attacks.lira, attacks.rmia, lambda *cells: attacks.with_prior(*cells, np.ones(40))])
def test_frames_whose_cells_do_not_pair_are_refused(attack):
    """Records are the columns: in another order they were taken by position, and nothing was found."""
    generator = np.random.default_rng(3)
    inside = generator.random((16, 40)) < 0.5
    names = [f"record {row}" for row in range(40)]
    signal = pd.DataFrame(generator.normal(size=(16, 40)) + inside, columns=names)
    membership = pd.DataFrame(inside, columns=names)
    swapped = [*names[:3], names[4], names[3], *names[5:]]
    with pytest.raises(
        InputError, match=r"^membership: its columns have the labels of signal in .* column 3 \(counted"
    ):
        attack(signal, membership[swapped])
    with pytest.raises(InputError, match=r"^membership: its index has the labels of signal in another order, .* row 0"):
        attack(signal, membership[::-1])
    attack(signal, membership[swapped][signal.columns])
    attack(signal, membership.set_axis(range(40), axis=1))  # counted anew: by position


def test_chunks_do_not_change_the_result(monkeypatch):
    signal, membership = draw(18, 13, 50)
    whole = [attacks.lira(signal, membership, variance=v).scores for v in ("per_sample", "fixed")]
    monkeypatch.setattr("noshadow.attacks.arrays.CHUNK_BYTES", 8 * 13 * 7)
    parts = [attacks.lira(signal, membership, variance=v).scores for v in ("per_sample", "fixed")]
    np.testing.assert_allclose(parts, whole, rtol=1e-10, atol=1e-12)


def test_the_caller_keeps_arrays_and_threads():
    signal, membership = draw(22)
    before, threads = membership.copy(), torch.get_num_threads()
    result = attacks.lira(signal, membership)
    with pytest.raises(InputError):
        attacks.lira(signal, membership[:3])
    assert torch.get_num_threads() == threads
    membership[:] = True
    np.testing.assert_array_equal(result.membership, before)


def test_no_signal_gives_chance():
    rng = np.random.default_rng(19)
    membership = half_splits(rng, 40, 400)
    for variant in ("online", "offline", "offline_two_sided"):
        result = attacks.lira(rng.normal(size=membership.shape), membership, variant)
        assert abs(result.auc - 0.5) < 4 * np.sqrt(1 / 12 / membership.size * 2) * 2
        assert abs(result.success_rate.mean() - 0.5) < 0.02


def test_known_gaussians_reach_the_known_accuracy():
    """In ~ N(δ, 1), out ~ N(0, 1): with many models ASR → Φ(δ/2), offline at its best threshold the same."""
    rng = np.random.default_rng(20)
    membership = half_splits(rng, 400, 100, fewest=100)
    signal = rng.normal(size=membership.shape) + 2.0 * membership
    best = stats.norm.cdf(1.0)
    for variant in ("online", "offline"):
        rate = attacks.lira(signal, membership, variant).success_rate.mean()
        assert rate == pytest.approx(best, abs=4 * np.sqrt(best * (1 - best) / membership.size) + 0.002)


class TestBadInput:
    signal, membership = draw(21)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_nan_names_row_and_model(self, value):
        signal = self.signal.copy()
        signal[5, 7] = value
        with pytest.raises(InputError, match=r"signal: NaN or infinite in row 7 \(counted from 0\), first in model 5"):
            attacks.lira(signal, self.membership)

    @pytest.mark.parametrize(("value", "number"), [(True, "all models"), (False, "no model")])
    @pytest.mark.parametrize("variant", ["online", "offline"])
    def test_member_of_all_or_none_is_undecided_and_named(self, value, number, variant):
        membership = self.membership.copy()
        membership[:, 2] = value
        with pytest.warns(NoshadowWarning, match=f"member of {number} in row 2.*undecided, success rate 0.5"):
            result = attacks.lira(self.signal, membership, variant)
        others = np.arange(9) != 2
        alone = attacks.lira(self.signal[:, others], membership[:, others], variant)
        np.testing.assert_array_equal(result.scores[:, others], alone.scores)
        np.testing.assert_array_equal(result.success_rate[others], alone.success_rate)
        assert (result.success_rate[2], result.separation[2], result.separation_error[2]) == (0.5, 0.0, np.inf)
        assert not result.decisions[:, 2].any()
        assert np.isfinite(list(result.summary().values())).all()
        membership[:] = value
        with pytest.raises(InputError, match=f"member of {number} in rows 0, 1, 2, 3, 4 and 4 more"):
            attacks.lira(self.signal, membership, variant)

    def test_too_few_models(self):
        with pytest.raises(InputError, match="3 models; an attack needs at least 4"):
            attacks.lira(self.signal[:3], np.array([[1, 0, 1] * 3, [0, 1, 0] * 3, [1, 0, 1] * 3]))

    def test_too_few_references_names_the_remedy(self):
        membership = self.membership.copy()
        membership[:, 4] = np.arange(13) < 2
        with pytest.warns(NoshadowWarning, match=r"member of 2 of 13 models in row 4.*variance='fixed'"):
            assert attacks.lira(self.signal, membership, variance="per_sample").success_rate[4] == 0.5
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(attacks.lira(self.signal, membership, variance="fixed").scores).all()

    @pytest.mark.parametrize(
        ("signal", "membership", "message"),
        [
            (np.zeros(5), np.zeros(5), r"signal: expected shape \(K, N\) or \(K, N, A\)"),
            (np.zeros((5, 0)), np.zeros((5, 0)), "no records"),
            (np.zeros((5, 3)), np.zeros((3, 5)), r"membership: expected shape \(5, 3\)"),
            (np.zeros((5, 3)), np.full((5, 3), 0.5), "booleans or 0 and 1"),
            (np.zeros((5, 3), dtype=complex), np.zeros((5, 3)), "real numbers"),
        ],
    )
    def test_wrong_shapes(self, signal, membership, message):
        with pytest.raises(InputError, match=message):
            attacks.lira(signal, membership)

    @pytest.mark.parametrize("option", ["variant", "variance", "center", "members", "constant"])
    def test_unknown_options_list_the_known(self, option):
        with pytest.raises(InputError, match=f"{option}: 'nonsense' is not one of"):
            attacks.lira(self.signal, self.membership, **{option: "nonsense"})


@pytest.mark.parametrize("variant", ["offline", "offline_two_sided"])
@pytest.mark.parametrize("variance", ["fixed", "per_sample"])
def test_a_record_of_a_single_model_has_a_score_offline(variant, variance):
    """Its models with it are one, of which nothing is left without the target: nor is it needed."""
    rng = np.random.default_rng(4)
    membership = rng.random((12, 30)) < 0.5
    membership[:, 0] = np.arange(12) == 3
    signal = rng.normal(size=(12, 30)) + membership
    found = attacks.lira(signal, membership, variant, variance, "median")
    np.testing.assert_allclose(
        found.scores, lira_loop(signal, membership, variant, variance, "median"), rtol=1e-9, atol=1e-9
    )
