"""Sums XᵀX and XᵀWX, of which one triangle is worked out: three quarters of the operations of the whole, or less.

The columns are cut into a few blocks; a block row of the sum begins at its own block. Blocks are few and wide, as GEMMs
of narrow ones lose more than they spare.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

__all__ = ["add_gram", "mirrored"]

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
