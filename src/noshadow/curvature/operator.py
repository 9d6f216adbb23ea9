"""Products with the exact Hessian, matrix-free, for many vectors at once; conjugate gradients with them.

In coordinates of the columns, θ = Bφ (``Columns``), and of the outputs, a frame G (m, r), a vector is V (k, r), the
parameters are U = B V Gᵀ, and

    H V = Bᵀ [ Σᵢ x̃ᵢ (W'ᵢ Uᵀx̃ᵢ)ᵀ ] G + BᵀDB V,

two products of (records × columns) by (columns × outputs) a vector, and nothing of the size of H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from noshadow.curvature.outputs import CoupledCurvature, kind_of
from noshadow.layer import LastLayer
from noshadow.records import Records

__all__ = [
    "BasisColumns",
    "Columns",
    "HessianOperator",
    "Own",
    "Precondition",
    "ScaledColumns",
    "Solution",
    "conjugate_gradients",
]

_FLAT = 1e-9  # curvature of a direction, relative to what the preconditioner says, below which there is none
_ROWS_BYTES = 64 * 2**20  # outputs of a chunk of records for all vectors


class Own(NamedTuple):
    """The term of one record of each vector, which is taken out: coordinates x (R, k) and W' (of R records)."""

    x: Tensor
    records: Records


class Columns(Protocol):
    """Coordinates φ of the parameters of one output, θ = Bφ."""

    @property
    def size(self) -> int:
        """k, how many there are."""
        ...

    def lift(self, inner: Tensor) -> Tensor:
        """B V, (k, c) → (P, c)."""
        ...

    def drop(self, outer: Tensor) -> Tensor:
        """BᵀU, (P, c) → (k, c)."""
        ...

    def of(self, records: Records) -> Tensor:
        """X̃B, (c, k)."""
        ...

    def penalised(self, vectors: Tensor) -> Tensor:
        """BᵀDB V, (R, k, r) → same."""
        ...


@dataclass(frozen=True, eq=False)
class BasisColumns:
    """A basis B (P, k) and BᵀDB (k, k)."""

    vectors: Tensor
    penalty: Tensor

    @property
    def size(self) -> int:
        return self.vectors.shape[1]

    def lift(self, inner: Tensor) -> Tensor:
        return self.vectors @ inner

    def drop(self, outer: Tensor) -> Tensor:
        return self.vectors.T @ outer

    def of(self, records: Records) -> Tensor:
        return records.times(self.vectors)

    def penalised(self, vectors: Tensor) -> Tensor:
        return self.penalty @ vectors


