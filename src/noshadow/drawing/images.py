"""Rows of images with a caption each (Figure 7 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from noshadow.drawing.canvas import panels, write

__all__ = ["image_rows"]


def image_rows(rows: Mapping[str, Sequence[tuple[NDArray[Any], str]]], title: str, path: Path) -> list[Path]:
    """Rows by label, each of images (H, W, 3) uint8 with what is written below; ``path`` has no suffix."""
    columns = max(len(images) for images in rows.values())
    with panels(len(rows) * columns, (0.98, 1.2), columns) as (figure, found):
        for axes in found:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for number, (label, images) in enumerate(rows.items()):
            line = found[number * columns : (number + 1) * columns]
            line[0].set_ylabel(label.replace(" ", "\n"), rotation=0, ha="right", va="center", labelpad=8)
            for axes, (image, caption) in zip(line, images, strict=False):  # a tiny pool has fewer
                axes.imshow(image, interpolation="none")
                axes.set_xlabel(caption, fontsize=8.5, labelpad=3)
        figure.suptitle(title, fontsize=11.0)
        return write(figure, path)
