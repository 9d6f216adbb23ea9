"""Taking a record out: (I − AW)⁻¹ for blocks A and W of r × r."""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.curvature.protocol import Removal

__all__ = ["LEVERAGE_FLOOR", "remove_coupled", "remove_uncoupled"]

LEVERAGE_FLOOR = 1e-8
"""1 − h is not taken below this: at h = 1 the fit without the record is undefined, the scores stay finite."""
_SAFE_LEVERAGE = 0.99  # below this bound on the eigenvalues of AW, I − AW is far from singular: a plain solve will do


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
    close = (removed & (torch.linalg.vector_norm(product, dim=(1, 2)) >= _SAFE_LEVERAGE)).nonzero().flatten()
    if len(close):
        suspect = product[close]
        squares = (suspect * suspect.transpose(1, 2)).sum((1, 2))
        close = close[squares >= _SAFE_LEVERAGE**2]
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
