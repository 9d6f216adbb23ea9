r"""How far a converged head's statistic of a record moves over random halves of a pool: the sandwich, record by record.

Without record j the parameters of a converged head are θ + H⁻¹(x̃_j ⊗ u_j) with u = (I − W'A)⁻¹g', one Newton step on.
Jackknife: the variance over data is the sum of the squares of what each record does, and random halves of a pool have
half of it. For the statistic φ of record i, with C = H⁻¹ (Σ_j x̃_jx̃_jᵀ ⊗ u_ju_jᵀ) H⁻¹ and S = (x̃ᵀ ⊗ I) C (x̃ ⊗ I),

.. math::

    \sigma_{in,i}^2 = \tfrac12\left(\nabla\varphi^T S_i \nabla\varphi - (\nabla\varphi^T A_i u_i)^2\right), \qquad
    \sigma_{out,i}^2 = \tfrac12\left(v^T S_i v - (v^T A_i u_i)^2\right), \qquad v = (I - W'_i A_i)^{-1} \nabla\varphi,

less what record i itself does: it is either in all of these models, or in none, and then H is without it, which is what
v is for. Nothing is assumed of the noise, nor that it goes with the curvature: a ridge that holds the parameters firmer
than the data do, or rare columns that a few records decide, are in it as they are.

Where the model is right, uuᵀ is W' on average: the same with W' in its place is what the curvature *expects*,

.. math::

    C = H^{-1}\left(\sum_j \tilde x_j \tilde x_j^T \otimes W'_j\right)H^{-1} = H^{-1} - H^{-1} D H^{-1}

with D the penalty, less what record i itself does, A W' A. It is steadier: no sum over few records is in it.

Two more passes over the records, of the size of those that build H and read its blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.curvature import Curvature
from noshadow.curvature.dense import DenseCurvature
from noshadow.curvature.protocol import Leverages

__all__ = ["Spreads", "spreads_over_data"]


class Spreads(NamedTuple):
    """σ_in and σ_out of every record, (n,) each: as found, and as the curvature expects them."""

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    expected_inside: NDArray[np.float64]
    expected_outside: NDArray[np.float64]


def spreads_over_data(hessian: Curvature, memory: float) -> Spreads | None:
    """Of the attack's statistic of every record of a converged head; of squared error, of its prediction.

    None of an approximation, of labels with a Hessian each, and where the sandwich does not fit into ``memory`` GiB.
    """
    if not isinstance(hessian, DenseCurvature) or hessian.sandwich_memory > memory:
        return None
    found = hessian.sandwich((leverages.records, _effect(leverages)[0]) for leverages in hessian.chunks())
    expected = hessian.expected_sandwich()
    sides: list[list[Tensor]] = [[], [], [], []]
    for leverages in hessian.chunks():
        records = leverages.records
        _, shift = _effect(leverages)
        slope = _slope(leverages)
        without = slope + records.pull_curved(leverages.removal(slope).shift)
        forms = found(records), expected(records)
        for side, direction in enumerate((slope, without)):
            own = leverages.first_order_shift(direction)
            less = (direction * shift).sum(1).square(), (own * records.pull_curved(own)).sum(1)
            for kind in (0, 1):
                through = (forms[kind] @ direction.unsqueeze(2)).squeeze(2)
                variance = (direction * through).sum(1) - less[kind]
                sides[2 * kind + side].append(0.5 * variance.clamp(min=0.0))
    return Spreads(*(torch.cat(side).sqrt().cpu().numpy() for side in sides))


def _effect(leverages: Leverages) -> tuple[Tensor, Tensor]:
    """u = (I − W'A)⁻¹g' and A u of a chunk, (c, r) each; 0 for records without which no fit is left."""
    removal = leverages.removal(leverages.records.pull)
    effect = leverages.records.pull + leverages.records.pull_curved(removal.shift)
    known = ~removal.undefined.unsqueeze(1)
    return torch.where(known, effect, 0.0), torch.where(known, removal.shift, 0.0)


def _slope(leverages: Leverages) -> Tensor:
    """∇φ in the head's coordinates, (c, r); of squared error φ is the prediction."""
    records = leverages.records
    if not records.head.classifies:
        return torch.ones_like(records.pull)
    return records.head.reduce(records.head.signal_gradient(records.outputs, records.targets))
