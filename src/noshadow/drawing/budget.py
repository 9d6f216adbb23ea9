"""What a number of trained models finds, with a prediction and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from noshadow.drawing.canvas import label_outer, panels, write
from noshadow.drawing.palette import BLUE, VERMILION, look_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BudgetPanel", "budget_curves"]


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
    with panels(len(contents), (6.0, 4.0) if single else (4.2, 3.1), columns) as (figure, axes):
        for panel, content in zip(axes, contents, strict=True):
            _draw(panel, content)
        label_outer(axes, "shadow models trained", "found of LiRA's top 1 %, %")
        lines, labels = max((panel.get_legend_handles_labels() for panel in axes), key=lambda found: len(found[1]))
        figure.legend(lines, labels, frameon=False, loc="outside lower center", ncols=len(labels), columnspacing=2.0)
        return write(figure, path)


def _draw(axes: Axes, content: BudgetPanel) -> None:
    places = list(range(len(content.models)))
    together, errors = ([100 * value for value in values] for values in (content.together, content.errors))
    low, high = ([v + sign * e for v, e in zip(together, errors, strict=True)] for sign in (-1, 1))
    look = look_of("exposure")
    axes.fill_between(places, low, high, color=look.colour, alpha=0.13, lw=0)
    axes.plot(
        places,
        together,
        color=look.colour,
        lw=2.4,
        marker=look.marker,
        zorder=3,
        clip_on=False,
        label="exposure with the models",
    )
    alone = [(place, 100 * value) for place, value in zip(places, content.alone, strict=True) if value is not None]
    if alone:
        axes.plot(*zip(*alone, strict=True), color=BLUE, lw=1.6, ls="--", marker="s", ms=5.5, label="LiRA alone")
    if content.rerun is not None:  # around the point of no model, which it mostly equals
        axes.plot(
            [0],
            [100 * content.rerun],
            color=VERMILION,
            ls="",
            marker="D",
            ms=11,
            mew=1.6,
            mfc="none",
            zorder=4,
            clip_on=False,
            label="exposure of a rerun",
        )
    axes.set_xticks(places, [str(count) for count in content.models])
    axes.set(ylim=(0, 103), title=content.title)
