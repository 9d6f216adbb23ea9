"""Whether numbers differ: against scipy's paired t-test, arithmetic by hand and simulated rankings."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from noshadow import evaluate
from noshadow.errors import InputError


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("seed", range(6))
def test_ahead_is_the_paired_t_test(seed, confidence):
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=8)
    first, second = shared + 0.4 * seed + rng.normal(size=8), shared + rng.normal(size=8)
    interval = stats.ttest_rel(first, second).confidence_interval(confidence)
    assert evaluate.is_ahead(first, second, confidence) == (interval.low > 0)
    assert evaluate.is_ahead(second, first, confidence) == (interval.high < 0)


def test_one_target_tells_nothing_and_equal_ones_do_not_differ():
    assert not evaluate.is_ahead([0.9], [0.1])
    assert not evaluate.is_ahead([0.5, 0.5], [0.5, 0.5])
    assert evaluate.is_ahead([0.6, 0.6], [0.5, 0.5])  # the same difference each time
    assert not evaluate.is_ahead([0.60, 0.72], [0.5, 0.6])  # 11 standard errors, of one degree of freedom: 12.7
    assert evaluate.is_ahead([0.60, 0.71], [0.5, 0.6])  # 21 of them
    with pytest.raises(InputError, match="same targets"):
        evaluate.is_ahead([0.5, 0.5], [0.5])


def test_the_best_are_those_that_the_first_is_not_ahead_of():
    values = {"a": [0.5, 0.7, 0.6, 0.8], "b": [0.6, 0.6, 0.7, 0.6], "c": [0.1, 0.2, 0.1, 0.2]}
    assert evaluate.best_scores(values) == {"a", "b"}
    assert evaluate.best_scores({"c": values["c"]}) == {"c"}
    assert evaluate.best_scores({}) == set()


def test_deviations_apart():
    assert evaluate.deviations_apart(9.0, 3.0, 20.0, 4.0) == pytest.approx(2.2)
    assert evaluate.deviations_apart(1.0, 0.0, 1.0, 0.0) == 0.0
    assert evaluate.deviations_apart(1.0, 0.0, 2.0, 0.0) == float("inf")


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_a_noiseless_ranking_correlates_as_the_halves_say(noise):
    """Two halves with independent noise; the whole is their mean."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=200_000)
    first, second = (signal + noise * rng.normal(size=signal.shape) for _ in range(2))
    of_halves = np.corrcoef(first, second)[0, 1]
    measured = np.corrcoef(signal, (first + second) / 2)[0, 1]
    assert evaluate.noiseless_correlation(of_halves) == pytest.approx(measured, abs=0.01)
    assert evaluate.noiseless_correlation(-0.2) == 0.0


def test_a_share_is_rounded_down_to_whole_records():
    sizes = [evaluate.share_size(share, n) for share, n in ((0.01, 307), (0.001, 307), (0.07, 100), (1.0, 5))]
    assert sizes == [3, 1, 7, 5]  # 0.07 · 100 is 7.000000000000001
    with pytest.raises(InputError, match="share"):
        evaluate.share_size(0.0, 10)
