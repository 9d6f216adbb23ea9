"""Rows of a sparse table with the constant column: products without making it dense."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows

__all__ = ["SparseRows", "as_csr", "csr_of", "csr_rows"]


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Some rows of a design matrix whose features are sparse; products are in float64, on the CPU.

    table  (c, p) SciPy CSR in float64
    bias   a column of ones follows
    """

    table: Any
    bias: bool

    @classmethod
    def of(cls, features: Tensor, rows: slice, bias: bool) -> SparseRows:
        """Some rows of features in torch's CSR layout."""
        starts = features.crow_indices()[rows.start : rows.stop + 1].numpy()
        entries = slice(int(starts[0]), int(starts[-1]))
        values = features.values()[entries].double().numpy()
        columns = features.col_indices()[entries].numpy()
        shape = (len(starts) - 1, features.shape[1])
        from scipy import sparse  # here: most layers are dense and do without

        return cls(sparse.csr_matrix((values, columns, starts - starts[0]), shape=shape), bias)

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def __getitem__(self, rows: slice | Tensor) -> SparseRows:
        return SparseRows(self.table[rows.numpy() if isinstance(rows, Tensor) else rows], self.bias)

    def dense(self) -> Tensor:
        """(c, P)."""
        full = np.empty((len(self), self.table.shape[1] + int(self.bias)))
        full[:, : self.table.shape[1]] = self.table.toarray()
        if self.bias:
            full[:, -1] = 1.0
        return torch.from_numpy(full)

    def times(self, matrix: Tensor) -> Tensor:
        """X̃ M, (P, k) → (c, k)."""
        inner = matrix[:-1] if self.bias else matrix
        product = torch.from_numpy(np.ascontiguousarray(self.table @ inner.numpy()))
        return product.add_(matrix[-1]) if self.bias else product

    def gathered(self, vectors: Tensor) -> Tensor:
        """X̃ᵀV, (c, k) → (P, k)."""
        product = torch.from_numpy(np.ascontiguousarray(self._transposed @ vectors.contiguous().numpy()))
        return torch.cat([product, vectors.sum(0, keepdim=True)]) if self.bias else product

    @cached_property
    def _transposed(self) -> Any:
        return self.table.T.tocsr()

    def squares_times(self, matrix: Tensor) -> Tensor:
        """X̃² M, entries squared, (P, k) → (c, k)."""
        return SparseRows(self.table.multiply(self.table).tocsr(), self.bias).times(matrix)

    def lengths(self) -> Tensor:
        """‖x̃‖, (c,), squares in units of the largest entry."""
        unit = abs(self.table).max(axis=1).toarray().reshape(-1)
        unit = np.maximum(unit, 1.0) if self.bias else np.where(unit > 0, unit, 1.0)
        scaled = self.table.multiply(1.0 / unit[:, None]).tocsr()
        squares = np.asarray(scaled.multiply(scaled).sum(1)).reshape(-1) + (unit**-2.0 if self.bias else 0.0)
        return torch.from_numpy(np.sqrt(squares) * unit)

    def square_sums(self) -> Tensor:
        """Σ x̃² of every column, (P,)."""
        sums = torch.from_numpy(np.asarray(self.table.multiply(self.table).sum(0)).reshape(-1))
        return torch.cat([sums, sums.new_tensor([float(len(self))])]) if self.bias else sums


def as_csr(values: Any, name: str = "features") -> Tensor | None:
    """A SciPy or torch sparse table as torch CSR, in its own precision; None where it is not sparse.

    Integers, booleans and what torch has no type for become float64; complex numbers stay what they are. Tables whose
    entries lie outside of them are refused: neither library looks for that where it makes them, and products would read
    the memory beside.
    """
    if isinstance(values, Tensor):
        if values.layout == torch.strided:
            return None
        _require_table(name, tuple(values.shape))
        if (
            values.layout == torch.sparse_coo and values.sparse_dim() != 2
        ):  # rows that are dense, of which some are there
            values = values.to_dense().to_sparse()
        _require_places(name, *_torch_places(values))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            plain = values.detach().cpu()  # of blocks torch makes no compressed rows in one step
            blocked = plain.layout in (torch.sparse_bsr, torch.sparse_bsc)
            table = _in_order((plain.to_sparse() if blocked else plain).to_sparse_csr())
            return table if table.is_floating_point() or table.is_complex() else table.to(torch.float64)
    known = sys.modules.get("scipy.sparse")  # where it was never imported, nothing is of its kind
    if known is None or not known.issparse(values):
        return None
    _require_table(name, tuple(cast(Any, values).shape))
    _require_places(name, *_scipy_places(values))
    sorted_ = cast(Any, values).tocsr().copy()
    sorted_.sum_duplicates()
    data = sorted_.data
    if data.dtype.kind != "c" and data.dtype not in (np.float32, np.float64):
        data = data.astype(np.float64)
    return csr_of(
        torch.from_numpy(sorted_.indptr.astype(np.int64)),
        torch.from_numpy(sorted_.indices.astype(np.int64)),
        torch.from_numpy(np.ascontiguousarray(data)),
        sorted_.shape,
    )


