"""Sparse features on disk, in compressed rows: only the entries of the rows that are asked for are read.

features.starts   (n + 1,) int64: the entries of row i are starts[i] … starts[i + 1] − 1
features.columns  (entries,) int64: the column of each, rising within a row
features.values   (entries,) in the precision of the features
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from noshadow.errors import FileError
from noshadow.sources.flat import Flat, PlacedArray
from noshadow.sources.rows import Source
from noshadow.sources.tables import Column, Columns
from noshadow.sources.tensor_files import Written
from noshadow.sparse import csr_of

__all__ = ["COLUMNS", "PARTS", "STARTS", "VALUES", "CsrTable", "csr_written"]

STARTS, COLUMNS, VALUES = PARTS = ("features.starts", "features.columns", "features.values")
_ROWS = 4_096  # at a time, when they are written


class CsrTable:
    """The arrays of a file whose features are sparse; ``others`` are those that are not."""

    def __init__(self, others: Flat, parts: Mapping[str, PlacedArray], n_features: int) -> None:
        self.name, self._others, self._parts = others.name, others, parts
        self.n = others.n
        starts, columns, values = (parts[name] for name in PARTS)
        whole = all(one.column == Column(torch.int64, ()) for one in (starts, columns))
        if not (whole and values.column.shape == () and values.column.dtype.is_floating_point):
            raise self._damaged("they are not three rows of numbers")
        if starts.n != self.n + 1 or columns.n != values.n or n_features < 0:
            raise self._damaged("their sizes do not go together")
        if self._starts(slice(0, 1)).tolist() != [0] or self._starts(slice(self.n, self.n + 1)).tolist() != [values.n]:
            raise self._damaged("they do not begin and end where their entries do")
        self.columns: Columns = {"features": Column(values.column.dtype, (n_features,)), **others.columns}
        self.row_bytes = -(-values.n * (8 + values.column.dtype.itemsize) // max(1, self.n))

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]:
        found = self._others.read(rows, [name for name in names if name != "features"])
        return {"features": self._features(rows), **found} if "features" in names else found

    def _features(self, rows: slice) -> Tensor:
        starts = self._starts(slice(rows.start, rows.stop + 1))
        lengths = starts.diff()
        if int(starts[0]) < 0 or bool((lengths < 0).any()) or int(starts[-1]) > self._parts[VALUES].n:
            raise self._damaged("a row ends before it begins")
        entries = slice(int(starts[0]), int(starts[-1]))
        columns, values = self._parts[COLUMNS].read(entries), self._parts[VALUES].read(entries)
        width = self.columns["features"].shape[0]
        if len(columns) and (int(columns.min()) < 0 or int(columns.max()) >= width):
            raise self._damaged(f"an entry lies in none of the {width} columns")
        row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        if bool(((columns.diff() <= 0) & (row.diff() == 0)).any()):
            raise self._damaged("the entries of a row are not in the order of the columns")
        return csr_of(starts - starts[0], columns, values, (len(lengths), width))

    def _starts(self, rows: slice) -> Tensor:
        return self._parts[STARTS].read(rows)

    def _damaged(self, reason: str) -> FileError:
        return FileError(f"records: {self.name} holds sparse features that are damaged: {reason}")


def csr_written(source: Source) -> dict[str, Written]:
    """The three arrays of the sparse features of a source, read some rows at a time."""

    def chunks() -> Iterator[Tensor]:
        for start in range(0, source.n, _ROWS):
            yield source.read(slice(start, min(start + _ROWS, source.n))).features

    def starts() -> Iterator[Tensor]:
        total = torch.zeros(1, dtype=torch.int64)
        yield total
        for part in chunks():
            yield part.crow_indices()[1:].to(torch.int64) + total
            total = total + len(part.values())

    count = sum(len(part.values()) for part in chunks())
    return {
        STARTS: Written(torch.int64, (source.n + 1,), starts()),
        COLUMNS: Written(torch.int64, (count,), (part.col_indices() for part in chunks())),
        VALUES: Written(source.precision, (count,), (part.values() for part in chunks())),
    }
