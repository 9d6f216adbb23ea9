"""Many records made few: hexagons, strips, a table of rank correlations. What a chart holds does not grow with n."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.report.shown import Cloud, Line, Strip

__all__ = ["COLUMNS", "HEIGHT", "agreement", "cloud", "hexagons", "strips"]

_Floats = NDArray[np.float64]

COLUMNS = 34
"""Hexagons side by side."""
HEIGHT = 0.62
"""Of the map, in units of its width."""
_SAMPLE = 20_000  # records for a correlation, or a line: more would not change its digits
_LEVELS = ((0.5, "top 50 %"), (0.9, "top 10 %"), (0.99, "top 1 %"))
_BINS = 48
_ENOUGH = 20  # records for a line


def cloud(
    leverage: _Floats, error: _Floats, score: _Floats, marked: NDArray[np.int64], difficulty: str
) -> Cloud | None:
    """All records by leverage and error, and lines along which the score is the same.

    The lines are those of log score = a + b log leverage + c log error, fitted by least squares: for squared error and
    small leverages it is exact, b = c = 1 (the error being the squared one).
    """
    known = (leverage > 0) & (error > 0) & np.isfinite(leverage) & np.isfinite(error)
    if known.sum() < 3:
        return None
    x, y = (
        np.log10(leverage, where=known, out=np.zeros(len(known))),
        np.log10(error, where=known, out=np.zeros(len(known))),
    )
    ends_x, ends_y = _ends(x[known]), _ends(y[known])
    u, v = _place(x, ends_x), _place(y, ends_y)
    shown = marked[known[marked]]
    lines, fit = _lines(x[known], y[known], score[known])
    return Cloud(
        hexagons=hexagons(u[known], v[known] * HEIGHT, COLUMNS),
        x=ends_x,
        y=ends_y,
        columns=COLUMNS,
        marked=np.stack([u[shown], v[shown] * HEIGHT], 1),
        lines=lines,
        fit=fit,
        difficulty=difficulty,
    )


def _ends(values: _Floats) -> tuple[float, float]:
    """What the axis covers: all but the lowest half percent, of which nobody asks; a little air on either side."""
    low, high = float(np.quantile(values, 0.005)), float(values.max())
    air = max(0.02 * (high - low), 0.05)
    return low - air, high + air


def _place(values: _Floats, ends: tuple[float, float]) -> _Floats:
    return np.clip((values - ends[0]) / (ends[1] - ends[0]), 0.0, 1.0)


def hexagons(x: _Floats, y: _Floats, columns: int) -> _Floats:
    """Centres and counts (k, 3) of the hexagons with points in them; 1/columns apart, in the units of x and y.

    The centres are two rectangular lattices, one in the middle of the other; a point belongs to the nearest.
    """
    wide, high = 1.0 / columns, np.sqrt(3.0) / columns
    corners = np.stack([np.rint(x / wide), np.rint(y / high)])
    middles = np.stack([np.floor(x / wide), np.floor(y / high)])
    to_corner = (x - corners[0] * wide) ** 2 + (y - corners[1] * high) ** 2
    to_middle = (x - (middles[0] + 0.5) * wide) ** 2 + (y - (middles[1] + 0.5) * high) ** 2
    inner = to_middle < to_corner
    doubled = np.where(inner, 2 * middles + 1, 2 * corners).astype(np.int64)  # in halves, so that both are whole
    key = doubled[0] * 1_000_003 + doubled[1]
    _, first, counts = np.unique(key, return_index=True, return_counts=True)
    return np.stack([doubled[0, first] * wide / 2, doubled[1, first] * high / 2, counts], 1)


def _lines(x: _Floats, y: _Floats, score: _Floats) -> tuple[tuple[Line, ...], float]:
    """Lines of equal score in the plane of the logarithms, and the share of its variance that they explain."""
    levels = np.quantile(score, [share for share, _ in _LEVELS])
    some = np.random.default_rng(0).permutation(len(x))[:_SAMPLE]
    some = some[(score[some] > 0) & np.isfinite(score[some])]
    if len(some) < _ENOUGH or levels[0] <= 0:
        return (), 0.0
    goal = np.log10(score[some])
    design = np.stack([np.ones(len(some)), x[some], y[some]], 1)
    (a, b, c), *_ = np.linalg.lstsq(design, goal, rcond=None)
    spread = float(np.var(goal))
    fit = 1.0 - float(np.var(goal - design @ [a, b, c])) / spread if spread > 0 else 0.0
    if c <= 0 or b <= 0:  # no line of equal risk falls then, and there is nothing to read off it
        return (), fit
    found = (
        Line(label, float((np.log10(level) - a) / c), float(-b / c))
        for level, (_, label) in zip(levels, _LEVELS, strict=True)
    )
    return tuple(found), fit


def strips(values: _Floats, codes: NDArray[np.int64], names: list[str], ends: tuple[float, float]) -> tuple[Strip, ...]:
    """The distribution of every class between the two ends."""
    edges = np.linspace(*ends, _BINS + 1)
    found = []
    for code, name in enumerate(names):
        inside = values[(codes == code) & np.isfinite(values)]
        if len(inside):
            counts = np.histogram(np.clip(inside, *ends), edges)[0]
            found.append(Strip(name, len(inside), counts, float(np.median(inside))))
    return tuple(found)


def agreement(table: pd.DataFrame, columns: list[str]) -> tuple[tuple[str, ...], _Floats] | None:
    """Spearman's rank correlations (k, k) of the scores that vary; None where there are not two."""
    some = np.sort(np.random.default_rng(0).permutation(len(table))[:_SAMPLE])
    part: Any = table[columns].iloc[some]
    kept = [name for name in columns if part[name].nunique() > 1]
    if len(kept) < 2 or len(part) < 3:
        return None
    return tuple(kept), part[kept].rank().corr().to_numpy(dtype=np.float64)
