"""Coordinates in which features and penalty are harmless together.

With X̃ (n, P) the design matrix and D the diagonal penalty, find T (P, k) with

    Tᵀ(X̃ᵀX̃ + D)T = I,        so that  TᵀX̃ᵀX̃T = I − D_φ   and   D_φ = TᵀDT   both lie between 0 and I.

The Hessian is formed in the coordinates φ of θ = Tφ, where its condition is that of the weights alone, whatever the
units of the columns. A column that the penalty outweighs by many orders of magnitude has a coordinate of its own, which
the data hardly touch: it drops out smoothly and takes no other along. (Coordinates that are orthonormal for the data
alone would carry its penalty, enormous in their units, into all of them.)

Directions that the data do not see (dead units, duplicated and collinear columns) are left out where they are among the
principal directions of X̃ᵀX̃ + D. Nothing is lost by it: then they are orthogonal to the others under D, so the penalty,
minimised over them, does not change. Without a penalty all of them are, T is orthonormal for the data, and k is the
rank. (Columns that repeat each other under different penalties stay, k > rank: the penalty keeps them in check.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from noshadow.curvature.symmetric import add_gram, mirrored
from noshadow.errors import InputError
from noshadow.heads import Head
from noshadow.layer import LastLayer
from noshadow.passes import Additive, summed
from noshadow.records import Records

__all__ = ["Whitening", "noise_floor", "require_lengths", "whiten"]

# Smallest squared singular value, relative to unit-norm columns, at which a Cholesky factor of the Gram matrix is
# as good as an orthogonal factorisation for our purpose: T need not be exact, only well-conditioned.
_WELL_CONDITIONED = 1e-10
_SAFE_SQUARES = (1e-280, 1e280)  # sums of squares within this range have neither lost digits nor overflowed
_SMALLEST_COLUMN = 1e-290  # below it, a column cannot be scaled up without overflow and counts as zero


@dataclass(frozen=True)
class Whitening:
    """transform T (P, k), penalty D_φ (k, k), rank and column norms (P,) of X̃, the least-squares parameters (P, r) of
    the outputs, their mean (m,), and that of the targets of squared error, weighted as the objective is."""

    transform: Tensor
    penalty: Tensor
    rank: int
    norms: Tensor
    fitted: Tensor
    mean_output: Tensor
    mean_target: Tensor | None
    partial: bool = False
    """T spans a part of the columns only (``noshadow.curvature.partial``)."""
    room: float = 0.0
    """A bound: the squares of the singular values of X̃, its columns scaled to norm 1, are no smaller; 0: not known."""


class _Products(NamedTuple):
    """Norms (P,) of the columns of X̃, X̃ᵀX̃ and X̃ᵀZ of the columns scaled to norm 1, Z the reduced outputs, and the mean
    output and target (m,)."""

    norms: Tensor
    gram: Tensor
    cross: Tensor
    mean_output: Tensor
    mean_target: Tensor | None
    safe: bool
    """The squares of all columns are within the range of double precision as they are."""


def whiten(layer: LastLayer, chunk: int) -> Whitening:
    """The coordinates of a layer, in one pass over its features, and one more where they are close to rank-deficient.

    Two more where their squares leave the range of double precision.
    """
    every_norm, gram, cross, mean_output, mean_target, safe = _products(layer, chunk)
    kept = (every_norm > 0).nonzero().flatten()
    norms, gram, cross = every_norm[kept], gram[kept][:, kept], cross[kept]
    root_penalty = layer.penalty()[kept].sqrt()
    length = torch.hypot(norms, root_penalty)
    seen, penalised = norms / length, root_penalty / length  # seen² + penalised² = 1, the shares of data and penalty

    floor = noise_floor(layer)
    basis, room = _cholesky_root(gram, max(_WELL_CONDITIONED, (10 * floor) ** 2))
    root = basis
    if basis is not None and layer.ridge:  # the sum is no worse conditioned than the Gram matrix of the data
        root, _ = _cholesky_root(gram * seen * seen.unsqueeze(1) + torch.diag(penalised.square()))
    if basis is None or root is None:
        factor = _triangular_factor(layer, norms, kept, chunk)
        basis = _orthogonal_root(factor, torch.ones_like(seen), torch.zeros_like(seen), floor)
        root = _orthogonal_root(factor, seen, penalised, floor) if layer.ridge else basis

    def widen(rows: Tensor) -> Tensor:
        wide = rows.new_zeros((layer.n_columns, rows.shape[1]))
        wide[kept] = rows
        return wide

    penalty = root.T @ (penalised.square().unsqueeze(1) * root)
    return Whitening(
        transform=widen(root / length.unsqueeze(1)),
        penalty=0.5 * (penalty + penalty.T),
        rank=basis.shape[1],
        norms=every_norm,
        fitted=widen((basis @ (basis.T @ cross)) / norms.unsqueeze(1)),
        mean_output=mean_output,
        mean_target=mean_target,
        room=room if safe else 0.0,
    )


def _products(layer: LastLayer, chunk: int) -> _Products:
    """In one pass; in two more where squares of the features would leave the range of double precision."""
    scale, safe = torch.ones(layer.n_columns, dtype=torch.float64, device=layer.device), True
    gram, cross, mean_output, mean_target = _sums(layer, None, chunk, "products")
    squares = gram.diagonal()
    unsafe = (squares < _SAFE_SQUARES[0]) | ~(squares < _SAFE_SQUARES[1]) | ~torch.isfinite(cross).all(1)
    if layer.precision == torch.float64 and bool(unsafe.any()):
        sizes = _column_sizes(layer, chunk)
        if bool((unsafe & (sizes > 0)).any()):  # not only columns of zeros
            scale = torch.where(sizes > _SMALLEST_COLUMN, 1.0 / sizes.clamp(min=_SMALLEST_COLUMN), 0.0)
            gram, cross, mean_output, mean_target = _sums(layer, scale, chunk, "scaled-products")
            safe = False
    root = gram.diagonal().sqrt()
    alive = (root > 0) & (scale > 0)
    unit = torch.where(alive, 1.0 / torch.where(alive, root, 1.0), 0.0)
    norms = torch.where(alive, root / torch.where(alive, scale, 1.0), 0.0)
    require_lengths(norms)
    gram, cross = gram * unit * unit.unsqueeze(1), cross * unit.unsqueeze(1)
    return _Products(norms, gram, cross, mean_output, mean_target, safe)


def require_lengths(norms: Tensor) -> None:
    """The lengths of the columns are numbers: one that overflows would drop out of the fit without a word."""
    endless = (~torch.isfinite(norms)).nonzero().flatten().tolist()
    if endless:
        raise InputError(
            f"features: the length of column {endless[0]} (counted from 0) overflows double precision; rescale it"
        )


def _sums(
    layer: LastLayer, scale: Tensor | None, chunk: int, name: str
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """X̃ᵀX̃ and X̃ᵀZ of the scaled columns, the mean output and, of squared error, the weighted mean target."""
    like = torch.zeros(layer.n_columns, dtype=torch.float64, device=layer.device)
    found = summed(layer, name, partial(_ProductSums, layer.kind, layer.n_outputs, like, scale), chunk)
    targets = found.targets / found.weight if layer.kind.quadratic else None
    return mirrored(found.gram), found.cross, found.outputs / layer.n, targets


class _ProductSums(Additive):
    additive = ("gram", "cross", "outputs", "targets", "weight")

    def __init__(self, kind: Head, n_outputs: int, like: Tensor, scale: Tensor | None) -> None:
        self._kind, self._scale = kind, scale
        self.gram = like.new_zeros((len(like), len(like)))  # its upper triangle
        self.outputs, self.targets, self.weight = like.new_zeros(n_outputs), like.new_zeros(n_outputs), 0.0
        self.cross = like.new_zeros((len(like), len(kind.reduce(self.outputs))))

    def add(self, records: Records) -> None:
        x = records.design if self._scale is None else records.design.mul_(self._scale)
        add_gram(self.gram, x)
        self.cross.addmm_(x.T, self._kind.reduce(records.outputs))
        self.outputs += records.outputs.sum(0)
        if self._kind.quadratic:
            own = torch.ones_like(x[:, :1]) if records.weights is None else records.weights.mean(1, keepdim=True)
            self.targets += (own * records.targets).sum(0)
            self.weight += float(own.sum())


def _column_sizes(layer: LastLayer, chunk: int) -> Tensor:
    sizes = torch.zeros(layer.n_columns, dtype=torch.float64, device=layer.device)
    for rows in layer.chunks(chunk):
        sizes = torch.maximum(sizes, layer.records(rows).design.abs().amax(0))
    return sizes


def noise_floor(layer: LastLayer) -> float:
    """Directions shorter than this, for unit-norm columns, are dependencies of the columns up to rounding.

    The values given are the values: a floor only recognises a dependency (a sum that is constant, a column given twice)
    that was exact before it was rounded. In single and double precision such a direction is far shorter than any that a
    model could use. In half precision it is not: rounding leaves 10⁻³, as much as real directions of a trained network
    have, and nothing tells the two apart. To leave out a real one is the greater harm, so half precision is taken as
    the same numbers in single precision would be.
    """
    n, columns = layer.n, layer.n_columns
    precision = min(torch.finfo(layer.precision).eps, torch.finfo(torch.float32).eps)
    stored = 4 * precision * (1 + math.sqrt(columns / n))
    computed = max(n, columns) * torch.finfo(torch.float64).eps * math.sqrt(columns)
    return max(stored, computed)


def _cholesky_root(gram: Tensor, threshold: float = 0.0) -> tuple[Tensor | None, float]:
    """L⁻ᵀ of a Gram matrix LLᵀ with unit diagonal, or None where it is not safely of full rank; and a bound: its
    eigenvalues are no smaller."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None, 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
    smallest = float(1.0 / inverse.square().sum())  # ≤ the smallest squared singular value
    return (inverse.T.contiguous(), smallest) if smallest > threshold else (None, 0.0)


def _triangular_factor(layer: LastLayer, norms: Tensor, kept: Tensor, chunk: int) -> Tensor:
    """R of a QR factorisation of the unit-norm columns, accumulated over chunks of rows."""
    factor = norms.new_zeros((len(kept), len(kept)))
    for rows in layer.chunks(max(chunk, 2 * len(kept))):
        x = layer.records(rows).design[:, kept] / norms
        factor = torch.linalg.qr(torch.cat((factor, x)), mode="r").R
    return factor


def _orthogonal_root(factor: Tensor, seen: Tensor, penalised: Tensor, floor: float) -> Tensor:
    """V/σ of the columns R·seen stacked on the diagonal penalty, without the directions v that the data do not see.

    What the data see of v, ‖R·(seen ∘ v)‖, is rounding where it is below floor·‖seen ∘ v‖.
    """
    columns = factor * seen
    _, sizes, directions = torch.linalg.svd(torch.cat((columns, torch.diag(penalised))), full_matrices=False)
    heard = torch.linalg.vector_norm(columns @ directions.T, dim=0)
    real = heard > floor * torch.linalg.vector_norm(directions * seen, dim=1)
    root: Tensor = directions[real].T / sizes[real]
    return root
