"""Predicted against measured rates: on the diagonal, the prediction is right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from noshadow.drawing.canvas import panels, write

__all__ = ["reliability_diagram"]


def reliability_diagram(predicted: Sequence[float], measured: Sequence[float], title: str, path: Path) -> list[Path]:
    """A point per group of records, (bins,) each; ``path`` has no suffix."""
    with panels(1, (4.2, 4.0), 1, extra_height=0.0) as (figure, [axes]):
        low = 0.5 - 0.02
        axes.plot([low, 1.02], [low, 1.02], color="0.6", lw=1.0, ls="--", zorder=1)
        axes.plot(predicted, measured, color="#1b4f8a", lw=1.2, marker="o", ms=6, mec="white", zorder=2)
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal", title=title)
        axes.set(xlabel="predicted success rate, mean of a tenth", ylabel="LiRA's success rate, the same records")
        axes.grid(color="0.92", lw=0.6)
        axes.set_axisbelow(True)
        return write(figure, path)
