"""Products with the exact Hessian, matrix-free, for many vectors at once; conjugate gradients with them.

In the coordinates of a basis B (P, k) of the columns and a frame G (m, r) of the outputs, a vector is V (k, r), the
parameters are U = B V Gᵀ, and

    H V = Bᵀ [ Σᵢ x̃ᵢ (W'ᵢ Uᵀx̃ᵢ)ᵀ ] G + BᵀDB V,

two products of (records × columns) by (columns × outputs) a vector, and nothing of the size of H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from noshadow.curvature.outputs import CoupledCurvature, kind_of
from noshadow.layer import LastLayer
from noshadow.records import Records

_ROWS_BYTES = 64 * 2**20  # outputs of a chunk of records for all vectors


class Own(NamedTuple):
    """The term of one record of each vector, which is taken out: coordinates x (R, k) and W' (of R records)."""

    x: Tensor
    records: Records


@dataclass(frozen=True, eq=False)
class HessianOperator:
    """H of a layer in the coordinates of ``vectors`` B (P, k) and ``frame`` G (m, r); penalty BᵀDB (k, k)."""

    layer: LastLayer
    vectors: Tensor
    frame: Tensor | None
    penalty: Tensor
    chunk: int

    @property
    def shape(self) -> tuple[int, int]:
        """(k, r)."""
        return self.vectors.shape[1], self.layer.n_outputs if self.frame is None else self.frame.shape[1]

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
        parameters = self.vectors @ wide
        total = torch.zeros_like(parameters)
        rows_at_once = max(1, min(self.chunk, _ROWS_BYTES // (8 * count * m)))
        for rows in self.layer.chunks(rows_at_once):
            records = self.layer.records(rows)
            moved = (records.design @ parameters).reshape(-1, count, m)
            total.addmm_(records.design.T, self._curved(records, moved).reshape(-1, count * m))
        image = self.inner((self.vectors.T @ total).reshape(k, count, m)).permute(1, 0, 2)
        image = image + self.penalty @ vectors
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


def conjugate_gradients(
    operator: HessianOperator,
    right: Tensor,
    inverse: Tensor,
    tolerance: float,
    most_steps: int,
    own: Own | None = None,
) -> Solution:
    """H u = b for all b of ``right`` (R, k, r), each with its own steps; ``inverse`` (R or 1, k, r) is a diagonal
    approximation of H⁻¹. Systems that are done leave the block."""
    solution = torch.zeros_like(right)
    relative = torch.ones(len(right), dtype=right.dtype, device=right.device)
    steps = torch.zeros(len(right), dtype=torch.int64, device=right.device)
    singular = torch.zeros(len(right), dtype=torch.bool, device=right.device)
    inverse = inverse.expand(len(right), *right.shape[1:])
    first = _dot(right, right * inverse)
    active = (first > 0).nonzero().flatten()
    relative[first <= 0] = 0.0
    residual, inverse, start = right[active], inverse[active], first[active]
    owned = own if own is None else _some(own, active)
    direction, size = residual * inverse, start
    tiny = torch.finfo(right.dtype).eps
    for _ in range(most_steps):
        if not len(active):
            break
        image = operator(direction, owned)
        steps[active] += 1
        bend = _dot(direction, image)
        flat = ~(bend > 100 * tiny * _dot(direction.square(), 1.0 / inverse.clamp(min=torch.finfo(right.dtype).tiny)))
        singular[active[flat]] = True
        alpha = torch.where(flat, 0.0, size / torch.where(flat, 1.0, bend)).reshape(-1, 1, 1)
        solution[active] += alpha * direction
        residual = residual - alpha * image
        scaled = residual * inverse
        now = _dot(residual, scaled)
        relative[active] = (now / start).clamp(min=0.0).sqrt()
        going = ((relative[active] > tolerance) & ~flat).nonzero().flatten()
        direction = scaled + (now / size).reshape(-1, 1, 1) * direction
        if len(going) < len(active):
            active, residual, inverse, start = active[going], residual[going], inverse[going], start[going]
            direction, now = direction[going], now[going]
            owned = owned if owned is None else _some(owned, going)
        size = now
    return Solution(solution, relative, steps, singular)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _some(own: Own, rows: Tensor) -> Own:
    return Own(own.x[rows], own.records.some(rows))
