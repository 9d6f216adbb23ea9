"""Recall of an attack's top k among a score's top k, over the share k (Figures 2, 3, 5 and 6 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noshadow.drawing.canvas import label_outer, panels, write
from noshadow.drawing.palette import CEILING, SCORES, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIRST", "SHADED", "RecallLine", "RecallPanel", "recall_curves"]

FIRST = 1e-3
"""Lower edge of the axis of shares."""
SHADED = ("exposure", "newton")
"""The scores whose deviation is shaded: the default and the paper's best. More than two hide each other."""
_APART = 6  # a marker on every so-many-th share, at another place for each score: lines that agree show all markers


@dataclass(frozen=True)
class RecallLine:
    """A score's recall (0 … 1) at each share: mean over targets, ± deviation (None: one target has none)."""

    mean: Sequence[float]
    std: Sequence[float] | None


@dataclass(frozen=True)
class RecallPanel:
    """The curves of one panel, at the same shares: scores by name, the attack again, and a perfect score."""

    title: str
    shares: Sequence[float]
    lines: Mapping[str, RecallLine]
    again: Sequence[float]
    perfect: Sequence[float] | None = None


def recall_curves(
    contents: Sequence[RecallPanel], path: Path, attack: str = "the attack", columns: int = 2
) -> list[Path]:
    """A panel each, in rows of at most so many columns; ``path`` has no suffix.

    Lines: mean over the targets, for the scores in ``SHADED`` ± 1 standard deviation; grey: the attack again
    (dash-dotted) and, where it is known, a perfect score (solid); dotted: a random order. Recalls have a linear axis: a
    recall of 0 has no logarithm, and is drawn where it is.
    """
    single = len(contents) == 1
    with panels(len(contents), (6.4, 4.4) if single else (4.8, 3.4), columns, extra_height=0.9) as (figure, found):
        handles: dict[str, Any] = {}
        for axes, content in zip(found, contents, strict=True):
            _draw(axes, content, f"{attack} again", handles)
        label_outer(found, "records kept: the top k by score, % of all", f"found of {attack}'s top k, %")
        order = [name for name in SCORES if name in handles]  # whatever the first panel lacks
        order += [name for name in handles if name not in order]
        figure.legend(
            [handles[name] for name in order],
            order,
            loc="outside lower center",
            ncols=3 if single else 4,
            frameon=False,
            columnspacing=1.6,
            handlelength=3.6,
        )
        return write(figure, path)


def _draw(axes: Axes, content: RecallPanel, again: str, handles: dict[str, Any]) -> None:
    for number, (name, line) in enumerate(content.lines.items()):
        handles[name] = _line(axes, content.shares, line, name, number)
    for label, curve, dash in ((again, content.again, "-."), ("a perfect score", content.perfect, "-")):
        if curve is not None:
            (handles[label],) = axes.plot(content.shares, _percent(curve), color=CEILING, lw=1.4, ls=dash, zorder=2)
    chance = np.geomspace(FIRST, 1.0, 60)  # a straight line, bent by the logarithm
    (handles["a random order"],) = axes.plot(chance, _percent(chance), color="0.2", lw=1.0, ls=":", zorder=1)
    axes.set(xscale="log", xlim=(FIRST, 1.0), ylim=(0.0, 103.0), title=content.title)
    axes.set_xticks([0.001, 0.01, 0.1, 1.0], ["0.1", "1", "10", "100"])
    axes.minorticks_off()


def _line(axes: Axes, shares: Sequence[float], line: RecallLine, name: str, number: int) -> Any:
    look = look_of(name)
    thick = look.width > 2.0
    (handle,) = axes.plot(
        shares,
        _percent(line.mean),
        color=look.colour,
        lw=look.width,
        ls=look.dash,
        marker=look.marker,
        markevery=(number % _APART, _APART),
        ms=look.size,
        mec="white",
        mew=0.5,
        zorder=6 if thick else 4,
        clip_on=False,  # a marker on the edge is whole
    )
    if line.std is not None and name in SHADED:
        low, high = (np.clip(_percent(np.add(line.mean, sign * np.asarray(line.std))), 0.0, 100.0) for sign in (-1, 1))
        axes.fill_between(shares, low, high, color=look.colour, alpha=0.13, lw=0, zorder=2)
    return handle


def _percent(values: Any) -> Any:
    return 100.0 * np.asarray(values, dtype=np.float64)
