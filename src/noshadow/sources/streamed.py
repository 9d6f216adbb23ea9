"""A table as the source of a layer: every chunk is checked as it is read, in each pass."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noshadow.errors import InputError, rows_from
from noshadow.memory import require_free_memory
from noshadow.sources.csr import CsrTable
from noshadow.sources.rows import NAMES, OPTIONAL, Rows, check_rows
from noshadow.sources.tables import Column, Table

__all__ = ["CHUNK_BYTES", "Streamed"]

CHUNK_BYTES = 16 * 2**20
"""Of a chunk of a pass that only checks or copies."""


class Streamed:
    """The records of a table; sample_weight (n,) where the table has none of its own."""

    device = torch.device("cpu")

    def __init__(self, table: Table, head: str, sample_weight: Tensor | None = None) -> None:
        if table.n == 0:
            raise InputError(f"records: {table.name}: there are no rows")
        for name in NAMES:
            if name not in table.columns:
                raise InputError(f"records: {table.name}: there is no array {name!r}; it needs {', '.join(NAMES)}")
        if sample_weight is not None and "sample_weight" in table.columns:
            raise InputError(f"sample_weight: {table.name} has its own; leave one of them out")
        if sample_weight is not None and len(sample_weight) != table.n:
            raise InputError(
                f"sample_weight: expected a weight per record, shape ({table.n},), got {tuple(sample_weight.shape)}"
            )
        self._table, self._head, self._sample_weight = table, head, sample_weight
        self._names = [name for name in (*NAMES, *OPTIONAL) if name in table.columns]
        self._features, outputs = table.columns["features"], table.columns["outputs"]
        if len(self._features.shape) != 1:
            shape = (table.n, *self._features.shape)
            raise InputError(f"features: expected shape (n, p), got {shape}")
        self.n, self.n_features = table.n, self._features.shape[0]
        self.n_outputs = outputs.shape[0] if outputs.shape else 1

    @property
    def precision(self) -> torch.dtype:
        kind = self._features.dtype
        return kind if kind.is_floating_point else torch.float64

    @property
    def sparse(self) -> bool:
        return isinstance(self._table, CsrTable)

    @property
    def weighted(self) -> bool:
        return self._sample_weight is not None or "sample_weight" in self._names

    @property
    def chunk(self) -> int:
        """Records of a pass that only checks or copies."""
        return max(1, CHUNK_BYTES // max(1, sum(map(self._row_bytes, self._table.columns))))

    def _row_bytes(self, name: str) -> int:
        if name == "features" and isinstance(self._table, CsrTable):
            return self._table.row_bytes
        return _bytes(self._table.columns[name])

    def read(self, rows: slice) -> Rows:
        found = self._table.read(rows, self._names)
        weight = found.get("sample_weight") if self._sample_weight is None else self._sample_weight[rows]
        with rows_from(rows.start):
            return check_rows(found["features"], found["outputs"], found["targets"], weight, self._head)

    def whole(self, name: str) -> Tensor | None:
        if name == "sample_weight" and not self.weighted:
            return None
        column = self._table.columns.get(name, Column(torch.float64, ()))
        stays = name == "features" and self.sparse
        size = self._row_bytes(name) if stays else max(_bytes(column), 8 * math.prod(column.shape))
        require_free_memory(
            2.0 * self.n * size,
            f"{name}: all {self.n:,} rows in memory",
            "read them with records(rows), some at a time",
        )
        if stays:
            return self.read(slice(0, self.n)).features
        parts = [getattr(self.read(slice(k, min(k + self.chunk, self.n))), name) for k in range(0, self.n, self.chunk)]
        return torch.cat(parts)


def _bytes(column: Column) -> int:
    return math.prod(column.shape) * column.dtype.itemsize
