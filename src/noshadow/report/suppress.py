"""Small cells: a count that is so small that it points at people is not shown, nor what it could be worked out from.

Three steps, for tables of how many records of each class or group are exposed:

* values with fewer than ten records share one row (``merge``);
* of the rows left, a count from 1 to 9 is withheld, and so is one that leaves 1 to 9 records over (``withhold``);
* then others are withheld with them, until no withheld count follows from what is published. Every table publishes the
  size of its rows and their sum over all rows; a table may also refine another one (districts and counties). The
  withheld rows of a table therefore hold ten records or more on either side, and no withheld row is a linear
  combination of published ones. The latter is decided by the Gram matrix G of the rows as sets of records, Gᵢⱼ = the
  records that rows i and j share: row i follows from the published rows P exactly if Gᵢᵢ = GᵢP G_PP⁺ G_Pᵢ.

Bands lie in an order, so that small ones are put together with their neighbours instead (``merge_ordered``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["SMALLEST", "Codes", "is_small", "merge", "merge_ordered", "overlaps", "withhold"]

SMALLEST = 10
"""The smallest count that is shown, beside 0."""
_ZERO = 1e-9

_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]


class Codes(NamedTuple):
    """A row of a table for every record, (n,) numbers, and how many values the last row holds; 0: none were merged."""

    codes: _Ints
    kept: _Ints
    merged: int


def is_small(count: int | _Ints) -> _Bools:
    """1 to 9."""
    return (np.asarray(count) > 0) & (np.asarray(count) < SMALLEST)


def merge(values: _Ints, importance: NDArray[np.float64], most: int) -> Codes:
    """Values 0 … k−1 of the records as rows: the ``most`` important ones, largest first; the others share the last row.

    A row has ten records or more, unless there are fewer records than that.
    """
    sizes = np.bincount(values, minlength=len(importance))
    order = [int(value) for value in np.argsort(-importance, kind="stable") if sizes[value] >= SMALLEST]
    kept, others = order[:most], int(sizes.sum())
    others -= int(sizes[kept].sum())
    while kept and 0 < others < SMALLEST:
        last = min(kept, key=lambda value: (sizes[value], -value))
        kept.remove(last)
        others += int(sizes[last])
    rows = np.full(len(sizes), len(kept), dtype=np.int64)
    rows[kept] = np.arange(len(kept))
    return Codes(rows[values], np.array(kept, dtype=np.int64), int((sizes > 0).sum()) - len(kept))


def merge_ordered(counts: Sequence[int]) -> list[list[int]]:
    """Places in an order, the last being the one to keep apart, put together until no sum is 1 to 9."""
    parts: list[list[int]] = []
    current: list[int] = []
    for place in reversed(range(len(counts))):
        current.insert(0, place)
        if not is_small(sum(counts[k] for k in current)):
            parts.insert(0, current)
            current = []
    if current:
        parts[0:1] = [current + (parts[0] if parts else [])]
        while len(parts) > 1 and is_small(sum(counts[k] for k in parts[0])):  # what it joined was empty
            parts[0:2] = [parts[0] + parts[1]]
    return parts


def overlaps(tables: Sequence[_Ints]) -> NDArray[np.float64]:
    """G (r + 1, r + 1) of the rows of all tables, each the rows (n,) of the records; the last is all records."""
    widths = [int(codes.max(initial=-1)) + 1 for codes in tables] + [1]
    all_codes = [*tables, np.zeros_like(tables[0])]
    starts = np.cumsum([0, *widths])
    gram = np.zeros((starts[-1], starts[-1]))
    for i, first in enumerate(all_codes):
        for j, second in enumerate(all_codes[: i + 1]):
            shared = np.bincount(first * widths[j] + second, minlength=widths[i] * widths[j])
            block = shared.reshape(widths[i], widths[j])
            gram[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = block
            gram[starts[j] : starts[j + 1], starts[i] : starts[i + 1]] = block.T
    return gram


def withhold(counts: _Ints, tables: _Ints, gram: NDArray[np.float64]) -> _Bools:
    """Which rows may not say how many of their records are counted.

    counts  (r,) of the rows of all tables, one table after the other
    tables  (r,) the table that each row belongs to
    gram    (r + 1, r + 1) of ``overlaps``: the last row, that of all records, is always published
    """
    sizes = np.diag(gram)[:-1].astype(np.int64)
    hidden = is_small(counts) | is_small(sizes - counts)
    while True:
        more = _too_few(counts, sizes, tables, hidden)
        if more is None:
            more = _follows(counts, gram, hidden)
        if more is None:
            return hidden
        hidden[more] = True


def _too_few(counts: _Ints, sizes: _Ints, tables: _Ints, hidden: _Bools) -> int | None:
    """A row to withhold because those of its table that are withheld hold too little together."""
    for table in np.unique(tables[hidden]):
        inside = tables == table
        both = inside & hidden
        if both.sum() > 1 and counts[both].sum() >= SMALLEST and (sizes - counts)[both].sum() >= SMALLEST:
            continue
        open_ = (inside & ~hidden).nonzero()[0]
        if len(open_):
            filled = open_[counts[open_] > 0]
            choice = filled if len(filled) else open_
            return int(choice[np.argmin(counts[choice])])
    return None


def _follows(counts: _Ints, gram: NDArray[np.float64], hidden: _Bools) -> int | None:
    """A row to withhold because a withheld one is a combination of it and of others."""
    published = np.append(~hidden, True).nonzero()[0]
    for row in hidden.nonzero()[0]:
        weights = np.linalg.lstsq(gram[np.ix_(published, published)], gram[published, row], rcond=1e-12)[0]
        left = gram[row, row] - gram[row, published] @ weights
        if left > _ZERO * gram[row, row]:
            continue
        used = [int(other) for other, weight in zip(published, weights, strict=True) if abs(weight) > 1e-6]
        used = [other for other in used if other < len(hidden)]  # the sum over all records stays
        if used:
            return min(used, key=lambda other: (counts[other] == 0, counts[other]))
    return None
