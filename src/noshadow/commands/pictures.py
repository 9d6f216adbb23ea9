"""Small grey images as text: shades that need no colour, several side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["PLAIN", "SHADES", "drawn", "side_by_side"]

SHADES = " ░▒▓█"
PLAIN = " .+#@"
"""For terminals that know ASCII alone."""


def drawn(image: NDArray[np.float64], width: int | None = None, shades: str = SHADES) -> list[str]:
    """An image (height, columns) from 0, paper, to 1, ink, as lines of ``width`` characters.

    A character is about twice as high as wide; other widths than the image's own are interpolated.
    """
    columns = image.shape[1]
    wide = columns if width is None else width
    places = (np.arange(wide) + 0.5) * columns / wide - 0.5
    stretched = np.stack([np.interp(places, np.arange(columns), row) for row in image])
    levels = np.rint(np.clip(stretched, 0.0, 1.0) * (len(shades) - 1)).astype(int)
    return ["".join(shades[level] for level in row) for row in levels]


def side_by_side(pictures: Sequence[Sequence[str]], captions: Sequence[str], columns: int, gap: int = 2) -> list[str]:
    """Lines with as many pictures in a row as fit into the columns, each above its caption.

    pictures  of the same size
    """
    if not pictures:
        return []
    wide = max(len(pictures[0][0]), *map(len, captions))
    in_row = max(1, (columns + gap) // (wide + gap))
    lines: list[str] = []
    for start in range(0, len(pictures), in_row):
        row = [
            [*picture, caption]
            for picture, caption in zip(pictures[start : start + in_row], captions[start : start + in_row], strict=True)
        ]
        if lines:
            lines.append("")
        lines += [(" " * gap).join(part.center(wide) for part in across).rstrip() for across in zip(*row, strict=True)]
    return lines
