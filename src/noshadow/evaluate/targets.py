"""A metric over the members of many target models, and whether two scores differ in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError
from noshadow.evaluate.arrays import as_booleans
from noshadow.pairing import require_same_order

__all__ = ["Comparison", "Floats", "Metric", "Summary", "over_targets", "paired_bootstrap", "paired_difference"]

Floats = npt.NDArray[np.float64]
Metric = Callable[..., float]


@dataclass(frozen=True, eq=False)
class Summary:
    """A metric over targets or splits.

    Attributes
    ----------
    values : ndarray (T,)
        A value per target, split or draw.
    mean, std : float
        Their mean and sample standard deviation (NaN for one).

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> print(evaluate.Summary(np.array([0.4, 0.6])))
    0.5000 ± 0.1414
    """

    values: Floats

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def std(self) -> float:
        return float(self.values.std(ddof=1)) if len(self.values) > 1 else float("nan")

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.std:.4f}"


@dataclass(frozen=True)
class Comparison:
    """How far apart two scores are, and whether that is luck.

    Attributes
    ----------
    difference : float
        metric(first) − metric(second).
    low, high : float
        Its bootstrap interval.
    p_value : float
        Two-sided, for "no difference".

    Examples
    --------
    >>> from noshadow import evaluate
    >>> found = evaluate.paired_difference([0.5, 0.7, 0.6, 0.6], [0.4, 0.5, 0.5, 0.4])
    >>> round(found.difference, 3), found.low > 0, found.p_value < 0.05
    (0.15, True, True)
    """

    difference: float
    low: float
    high: float
    p_value: float


def over_targets(
    metric: Metric, scores: Any, truth: Any, members: Any, *, tiebreak: Any = None, **options: Any
) -> Summary:
    """A metric over the members of each target.

    Parameters
    ----------
    metric : callable
        ``metric(score, truth, **options)``, such as ``recall``.
    scores : array (T, N)
        A row per target model.
    truth : array (N,) or (T, N)
        What an attack measured.
    members : array (T, N) of booleans
        Which records each target was trained on: the ranking is over those.
    tiebreak : array (N,) or (T, N), optional
        Orders records of equal truth.
    **options
        For the metric.

    Returns
    -------
    Summary
        A value per target.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> truth = np.arange(10.0)
    >>> found = evaluate.over_targets(evaluate.spearman, [truth, -truth], truth, np.ones((2, 10), bool))
    >>> found.values.round(6).tolist()
    [1.0, -1.0]
    """
    score, inside, target, breaks = _targets(scores, members, truth, tiebreak)
    values = []
    for row, mask in enumerate(inside):
        more = {} if breaks is None else {"tiebreak": breaks[row, mask]}
        values.append(metric(score[row, mask], target[row, mask], **more, **options))
    return Summary(np.array(values))


def paired_bootstrap(
    metric: Metric,
    first: Any,
    second: Any,
    truth: Any,
    members: Any = None,
    *,
    unit: Literal["records", "targets"] = "records",
    tiebreak: Any = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Whether two scores differ: metric(first) − metric(second), both on the same resamples.

    Parameters
    ----------
    metric : callable
        ``metric(score, truth, **options)``, such as ``recall``.
    first, second : array (n,) or (T, N)
        Scores of one target, or of T with ``members``, the mean over targets being compared.
    truth, tiebreak : array (N,), or (T, N) where each target has its own
        What an attack measured, and what orders its ties.
    members : array (T, N) of booleans, optional
        Which records each target was trained on.
    unit : "records" or "targets"
        Resample records, the same for both scores and all targets; or targets, whose metrics are computed once.
    draws : int
        Number of resamples.
    confidence : float
        Of the interval.
    seed : int
        Of the resamples.
    **options
        For the metric.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.normal(size=300)
    >>> good, poor = truth + 0.3 * rng.normal(size=300), truth + 3 * rng.normal(size=300)
    >>> found = evaluate.paired_bootstrap(evaluate.spearman, good, poor, truth, draws=100)
    >>> found.low > 0.3
    True
    """
    if unit not in ("records", "targets"):
        raise InputError(f"unit: {unit!r} is not one of 'records', 'targets'")
    if draws < 1 or not 0.0 < confidence < 1.0:
        raise InputError(f"draws, confidence: expected 1 or more and a probability, got {draws!r}, {confidence!r}")
    for name, values in {"second": second, "truth": truth, "tiebreak": tiebreak}.items():
        require_same_order(first, values, "first", name)
    a = np.atleast_2d(np.asarray(first, dtype=np.float64))
    mask = np.ones(a.shape, dtype=bool) if members is None else members
    a, inside, target, breaks = _targets(a, mask, truth, tiebreak)
    b = np.atleast_2d(np.asarray(second, dtype=np.float64))
    if a.shape != b.shape:
        raise InputError(f"second: shape {b.shape}, but first has {a.shape}")

    def differences(rows: npt.NDArray[np.intp]) -> Floats:
        found = []
        for row, mask in enumerate(inside):
            chosen = rows[mask[rows]]
            more = {} if breaks is None else {"tiebreak": breaks[row, chosen]}
            values = [metric(score[row, chosen], target[row, chosen], **more, **options) for score in (a, b)]
            found.append(values[0] - values[1])
        return np.array(found)

    n_targets, n = a.shape
    observed = differences(np.arange(n))
    if unit == "targets" and n_targets < 2:
        raise InputError("unit: 'targets' needs two targets or more; use unit='records'")
    rng = np.random.default_rng(seed)
    if unit == "targets":
        drawn = observed[rng.integers(0, n_targets, (draws, n_targets))].mean(1)
    else:
        drawn = np.array([differences(rng.integers(0, n, (n,))).mean() for _ in range(draws)])
    return _comparison(observed, drawn, confidence)


