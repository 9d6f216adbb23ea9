"""Recall of an attack's top k among a score's top k, over the share k (Figures 2, 3, 5 and 6 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noshadow.drawing.canvas import label_outer, panels, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIRST", "FLOOR", "RecallLine", "RecallPanel", "clipped", "recall_curves"]

# Okabe and Ito's colours, which stay apart for colour-blind readers. Scores that often agree get narrower lines the
# later they are drawn, so that one that covers another lets it show.
_STYLES = {
    "loss": ("#E69F00", 1.8),
    "gradient_norm": ("#56B4E9", 1.8),
    "influence": ("#0072B2", 3.4),
    "newton": ("#D55E00", 2.1),
    "leave_one_out": ("#009E73", 0.9),
    "network_influence": ("#CC79A7", 1.8),
}
_OTHER = ("#000000", 1.8)
_CEILING = "0.45"
FLOOR = 7e-4
"""Lower edge of the recall axis, where a recall of 0 is drawn."""
FIRST = 1e-3
"""Lower edge of the axis of shares."""


@dataclass(frozen=True)
class RecallLine:
    """A score's recall at each share: mean over targets, ± deviation (None: one target), and the first target's."""

    mean: Sequence[float]
    std: Sequence[float] | None
    first: Sequence[float]


@dataclass(frozen=True)
class RecallPanel:
    """The curves of one panel, at shares (c,): of each score, of the attack again and of a perfect score."""

    title: str
    shares: Sequence[float]
    lines: Mapping[str, RecallLine]
    again: Sequence[float] | None = None
    perfect: Sequence[float] | None = None


def recall_curves(
    contents: Sequence[RecallPanel], path: Path, attack: str = "the attack", columns: int = 2
) -> list[Path]:
    """A panel per content; ``path`` has no suffix.

    Solid: mean over the targets, ± 1 standard deviation shaded. Dashed: the first target alone. Grey: the attack again
    (dash-dotted), a perfect score (solid). Dotted: a random order.
    """
    size = (5.6, 4.6) if len(contents) == 1 else (4.6, 3.1)
    with panels(len(contents), size, columns) as (figure, found):
        handles: dict[str, Any] = {}
        for axes, content in zip(found, contents, strict=True):
            _draw(axes, content, f"{attack} again", handles)
        label_outer(found, columns, "share k of the records kept", f"recall of {attack}'s top k")
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside lower center",
            ncols=2 if len(contents) == 1 else 4,
            frameon=False,
            columnspacing=1.4,
        )
        return write(figure, path, dpi=150 if len(contents) <= columns else 100)


def _draw(axes: Axes, content: RecallPanel, again: str, handles: dict[str, Any]) -> None:
    for name, line in content.lines.items():
        handles[name] = _line(axes, content.shares, line, name)
    for label, curve, style in ((again, content.again, "-."), ("a perfect score", content.perfect, "-")):
        if curve is not None:
            (handles[label],) = axes.plot(content.shares, clipped(curve), color=_CEILING, lw=1.6, ls=style, zorder=2)
    (handles["a random order"],) = axes.plot([FLOOR, 1.0], [FLOOR, 1.0], color="0.2", lw=1.0, ls=":", zorder=1)
    axes.set(xscale="log", yscale="log", xlim=(FIRST, 1.0), ylim=(FLOOR, 1.15), title=content.title)
    axes.grid(color="0.92", lw=0.6)
    ticks, labels = [0.001, 0.01, 0.1, 1.0], ["0.1 %", "1 %", "10 %", "100 %"]
    axes.set_xticks(ticks, labels)
    axes.set_yticks(ticks, labels)
    axes.minorticks_off()


def _line(axes: Axes, shares: Sequence[float], line: RecallLine, name: str) -> Any:
    colour, width = _STYLES.get(name, _OTHER)
    (handle,) = axes.plot(shares, clipped(line.mean), color=colour, lw=width, zorder=4)
    if line.std is not None:  # one target has no deviation, and is its own mean
        low, high = (clipped(np.add(line.mean, sign * np.asarray(line.std))) for sign in (-1, 1))
        axes.fill_between(shares, low, high, color=colour, alpha=0.09, lw=0, zorder=2)
        axes.plot(shares, clipped(line.first), color=colour, lw=0.9, ls="--", alpha=0.8, zorder=3)
    return handle


def clipped(values: Any) -> NDArray[np.float64]:
    """Recalls for a log axis: 0 is drawn on its lower edge."""
    found: NDArray[np.float64] = np.clip(np.asarray(values, dtype=np.float64), FLOOR, 1.0)
    return found
