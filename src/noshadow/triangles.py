"""Symmetric matrices as their upper triangles: (0,0), (0,1), …, (0,r−1), (1,1), …

A sum Σᵢ xᵢxᵢᵀ ⊗ Wᵢ of Kronecker products of symmetric matrices is, on upper triangles, one plain matrix product
of (k(k+1)/2 × n) by (n × r(r+1)/2): a quarter of the operations, in a single large GEMM.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

__all__ = [
    "diagonal_places",
    "packed_outer",
    "packed_outer_tiles",
    "packed_size",
    "positions",
    "triangle",
    "twice_off_diagonal",
    "unpack",
]


def packed_size(r: int) -> int:
    """Entries in the upper triangle of an r×r matrix."""
    return r * (r + 1) // 2


def packed_outer(columns: Tensor) -> Tensor:
    """Upper triangles of v vᵀ for every column v: (k, c) → (k(k+1)/2, c)."""
    out = columns.new_empty((packed_size(columns.shape[0]), columns.shape[1]))
    _outer_rows(columns, range(columns.shape[0]), out)
    return out


def packed_outer_tiles(columns: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """The same, in tiles of about ``rows`` packed entries that share one buffer: (place in the order, tile)."""
    k, count = columns.shape
    buffer = columns.new_empty((rows + k, count))
    start = first = size = 0
    for j in range(k):
        size += k - j
        if size >= rows or j == k - 1:
            tile = buffer[:size]
            _outer_rows(columns, range(first, j + 1), tile)
            yield slice(start, start + size), tile
            start, first, size = start + size, j + 1, 0


def _outer_rows(columns: Tensor, rows: range, out: Tensor) -> None:
    start = 0
    for j in rows:
        stop = start + columns.shape[0] - j
        torch.mul(columns[j:], columns[j], out=out[start:stop])
        start = stop


@functools.lru_cache(maxsize=16)
def triangle(r: int) -> tuple[Tensor, Tensor]:
    """Row and column of each packed entry, each (r(r+1)/2,)."""
    rows, columns = torch.triu_indices(r, r)
    return rows, columns


@functools.lru_cache(maxsize=16)
def diagonal_places(r: int) -> Tensor:
    """Where the diagonal lies in the packed order, (r,)."""
    rows, columns = triangle(r)
    return (rows == columns).nonzero().flatten()


@functools.lru_cache(maxsize=16)
def twice_off_diagonal(r: int) -> Tensor:
    """(r(r+1)/2,): 1 for the diagonal and 2 for the rest, whose mirror is not in the packed order."""
    rows, columns = triangle(r)
    return torch.where(rows == columns, 1.0, 2.0)


@functools.lru_cache(maxsize=16)
def positions(r: int) -> Tensor:
    """(r, r): where entry (a, b), or its mirror (b, a), lies in the packed order."""
    rows, columns = triangle(r)
    table = torch.empty((r, r), dtype=torch.int64)
    order = torch.arange(packed_size(r))
    table[rows, columns] = order
    table[columns, rows] = order
    return table


def unpack(packed: Tensor, r: int) -> Tensor:
    """(..., r(r+1)/2) → (..., r, r), symmetric."""
    index = positions(r).to(packed.device).flatten()
    return packed.index_select(-1, index).reshape(*packed.shape[:-1], r, r)
