"""Products and lengths of rows, summed up in double precision."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["dot", "normalised", "norms_of"]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """aᵀb of each row."""
    products: Tensor = torch.linalg.vecdot(a, b)
    return products.double()


def norms_of(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.double()


def normalised(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of length 1 (0 where there is nothing) and their lengths: squares of small gradients would underflow."""
    largest = rows.abs().amax(1, keepdim=True)
    scaled = rows / torch.where(largest > 0.0, largest, 1.0)
    norms = norms_of(scaled)
    scaled /= torch.where(norms > 0.0, norms, 1.0).unsqueeze(1).to(rows)
    return scaled, norms * largest.squeeze(1).double()
