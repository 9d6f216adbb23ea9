"""What a number of trained models finds, with a prediction and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noshadow.drawing.canvas import label_outer, panels, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BudgetPanel", "budget_curves"]

_TOGETHER, _ALONE, _RERUN = "#1b4f8a", "0.45", "#b3541e"


@dataclass(frozen=True)
class BudgetPanel:
    """Recalls (0 … 1) by the number of shadow models, (numbers,) each.

    together, errors  the models with the prediction, and its standard error
    alone             the models without; None for too few
    rerun             the prediction from one rerun, without a shadow model; None where there is none
    """

    title: str
    models: Sequence[int]
    together: Sequence[float]
    errors: Sequence[float]
    alone: Sequence[float | None]
    rerun: float | None


def budget_curves(contents: Sequence[BudgetPanel], path: Path, columns: int = 3) -> list[Path]:
    """A panel each; ``path`` has no suffix. The axis is by position: 0 has no logarithm, and the numbers double."""
    single = len(contents) == 1
    with panels(len(contents), (5.4, 3.8) if single else (3.6, 2.9), columns) as (figure, axes):
        for panel, content in zip(axes, contents, strict=True):
            _draw(panel, content)
        label_outer(axes, min(columns, len(contents)), "shadow models trained", "found of the top 1 %, percent")
        lines, labels = max((panel.get_legend_handles_labels() for panel in axes), key=lambda found: len(found[1]))
        figure.legend(lines, labels, frameon=False, loc="outside lower center", ncols=len(labels))
        return write(figure, path)


def _draw(axes: Axes, content: BudgetPanel) -> None:
    places = list(range(len(content.models)))
    low = [100 * (value - error) for value, error in zip(content.together, content.errors, strict=True)]
    high = [100 * (value + error) for value, error in zip(content.together, content.errors, strict=True)]
    axes.fill_between(places, low, high, color=_TOGETHER, alpha=0.15, lw=0)
    together = [100 * value for value in content.together]
    axes.plot(places, together, color=_TOGETHER, lw=2.2, marker="o", label="exposure and the models")
    alone = [(place, 100 * value) for place, value in zip(places, content.alone, strict=True) if value is not None]
    if alone:
        axes.plot(*zip(*alone, strict=True), color=_ALONE, lw=1.4, ls="--", marker="s", ms=5, label="LiRA alone")
    if content.rerun is not None:
        axes.plot([0], [100 * content.rerun], color=_RERUN, ls="", marker="D", ms=7, mfc="none", label="of a rerun")
    axes.set_xticks(places, [str(count) for count in content.models])
    axes.set(ylim=(0, 103), title=content.title)
    axes.grid(color="0.92", lw=0.6)
    axes.set_axisbelow(True)