@dataclass(frozen=True, eq=False)
class ScaledColumns:
    """Every column in a unit of its own, B = diag(scale), penalty (P,) in those units."""

    scale: Tensor
    penalty: Tensor

    @property
    def size(self) -> int:
        return len(self.scale)

    def lift(self, inner: Tensor) -> Tensor:
        return inner * self.scale.unsqueeze(1)

    def drop(self, outer: Tensor) -> Tensor:
        return outer * self.scale.unsqueeze(1)

    def of(self, records: Records) -> Tensor:
        return records.design * self.scale

    def penalised(self, vectors: Tensor) -> Tensor:
        return vectors * self.penalty.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class HessianOperator:
    """H of a layer in the coordinates of ``columns`` (k) and of ``frame`` G (m, r)."""

    layer: LastLayer
    columns: Columns
    frame: Tensor | None
    chunk: int

    @property
    def shape(self) -> tuple[int, int]:
        """(k, r)."""
        return self.columns.size, self.layer.n_outputs if self.frame is None else self.frame.shape[1]

    def outputs(self, inner: Tensor) -> Tensor:
        """Coordinates of the frame → outputs, (..., r) → (..., m)."""
        return inner if self.frame is None else inner @ self.frame.T

    def inner(self, outputs: Tensor) -> Tensor:
        """Outputs → coordinates of the frame, (..., m) → (..., r)."""
        return outputs if self.frame is None else outputs @ self.frame

    def from_reduced(self, vectors: Tensor) -> Tensor:
        """The head's reduced coordinates → those of the frame."""
        return self.inner(self.layer.kind.expand(vectors))

    def to_reduced(self, vectors: Tensor) -> Tensor:
        """Those of the frame → the head's reduced coordinates."""
        return self.layer.kind.reduce(self.outputs(vectors))

    def __call__(self, vectors: Tensor, own: Own | None = None) -> Tensor:
        """H V for every V of (R, k, r); with ``own``, H without that record's term."""
        count, k, _ = vectors.shape
        m = self.layer.n_outputs
        wide = self.outputs(vectors).permute(1, 0, 2).reshape(k, count * m)
        parameters = self.columns.lift(wide)
        total = torch.zeros_like(parameters)
        rows_at_once = max(1, min(self.chunk, _ROWS_BYTES // (8 * count * m)))
        for rows in self.layer.chunks(rows_at_once):
            records = self.layer.records(rows)
            moved = records.times(parameters).reshape(-1, count, m)
            total += records.gathered(self._curved(records, moved).reshape(-1, count * m))
        image = self.inner(self.columns.drop(total).reshape(k, count, m)).permute(1, 0, 2)
        image = image + self.columns.penalised(vectors)
        if own is not None:
            moved = self.outputs((own.x.unsqueeze(1) @ vectors).squeeze(1))
            pull = self.inner(self._curved(own.records, moved.unsqueeze(1)).squeeze(1))
            image -= own.x.unsqueeze(2) * pull.unsqueeze(1)
        return image

    def _curved(self, records: Records, moved: Tensor) -> Tensor:
        """W' v for v (c, R, m)."""
        if kind_of(self.layer) == "coupled":
            return CoupledCurvature.of(records).apply(moved)
        if self.frame is not None:  # two classes: one number in the reduced coordinate
            return self.outputs(self.inner(moved) * records.packed_curvature.unsqueeze(1))
        return moved * records.packed_curvature.unsqueeze(1)


class Solution(NamedTuple):
    """Of R systems: the solution (R, k, r), the residual relative to the right-hand side in the preconditioner's norm
    (R,), the steps taken (R,), and whether a direction without curvature was met (R,)."""

    solution: Tensor
    residual: Tensor
    steps: Tensor
    singular: Tensor


Precondition = Callable[[Tensor, Tensor], Tensor]
"""Residuals (R, k, r) and which of the systems they belong to (R,) → about H⁻¹ of them."""


def conjugate_gradients(
    operator: HessianOperator,
    right: Tensor,
    precondition: Precondition,
    tolerance: float,
    most_steps: int,
    own: Own | None = None,
) -> Solution:
    """H u = b for all b of ``right`` (R, k, r), each with its own steps; systems that are done leave the block."""
    solution = torch.zeros_like(right)
    relative = torch.zeros(len(right), dtype=right.dtype, device=right.device)
    steps = torch.zeros(len(right), dtype=torch.int64, device=right.device)
    singular = torch.zeros(len(right), dtype=torch.bool, device=right.device)
    active = torch.arange(len(right), device=right.device)
    residual, direction = right, precondition(right, active)
    size = _dot(right, direction)
    going = (size > 0).nonzero().flatten()
    start = size
    rounding = 100 * torch.finfo(right.dtype).eps
    while True:
        if len(going) < len(active):
            active, residual, start = active[going], residual[going], start[going]
            direction, size = direction[going], size[going]
            own = own if own is None else _some(own, going)
        if not len(active) or int(steps[active].max()) >= most_steps:
            return Solution(solution, relative, steps, singular)
        image = operator(direction, own)
        steps[active] += 1
        bend = _dot(direction, image)
        flat = ~(bend > rounding * _dot(direction, direction).sqrt() * _dot(image, image).sqrt())
        flat &= ~(bend > _FLAT * size)  # in the norm of the preconditioner, in which H is about 1
        singular[active[flat]] = True
        alpha = torch.where(flat, 0.0, size / torch.where(flat, 1.0, bend)).reshape(-1, 1, 1)
        solution[active] += alpha * direction
        residual = residual - alpha * image
        scaled = precondition(residual, active)
        now = _dot(residual, scaled)
        relative[active] = (now / start).clamp(min=0.0).sqrt()
        direction = scaled + (now / size).reshape(-1, 1, 1) * direction
        size = now
        going = ((relative[active] > tolerance) & ~flat).nonzero().flatten()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _some(own: Own, rows: Tensor) -> Own:
    return Own(own.x[rows], own.records.some(rows))
