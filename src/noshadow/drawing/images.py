"""Rows of images with a caption each (Figure 7 of the paper)."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from noshadow.drawing.canvas import panels, write

__all__ = ["image_rows", "wrapped"]

_WIDTH = 13  # characters of a caption that fit below an image


def image_rows(rows: Mapping[str, Sequence[tuple[NDArray[Any], str]]], title: str, path: Path) -> list[Path]:
    """Rows by label, each of images (H, W, 3) uint8 with what is written below; ``path`` has no suffix."""
    columns = max(len(images) for images in rows.values())
    captions = {label: [wrapped(caption) for _, caption in images] for label, images in rows.items()}
    deepest = max(caption.count("\n") for found in captions.values() for caption in found)
    with panels(len(rows) * columns, (1.02, 1.12 + 0.15 * deepest), columns) as (figure, found):
        for axes in found:
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        for number, (label, images) in enumerate(rows.items()):
            line = found[number * columns : (number + 1) * columns]
            line[0].set_ylabel(label.replace(" ", "\n"), rotation=0, ha="right", va="center", labelpad=8)
            for axes, (image, _), caption in zip(line, images, captions[label], strict=False):  # a tiny pool has fewer
                axes.imshow(image, interpolation="none")
                axes.set_xlabel(caption, fontsize=8.0, labelpad=3)
        figure.suptitle(title, fontsize=11.0)
        return write(figure, path, photographs=True)


def wrapped(caption: str) -> str:
    """A caption whose lines do not run into the next image's: broken between words, and within one if need be."""
    return "\n".join(textwrap.fill(line, _WIDTH, break_on_hyphens=True) for line in caption.splitlines())
