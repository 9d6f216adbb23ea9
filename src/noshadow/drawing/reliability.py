"""Predicted against measured rates: on the diagonal, the prediction is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from noshadow.drawing.canvas import label_outer, panels, write

__all__ = ["ReliabilityPanel", "reliability_diagrams"]

ReliabilityPanel = tuple[str, Sequence[float], Sequence[float]]
"""Title, predicted and measured rates, a number per group of records."""


def reliability_diagrams(contents: Sequence[ReliabilityPanel], path: Path, columns: int = 4) -> list[Path]:
    """A panel each, a point per group of records; ``path`` has no suffix."""
    size = (4.2, 4.0) if len(contents) == 1 else (3.1, 3.1)
    with panels(len(contents), size, columns, extra_height=0.0) as (figure, axes):
        for panel, (title, predicted, measured) in zip(axes, contents, strict=True):
            low = min(0.5, *measured) - 0.02
            panel.plot([low, 1.02], [low, 1.02], color="0.6", lw=1.0, ls="--", zorder=1)
            panel.plot(predicted, measured, color="#1b4f8a", lw=1.2, marker="o", ms=6, mec="white", zorder=2)
            panel.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal", title=title)
            panel.grid(color="0.92", lw=0.6)
            panel.set_axisbelow(True)
        label_outer(axes, min(columns, len(contents)), "predicted, mean of a tenth", "LiRA's success rate")
        return write(figure, path)
