"""Whether predicted rates are right: what was predicted beside what was measured, by size of the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError
from noshadow.pairing import require_same_order

__all__ = ["Floats", "Reliability", "reliability"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Reliability:
    """Means of equally many records each, in ascending order of the prediction, and the error.

    predicted, measured  (bins,)
    error                mean distance of the two over the bins

    Examples
    --------
    >>> from noshadow import evaluate
    >>> found = evaluate.reliability([0.5, 0.5, 0.9, 0.9], [0.4, 0.6, 0.8, 0.9], bins=2)
    >>> found.predicted, [round(rate, 2) for rate in found.measured], round(found.error, 3)
    ((0.5, 0.9), [0.5, 0.85], 0.025)
    """

    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    error: float


def reliability(predicted: Any, measured: Any, bins: int = 10) -> Reliability:
    r"""Predicted against measured success rates, by quantiles of the prediction.

    .. math::

        \mathrm{error} = \frac1B \sum_{b=1}^{B} \left| \bar p_b - \bar m_b \right|

    Averages over many records: the measured rate of one is a few coin flips of a few models. Records of equal
    prediction, such as coins, share their mean measured rate: no result depends on the order of the rows.

    Parameters
    ----------
    predicted, measured : array (n,)
        A rate per record.
    bins : int
        Groups of records; deciles by default.

    Returns
    -------
    Reliability

    Raises
    ------
    InputError
        Shapes that differ, values that are not finite, fewer records than bins.

    Examples
    --------
    >>> from noshadow.evaluate import reliability
    >>> reliability([0.5, 0.5, 0.9, 0.9], [0.4, 0.6, 0.8, 0.9], bins=2).error.__round__(3)
    0.025
    """
    require_same_order(predicted, measured, "predicted", "measured")
    p, m = _rates(predicted, "predicted"), _rates(measured, "measured")
    if p.ndim != 1 or p.shape != m.shape:
        raise InputError(f"measured: shape {m.shape}, but predicted has {p.shape}; both need a rate per record, (n,)")
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or not 1 <= bins <= len(p):
        raise InputError(f"bins: expected from 1 to the number of records, {len(p)}, got {bins!r}")
    if not (np.isfinite(p).all() and np.isfinite(m).all()):
        raise InputError("predicted, measured: NaN or infinite; leave such records out")
    groups = np.array_split(np.argsort(p, kind="stable"), bins)
    _, level, count = np.unique(p, return_inverse=True, return_counts=True)
    shared = (np.bincount(level, m) / count)[level]
    pairs = np.array([(p[group].mean(), shared[group].mean()) for group in groups])
    error = float(np.abs(pairs[:, 0] - pairs[:, 1]).mean())
    return Reliability(tuple(pairs[:, 0].tolist()), tuple(pairs[:, 1].tolist()), error)


def _rates(values: Any, name: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, got {type(values).__name__} ({error})") from None
