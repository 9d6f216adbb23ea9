"""Whether numbers over target models differ: scores of the same targets, and estimates of two studies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from noshadow.errors import InputError

__all__ = ["best_scores", "deviations_apart", "is_ahead", "noiseless_correlation"]


def is_ahead(first: Any, second: Any, confidence: float = 0.95) -> bool:
    """Whether a metric of one score is above that of another over the same targets, by a paired t-test.

    With differences d = first − second, (T,) each: d̄ > t_{T−1}((1 + confidence)/2) · s_d / √T. One target tells
    nothing.

    Parameters
    ----------
    first, second : array (T,)
        A metric of each score over the same T targets.
    confidence : float
        Of the two-sided test.

    Returns
    -------
    bool

    Examples
    --------
    >>> from noshadow.evaluate import is_ahead
    >>> is_ahead([0.5, 0.7, 0.6, 0.8], [0.45, 0.66, 0.54, 0.75])
    True
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape:
        raise InputError(f"second: shape {b.shape}, but first has {a.shape}; both need the same targets, (T,)")
    n = len(a)
    if n < 2:
        return False
    differences = a - b
    error = differences.std(ddof=1) / math.sqrt(n)
    return bool(differences.mean() > stats.t.ppf((1.0 + confidence) / 2.0, n - 1) * error)


def best_scores(values: Mapping[str, Any], confidence: float = 0.95) -> set[str]:
    """The score of the highest mean, and those that the targets do not tell from it (``is_ahead``).

    Parameters
    ----------
    values : mapping from str to array (T,)
        A metric of each score over the same targets.
    confidence : float
        Of the test.

    Returns
    -------
    set of str
        The names of these scores: all of them where nothing is told apart.

    Examples
    --------
    >>> from noshadow.evaluate import best_scores
    >>> best_scores({"newton": [0.5, 0.7, 0.6, 0.8], "loss": [0.1, 0.2, 0.1, 0.3]})
    {'newton'}
    """
    if not values:
        return set()
    found = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
    first = max(found, key=lambda name: float(found[name].mean()))
    return {name for name, value in found.items() if not is_ahead(found[first], value, confidence)}


def deviations_apart(mean: float, std: float, other_mean: float, other_std: float) -> float:
    """How far apart two estimates are, in √(std² + other std²); ∞ where neither has a deviation.

    Parameters
    ----------
    mean, std, other_mean, other_std : float
        Two estimates with their standard deviations.

    Returns
    -------
    float

    Examples
    --------
    >>> from noshadow.evaluate import deviations_apart
    >>> deviations_apart(10.0, 3.0, 20.0, 4.0)
    2.0
    """
    gap, spread = abs(mean - other_mean), math.hypot(std, other_std)
    return gap / spread if spread > 0 else (math.inf if gap > 0 else 0.0)


def noiseless_correlation(of_halves: float) -> float:
    """What a ranking without noise would correlate with a noisy one, from how two halves of its models agree.

    By Spearman and Brown the whole has the reliability ρ = 2r/(1 + r), r the correlation of the halves; a noiseless
    ranking correlates with it as √ρ. Halves that disagree (r ≤ 0) leave nothing to correlate with: 0.

    Parameters
    ----------
    of_halves : float
        Rank correlation r between two halves of the models.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> from noshadow.evaluate import noiseless_correlation
    >>> round(noiseless_correlation(0.6), 3)
    0.866
    """
    r = max(0.0, of_halves)
    return math.sqrt(2.0 * r / (1.0 + r))
