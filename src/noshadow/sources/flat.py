"""Arrays that lie row by row at a known place of a file: .npy and safetensors. Only the rows asked for are read.

Rows are read, not mapped: what a process has mapped counts as its memory, and a file that is cut short while it is
mapped ends the process.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.errors import FileError
from noshadow.npz import read_header
from noshadow.sources.checksums import Checksums
from noshadow.sources.tables import Column, Columns

__all__ = [
    "LARGEST_HEADER",
    "TYPES",
    "Flat",
    "Header",
    "PlacedArray",
    "Stamp",
    "npy_array",
    "npy_table",
    "tensors_header",
    "tensors_table",
]

TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers by what safetensors call them."""
_NUMPY = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u1": "U8"}
LARGEST_HEADER = 100_000_000
"""Bytes, as the format has it."""
_PIECE_BYTES = 2**18  # with a checksum each; small beside what a pass reads at a time


@dataclass(frozen=True)
class Stamp:
    """By what a file that was written to is told: its size and when it last changed."""

    size: int
    changed: int

    @classmethod
    def of(cls, handle: int) -> Stamp:
        found = os.fstat(handle)
        return cls(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class PlacedArray:
    """An array (n, …) that starts at byte ``start`` of a file."""

    path: Path
    start: int
    n: int
    column: Column
    stamp: Stamp
    checksums: Checksums = field(default_factory=Checksums, compare=False, repr=False)

    def read(self, rows: slice) -> Tensor:
        """Some rows; refused where the file is another one by now, or holds other bytes than when they were first
        read. Whole pieces are read, because a checksum is that of a piece."""
        size = self.column.dtype.itemsize * math.prod(self.column.shape)
        if not size or rows.stop <= rows.start:
            return torch.empty((max(0, rows.stop - rows.start), *self.column.shape), dtype=self.column.dtype)
        piece = max(1, _PIECE_BYTES // size)
        first, last = rows.start // piece * piece, min(-(-rows.stop // piece) * piece, self.n)
        buffer = self._bytes(first, last, size)
        for start in range(first, last, piece):
            stop = min(start + piece, last)
            content = buffer[(start - first) * size : (stop - first) * size]
            self.checksums.check(start, content, f"{self.path}: rows {start} … {stop - 1} (counted from 0)")
        whole = torch.from_numpy(buffer).view(self.column.dtype).reshape(-1, *self.column.shape)
        return whole[rows.start - first : rows.stop - first]

    def _bytes(self, first: int, last: int, size: int) -> NDArray[np.uint8]:
        """Rows first … last − 1, of so many bytes each."""
        buffer = np.empty((last - first) * size, np.uint8)
        try:
            with open(self.path, "rb", buffering=0) as file:
                if Stamp.of(file.fileno()) != self.stamp:
                    raise FileError(
                        f"records: {self.path} was written to since the layer was opened; open it again when the file "
                        "is at rest"
                    )
                file.seek(self.start + first * size)
                view = buffer.data
                while view:
                    done = file.readinto(view)
                    if not done:
                        raise FileError(f"records: {self.path} ends before row {last - 1}; it is truncated")
                    view = view[done:]
        except OSError as error:
            raise FileError(f"records: {self.path} cannot be read ({error.strerror}); it was there before") from None
        return buffer


@dataclass(frozen=True, eq=False)
class Flat:
    """Arrays at known places, with one number of rows."""

    name: str
    arrays: Mapping[str, PlacedArray]

    def __post_init__(self) -> None:
        first = next(iter(self.arrays), "")
        for name, array in self.arrays.items():
            if array.n != self.arrays[first].n:
                raise FileError(
                    f"records: {self.name}: {name} has {array.n} rows, {first} {self.arrays[first].n}; they must be "
                    "the same records"
                )

    @property
    def n(self) -> int:
        return next(iter(self.arrays.values())).n

    @property
    def columns(self) -> Columns:
        return {name: array.column for name, array in self.arrays.items()}

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]:
        return {name: self.arrays[name].read(rows) for name in names}


def npy_table(paths: Mapping[str, Path], name: str) -> Flat:
    """An .npy file for each array."""
    return Flat(name, {array: npy_array(path, array) for array, path in paths.items()})


def npy_array(path: Path, name: str) -> PlacedArray:
    """The array of an .npy file."""
    try:
        with open(path, "rb") as file:
            stamp = Stamp.of(file.fileno())
            shape, in_columns, dtype, start = read_header(file)
    except OSError as error:
        raise FileError(f"records: {path} cannot be read ({error.strerror})") from None
    except Exception as error:  # the header's parser has its own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileError(f"records: {path} is not an .npy of plain numbers ({reason})") from None
    kind = "BOOL" if dtype == np.bool_ else _NUMPY.get(dtype.str[1:])
    if kind is None or dtype.newbyteorder("=") != dtype:
        raise FileError(
            f"records: {path} holds {name} as {dtype}; save them as float32 or float64, and classes as int64"
        )
    if not shape:
        raise FileError(f"records: {path} holds one number; {name} need a row per record")
    if in_columns and sum(size > 1 for size in shape) > 1:
        raise FileError(
            f"records: {path} is stored column by column, so that its rows cannot be read one after the other; save "
            "np.ascontiguousarray(array)"
        )
    column = Column(TYPES[kind], tuple(shape[1:]))
    _require_size(path, stamp, start + shape[0] * math.prod(column.shape) * dtype.itemsize)
    return PlacedArray(path, start, shape[0], column, stamp)


def tensors_table(path: Path, names: Sequence[str], saved: bool = False) -> Flat:
    """Those of the tensors of a safetensors file that are there; a ``saved`` layer is opened as such, or refused."""
    tensors, metadata, start, stamp = tensors_header(path)
    if not saved and '"noshadow": "layer"' in str(metadata.get("identity")):
        raise FileError(
            f"records: {path} is a layer that was saved with its head, ridge and weights; use "
            "noshadow.LastLayer.load to read it, or `noshadow audit` in a shell"
        )
    arrays = {}
    for name in names:
        if name in tensors:
            kind, shape, (begin, _) = tensors[name]
            if not shape:
                raise FileError(f"records: {name} in {path} is one number; it needs a row per record")
            arrays[name] = PlacedArray(path, start + begin, shape[0], Column(TYPES[kind], tuple(shape[1:])), stamp)
    if not arrays and not saved:
        raise FileError(f"records: {path} holds none of {', '.join(names)}; it holds {', '.join(tensors) or 'nothing'}")
    return Flat(str(path), arrays)


Header = tuple[dict[str, tuple[str, list[int], tuple[int, int]]], dict[str, str], int, Stamp]


def tensors_header(path: Path) -> Header:
    """Type, shape and place of each tensor of a safetensors file, its metadata, where the data start, its stamp."""
    try:
        with open(path, "rb") as file:
            stamp = Stamp.of(file.fileno())
            length = int.from_bytes(file.read(8), "little")
            if length > min(LARGEST_HEADER, stamp.size):
                raise ValueError("its header is longer than the file" if length > stamp.size else "its header is huge")
            header: Any = json.loads(file.read(length))
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata are not texts by name")
        tensors = {
            str(name): (str(one["dtype"]), [int(size) for size in one["shape"]], _pair(one["data_offsets"]))
            for name, one in header.items()
        }
    except OSError as error:
        raise FileError(f"records: {path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"records: {path} is not a safetensors file ({reason})") from None
    end = 0
    for name, (kind, shape, (begin, stop)) in sorted(tensors.items(), key=lambda item: item[1][2]):
        if kind not in TYPES:
            raise FileError(f"records: {name} in {path} is of type {kind}; save it as one of {', '.join(TYPES)}")
        if begin != end or min(shape, default=0) < 0 or stop - begin != math.prod(shape) * TYPES[kind].itemsize:
            raise FileError(f"records: the header of {path} is damaged: {name} does not lie where it says")
        end = stop
    _require_size(path, stamp, 8 + length + end)
    return tensors, metadata, 8 + length, stamp


def _pair(offsets: Any) -> tuple[int, int]:
    begin, end = map(int, offsets)
    return begin, end


def _require_size(path: Path, stamp: Stamp, expected: int) -> None:
    if stamp.size != expected:
        what = "it is truncated" if stamp.size < expected else "something was appended to it"
        raise FileError(f"records: {path} should have {expected:,} bytes and has {stamp.size:,}; {what}")
