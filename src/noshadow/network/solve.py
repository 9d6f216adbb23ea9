"""Many systems with one matrix: the shared basis first, conjugate gradients for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.network.basis import Basis
from noshadow.network.hessian import Hessian
from noshadow.network.row_products import dot, normalised, norms_of

__all__ = ["Product", "Solved", "solve"]

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solved:
    """Of each row: gᵀx, the relative residual, the steps taken, and whether it met negative curvature."""

    scores: Tensor
    residuals: Tensor
    iterations: Tensor
    negative: Tensor


def solve(
    hessian: Hessian, shift: float, gradients: Tensor, basis: Basis | None, tolerance: float, max_iterations: int
) -> Solved:
    """The basis first, where there is one; conjugate gradients for the records that it leaves."""
    unit, norms = normalised(gradients)
    count, device = len(unit), unit.device
    scores = torch.zeros(count, dtype=torch.float64, device=device)
    residuals = (norms > 0.0).double()
    iterations = torch.zeros(count, dtype=torch.int64, device=device)
    negative = torch.zeros(count, dtype=torch.bool, device=device)
    if basis is not None:
        scores, residuals = basis.shortcut(unit)
    left = (residuals > tolerance).nonzero().flatten()
    if len(left):
        rest = _conjugate_gradients(hessian, shift, unit[left], basis, tolerance, max_iterations)
        scores[left], residuals[left] = rest.scores, rest.residuals
        iterations[left], negative[left] = rest.iterations, rest.negative
    scores *= norms.square()
    return Solved(scores.cpu(), residuals.cpu(), iterations.cpu(), negative.cpu())


def _conjugate_gradients(
    hessian: Hessian, shift: float, unit: Tensor, basis: Basis | None, tolerance: float, max_iterations: int
) -> Solved:
    """gᵀx of (H + sI)x = g, from x = 0, for all rows g of ``unit`` (of length 1) at once, each with its own steps:

        α = rᵀz / pᵀ(H + sI)p,   gᵀx += α rᵀz,   r −= α(H + sI)p,   z = M⁻¹r,   p = z + (rᵀz / its last value) p

    where gᵀp = rᵀz because r is orthogonal to every earlier p. Rows that are done leave the block. A row that finds
    pᵀ(H + sI)p ≤ 0 stops where it is; if that is the first step, it gets gᵀg/s, the score without any curvature.
    """
    precondition: Product = basis.precondition if basis else torch.clone
    scores = torch.zeros(len(unit), dtype=torch.float64, device=unit.device)
    residuals = torch.ones_like(scores)
    iterations = torch.zeros_like(scores, dtype=torch.int64)
    negative = torch.zeros_like(scores, dtype=torch.bool)
    rounding = torch.finfo(unit.dtype).eps
    active = torch.arange(len(unit), device=unit.device)
    r, p = unit, precondition(unit)
    rz = dot(r, p)
    for step in range(max_iterations):
        image = hessian(p).add_(p, alpha=shift)
        iterations[active] += 1
        curvature = dot(p, image)
        falling = ~(curvature > rounding * norms_of(p) * norms_of(image))
        negative[active[falling]] = True
        if step == 0 and shift > 0.0:
            scores[falling] = 1.0 / shift
        alpha = torch.where(falling, 0.0, rz / torch.where(falling, 1.0, curvature))
        scores[active] += alpha * rz
        r = r - alpha.unsqueeze(1).to(r) * image
        residuals[active] = norms_of(r)
        keep = ((residuals[active] > tolerance) & ~falling).nonzero().flatten()
        if not len(keep):
            break
        active, r, p, last = active[keep], r[keep], p[keep], rz[keep]
        z = precondition(r)
        rz = dot(r, z)
        p = z.add_(p * (rz / last).unsqueeze(1).to(p))
    return Solved(scores, residuals, iterations, negative)
