"""The inverse of a positive semi-definite matrix, or its pseudo-inverse where it is singular."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Inverse(NamedTuple):
    """matrix: H⁻¹ or H⁺; null: how many directions were left out because H vanishes along them."""

    matrix: Tensor
    null: int


def psd_inverse(matrix: Tensor) -> Inverse:
    """Inverse by Cholesky after scaling to unit diagonal; by eigenvalues, cut at rounding, where that is not safe."""
    size = len(matrix)
    diagonal = matrix.diagonal().clone()
    alive = diagonal > 0
    scale = torch.where(alive, torch.rsqrt(torch.where(alive, diagonal, 1.0)), 0.0)
    scaled = matrix * scale
    scaled *= scale.unsqueeze(1)
    rounding = size * torch.finfo(matrix.dtype).eps
    inverse = _by_cholesky(scaled, rounding)
    null = 0
    if inverse is None:
        inverse, null = _by_eigenvalues(scaled, rounding)
    inverse *= scale
    inverse *= scale.unsqueeze(1)
    return Inverse(inverse, null)


def _by_cholesky(scaled: Tensor, rounding: float) -> Tensor | None:
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if int(failed):
        return None
    inverse = torch.cholesky_inverse(factor)
    # ‖inverse‖ bounds one over the smallest eigenvalue: beyond this, digits of the answer would be rounding
    return inverse if bool(inverse.square().sum().sqrt() * rounding < 1e-2) else None


def _by_eigenvalues(scaled: Tensor, rounding: float) -> tuple[Tensor, int]:
    values, vectors = torch.linalg.eigh(scaled)
    kept = values > rounding * values[-1].clamp(min=0)
    vectors = vectors[:, kept] * torch.rsqrt(values[kept])
    return vectors @ vectors.T, int((~kept).sum())
