"""A part of the columns' directions, where all of them would not fit: the largest, and what is left as one number.

Columns are taken in units in which the penalty is 1 (those without a penalty, in units of their own length), so that
what is left over, orthogonal to the k directions kept, has the curvature

    Λ_rest,k = penalty + Σᵢ ρᵢ w_ik / (number of directions left),        ρᵢ = ‖x̃ᵢ‖² − Σ_j (x̃ᵢᵀb_j)²,

the mean over those directions. The k directions are found by subspace iteration with products alone: the features may
be sparse and stay so, and nothing of the size P × P or n × n is ever there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.curvature.operator import ScaledColumns
from noshadow.curvature.outputs import CoupledCurvature, kind_of
from noshadow.curvature.whiten import Whitening, require_lengths
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.records import Records

__all__ = ["Rest", "mean_weight", "partial_rank", "partial_whitening"]

_MOST_DIRECTIONS = 512
_SPARE = 16  # directions beyond those kept, which make subspace iteration converge
_ROUNDS = 4
_FIT_STEPS, _FIT_TOLERANCE = 200, 1e-9


@dataclass(frozen=True, eq=False)
class Rest:
    """What the k directions leave: V (P, k), orthonormal in the units of ``columns``; how many directions are left."""

    columns: ScaledColumns
    vectors: Tensor
    directions: int
    penalty: float
    """Of a direction that is left."""

    def sizes(self, records: Records, squares: Tensor) -> Tensor:
        """ρ, (c, 1), from the squared coordinates (c, k) along V."""
        whole = records.squares_times(self.columns.scale.square().unsqueeze(1))
        return (whole - squares.sum(1, keepdim=True)).clamp_(min=0.0)


def partial_rank(layer: LastLayer, memory: float) -> int:
    """How many directions to keep within half of ``memory`` GiB."""
    affordable = int(0.5 * memory * GIB // (8 * 6 * layer.n_columns))
    return max(1, min(_MOST_DIRECTIONS, affordable, max(1, min(layer.n, layer.n_columns) // 2)))


def partial_whitening(layer: LastLayer, rank: int, chunk: int) -> tuple[Whitening, Rest]:
    """The largest directions of the weighted features and penalty, as coordinates of a part of the columns."""
    squares = torch.zeros(layer.n_columns, dtype=torch.float64, device=layer.device)
    total, targets, weight = squares.new_zeros(layer.n_outputs), squares.new_zeros(layer.n_outputs), 0.0
    for rows in layer.chunks(chunk):
        records = layer.records(rows)
        squares += records.square_sums()
        total += records.outputs.sum(0)
        if layer.kind.quadratic:
            own = squares.new_ones((len(records), 1)) if records.weights is None else records.weights.mean(1, True)
            targets += (own * records.targets).sum(0)
            weight += float(own.sum())
    norms, penalty = squares.sqrt(), layer.penalty()
    require_lengths(norms)
    unit = torch.where(penalty > 0, penalty.sqrt(), norms)
    alive = (norms > 0) & (unit > 0)
    scale = torch.where(alive, 1.0 / torch.where(alive, unit, 1.0), 0.0)
    columns = ScaledColumns(scale, (penalty > 0).double())
    vectors = _largest(layer, columns, rank, chunk)
    fitted = (
        _least_squares(layer, scale, chunk) if layer.coefficients is None else layer.kind.reduce(layer.coefficients)
    )
    turned = vectors.T @ (columns.penalty.unsqueeze(1) * vectors)
    left = max(1, min(layer.n, int(alive.sum())) - vectors.shape[1])
    whitening = Whitening(
        transform=vectors * scale.unsqueeze(1),
        penalty=0.5 * (turned + turned.T),
        rank=min(layer.n, int(alive.sum())),
        norms=norms,
        fitted=fitted,
        mean_output=total / layer.n,
        mean_target=targets / weight if layer.kind.quadratic else None,
        partial=True,
    )
    return whitening, Rest(columns, vectors, left, 1.0 if layer.ridge else 0.0)


def _largest(layer: LastLayer, columns: ScaledColumns, rank: int, chunk: int) -> Tensor:
    """Orthonormal V (P, k) that spans the largest directions of Σ tr(W') x̃x̃ᵀ, and the columns without a penalty."""
    generator = torch.Generator().manual_seed(0)
    count = min(rank + _SPARE, columns.size)
    free = ((columns.penalty == 0) & (columns.scale > 0)).nonzero().flatten() if layer.ridge else None
    vectors = torch.randn((columns.size, count), generator=generator, dtype=torch.float64).to(layer.device)
    vectors = vectors * (columns.scale > 0).unsqueeze(1)
    for _ in range(_ROUNDS):
        if free is not None and len(free):
            vectors[:, : len(free)] = 0.0
            vectors[free, torch.arange(len(free))] = 1.0
        vectors = torch.linalg.qr(vectors).Q
        lifted, image = columns.lift(vectors), torch.zeros_like(vectors)
        for rows in layer.chunks(chunk):
            records = layer.records(rows)
            image += records.gathered(mean_weight(layer, records) * records.times(lifted))
        image = columns.drop(image)
        small = vectors.T @ image
        turn = torch.linalg.eigh(0.5 * (small + small.T)).eigenvectors.flip(1)
        ritz = vectors @ turn
        vectors = image @ turn
    kept = ritz[:, :rank]
    if free is not None and len(free):  # what they mix with is settled by the eigenvectors in the span
        identity = torch.zeros((columns.size, len(free)), dtype=torch.float64, device=layer.device)
        identity[free, torch.arange(len(free))] = 1.0
        kept = torch.cat([identity, kept], dim=1)[:, : max(rank, len(free))]
    basis: Tensor = torch.linalg.qr(kept).Q
    return basis


def mean_weight(layer: LastLayer, records: Records) -> Tensor:
    """tr W' per output coordinate, (c, 1)."""
    if kind_of(layer) == "coupled":
        return CoupledCurvature.of(records).trace / (layer.n_outputs - 1)
    return records.packed_curvature.mean(1, keepdim=True)


def _least_squares(layer: LastLayer, scale: Tensor, chunk: int) -> Tensor:
    """Parameters (P, r) that give the outputs at the least penalty, by conjugate gradients on the normal equations.

    From zero they end at the least length in the units of ``scale``, which is the penalty but for a bias that has none:
    of fewer records than columns any bias gives the outputs. It is taken out, columns and outputs counted from their
    means, and worked out from the others at the end.
    """
    free = layer.bias and bool(layer.ridge) and not layer.penalize_bias
    mean = torch.zeros_like(unit := scale.unsqueeze(1))
    for rows in layer.chunks(chunk) if free else ():
        records = layer.records(rows)
        mean += records.gathered(records.outputs.new_ones((len(records), 1))) / layer.n

    def centred(total: Tensor) -> Tensor:
        """(X̃ − 1μᵀ)ᵀV of X̃ᵀV, whose last row is then the sum of V."""
        return total - mean * total[-1:] if free else total

    def normal(parameters: Tensor) -> Tensor:
        inner, total = parameters * unit, torch.zeros_like(parameters)
        for rows in layer.chunks(chunk):
            records = layer.records(rows)
            total += records.gathered(records.times(inner) - mean.T @ inner)
        return centred(total) * unit

    right = None
    for rows in layer.chunks(chunk):
        records = layer.records(rows)
        part = records.gathered(layer.kind.reduce(records.outputs))
        right = part if right is None else right + part
    assert right is not None
    residual = centred(right) * unit
    solution, direction, size = torch.zeros_like(residual), residual, residual.square().sum(0)
    target = _FIT_TOLERANCE**2 * size
    for _ in range(_FIT_STEPS):
        if bool((size <= target).all()):
            break
        image = normal(direction)
        bend = (direction * image).sum(0)
        step = torch.where(bend > 0, size / torch.where(bend > 0, bend, 1.0), 0.0)
        solution, residual = solution + step * direction, residual - step * image
        now = residual.square().sum(0)
        direction = residual + torch.where(size > 0, now / torch.where(size > 0, size, 1.0), 0.0) * direction
        size = now
    fitted = solution * unit
    if free:
        fitted[-1:] = right[-1:] / layer.n - mean[:-1].T @ fitted[:-1]
    return fitted
