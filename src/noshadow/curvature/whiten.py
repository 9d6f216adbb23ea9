"""Coordinates in which the features are harmless: orthonormal columns that span the range of the design matrix.

Without a ridge every score is invariant under invertible maps of the features, and with one the penalty can be
carried along. So the Hessian is never formed in the user's coordinates but in whitened ones, where its condition
is that of the weights alone, and where dead units, duplicated and collinear columns have already left.

With X̃ (n, P) the design matrix, find T (P, k), k = rank, with X̃T orthonormal, and N a basis of the null space of X̃.
Parameters are θ = Tφ + Nν; the data see φ only, so the penalty ½ θᵀDθ acts on φ through its minimum over ν:

    D_φ = TᵀDT − TᵀDN (NᵀDN)⁺ NᵀDT.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.layer import LastLayer

# Smallest squared singular value, relative to unit-norm columns, at which a Cholesky factor of the Gram matrix is
# as good as an orthogonal factorisation for our purpose: the whitening need not be exact, only well-conditioned.
_WELL_CONDITIONED = 1e-10
_SMALLEST_COLUMN = 1e-290  # below it, a column cannot be scaled up without overflow and counts as zero


@dataclass(frozen=True)
class Whitening:
    """transform T (P, k), penalty D_φ (k, k), and the least-squares coefficients φ₀ (k, r) of the reduced outputs."""

    transform: Tensor
    penalty: Tensor
    coefficients: Tensor

    @property
    def rank(self) -> int:
        return self.transform.shape[1]


def whiten(layer: LastLayer, chunk: int) -> Whitening:
    """Whitening of the layer's design matrix, in one pass over it (two where it is close to rank-deficient)."""
    scale = _column_sizes(layer, chunk)
    alive = scale > _SMALLEST_COLUMN
    inverse_scale = torch.where(alive, 1.0 / torch.where(alive, scale, 1.0), 0.0)
    gram, cross = _gram(layer, inverse_scale, chunk)
    norms = gram.diagonal().sqrt()
    scaling = inverse_scale * torch.where(alive, 1.0 / torch.where(alive, norms, 1.0), 0.0)
    unit = torch.where(alive, 1.0 / torch.where(alive, norms, 1.0), 0.0)

    kept = alive.nonzero().flatten()
    gram = (gram * unit * unit.unsqueeze(1))[kept][:, kept]
    tolerance = _noise_floor(layer)
    root = _cholesky_root(gram, max(_WELL_CONDITIONED, (10 * tolerance) ** 2))
    null = gram.new_zeros((len(kept), 0))
    if root is None:
        root, null = _orthogonal_root(layer, scaling, kept, tolerance, chunk)

    def widen(columns: Tensor) -> Tensor:
        wide = columns.new_zeros((layer.n_columns, columns.shape[1]))
        wide[kept] = columns * scaling[kept].unsqueeze(1)
        return wide

    transform, null = widen(root), widen(null)
    coefficients = root.T @ (cross * unit.unsqueeze(1))[kept]
    return Whitening(transform, _range_penalty(layer.penalty(), transform, null), coefficients)


def _column_sizes(layer: LastLayer, chunk: int) -> Tensor:
    sizes = torch.zeros(layer.n_columns, dtype=torch.float64, device=layer.features.device)
    for rows in layer.chunks(chunk):
        sizes = torch.maximum(sizes, layer.design(rows).abs().amax(0))
    return sizes


def _gram(layer: LastLayer, inverse_scale: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """X̃ᵀX̃ and X̃ᵀZ of the scaled columns and the reduced outputs."""
    gram: Tensor | None = None
    cross: Tensor | None = None
    for rows in layer.chunks(chunk):
        x = layer.design(rows).mul_(inverse_scale)
        z = layer.kind.reduce(layer.outputs[rows])
        gram = x.T @ x if gram is None else gram.addmm_(x.T, x)
        cross = x.T @ z if cross is None else cross.addmm_(x.T, z)
    assert gram is not None
    assert cross is not None
    return gram, cross


def _noise_floor(layer: LastLayer) -> float:
    """Singular values below this, for unit-norm columns, are rounding of the features' own precision."""
    n, columns = layer.n, layer.n_columns
    stored = 4 * torch.finfo(layer.features.dtype).eps * (1 + math.sqrt(columns / n))
    computed = max(n, columns) * torch.finfo(torch.float64).eps * math.sqrt(columns)
    return max(stored, computed)


def _cholesky_root(gram: Tensor, threshold: float) -> Tensor | None:
    """L⁻ᵀ of a Gram matrix LLᵀ with unit diagonal, or None where it is not safely of full rank."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    smallest = 1.0 / inverse.square().sum()  # ≤ the smallest squared singular value
    return inverse.T.contiguous() if bool(smallest > threshold) else None


def _orthogonal_root(
    layer: LastLayer, scaling: Tensor, kept: Tensor, tolerance: float, chunk: int
) -> tuple[Tensor, Tensor]:
    """V_k/σ_k and a basis of the null space, from the R factor of a QR accumulated over chunks of rows."""
    factor = scaling.new_zeros((0, len(kept)))
    for rows in layer.chunks(max(chunk, 2 * len(kept))):
        x = (layer.design(rows) * scaling)[:, kept]
        factor = torch.linalg.qr(torch.cat((factor, x)), mode="r").R
    _, sizes, directions = torch.linalg.svd(factor, full_matrices=True)
    rank = int((sizes > tolerance).sum())
    return directions[:rank].T / sizes[:rank], directions[rank:].T.contiguous()


def _range_penalty(diagonal: Tensor, transform: Tensor, null: Tensor) -> Tensor:
    """D_φ of the module's docstring."""
    weighted = diagonal.unsqueeze(1) * transform
    penalty = transform.T @ weighted
    if null.shape[1]:
        coupling = null.T @ weighted
        inner = null.T @ (diagonal.unsqueeze(1) * null)
        penalty = penalty - coupling.T @ (torch.linalg.pinv(inner, hermitian=True) @ coupling)
    return 0.5 * (penalty + penalty.T)
