"""What the user chose to show of a record, as text or as a small image in a data: address.

Images are written here, as PNG: 32 points wide at most, so that a report with many of them stays small.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError
from noshadow.report.shown import Item

__all__ = ["LONGEST", "WIDEST", "data_address", "item", "png", "shorten"]

WIDEST = 32
"""Points on the longer side of an image."""
LONGEST = 240
"""Characters of a text."""


def item(value: Any) -> Item | None:
    """A text, or an image: an array (h, w), (h, w, 1 or 3) or (1 or 3, h, w), or what NumPy makes such an array of."""
    if value is None:
        return None
    if isinstance(value, (str, int, float, np.generic)):
        return Item(text=shorten(str(value)))
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"show: a {type(value).__name__} is neither a text nor an image ({error})") from None
    return Item(image=data_address(png(_image(array))))


def shorten(text: str, longest: int = LONGEST) -> str:
    """The text on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def data_address(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _image(array: NDArray[Any]) -> NDArray[np.uint8]:
    """(h, w, 1 or 3) of 0 … 255, at most WIDEST on either side."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or 0 in array.shape or array.dtype.kind not in "buif":
        raise InputError(
            f"show: expected a text or an image of shape (h, w), (h, w, 3) or (3, h, w), got {array.dtype} "
            f"of shape {array.shape}"
        )
    step = -(-max(array.shape[:2]) // WIDEST)
    values = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
    h, w, c = (max(array.shape[0] // step, 1), max(array.shape[1] // step, 1), array.shape[2])
    tall, broad = min(step, array.shape[0]), min(step, array.shape[1])
    values = values[: h * tall, : w * broad].reshape(h, tall, w, broad, c).mean((1, 3))
    if array.dtype != np.uint8:
        low, high = values.min(), values.max()
        values = 255.0 * (values - low) / (high - low) if high > low else np.zeros_like(values)
    return np.rint(values).astype(np.uint8)


def png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of (h, w, 1 or 3): grey or colour, 8 bits, no filter."""
    h, w, c = pixels.shape
    rows = np.zeros((h, 1 + w * c), dtype=np.uint8)  # each row starts with the number of its filter, 0
    rows[:, 1:] = pixels.reshape(h, w * c)
    header = struct.pack(">IIBBBBB", w, h, 8, {1: 0, 3: 2}[c], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
