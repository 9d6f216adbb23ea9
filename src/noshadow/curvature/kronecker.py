"""The Hessian as a Kronecker product with corrected eigenvalues (EK-FAC), with the exact curvature of the head.

With a basis B (P, k) of the features' coordinates and a frame G (m, r) of the outputs, H is taken to be diagonal in
B ⊗ G, and its diagonal is exact: nothing is sampled, the expectation over classes is the closed form of the head.

    Λ_jk = Σᵢ (x̃ᵢᵀb_j)² (g_kᵀW'ᵢg_k) + b_jᵀDb_j

B diagonalises the mean curvature of the columns together with the penalty, in coordinates that do not know the units of
the columns (``noshadow.curvature.whiten``); G diagonalises ΣW'. Where all outputs share one Hessian, that mean is the
Hessian, and the answers are exact. Of coupled outputs and of labels, what is kept of H is without the record itself
(``noshadow.curvature.factored``):

    A₋ = G diag_k( Σ_j aⱼₖ / (1 − aⱼₖwₖ) ) Gᵀ,        aⱼₖ = (x̃ᵀb_j)²/Λ_jk,   w_k = g_kᵀW'g_k,

which is a series of products of (x̃ᵀb)^2s with Λ^−s. No record needs an m × p object or a solve.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from noshadow.curvature.dense import DenseLeverages
from noshadow.curvature.factored import DiagonalInFrame, FactoredLeverages
from noshadow.curvature.operator import BasisColumns, Columns, HessianOperator, Precondition, conjugate_gradients
from noshadow.curvature.outputs import CoupledCurvature, Kind, kind_of, output_frame
from noshadow.curvature.partial import Rest, partial_rank, partial_whitening
from noshadow.curvature.protocol import Advance, Leverages, Size
from noshadow.curvature.removal import LEVERAGE_FLOOR
from noshadow.curvature.stationary import Fit, Stationarity
from noshadow.curvature.symmetric import add_gram, mirrored
from noshadow.curvature.whiten import Whitening, whiten
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.records import Records

__all__ = [
    "KRONECKER_SPARES",
    "Eigenbasis",
    "KroneckerCurvature",
    "chunk_rows",
    "eigenbasis",
    "kronecker_curvature",
    "kronecker_memory",
    "kronecker_refusal",
    "reciprocal",
    "rounding",
    "without_own",
]

KRONECKER_SPARES = "keeps the largest directions of the columns"
"""What it does where a basis of all columns does not fit (``noshadow.curvature.partial``)."""

_CHUNK_BYTES = 4 * 2**20  # largest array of a chunk: what is done entry by entry stays in the cache
_LEAST_ROWS = 2048  # of a chunk, within memory: below it, adding to P × P sums would cost as much as the products
_PARTIAL_BYTES = 32 * 2**20
_ARRAYS = 12  # arrays of that size that are alive at a time
_TERMS = 8  # of the series 1/(1 − t), at most: with t ≤ _SAFE_SHARE the rest is below 1e-5 of the sum
_NEGLIGIBLE = 1e-6  # rest of the series, relative to the sum, with which it ends earlier
_SAFE_SHARE = 0.3
_FAR = 1e-6  # squared singular values of unit-norm columns from which sums need no whitened coordinates
_LEAST_ROOM = 0.05  # share of Λ that a preconditioner keeps where a record's own term is nearly all of it
_TINY = 1e-12  # curvature of what is left over, in units of the penalty or of unit columns, that is not divided by
_TILE_BYTES = 8 * 2**20
# The one Newton step that the diagnostics ask for: its steps, within some operations, and the residual that will do
_NEWTON_STEPS, _LEAST_NEWTON_STEPS, _NEWTON_WORK, _NEWTON_TOLERANCE = 30, 4, 4e12, 1e-4
_SIZE_TOLERANCE = 1e-2  # its length alone, of which conjugate gradients have twice the digits


@dataclass(frozen=True, eq=False)
class Eigenbasis:
    """B (P, k), G (m, r) or None, Λ (k, r), or (k, 1) where the outputs share it, and BᵀDB (k, k)."""

    kind: Kind
    vectors: Tensor
    frame: Tensor | None
    values: Tensor
    penalty: Tensor
    directions: Tensor
    """The k columns of B in the coordinates that they were found in, orthonormal (k, k)."""
    rest: Rest | None = None
    rest_values: Tensor | None = None
    """Λ (r,) of the directions that are left, where B spans a part of the columns."""

    def weights(self, records: Records) -> Tensor:
        """w (c, r), or (c, 1): the record's curvature along each column of the frame."""
        if self.kind == "coupled" and self.frame is not None:
            return CoupledCurvature.of(records).along(self.frame)
        return records.packed_curvature

    @property
    def columns(self) -> Columns:
        """Coordinates in which systems with H are solved."""
        return BasisColumns(self.vectors, self.penalty) if self.rest is None else self.rest.columns

    def others(self, records: Records, x: Tensor, weights: Tensor) -> Tensor:
        """A₋ in the frame, (c, r) or (c, 1), of records with coordinates x (c, k)."""
        squares = x.square()
        total = without_own(squares, reciprocal(self.values), weights)
        if self.rest is None or self.rest_values is None:
            return total
        left = self.rest.sizes(records, squares)
        room = self.rest_values - left * weights / self.rest.directions
        return total + left / torch.maximum(room, LEVERAGE_FLOOR * self.rest_values.clamp(min=_TINY))

    def precondition(self, x: Tensor | None = None, weights: Tensor | None = None) -> Precondition:
        """About H⁻¹ of residuals in ``columns``; without the own terms of records with coordinates x (R, k)."""
        inverse = reciprocal(self.values).unsqueeze(0)
        if self.rest is None or self.rest_values is None:
            if x is not None and weights is not None:
                share = x.square().unsqueeze(2) * weights.unsqueeze(1) * inverse
                inverse = inverse / (1.0 - share).clamp_(min=_LEAST_ROOM)
            return lambda residual, rows: residual * (inverse if len(inverse) == 1 else inverse[rows])
        vectors = self.rest.vectors @ self.directions
        plain = 1.0 / self.rest_values.clamp(min=_TINY)
        free = self.rest.columns.scale > 0

        def apply(residual: Tensor, _: Tensor) -> Tensor:
            count, size, r = residual.shape
            inner = vectors.T @ residual.permute(1, 0, 2).reshape(size, count * r)
            inner = ((inverse.squeeze(0) - plain).unsqueeze(1) * inner.reshape(-1, count, r)).reshape(-1, count * r)
            known = (vectors @ inner).reshape(size, count, r).permute(1, 0, 2)
            return known.addcmul(residual, plain).mul_(free.unsqueeze(1))

        return apply


