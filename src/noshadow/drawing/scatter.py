"""Two positive values of each record against each other, coloured by a third (Figure 8 of the paper)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.drawing.canvas import panels, write

__all__ = ["log_scatter", "positive"]

_EDGE = 0.002  # share of the records that may lie below the axes; they are drawn on their edge


def log_scatter(
    x: tuple[str, NDArray[Any]],
    y: tuple[str, NDArray[Any]],
    rate: tuple[str, NDArray[Any]],
    shades: tuple[float, float],
    title: str,
    path: Path,
) -> list[Path]:
    """x, y and the rate: a name and values (n,) each; shades: the rates of the lightest and of the darkest colour.

    Records of high rates are drawn last, on top. What is too small for the axes is drawn on their edge. ``path`` has
    no suffix.
    """
    with panels(1, (6.0, 4.4), 1, extra_height=0.0) as (figure, [axes]):
        from matplotlib import colormaps  # not before it was said what is missing
        from matplotlib.colors import LinearSegmentedColormap

        # light to dark, without the end that vanishes on white paper
        colours = colormaps["magma_r"](np.linspace(0.12, 0.95, 256))
        order = np.argsort(rate[1], kind="stable")
        points = axes.scatter(
            positive(x[1])[order],
            positive(y[1])[order],
            c=rate[1][order],
            s=float(np.clip(40_000 / len(order), 5.0, 15.0)),
            cmap=LinearSegmentedColormap.from_list("exposure", colours, N=20),
            vmin=shades[0],
            vmax=shades[1],
            linewidths=0,
            antialiased=False,  # few distinct pixels: small files
            rasterized=True,
        )
        axes.set(xscale="log", yscale="log", title=title, xlabel=x[0], ylabel=y[0])
        axes.minorticks_off()
        figure.colorbar(points, ax=axes, label=rate[0], extend="min", aspect=22)
        return write(figure, path)


def positive(values: NDArray[Any]) -> NDArray[np.float64]:
    """Values for a log axis: the lowest few, and what is not positive, at the value that bounds them."""
    numbers = np.asarray(values, dtype=np.float64)
    above = numbers[numbers > 0]
    floor = np.quantile(above, _EDGE, method="lower") if len(above) else 1.0
    found: NDArray[np.float64] = np.maximum(numbers, floor)
    return found
