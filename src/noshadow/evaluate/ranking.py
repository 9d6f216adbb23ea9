"""How well a score ranks the records that an attack exposes.

Ties. A success rate from K models takes few values, so that many records tie. ``tiebreak`` (the parametric
separation, ``AttackResult.tiebreak``) orders records of equal truth. What is still equal, in truth or in
score, is averaged over all its orders in closed form: no result depends on the order of the rows or on a
seed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from noshadow.errors import InputError, name_rows
from noshadow.pairing import require_same_order

__all__ = ["Floats", "ndcg", "ordering", "precision_at_k", "recall", "share_size", "spearman"]

Floats = npt.NDArray[np.float64]


def recall(score: Any, truth: Any, top: float = 0.01, keep: float = 0.05, tiebreak: Any = None) -> float:
    """Share of the records that an attack exposes most which a score ranks highest.

    Parameters
    ----------
    score : array (n,)
        Predicted risk, higher is riskier; ∞ is highest.
    truth : array (n,)
        What an attack measured, such as its success rate per record.
    top, keep : float
        The ``top`` share of records by truth is sought in the ``keep`` share by score. Shares are rounded down to whole
        records, at least one: 1 % of 307 records is 3.
    tiebreak : array (n,), optional
        Orders records of equal truth, such as ``AttackResult.tiebreak``.

    Returns
    -------
    float
        From 0 to 1; a random order reaches ``keep``.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are NaN, shares that are none.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> truth = np.arange(100.0)
    >>> evaluate.recall(truth, truth), evaluate.recall(-truth, truth)
    (1.0, 0.0)
    """
    values, target = _pair(score, truth, tiebreak)
    wanted = _top(target, share_size(top, len(target), "top"))
    kept = _top(values, share_size(keep, len(values), "keep"))
    return float(wanted @ kept / wanted.sum())


def precision_at_k(score: Any, truth: Any, k: int | float, top: float = 0.01, tiebreak: Any = None) -> float:
    """Share of the k highest scores that are among the records an attack exposes most.

    Parameters
    ----------
    score, truth : array (n,)
        Predicted risk, and what an attack measured.
    k : int or float
        A number of records, or a share of them.
    top : float
        Share of the records, by truth, that count.
    tiebreak : array (n,), optional
        Orders records of equal truth.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> evaluate.precision_at_k(np.arange(100.0), np.arange(100.0), 4, top=0.02)
    0.5
    """
    values, target = _pair(score, truth, tiebreak)
    n = len(values)
    if isinstance(k, (int, np.integer)) and not 1 <= k <= n:
        raise InputError(f"k: expected 1 … {n}, the number of records, got {k}")
    first = _top(values, int(k) if isinstance(k, (int, np.integer)) else share_size(k, n, "k"))
    return float(first @ _top(target, share_size(top, n, "top")) / first.sum())


def spearman(score: Any, truth: Any, tiebreak: Any = None) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank.

    Parameters
    ----------
    score, truth : array (n,)
        Predicted risk, and what an attack measured.
    tiebreak : array (n,), optional
        Orders records of equal truth.

    Returns
    -------
    float
        From −1 to 1.

    Examples
    --------
    >>> from noshadow import evaluate
    >>> round(evaluate.spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0]), 3)
    0.5
    """
    values, target = _pair(score, truth, tiebreak)
    a, b = (stats.rankdata(v) - (len(v) + 1) / 2.0 for v in (values, target))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    if norm == 0.0:
        raise InputError(f"{'score' if not a.any() else 'truth'}: constant, so that no rank correlation is defined")
    return float(a @ b / norm)


