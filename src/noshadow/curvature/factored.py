"""Records of coupled outputs whose own term is known exactly and the curvature of all others only as a factor.

With H₋ the Hessian without record i, and A₋ = (x̃ᵀ ⊗ I) H₋⁻¹ (x̃ ⊗ I) = FFᵀ,

    removal      A(I − W'A)⁻¹ = A₋                      is a product with F and Fᵀ,
    first order  A = F (I + FᵀW'F)⁻¹ Fᵀ                 is a system with a matrix that is never smaller than I:
                                                        conjugate gradients for all records of a chunk at once.

An approximation of H has no part for the record's own xxᵀ ⊗ W'; taken at its word, it can claim that a record decides
more than all of its fit, and leaving it out then makes no sense. An approximation of H₋ cannot: whatever A₋ ≥ 0 is, the
record's share of its own fit lies between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from noshadow.curvature.outputs import CoupledCurvature
from noshadow.curvature.protocol import Removal
from noshadow.records import Records

__all__ = ["DiagonalInFrame", "Factor", "FactoredLeverages", "ScaledCoupling"]

_TOLERANCE = 1e-10
_MOST_STEPS = 200


class Factor(Protocol):
    """F of c records, from r coordinates to those of the m classes."""

    def up(self, inner: Tensor) -> Tensor:
        """F y, (c, r) → (c, m)."""
        ...

    def down(self, outer: Tensor) -> Tensor:
        """Fᵀ v, (c, m) → (c, r)."""
        ...

    def some(self, rows: Tensor) -> Factor: ...


@dataclass(frozen=True, eq=False)
class DiagonalInFrame:
    """F = G diag(√a): A₋ is diagonal in a frame G (m, r) that all records share. a (c, r)."""

    frame: Tensor
    root: Tensor

    def up(self, inner: Tensor) -> Tensor:
        return (inner * self.root) @ self.frame.T

    def down(self, outer: Tensor) -> Tensor:
        return (outer @ self.frame) * self.root

    def some(self, rows: Tensor) -> DiagonalInFrame:
        return DiagonalInFrame(self.frame, self.root[rows])


@dataclass(frozen=True, eq=False)
class ScaledCoupling:
    """F = P diag(√s) K, P the projection off the all-equal direction: a coupling KKᵀ (m, r) of the classes that all
    records share, and the size s (c, m) of each class's block that is the record's own."""

    coupling: Tensor
    root: Tensor

    def up(self, inner: Tensor) -> Tensor:
        outer = (inner @ self.coupling.T) * self.root
        return outer - outer.mean(1, keepdim=True)

    def down(self, outer: Tensor) -> Tensor:
        return ((outer - outer.mean(1, keepdim=True)) * self.root) @ self.coupling

    def some(self, rows: Tensor) -> ScaledCoupling:
        return ScaledCoupling(self.coupling, self.root[rows])


@dataclass(frozen=True, eq=False)
class FactoredLeverages:
    """Some records, W', F, tr(W'A), and where no fit is left without the record."""

    records: Records
    curvature: CoupledCurvature
    factor: Factor
    leverage: Tensor
    newton_step: Callable[[], Tensor]
    """What is left of a Newton step, x̃ᵀH⁻¹G (c, r), where it is asked for: systems that most scores do not need."""
    undefined: Tensor

    @property
    def leftover(self) -> Tensor:
        return self.newton_step()

    def first_order_shift(self, pull: Tensor) -> Tensor:
        head = self.records.head
        inner = self.factor.down(head.expand(pull))
        return head.reduce(self.factor.up(_solve(self.curvature, self.factor, inner)))

    def removal(self, pull: Tensor) -> Removal:
        head = self.records.head
        return Removal(head.reduce(self.factor.up(self.factor.down(head.expand(pull)))), self.undefined)


def _solve(curvature: CoupledCurvature, factor: Factor, right: Tensor) -> Tensor:
    """y of (I + FᵀW'F) y = b for b (c, r), each record with its own steps; those that are done leave the block.

    b is taken in units of its size, a power of two: a pull of e⁻⁴⁰⁰, as outputs hundreds apart have it, squares to 0.
    """
    unit = torch.exp2(torch.frexp(right.abs().amax(1, keepdim=True)).exponent.to(right))
    solution, right = torch.zeros_like(right), right / unit
    active = (right != 0).any(1).nonzero().flatten()
    curvature, factor, residual = curvature.some(active), factor.some(active), right[active]
    direction, size = residual, residual.square().sum(1)
    target = _TOLERANCE**2 * size
    for _ in range(_MOST_STEPS):
        if not len(active):
            break
        image = direction + factor.down(curvature.apply(factor.up(direction)))
        step = (size / (direction * image).sum(1)).unsqueeze(1)
        solution[active] += step * direction
        residual = residual - step * image
        now = residual.square().sum(1)
        going = now > target
        direction = residual + (now / size).unsqueeze(1) * direction
        if not bool(going.all()):
            left = going.nonzero().flatten()
            active, curvature, factor = active[left], curvature.some(left), factor.some(left)
            residual, direction, now, target = residual[left], direction[left], now[left], target[left]
        size = now
    return solution * unit
