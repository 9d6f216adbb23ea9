"""The inverse of a positive semi-definite matrix, or its pseudo-inverse where it is singular."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Inverse", "psd_inverse"]

_BLOCK = 512  # large enough for full GEMM speed, small enough to skip most of the zero triangle


class Inverse(NamedTuple):
    """matrix: H⁻¹ or H⁺; null: how many directions were left out because H vanishes along them; root: F of
    matrix = FFᵀ, where it was asked for."""

    matrix: Tensor
    null: int
    root: Tensor | None = None


def psd_inverse(matrix: Tensor, rooted: bool = False) -> Inverse:
    """Inverse by Cholesky after scaling to unit diagonal; by eigenvalues, cut at rounding, where that is not safe.

    The argument is scaled in place: it is the largest thing there is, and nobody needs it afterwards.
    """
    size = len(matrix)
    diagonal = matrix.diagonal().clone()
    alive = diagonal > 0
    scale = torch.where(alive, torch.rsqrt(torch.where(alive, diagonal, 1.0)), 0.0)
    scaled = matrix.mul_(scale).mul_(scale.unsqueeze(1))
    rounding = size * torch.finfo(matrix.dtype).eps
    found = _by_cholesky(scaled, rounding, rooted) or _by_eigenvalues(scaled, rounding)
    inverse, null, root = found
    inverse *= scale
    inverse *= scale.unsqueeze(1)
    return Inverse(inverse, null, root * scale.unsqueeze(1) if rooted and root is not None else None)


def _by_cholesky(scaled: Tensor, rounding: float, rooted: bool) -> Inverse | None:
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if int(failed):
        return None
    _invert_lower(factor)
    inverse = _gram_of_lower(factor)
    # ‖inverse‖ bounds one over the smallest eigenvalue: beyond this, digits of the answer would be rounding
    if not bool(torch.linalg.vector_norm(inverse) * rounding < 1e-2):
        return None
    return Inverse(inverse, 0, factor.T if rooted else None)


def _by_eigenvalues(scaled: Tensor, rounding: float) -> Inverse:
    values, vectors = torch.linalg.eigh(scaled)
    kept = values > rounding * values[-1].clamp(min=0)
    vectors = vectors[:, kept] * torch.rsqrt(values[kept])
    return Inverse(vectors @ vectors.T, int((~kept).sum()), vectors)


def _invert_lower(factor: Tensor) -> None:
    """Invert a lower triangular matrix in place, by halves: nearly all the work is in large triangular solves.

    (LAPACK's own inverse from a Cholesky factor is several times slower here: it does not block for the cache.)
    """
    size = len(factor)
    if size <= _BLOCK:
        identity = torch.eye(size, dtype=factor.dtype, device=factor.device)
        factor.copy_(torch.linalg.solve_triangular(factor, identity, upper=False))
        return
    half = size // 2
    first, corner, last = factor[:half, :half], factor[half:, :half], factor[half:, half:]
    solved = torch.linalg.solve_triangular(last, corner, upper=False)
    corner.copy_(torch.linalg.solve_triangular(first, solved, upper=False, left=False).neg_())
    _invert_lower(first)
    _invert_lower(last)


def _gram_of_lower(lower: Tensor) -> Tensor:
    """RᵀR for lower triangular R, block row by block row, without the zeros."""
    gram = torch.empty_like(lower)
    for start in range(0, len(lower), _BLOCK):
        stop = min(start + _BLOCK, len(lower))
        block = gram[start:stop, :stop]
        torch.matmul(lower[start:, start:stop].T, lower[start:, :stop], out=block)
        gram[:start, start:stop] = block[:, :start].T
    return gram
