"""Four named bands of predicted attack success: what a rate between a coin and certainty means to a reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError, name_rows

__all__ = ["BANDS", "NOT_RATED", "Band", "band_counts", "band_index", "band_names"]

_ROUNDING = 1e-6  # what the integrals behind a rate may be off by


@dataclass(frozen=True)
class Band:
    """Rates from ``low`` to below ``high``; the highest band includes its end.

    name     what reports call it
    meaning  what an attacker who is this often right can do, in a sentence

    Examples
    --------
    >>> from noshadow.bands import BANDS
    >>> [(band.name, band.low) for band in BANDS]
    [('near guessing', 0.5), ('noticeable', 0.6), ('high', 0.75), ('near certain', 0.9)]
    """

    name: str
    low: float
    high: float
    meaning: str


BANDS: tuple[Band, ...] = (
    Band("near guessing", 0.5, 0.6, "An attacker does little better than a coin."),
    Band("noticeable", 0.6, 0.75, "An attacker is right clearly more often than a coin, and wrong often."),
    Band("high", 0.75, 0.9, "An attacker is right at least three times in four."),
    Band("near certain", 0.9, 1.0, "An attacker is nearly always right: treat membership as disclosed."),
)
"""Lowest first."""
NOT_RATED = "not rated"
"""What records without a rate are counted as."""


def band_index(accuracy: Any, flagged: Any) -> NDArray[np.int64]:
    """The place in ``BANDS`` of each record; −1: not rated.

    Parameters
    ----------
    accuracy : array (n,) or None
        Predicted success rates, ½ to 1 (``attack_accuracy``); NaN, or None for all: not known.
    flagged : array (n,) of bool
        Records without which the fit is undefined: near certain, whatever their rate.

    Returns
    -------
    array (n,) of int

    Examples
    --------
    >>> from noshadow.bands import band_index
    >>> band_index([0.5, 0.6, 1.0, float("nan"), 0.5], [False, False, False, False, True]).tolist()
    [0, 1, 3, -1, 3]
    """
    certain = np.asarray(flagged, dtype=bool)
    rates = np.full(certain.shape, np.nan) if accuracy is None else np.asarray(accuracy, dtype=np.float64)
    if rates.ndim != 1 or certain.shape != rates.shape:
        raise InputError(f"flagged: {certain.shape} for rates of shape {rates.shape}; pass one of each per record")
    bad = np.flatnonzero((rates < BANDS[0].low - _ROUNDING) | (rates > BANDS[-1].high + _ROUNDING)).tolist()
    if bad:
        raise InputError(
            f"accuracy: {rates[bad[0]]:g} in {name_rows(bad)} (counted from 0) is no success rate: those are 0.5 to 1"
        )
    found = np.searchsorted([band.low for band in BANDS[1:]], rates, side="right").astype(np.int64)
    found[np.isnan(rates)] = -1
    found[certain] = len(BANDS) - 1
    return found


def band_names(accuracy: Any, flagged: Any) -> list[str]:
    """The band of each record by name; the arguments are those of ``band_index``.

    Examples
    --------
    >>> from noshadow.bands import band_names
    >>> band_names([0.5, 0.8, float("nan")], [False, False, False])
    ['near guessing', 'high', 'not rated']
    """
    names = [*(band.name for band in BANDS), NOT_RATED]
    return [names[index] for index in band_index(accuracy, flagged)]


def band_counts(accuracy: Any, flagged: Sequence[bool] | Any) -> dict[str, int]:
    """How many records are in each band, lowest first, and last how many are not rated.

    The arguments are those of ``band_index``; the counts add up to the number of records.

    Examples
    --------
    >>> from noshadow.bands import band_counts
    >>> band_counts([0.5, 0.8, 0.95], [False, False, False])
    {'near guessing': 1, 'noticeable': 0, 'high': 1, 'near certain': 1, 'not rated': 0}
    """
    index = band_index(accuracy, flagged)
    counts = {band.name: int((index == place).sum()) for place, band in enumerate(BANDS)}
    return {**counts, NOT_RATED: int((index < 0).sum())}
