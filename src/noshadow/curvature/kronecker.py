"""Sums and quadratic forms of Kronecker products of symmetric matrices, as GEMMs.

Both jobs are on packed upper triangles (see ``noshadow.packing``), with k features, r coupled outputs, c records,
K = k(k+1)/2 and R = r(r+1)/2:

    sums    Σᵢ pack(xᵢxᵢᵀ) pack(Wᵢ)ᵀ                 (K, R), the packed Hessian
    forms   xᵢᵀ S_ab xᵢ for every record and a ≤ b   (c, R), the packed leverage blocks

There are two ways to do them. ``pairs``: a weighted Gram matrix, or a product X S_ab, for each of the R pairs; right
for few outputs. ``packed``: pack(xᵢxᵢᵀ) is formed for a chunk of records and everything is one product of (K, c) by
(c, R): half the operations, in one large GEMM, but it writes K numbers a record; right from a handful of outputs on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.packing import packed_outer, packed_size, triangle, unpack

_MOST_PAIRS = 6  # r ≤ 3: below it, writing K numbers a record costs more than the operations it saves


def use_pairs(r: int) -> bool:
    """Whether r coupled outputs are few enough for one Gram matrix a pair."""
    return packed_size(r) <= _MOST_PAIRS


def floats_per_record(k: int, r: int) -> int:
    """Working memory of ``add_sums`` and ``forms`` for one record, in numbers."""
    return 2 * k if use_pairs(r) else packed_size(k)


class KroneckerSum:
    """Accumulates H = Σ xᵢxᵢᵀ ⊗ Wᵢ."""

    def __init__(self, k: int, r: int, like: Tensor) -> None:
        self.k, self.r, self.pairs = k, r, use_pairs(r)
        pairs = packed_size(r)
        self._total = like.new_zeros((pairs, k, k) if self.pairs else (packed_size(k), pairs))

    def add(self, x: Tensor, weights: Tensor) -> None:
        """x (c, k), weights (c, R)."""
        if self.pairs:
            for total, weight in zip(self._total, weights.T, strict=True):
                total.addmm_(x.T, x * weight.unsqueeze(1))
        else:
            self._total.addmm_(packed_outer(x.T.contiguous()), weights)

    def matrix(self) -> Tensor:
        """(r·k, r·k), outputs major: entry (a·k + j, b·k + l) is Σ W_ab x_j x_l."""
        k, r = self.k, self.r
        matrix = self._total.new_empty((r, k, r, k))
        for a in range(r):
            for b in range(a, r):
                pair = a * r - a * (a - 1) // 2 + b - a
                block = self._total[pair] if self.pairs else unpack(self._total[:, pair], k)
                block = 0.5 * (block + block.T)
                matrix[a, :, b] = block
                matrix[b, :, a] = block
        return matrix.reshape(r * k, r * k)


class QuadraticForms:
    """xᵀ S_ab x for all pairs of outputs, S (r·k, r·k) symmetric in the layout of ``KroneckerSum.matrix``."""

    def __init__(self, matrix: Tensor, k: int, r: int) -> None:
        self.k, self.r, self.pairs = k, r, use_pairs(r)
        blocks = matrix.reshape(r, k, r, k)
        rows, columns = triangle(r)
        if self.pairs:
            self._forms = torch.stack([_symmetric(blocks[a, :, b]) for a, b in zip(rows, columns, strict=True)])
        else:
            i, j = (index.to(matrix.device) for index in triangle(k))
            twice = torch.where(i == j, 1.0, 2.0).to(matrix)
            self._forms = matrix.new_empty((packed_size(r), packed_size(k)))
            for pair, (a, b) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
                self._forms[pair] = _symmetric(blocks[a, :, b])[i, j] * twice

    def __call__(self, x: Tensor) -> Tensor:
        """(c, k) → (c, R)."""
        if self.pairs:
            return torch.stack([((x @ form) * x).sum(1) for form in self._forms], dim=1)
        return (self._forms @ packed_outer(x.T.contiguous())).T


def _symmetric(block: Tensor) -> Tensor:
    return 0.5 * (block + block.T)