def paired_difference(
    first: Any, second: Any, *, draws: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Comparison:
    """Whether a metric of two scores differs, from its values over the same targets: a bootstrap over targets.

    Parameters
    ----------
    first, second : array (T,)
        The metric of each score for T ≥ 2 targets.
    draws : int
        Number of resamples of the targets.
    confidence : float
        Of the interval.
    seed : int
        Of the resamples.

    Returns
    -------
    Comparison

    Examples
    --------
    >>> from noshadow.evaluate import paired_difference
    >>> found = paired_difference([0.5, 0.7, 0.6], [0.4, 0.5, 0.5])
    >>> round(found.difference, 3), round(found.low, 3), round(found.high, 3)
    (0.133, 0.1, 0.2)
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(f"first, second: expected the values of two targets or more, (T,), got {a.shape}, {b.shape}")
    if draws < 1 or not 0.0 < confidence < 1.0:
        raise InputError(f"draws, confidence: expected 1 or more and a probability, got {draws!r}, {confidence!r}")
    rows = np.random.default_rng(seed).integers(0, len(a), (draws, len(a)))
    return _comparison(a - b, (a - b)[rows].mean(1), confidence)


def _comparison(observed: Floats, drawn: Floats, confidence: float) -> Comparison:
    """The difference over targets (T,), its interval and p-value from the means of resamples (draws,)."""
    low, high = np.quantile(drawn, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p_value = min(1.0, 2.0 * (tail + 1) / (len(drawn) + 1))
    return Comparison(float(observed.mean()), float(low), float(high), float(p_value))


def _targets(
    scores: Any, members: Any, truth: Any, tiebreak: Any
) -> tuple[Floats, npt.NDArray[np.bool_], Floats, Floats | None]:
    """Scores, members, truth and tiebreak, all (T, N)."""
    score, inside = np.asarray(scores, dtype=np.float64), np.asarray(members)
    if score.ndim != 2 or inside.shape != score.shape:
        raise InputError(
            f"scores: expected shape (T, N), targets by records, that of members, got {score.shape}, {inside.shape}"
        )
    inside = as_booleans(inside, "members")
    empty = np.flatnonzero(~inside.any(1))
    if len(empty):
        raise InputError(f"members: target {empty[0]} has none")

    def of_each_target(values: Any, name: str) -> Floats:
        found = np.asarray(values, dtype=np.float64)
        if found.shape not in (score.shape, score.shape[1:]):
            raise InputError(f"{name}: expected shape {score.shape[1:]} or {score.shape}, got {found.shape}")
        return np.broadcast_to(found, score.shape)

    breaks = None if tiebreak is None else of_each_target(tiebreak, "tiebreak")
    return score, inside, of_each_target(truth, "truth"), breaks
