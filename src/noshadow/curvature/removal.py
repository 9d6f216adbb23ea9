"""Taking a record out: (I − AW)⁻¹ for blocks A and W of r × r.

For many outputs that is the dearest thing that is done for a record by itself: a product and a system of r³ operations.
Records of little leverage, which are nearly all where there are many records, do with a few products of r².
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from noshadow.curvature.protocol import Removal

__all__ = ["LEVERAGE_FLOOR", "SAFE_LEVERAGE", "remove_by_steps", "remove_coupled", "remove_uncoupled"]

LEVERAGE_FLOOR = 1e-8
"""1 − h is not taken below this: at h = 1 the fit without the record is undefined, the scores stay finite."""
SAFE_LEVERAGE = 0.99
"""Below this bound on the eigenvalues of AW, I − AW is far from singular: a plain solve, or a few steps, will do."""
_STEP_TOLERANCE = 1e-15  # of what is left, in units of the record's influence: rounding
_MOST_STEPS = 40  # a dozen do where the leverage is below a half


def remove_uncoupled(own_fit: Tensor, start: Tensor) -> Removal:
    """start / (1 − h) for outputs that are not coupled: h = WA (c, k), k = 1 or one per label, start (c, r)."""
    room = 1.0 - own_fit
    return Removal(start / room.clamp(min=LEVERAGE_FLOOR), (room < LEVERAGE_FLOOR).any(1))


def remove_coupled(a: Tensor, w: Tensor, start: Tensor) -> Removal:
    """(I − AW)⁻¹ start for r × r blocks; near h = 1 through the eigenvalues of W^½AW^½, kept away from 1.

    A record that is added has −W: I + A|W| is nowhere near singular.
    """
    product = torch.bmm(a, w)
    # the eigenvalues of AW lie in [0, 1], and their squares add up to tr(AWAW) ≤ ‖AW‖²
    removed = w.diagonal(dim1=1, dim2=2).sum(1) > 0
    close = (removed & (torch.linalg.vector_norm(product, dim=(1, 2)) >= SAFE_LEVERAGE)).nonzero().flatten()
    if len(close):
        suspect = product[close]
        squares = (suspect * suspect.transpose(1, 2)).sum((1, 2))
        close = close[squares >= SAFE_LEVERAGE**2]
    product[close] = 0.0
    system = product.neg_()
    system.diagonal(dim1=1, dim2=2).add_(1.0)
    shift = torch.linalg.solve(system, start)
    undefined = torch.zeros(len(a), dtype=torch.bool, device=a.device)
    if len(close):
        values, vectors = torch.linalg.eigh(w[close])
        root = (vectors * values.clamp(min=0.0).sqrt().unsqueeze(1)) @ vectors.transpose(1, 2)
        sizes, basis = torch.linalg.eigh(root @ a[close] @ root)
        room = 1.0 - sizes
        inner = basis.transpose(1, 2) @ (root @ start[close].unsqueeze(2))
        inner = basis @ (inner / room.clamp(min=LEVERAGE_FLOOR).unsqueeze(2))
        shift[close] = start[close] + (a[close] @ (root @ inner)).squeeze(2)
        undefined[close] = room.amin(1) < LEVERAGE_FLOOR
    return Removal(shift, undefined)


def remove_by_steps(
    a: Tensor, curved: Callable[[Tensor], Tensor], pull: Tensor, start: Tensor, wanted: Tensor
) -> tuple[Tensor, Tensor]:
    """(I − AW)⁻¹Av (c, r) of pulls v, start = Av, from products with W alone; and for which records it was found.

    It is A z with (I − WA) z = v, where I − WA is self-adjoint in the inner product of A: conjugate gradients, with one
    product with A a step, for all records at once. ``wanted`` are the records that count, those with eigenvalues of AW
    below ``SAFE_LEVERAGE``: with ρ = rᵀAr of what is left of v, the gap vᵀAz is off by 100 √(ρ · vᵀAv) at the most, and
    typically by no more than a rounding. What is given for the others means nothing.
    """
    shift, left = start.clone(), curved(start)  # from z = v
    target = _STEP_TOLERANCE**2 * (pull * start).sum(1)
    direction = moved = torch.zeros_like(left)  # and A times it
    before = torch.ones_like(target)
    for _ in range(_MOST_STEPS):
        seen = torch.bmm(a, left.unsqueeze(2)).squeeze(2)
        size = torch.linalg.vecdot(left, seen)
        found = size <= target
        if bool((found | ~wanted).all()):
            return shift, found & wanted
        again = (size / before).unsqueeze(1)
        direction, moved = torch.addcmul(left, again, direction), torch.addcmul(seen, again, moved)
        image = direction - curved(moved)
        length = torch.linalg.vecdot(moved, image)
        step = torch.where(length > 0, size / length, 0.0).unsqueeze(1)  # where nothing is left there is no step
        shift.addcmul_(step, moved)
        left = torch.addcmul(left, step, image, value=-1.0)
        before = torch.where(size > 0, size, 1.0)
    return shift, found & wanted
