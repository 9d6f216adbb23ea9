"""Sums XᵀX and XᵀWX and forms xᵀSx, from one triangle: three quarters of the operations of the whole, or less.

The columns are cut into a few blocks; a block row of the sum begins at its own block. Blocks are few and wide, as GEMMs
of narrow ones lose more than they spare.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["add_gram", "mirrored", "quadratic_form"]

_NARROW = 96  # columns of a block, at the least
_MOST_BLOCKS = 4


def _edges(k: int) -> list[int]:
    count = max(1, min(_MOST_BLOCKS, k // (2 * _NARROW)))
    return [round(block * k / count) for block in range(count + 1)]


def add_gram(total: Tensor, x: Tensor, weighted: Tensor | None = None) -> None:
    """Add the upper block triangle of XᵀY, Y = X or the same rows with weights, (c, k) → (k, k).

    What is below it is left as it is; ``mirrored`` gives the whole.
    """
    y = x if weighted is None else weighted
    edges = _edges(x.shape[1])
    for start, stop in pairwise(edges):
        total[start:stop, start:].addmm_(x[:, start:stop].T, y[:, start:])


def mirrored(total: Tensor) -> Tensor:
    """The symmetric matrix of an upper triangle, or of several (..., k, k)."""
    upper = total.triu()
    return upper + torch.triu(upper, 1).transpose(-1, -2)


def quadratic_form(x: Tensor, matrix: Tensor) -> Tensor:
    """xᵀSx of rows x (c, k) and a symmetric S (k, k), (c,): blocks on the diagonal once, those below it twice."""
    total = x.new_zeros(len(x))
    for start, stop in pairwise(_edges(x.shape[1])):
        product = x[:, start:stop] @ matrix[start:stop, start:stop]
        product.addmm_(x[:, stop:], matrix[stop:, start:stop], alpha=2.0)
        total += torch.linalg.vecdot(product, x[:, start:stop])
    return total