def ndcg(score: Any, truth: Any, k: int | None = None, baseline: float = 0.0) -> float:
    r"""Normalised discounted cumulative gain: how early the records that matter come.

    .. math::

        \sum_{r \le k} \frac{g_r}{\log_2(1 + r)}

    over its largest possible value, the gain of the r-th record by score being max(truth − baseline, 0). Records of
    equal score share their mean gain.

    Parameters
    ----------
    score, truth : array (n,)
        Predicted risk, and what an attack measured.
    k : int, optional
        How many records count; None: all.
    baseline : float
        With success rates 0.5 counts what is above guessing.

    Returns
    -------
    float
        From 0 to 1.

    Examples
    --------
    >>> from noshadow import evaluate
    >>> evaluate.ndcg([3.0, 2.0, 1.0], [0.9, 0.7, 0.5], baseline=0.5)
    1.0
    """
    values, target = _pair(score, truth, None)
    gain = np.maximum(target - baseline, 0.0)
    n = len(gain)
    depth = n if k is None else k
    if not 1 <= depth <= n:
        raise InputError(f"k: expected 1 … {n}, the number of records, got {k}")
    if not gain.any():
        raise InputError(f"truth: nothing is above the baseline {baseline:g}, so that no gain can be discounted")
    discount = np.where(np.arange(n) < depth, 1.0 / np.log2(np.arange(n) + 2.0), 0.0)
    order = np.argsort(-values, kind="stable")
    _, group, size = np.unique(-values[order], return_inverse=True, return_counts=True)
    shared = (np.bincount(group, gain[order]) / size)[group]
    return float(shared @ discount / (np.sort(gain)[::-1] @ discount))


def share_size(share: float, n: int, name: str = "share") -> int:
    """How many of n records a share of them is: rounded down, at least one.

    Parameters
    ----------
    share : float
        More than 0, at most 1.
    n : int
        Number of records.
    name : str
        What the share is called in messages.

    Returns
    -------
    int

    Examples
    --------
    >>> from noshadow.evaluate import share_size
    >>> share_size(0.01, 1050)
    10
    """
    if not 0.0 < share <= 1.0:
        raise InputError(f"{name}: expected a share of the records between 0 and 1, got {share!r}")
    return max(1, int(share * n * (1.0 + 1e-12)))


def ordering(value: Any, tiebreak: Any = None) -> Floats:
    """One number per record: its order by value, then by tiebreak; equal in both stays equal.

    Parameters
    ----------
    value : array (n,)
        What records are ordered by.
    tiebreak : array (n,), optional
        What records of equal value are ordered by.

    Returns
    -------
    ndarray (n,)

    Examples
    --------
    >>> from noshadow import evaluate
    >>> order = evaluate.ordering([1.0, 1.0, 0.0], [0.0, 5.0, 9.0])
    >>> bool(order[2] < order[0] < order[1])
    True
    """
    first = _vector(value, "value")
    if tiebreak is None:
        return first
    require_same_order(value, tiebreak, "value", "tiebreak")
    second = _vector(tiebreak, "tiebreak", infinite=True)
    if first.shape != second.shape:
        raise InputError(f"tiebreak: {len(second)} records, but there are {len(first)}")
    order = np.lexsort((second, first))
    a, b = first[order], second[order]
    rank = np.empty(len(order))
    rank[order] = np.r_[0.0, np.cumsum((a[1:] != a[:-1]) | (b[1:] != b[:-1]))]
    return rank


def _top(values: Floats, size: int) -> Floats:
    """P(record is among the ``size`` highest) with equal values in random order, (n,)."""
    edge = np.partition(values, len(values) - size)[len(values) - size]
    above = values > edge
    level = values == edge
    share: Floats = above + level * ((size - above.sum()) / level.sum())
    return share


def _pair(score: Any, truth: Any, tiebreak: Any) -> tuple[Floats, Floats]:
    require_same_order(score, truth, "score", "truth")
    values, target = _vector(score, "score", infinite=True), _vector(truth, "truth")
    if values.shape != target.shape:
        raise InputError(f"score: {len(values)} records, but truth has {len(target)}; they must be the same records")
    require_same_order(truth, tiebreak, "truth", "tiebreak")
    return values, ordering(target, tiebreak)


def _vector(values: Any, name: str, infinite: bool = False) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, got {type(values).__name__} ({error})") from None
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name}: expected shape (n,) with a record or more, got {array.shape}")
    bad = np.flatnonzero(np.isnan(array) if infinite else ~np.isfinite(array))
    if len(bad):
        what = "NaN" if infinite else "NaN or infinite"
        raise InputError(f"{name}: cannot rank {what} values, in {name_rows(bad.tolist())} (counted from 0)")
    return array
