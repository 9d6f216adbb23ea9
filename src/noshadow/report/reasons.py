"""Why a record is exposed, in words: unusual features, hard to fit, or both.

A record moves the model by its leverage (how unusual its features are) times its error (how hard it is to fit); what is
high of the two is told by where the record stands among all records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["DIFFICULTIES", "STANDS_OUT", "Standing", "difficulty", "reason", "standings"]

_Floats = NDArray[np.float64]

STANDS_OUT = 0.95
"""The share of all records that a record has to be above for its leverage or its error to stand out."""
DIFFICULTIES = ("mean_trace", "loss")
"""What tells that a record is hard to fit, best first: a memorised record has no error left at the end."""


class Standing(NamedTuple):
    """Shares of all records that have less: of leverage, of error. None: not known."""

    leverage: float | None
    error: float | None


def difficulty(table: pd.DataFrame) -> str | None:
    """The column that says how hard a record was to fit."""
    return next((name for name in DIFFICULTIES if name in table), None)


def standings(table: pd.DataFrame, rows: NDArray[np.int64]) -> list[Standing]:
    """Where the records in these rows stand among all."""
    error = difficulty(table)
    leverages = _shares(table["leverage"], rows) if "leverage" in table else [None] * len(rows)
    errors = _shares(table[error], rows) if error else [None] * len(rows)
    return [Standing(*pair) for pair in zip(leverages, errors, strict=True)]


def _shares(column: pd.Series[Any], rows: NDArray[np.int64]) -> list[float | None]:
    values = column.to_numpy(dtype=np.float64)
    ordered = np.sort(values[np.isfinite(values)])
    below = np.searchsorted(ordered, values[rows], side="left") / max(len(ordered), 1)
    return [float(share) if known else None for share, known in zip(below, np.isfinite(values[rows]), strict=True)]


def reason(standing: Standing, flagged: bool, while_training: bool = False) -> str:
    """The reason in words.

    >>> reason(Standing(0.991, 0.4), flagged=False)
    'Unusual features: more than those of 99.1 % of the records.'
    """
    if flagged:
        return "Nothing else resembles it: without this record the fit is undefined."
    unusual = standing.leverage is not None and standing.leverage >= STANDS_OUT
    hard = standing.error is not None and standing.error >= STANDS_OUT
    fit = "hard to fit while training" if while_training else "hard to fit"
    if unusual and hard:
        return f"Unusual features ({_above(standing.leverage)}) and {fit} ({_above(standing.error)})."
    if unusual:
        return f"Unusual features: more than those of {_percent(standing.leverage)} of the records."
    if hard:
        return f"{fit[0].upper()}{fit[1:]}: more than {_percent(standing.error)} of the records."
    if standing.leverage is None or standing.error is None:
        return "Not known: this audit has no leverage or no loss."
    return (
        f"Neither stands out alone, together they do: features {_above(standing.leverage)}, "
        f"error {_above(standing.error)}."
    )


def _above(share: float | None) -> str:
    return f"above {_percent(share)}"


def _percent(share: float | None) -> str:
    """Rounded down: nothing is above 100 % of all."""
    whole = 100 * (share or 0.0)
    return f"{int(whole * 10) / 10:g} %" if whole >= 99 else f"{int(whole)} %"
