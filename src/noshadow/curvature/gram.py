"""Sums and quadratic forms of Kronecker products of symmetric matrices, as GEMMs.

Both jobs are on packed upper triangles (see ``noshadow.triangles``), with k features, r coupled outputs, c records,
K = k(k+1)/2 and R = r(r+1)/2:

    sums    Σᵢ pack(Wᵢ) pack(xᵢxᵢᵀ)ᵀ                 (R, K) or its transpose, the packed Hessian
    forms   xᵢᵀ S_ab xᵢ for every record and a ≤ b   (c, R), the packed leverage blocks

There are two ways to do them. ``pairs``: a triangle of a weighted Gram matrix, or of the form S_ab, for each of the R
pairs; right for few outputs, and for a handful where the features are many. ``packed``: pack(xᵢxᵢᵀ) is formed for a
chunk of records, tile by tile, and everything is one product of (R, c) by (c, K): half the operations, in large GEMMs,
but it writes K numbers per record; right from a handful of outputs on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.curvature.symmetric import add_gram, mirrored, quadratic_form
from noshadow.triangles import packed_outer_tiles, packed_size, triangle, unpack

__all__ = ["KroneckerSum", "QuadraticForms", "SquaredLengths", "most_records", "use_pairs"]

_MOST_PAIRS = 6  # r ≤ 3: below it, writing K numbers per record costs more than the operations it saves
_MOST_WIDE_PAIRS, _WIDE = 28, 384  # r ≤ 7: the same where features are so many that half of a product is spared anyway
_TILE_BYTES = 4 * 2**20  # a tile stays in the cache between being written and being multiplied


def use_pairs(k: int, r: int) -> bool:
    """Whether r coupled outputs of k features are few enough for one Gram matrix per pair."""
    return packed_size(r) <= (_MOST_WIDE_PAIRS if k >= _WIDE else _MOST_PAIRS)


def most_records(k: int, r: int) -> int | None:
    """Records of a chunk beyond which a tile, or the weighted features, would leave the cache; None where few outputs
    make no difference of it."""
    return None if packed_size(r) <= _MOST_PAIRS else max(256, _TILE_BYTES // (8 * k))


def _tile_rows(records: int, r: int) -> int:
    """Packed entries per tile; more where the other factor is so large that every tile draws it from memory again."""
    return max(64, _TILE_BYTES // (8 * records), packed_size(r) // 6)


class KroneckerSum:
    """Accumulates H = Σ xᵢxᵢᵀ ⊗ Wᵢ."""

    def __init__(self, k: int, r: int, like: Tensor) -> None:
        self.k, self.r, self.pairs = k, r, use_pairs(k, r)
        pairs = packed_size(r)
        # GEMMs are fastest when the product has more columns than rows
        self._tall = packed_size(k) < pairs
        self.total = like.new_zeros((pairs, k, k) if self.pairs else sorted((pairs, packed_size(k))))

    def add(self, x: Tensor, weights: Tensor) -> None:
        """x (c, k), weights (c, R)."""
        if self.pairs:
            for total, weight in zip(self.total, weights.T, strict=True):
                add_gram(total, x, x * weight.unsqueeze(1))
        else:
            for place, tile in packed_outer_tiles(x.T.contiguous(), _tile_rows(len(x), self.r)):
                if self._tall:
                    self.total[place].addmm_(tile, weights)
                else:
                    self.total[:, place].addmm_(weights.T, tile.T)

    def matrix(self) -> Tensor:
        """(r·k, r·k), outputs major: entry (a·k + j, b·k + l) is Σ W_ab x_j x_l."""
        k, r = self.k, self.r
        matrix = self.total.new_empty((r, k, r, k))
        total = self.total.T if self._tall and not self.pairs else self.total
        start = 0
        for a in range(r):
            stop = start + r - a
            blocks = mirrored(total[start:stop]) if self.pairs else unpack(total[start:stop], k)
            matrix[a, :, a:] = blocks.transpose(0, 1)
            matrix[a:, :, a] = blocks
            start = stop
        return matrix.reshape(r * k, r * k)


class QuadraticForms:
    """xᵀ S_ab x for all pairs of outputs, S (r·k, r·k) symmetric in the layout of ``KroneckerSum.matrix``."""

    def __init__(self, matrix: Tensor, k: int, r: int) -> None:
        self.k, self.r, self.pairs = k, r, use_pairs(k, r)
        blocks = matrix.reshape(r, k, r, k)
        i, j = (index.to(matrix.device) for index in triangle(k))
        upper, halved = i * k + j, torch.where(i == j, 0.5, 1.0).to(matrix)
        size = (k, k) if self.pairs else (packed_size(k),)
        self._forms = matrix.new_empty((packed_size(r), *size))
        start = 0
        for a in range(r):
            stop = start + r - a
            block = blocks[a, :, a:].transpose(0, 1)
            both = block + block.transpose(1, 2)  # a quadratic form sees twice the symmetric part
            self._forms[start:stop] = 0.5 * both if self.pairs else both.flatten(1).index_select(1, upper) * halved
            start = stop

    def __call__(self, x: Tensor) -> Tensor:
        """(c, k) → (c, R)."""
        if self.pairs:
            return torch.stack([quadratic_form(x, form) for form in self._forms], dim=1)
        pairs, tiles = len(self._forms), packed_outer_tiles(x.T.contiguous(), _tile_rows(len(x), self.r))
        if pairs > len(x):  # GEMMs are fastest when the product has more columns than rows
            wide = x.new_zeros((len(x), pairs))
            for place, tile in tiles:
                wide.addmm_(tile.T, self._forms[:, place].T)
            return wide
        forms = x.new_zeros((pairs, len(x)))
        for place, tile in tiles:
            forms.addmm_(self._forms[:, place], tile)
        return forms.T


class SquaredLengths:
    """xᵀSx of x = Tᵀx̃ for one symmetric S = FFᵀ: ‖(TF)ᵀx̃‖², one product with designs X̃ as they are."""

    r = 1

    def __init__(self, transform: Tensor, root: Tensor) -> None:
        self._root = transform @ root

    def __call__(self, design: Tensor) -> Tensor:
        """(c, P) → (c, 1)."""
        return (design @ self._root).square_().sum(1, keepdim=True)