_Places = tuple[Any, Any, Any, tuple[int, int]]
"""Of the entries, or blocks of them: the starts of the rows or columns that are compressed (None: there are none), the
rows and the columns (None: those that are compressed), and how many of each there are."""


def _torch_places(values: Tensor) -> _Places:
    if values.layout == torch.sparse_coo:
        row, column = values._indices()
        return None, row, column, (values.shape[0], values.shape[1])
    blocks = values.values().shape[1:3] if values.layout in (torch.sparse_bsr, torch.sparse_bsc) else (1, 1)
    count = values.shape[0] // blocks[0], values.shape[1] // blocks[1]
    if values.layout in (torch.sparse_csr, torch.sparse_bsr):
        return values.crow_indices(), None, values.col_indices(), count
    return values.ccol_indices(), values.row_indices(), None, count


def _scipy_places(values: Any) -> _Places:
    rows, columns = values.shape
    if values.format == "coo":
        return None, values.row, values.col, (rows, columns)
    if values.format in ("csr", "bsr"):
        high, wide = values.blocksize if values.format == "bsr" else (1, 1)
        return values.indptr, None, values.indices, (rows // high, columns // wide)
    if values.format == "csc":
        return values.indptr, values.indices, None, (rows, columns)
    return None, None, None, (rows, columns)  # the others find the places themselves


def _require_table(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise InputError(f"{name}: expected shape (n, p), got {shape}")


def _require_places(name: str, starts: Any, rows: Any, columns: Any, count: tuple[int, int]) -> None:
    if starts is not None:
        starts = torch.as_tensor(starts)
        held = len(columns if rows is None else rows)
        if int(starts[0]) != 0 or bool((starts.diff() < 0).any()) or int(starts[-1]) > held:
            raise InputError(
                f"{name}: the starts of its sparse {'rows' if rows is None else 'columns'} do not rise from 0 to the "
                f"number of entries, {held}; make the table anew"
            )
    for what, places, most in (("rows", rows, count[0]), ("columns", columns, count[1])):
        if places is None:
            continue
        given = torch.as_tensor(places)[: None if starts is None else int(starts[-1])]  # SciPy may hold more than count
        bad = ((given < 0) | (given >= most)).nonzero().flatten()
        if not len(bad):
            continue
        where = ""
        if what == "columns":
            own = torch.searchsorted(starts, bad, right=True) - 1 if rows is None else torch.as_tensor(rows)[bad]
            where = f"{name_rows(torch.unique(own).tolist())} (counted from 0) of "
        raise InputError(
            f"{name}: an entry in {where}the sparse table has number {int(given[bad[0]])} among its {most} {what}, "
            f"which are counted from 0; subtract 1 where they are counted from 1, or make the table larger"
        )


def _in_order(table: Tensor) -> Tensor:
    """Each entry once, rising within a row, as SciPy's ``sum_duplicates`` leaves them and as files hold them."""
    starts, columns = table.crow_indices(), table.col_indices()
    row = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    if not bool(((columns.diff() <= 0) & (row.diff() == 0)).any()):
        return table
    entries = torch.sparse_coo_tensor(torch.stack((row, columns)), table.values(), table.shape, check_invariants=False)
    return entries.coalesce().to_sparse_csr()


def csr_rows(features: Tensor, rows: slice) -> Tensor:
    """Some rows of a table in torch's CSR layout, in that layout; entries are not copied."""
    starts = features.crow_indices()[rows.start : rows.stop + 1]
    entries = slice(int(starts[0]), int(starts[-1]))
    shape = (len(starts) - 1, features.shape[1])
    return csr_of(starts - starts[0], features.col_indices()[entries], features.values()[entries], shape)


def csr_of(starts: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, int]) -> Tensor:
    """A table in torch's CSR layout, of its three arrays."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")  # it only holds the arrays
        return torch.sparse_csr_tensor(starts, columns, values, size=shape, check_invariants=False)