@dataclass(frozen=True, eq=False)
class KroneckerCurvature:
    """Made by :func:`kronecker_curvature`."""

    layer: LastLayer
    chunk: int
    null_directions: int
    basis: Eigenbasis
    rank: int
    fit: Fit

    @property
    def linearity(self) -> float:
        return self.fit.linearity

    @cached_property
    def stationarity(self) -> Stationarity:
        """Systems of its own, solved when it is asked for, and to the digits that a size takes."""
        return self._stationarity(_SIZE_TOLERANCE)

    @property
    def exact(self) -> bool:
        """Whether nothing is approximated."""
        return self.basis.kind == "one" and self.basis.rest is None

    @property
    def beside(self) -> KroneckerCurvature:
        return self

    def chunks(self) -> Iterator[Leverages]:
        for rows in self.layer.chunks(self.chunk):
            records = self.layer.records(rows)
            x = records.times(self.basis.vectors)
            yield self._leverages(records, x)

    def leftover(self, records: Records) -> Tensor:
        """x̃ᵀH⁻¹G, (c, r)."""
        return self.basis.columns.of(records) @ self._newton

    def prepare_leftover(self) -> None:
        """Solve for it now, so that a copy that is sent elsewhere has it."""
        _ = self._newton

    @cached_property
    def _newton(self) -> Tensor:
        """H⁻¹G in the coordinates of ``columns``, (k, r)."""
        return self._solved(self._gradient, _NEWTON_TOLERANCE)

    @property
    def _gradient(self) -> Tensor:
        """G in them."""
        if self.basis.rest is None:  # gathered there, where no unit of a column swallows another
            return self.fit.whitened_gradient()
        return self.basis.columns.drop(self.fit.gradient())

    def _solved(self, gradient: Tensor, tolerance: float) -> Tensor:
        """H⁻¹ of a gradient in those coordinates and in reduced ones of the outputs, (k, r) → same."""
        layer, basis = self.layer, self.basis
        operator = HessianOperator(layer, basis.columns, basis.frame, self.chunk)
        right = operator.from_reduced(gradient).unsqueeze(0)
        work = 4.0 * layer.n * layer.n_columns * layer.n_outputs
        steps = int(min(_NEWTON_STEPS, max(_LEAST_NEWTON_STEPS, _NEWTON_WORK // work)))
        found = conjugate_gradients(operator, right, basis.precondition(), tolerance, steps)
        return operator.to_reduced(found.solution.squeeze(0))

    def _stationarity(self, tolerance: float) -> Stationarity:
        gradient = self._gradient
        size = float((gradient * self._solved(gradient, tolerance)).sum())
        return self.fit.described(math.sqrt(max(0.0, size)))

    def _leverages(self, records: Records, x: Tensor) -> Leverages:
        basis = self.basis
        if self.exact:
            return DenseLeverages(records, x.square() @ reciprocal(basis.values), self.leftover(records))
        if basis.kind != "coupled" or basis.frame is None:
            weights = records.packed_curvature
            others = basis.others(records, x, weights)
            return DenseLeverages(records, others / (1.0 + weights * others), self.leftover(records))
        curvature = CoupledCurvature.of(records)
        weights = curvature.along(basis.frame)
        others = basis.others(records, x, weights)
        own = weights * others
        factor = DiagonalInFrame(basis.frame, others.sqrt())
        undefined = (own > 0.5 / LEVERAGE_FLOOR).any(1)  # h/(1 − h), with 1 − h at its floor
        leverage, step = (own / (1.0 + own)).sum(1), partial(self.leftover, records)
        return FactoredLeverages(records, curvature, factor, leverage, step, undefined)


def kronecker_curvature(layer: LastLayer, memory: float, advance: Advance = lambda _: None) -> KroneckerCurvature:
    """Build it within ``memory`` GiB; ``advance`` is told of every record, twice.

    Where a basis of all columns does not fit, of the largest directions (``noshadow.curvature.partial``).
    """
    size, rest = Size.of(layer), None
    if kronecker_memory(size) <= memory:
        chunk = chunk_rows(size, memory)
        whitening = whiten(layer, chunk)
    else:
        chunk = _partial_chunk(layer)
        whitening, rest = partial_whitening(layer, partial_rank(layer, memory), chunk)
    basis, fit = eigenbasis(layer, whitening, rest, chunk, advance)
    return KroneckerCurvature(
        layer=layer,
        chunk=chunk,
        null_directions=int((basis.values <= rounding(basis.values)).sum()),
        basis=basis,
        rank=whitening.rank,
        fit=fit,
    )


def eigenbasis(
    layer: LastLayer, whitening: Whitening, rest: Rest | None, chunk: int, advance: Advance
) -> tuple[Eigenbasis, Fit]:
    """Basis and frame in one pass over the records, the eigenvalues in another."""
    kind, transform = kind_of(layer), whitening.transform
    # as the records have them, where that is less work; what it rounds otherwise is the basis, not the answers in it
    raw = not layer.sparse and whitening.room > _FAR and layer.n > 4 * layer.n_columns
    gram = transform.new_zeros((layer.n_columns if raw else transform.shape[1],) * 2)
    total = gram.new_zeros((layer.n_outputs, layer.n_outputs))
    for rows in layer.chunks(chunk):
        records = layer.records(rows)
        x = records.design if raw else records.times(transform)
        if kind == "coupled":
            curvature = CoupledCurvature.of(records)
            weight = curvature.trace
            total += curvature.total()
        else:
            weight = records.packed_curvature.sum(1, keepdim=True)
        add_gram(gram, x.mul_(weight.sqrt()))
        advance(len(records))
    gram = mirrored(gram)
    if raw:
        gram = transform.T @ gram @ transform
    frame = output_frame(layer)
    share = 1.0
    if kind == "coupled" and frame is not None:
        turn = torch.linalg.eigh(frame.T @ total @ frame).eigenvectors
        frame, share = frame @ turn, 1.0 / frame.shape[1]
    elif kind == "labels":
        share = 1.0 / layer.n_outputs
    mean = share * gram + whitening.penalty
    directions = torch.linalg.eigh(0.5 * (mean + mean.T)).eigenvectors
    vectors = transform @ directions
    penalty = torch.zeros_like(whitening.penalty)
    if layer.ridge:
        add_gram(penalty, vectors * layer.penalty().sqrt().unsqueeze(1))
        penalty = mirrored(penalty)
    basis = Eigenbasis(kind, vectors, frame, vectors.new_zeros((0, 0)), penalty, directions)

    values: Tensor | None = None
    left: Tensor | None = None
    fit = Fit(layer, replace(whitening, transform=vectors, penalty=penalty))  # turned, they are as harmless
    for rows in layer.chunks(chunk):
        records = layer.records(rows)
        x = records.times(vectors)
        fit.add(records, x)
        weights = basis.weights(records)
        squares = x.square_()
        values = squares.T @ weights if values is None else values.addmm_(squares.T, weights)
        if rest is not None:
            part = (rest.sizes(records, squares) * weights).sum(0)
            left = part if left is None else left + part
        advance(len(records))
    assert values is not None
    values += penalty.diagonal().unsqueeze(1)
    if rest is not None and left is not None:
        left = left / rest.directions + rest.penalty
    return Eigenbasis(kind, vectors, frame, values, penalty, directions, rest, left), fit


def _partial_chunk(layer: LastLayer) -> int:
    widest = max(1024, layer.n_outputs, 0 if layer.sparse else layer.n_columns)
    return max(1, min(_PARTIAL_BYTES // (8 * widest), layer.n))


def without_own(squares: Tensor, inverse: Tensor, weights: Tensor) -> Tensor:
    """Σ_j a_jk/(1 − a_jk w_k), a_jk = (x̃ᵀb_j)²/Λ_jk: squares (c, k), inverse 1/Λ (k, r), weights (c, r) → (c, r).

    As the series Σₛ w^(s−1) Σ_j a_jkˢ. With t ≥ every a·w of a record, what is left after s terms is at most tˢ/(1 − t)
    of the sum, and Σ_j (a_jk w_k)ˢ ≥ tˢ says when that is nothing: most records take a few terms. Of the others, the
    rest is taken for that of a geometric series, and records with an a·w too large for it are summed entry by entry.
    """
    total = squares @ inverse
    active = torch.arange(len(squares), device=squares.device)
    own, base, power, w, factor = squares, squares, inverse, weights, weights
    last = term = total.clone()
    share = torch.zeros_like(total[:, 0])
    for s in range(2, _TERMS + 1):
        base, power = base * own, power * inverse
        last, term = term, factor * (base @ power)
        total[active] += term
        largest = (term * w).amax(1).clamp(min=0.0)
        share = largest.pow(1.0 / s)
        left = ~(largest <= _NEGLIGIBLE * (1.0 - share))
        if not bool(left.any()):
            return total
        if 2 * int(left.sum()) <= len(left):
            active, share = active[left], share[left]
            own, base, w, factor, last, term = (one[left] for one in (own, base, w, factor, last, term))
        factor = factor * w
    ratio = term / last.clamp(min=torch.finfo(last.dtype).tiny)
    total[active] += term * ratio / (1.0 - ratio.clamp(max=_SAFE_SHARE))
    batch = max(1, _TILE_BYTES // (8 * inverse.numel()))
    for some in torch.split(active[~(share <= _SAFE_SHARE)], batch):
        a = squares[some].unsqueeze(2) * inverse
        room = (1.0 - a * weights[some].unsqueeze(1)).clamp_(min=LEVERAGE_FLOOR)
        total[some] = (a / room).sum(1)
    return total


def rounding(values: Tensor) -> float:
    """Eigenvalues below this are zero, in coordinates in which data and penalty have size 1."""
    largest = float(values.amax()) if values.numel() else 0.0  # of features that are all 0 there are none
    return largest * values.shape[0] * torch.finfo(values.dtype).eps


def reciprocal(values: Tensor) -> Tensor:
    """1/Λ, and 0 along directions without curvature."""
    real = values > rounding(values)
    return torch.where(real, 1.0 / torch.where(real, values, 1.0), 0.0)


def kronecker_memory(size: Size) -> float:
    """GiB that it needs at the least."""
    fixed, row = _bytes(size)
    return (fixed + row) / GIB


def kronecker_refusal(size: Size) -> str:
    """What is so large about it."""
    return f"the basis of the features has {size.columns:,} × {size.columns:,} entries"


def _bytes(size: Size) -> tuple[float, float]:
    """What the matrices take, and what each row of a chunk takes."""
    kind = make_head(size.head, size.outputs)
    width = max(kind.width(size.outputs), kind.parts(size.outputs))
    coupled = 6 * size.outputs**2 if kind.width(size.outputs) > 1 else 0
    fixed = 8.0 * (8 * size.columns**2 + 6 * size.columns * width + coupled)
    return fixed, 8.0 * (4 * size.columns + _ARRAYS * max(size.outputs, width))


def chunk_rows(size: Size, memory: float) -> int:
    """Rows of a chunk so that matrices and chunk stay within the budget."""
    fixed, row = _bytes(size)
    affordable = int((memory * GIB - fixed) // row)
    return max(1, min(affordable, max(_LEAST_ROWS, _CHUNK_BYTES // (8 * max(size.columns, size.outputs))), size.n))
