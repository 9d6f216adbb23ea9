"""Where figures are drawn: style, panels, and files that are whole or not there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noshadow.errors import missing_extra
from noshadow.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["label_outer", "panels", "write", "write_one"]

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "noshadow",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""What would differ from day to day or from version to version is left out."""


@contextmanager
def panels(
    count: int, size: tuple[float, float], columns: int, extra_height: float = 0.5
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with so many panels of a size in inches in rows of so many columns, and its panels."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "bench") from None
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows + extra_height), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in grid[count:]:
            axes.remove()
        yield figure, list(grid[:count])


def label_outer(axes: Sequence[Axes], columns: int, x: str, y: str) -> None:
    """Name the axes where no other panel is below or to the left."""
    for number, panel in enumerate(axes):
        if number + columns >= len(axes):
            panel.set_xlabel(x)
        if number % columns == 0:
            panel.set_ylabel(y)


def write(figure: Figure, path: Path, dpi: int = 150) -> list[Path]:
    """The figure as ``path`` with .png and with .svg."""
    return [write_one(figure, path.parent / f"{path.name}.{kind}", dpi) for kind in ("png", "svg")]


def write_one(figure: Figure, path: Path, dpi: int) -> Path:
    """The figure as one file, of the kind that its name ends in."""
    kind = path.suffix.lstrip(".").lower()
    with atomic_path(path, private=False) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=_METADATA[kind])
    return path
