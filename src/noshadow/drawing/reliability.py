"""Predicted against measured rates: on the diagonal, the prediction is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from noshadow.drawing.canvas import label_outer, panels, write
from noshadow.drawing.palette import BLUE

__all__ = ["ReliabilityPanel", "reliability_diagrams", "shared_limits"]

ReliabilityPanel = tuple[str, Sequence[float], Sequence[float]]
"""Title, predicted and measured rates (0 … 1), a number per group of records."""
_NARROWEST = 10.0  # percent: rates that are all near chance are not blown up until they look far apart


def reliability_diagrams(contents: Sequence[ReliabilityPanel], path: Path, columns: int = 4) -> list[Path]:
    """A panel each with its own range, a point per group of records; ``path`` has no suffix."""
    size = (4.8, 4.4) if len(contents) == 1 else (3.2, 3.3)
    with panels(len(contents), size, columns, extra_height=0.0) as (figure, axes):
        from matplotlib.ticker import MaxNLocator  # not before it was said what is missing

        for panel, (title, predicted, measured) in zip(axes, contents, strict=True):
            low, high = shared_limits(predicted, measured)
            panel.plot([low, high], [low, high], color="0.35", lw=1.2, ls="--", zorder=1)
            points = (100.0 * np.asarray(predicted), 100.0 * np.asarray(measured))
            panel.plot(*points, color=BLUE, lw=1.6, marker="o", ms=7, mec="white", mew=0.8, zorder=2, clip_on=False)
            panel.set(xlim=(low, high), ylim=(low, high), aspect="equal", title=title)
            for axis in (panel.xaxis, panel.yaxis):
                axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        label_outer(axes, "predicted success rate, %", "LiRA's success rate, %")
        return write(figure, path)


def shared_limits(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float]:
    """Percent, the same for both axes: all points and a margin, chance (50 %) among them, 10 points wide at least."""
    rates = 100.0 * np.concatenate([predicted, measured])
    low = min(50.0, float(rates.min()))
    high = max(float(rates.max()), low + _NARROWEST)
    margin = 0.04 * (high - low)
    return low - margin, min(high + margin, 102.0)
