"""Columns of records (names, groups, labels) as tensors, so that a safetensors file holds them beside the arrays.

Numbers and yes or no are a tensor of their own. Text is three: the bytes of all of it in UTF-8, where each ends, and
the rows that have none.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noshadow.errors import FileError, InputError

__all__ = ["TEXT", "Packed", "pack", "unpack"]

TEXT = "text"
Packed = tuple[str, dict[str, Tensor]]
"""What a column holds, and its tensors by what is put behind its name."""
_NUMBERS = {"bool": "bool", "uint8": "uint8", **dict.fromkeys(("uint16", "uint32", "uint64"), "int64")}
_NUMBERS |= {name: name for name in ("int8", "int16", "int32", "int64", "float16", "float32", "float64")}
_WIDEST = np.iinfo(np.int64).max


def pack(values: Any, name: str) -> Packed:
    """A column of n numbers, yes and no, or texts, of which some may be missing; ``name`` is what messages call it."""
    column = pd.Series(values) if np.ndim(values) == 1 else np.asarray(values)
    kind = str(column.dtype)
    if isinstance(column.dtype, np.dtype) and kind in _NUMBERS:
        array = np.asarray(column)
        if kind.startswith("uint") and array.size and array.max() > _WIDEST:
            raise InputError(f"{name}: {array.max()} is too large for a whole number of 64 bits; pass text")
        return kind, {"": torch.from_numpy(np.require(array, _NUMBERS[kind], ["C", "W", "O"]))}
    if not isinstance(column, pd.Series):
        raise InputError(f"{name}: several values per record must be numbers, got {kind}")
    held = pd.api.types.infer_dtype(column.astype(object), skipna=True)
    if held not in ("string", "empty"):
        raise InputError(f"{name}: its values are of kind {held}; pass text, or numbers")
    missing = column.isna().to_numpy()
    try:
        texts = [b"" if lacks else text.encode("utf-8") for text, lacks in zip(column, missing, strict=True)]
    except UnicodeEncodeError as error:
        raise InputError(f"{name}: a text cannot be written in UTF-8 ({error.reason})") from None
    tensors = {
        ".text": torch.from_numpy(np.frombuffer(b"".join(texts), np.uint8).copy()),
        ".ends": torch.from_numpy(np.cumsum([len(text) for text in texts], dtype=np.int64)),
    }
    if missing.any():
        tensors[".missing"] = torch.from_numpy(np.flatnonzero(missing))
    return TEXT, tensors


def unpack(kind: Any, read: Callable[[str], Tensor | None], n: int, name: str) -> Any:
    """The column of n records that ``pack`` made tensors of; ``read`` gives them. What does not fit is refused."""
    damaged = FileError(f"{name}: it is no column of {n} records; the file is damaged")
    if kind != TEXT:
        values = read("")
        if values is None or kind not in _NUMBERS or str(values.numpy().dtype) != _NUMBERS[kind] or len(values) != n:
            raise damaged
        return values.numpy().astype(kind)
    content, ends, missing = (read(part) for part in (".text", ".ends", ".missing"))
    if content is None or ends is None or content.dtype != torch.uint8 or ends.dtype != torch.int64:
        raise damaged
    edges = np.concatenate([np.zeros(1, np.int64), ends.numpy()]) if ends.ndim == 1 else np.zeros(1, np.int64)
    if len(edges) != n + 1 or edges[-1] != content.numel() or bool((np.diff(edges) < 0).any()):
        raise damaged
    text = content.numpy().tobytes()
    try:
        found: list[str | None] = [text[a:b].decode("utf-8") for a, b in pairwise(edges.tolist())]
    except UnicodeError:
        raise damaged from None
    if missing is not None:
        rows = missing.numpy()
        if missing.dtype != torch.int64 or missing.ndim != 1 or bool(((rows < 0) | (rows >= n)).any()):
            raise damaged
        for row in rows.tolist():
            found[row] = None
    return np.array(found, dtype=object)
