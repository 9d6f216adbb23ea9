"""Bands of predicted success: every record is in one of them, or counted as not rated."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from noshadow import InputError
from noshadow.bands import BANDS, NOT_RATED, band_counts, band_index, band_names


def band_by_hand(rate, flagged):
    if flagged:
        return "near certain"
    for band in BANDS:
        if band.low <= rate < band.high:
            return band.name
    return "near certain" if rate == 1.0 else NOT_RATED


def test_every_record_is_counted_once_in_the_band_of_its_rate():
    rng = np.random.default_rng(0)
    rates = np.concatenate([rng.uniform(0.5, 1.0, 500), [0.5, 0.6, 0.75, 0.9, 1.0, np.nan, np.nan]])
    flagged = rng.random(len(rates)) < 0.05
    flagged[-1] = True  # flagged and without a rate: near certain
    wanted = [band_by_hand(*one) for one in zip(rates, flagged, strict=True)]
    assert band_names(rates, flagged) == wanted
    counts = band_counts(rates, flagged)
    assert list(counts) == ["near guessing", "noticeable", "high", "near certain", "not rated"]
    assert all(counts[name] == wanted.count(name) for name in counts)
    assert sum(counts.values()) == len(rates)


def test_bands_meet_without_a_gap():
    assert (BANDS[0].low, BANDS[-1].high) == (0.5, 1.0)
    for lower, upper in pairwise(BANDS):
        assert lower.high == upper.low
    assert np.array_equal(band_index([0.6 - 1e-12, 0.6, 0.9 - 1e-12, 0.9], [False] * 4), [0, 1, 2, 3])


def test_without_rates_nothing_is_rated_but_what_is_flagged():
    assert band_counts(None, [False, True, False]) == {
        **dict.fromkeys(["near guessing", "noticeable", "high"], 0),
        "near certain": 1,
        "not rated": 2,
    }


def test_what_is_no_rate_is_refused():
    for bad in (0.3, 1.2, -1.0, np.inf):
        with pytest.raises(InputError, match=r"accuracy: .* in row 1 \(counted from 0\) is no success rate"):
            band_counts([0.5, bad], [False, False])
    with pytest.raises(InputError, match="flagged"):
        band_counts([0.5, 0.6], [False])
