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

__all__ = ["DPI", "label_outer", "panels", "write", "write_one"]

DPI = 200
"""Pixels per inch of every PNG: sharp in print at the size at which it is drawn."""

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "noshadow",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 11.0,
    "axes.titlepad": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
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
    """A figure with so many panels of a size in inches, and these: as few rows as ``columns`` allows, evenly full."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise missing_extra("matplotlib", "bench") from None
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)  # four panels in rows of at most three are two and two, not three and one
    with matplotlib.rc_context(_STYLE):
        figure = Figure(
            figsize=(size[0] * columns, size[1] * rows + extra_height),
            layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08),
        )
        FigureCanvasAgg(figure)
        grid = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes in grid[count:]:
            axes.remove()
        yield figure, list(grid[:count])


def label_outer(axes: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes where no other panel is below or to the left."""
    grid = axes[0].get_gridspec()
    columns = 1 if grid is None else grid.ncols
    for number, panel in enumerate(axes):
        if number + columns >= len(axes):
            panel.set_xlabel(x)
        if number % columns == 0:
            panel.set_ylabel(y)


def write(figure: Figure, path: Path, photographs: bool = False) -> list[Path]:
    """The figure as ``path`` with .png and with .svg. Photographs keep all their colours; lines need 256 at most."""
    return [write_one(figure, path.parent / f"{path.name}.{kind}", photographs) for kind in ("png", "svg")]


def write_one(figure: Figure, path: Path, photographs: bool = False) -> Path:
    """The figure as one file, of the kind that its name ends in."""
    kind = path.suffix.lstrip(".").lower()
    with atomic_path(path, private=False) as temporary:
        figure.savefig(temporary, format=kind, dpi=DPI, metadata=_METADATA[kind])
        if kind == "png":
            _pack(temporary, photographs)
    return path


def _pack(path: Path, photographs: bool) -> None:
    """A smaller PNG of the same look: no transparency, and lines and shades in 256 colours, a third of the bytes."""
    from PIL import Image  # matplotlib needs it to write a PNG

    with Image.open(path) as found:
        opaque = found.convert("RGB")
    if not photographs:
        opaque = opaque.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    opaque.save(path, format="png", optimize=True, dpi=(DPI, DPI))
