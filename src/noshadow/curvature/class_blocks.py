"""The Hessian of each class or label alone, and its inverse: what ``blocks`` is made of, and a preconditioner.

    B_k = Σᵢ w_ik x̃ᵢx̃ᵢᵀ + D,        w_ik = ωᵢ pᵢₖ(1 − pᵢₖ), or the curvature of label k,

in the coordinates of the Kronecker basis. Where classes are confused to very different degrees, as by a network that
fits its records, one basis for all of them says little of each; systems with H then take several times fewer steps from
the blocks, and of independent labels, whose Hessians they are, one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.kronecker import KroneckerCurvature
from noshadow.curvature.operator import Precondition
from noshadow.curvature.outputs import CoupledCurvature, kind_of
from noshadow.curvature.symmetric import add_gram, mirrored
from noshadow.memory import GIB
from noshadow.records import Records

__all__ = ["ClassBlocks", "Group", "affordable_blocks", "class_groups", "class_weights", "keeps_blocks"]

_LEAST_ROOM = 0.05  # share of a block that a preconditioner keeps where a record's own term is nearly all of it
_SHARE = 0.25  # of the memory that inverses may stay in
_PATIENCE = 4e12  # operations that they may take where nothing else needs them: a minute or two


@dataclass(frozen=True, eq=False)
class Group:
    """Some classes (c,), their B⁻¹ (c, k, k), tr B (c,), and how many directions vanish in them."""

    classes: Tensor
    inverses: Tensor
    traces: Tensor
    null: int


def class_groups(beside: KroneckerCurvature, size: int) -> Iterator[Group]:
    """All classes, so many at a time, each group in a pass over the records."""
    layer, basis = beside.layer, beside.basis
    kind, k = kind_of(layer), basis.vectors.shape[1]
    width = 1 if kind == "one" else layer.n_outputs
    for classes in torch.split(torch.arange(width), size):
        gram = basis.vectors.new_zeros((len(classes), k, k))
        for rows in layer.chunks(beside.chunk):
            records = layer.records(rows)
            x = records.times(basis.vectors)
            for block, weight in zip(gram, class_weights(records, kind)[:, classes].T, strict=True):
                add_gram(block, x, x * weight.unsqueeze(1))
        gram += basis.penalty
        traces, null = gram.diagonal(dim1=1, dim2=2).sum(1), 0
        for block in gram:
            inverse, vanishing, _ = psd_inverse(mirrored(block))
            block.copy_(inverse)
            null += vanishing
        yield Group(classes, gram, traces, null)


def class_weights(records: Records, kind: str) -> Tensor:
    """w, (c, m), or (c, 1) where all outputs share it."""
    return CoupledCurvature.of(records).diagonal if kind == "coupled" else records.packed_curvature


@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """B⁻¹ of all classes (m, k, k), and the frame (m, r) in which systems are solved; None: as they are."""

    inverses: Tensor
    frame: Tensor | None

    def precondition(self, x: Tensor | None = None, weights: Tensor | None = None) -> Precondition:
        """About H⁻¹ of residuals (R, k, r); without the own terms of records with coordinates x (R, k), w (R, m):

        (B − wxxᵀ)⁻¹ = B⁻¹ + w uuᵀ/(1 − w xᵀu), u = B⁻¹x.
        """
        solved = pull = None
        if x is not None and weights is not None:
            solved = torch.matmul(self.inverses, x.T).permute(2, 1, 0)  # u, (R, k, m)
            share = weights * (x.unsqueeze(2) * solved).sum(1)
            pull = weights / (1.0 - share).clamp_(min=_LEAST_ROOM)

        def apply(residual: Tensor, rows: Tensor) -> Tensor:
            full = residual if self.frame is None else residual @ self.frame.T
            found = torch.bmm(self.inverses, full.permute(2, 1, 0)).permute(2, 1, 0)
            if solved is not None and pull is not None:
                own = solved[rows]
                found = found.addcmul(own, (pull[rows] * (own * full).sum(1)).unsqueeze(1))
            return found if self.frame is None else found @ self.frame

        return apply


def affordable_blocks(beside: KroneckerCurvature, memory: float) -> ClassBlocks | None:
    """All inverses, where they stay within a share of ``memory`` GiB and do not take long; they are built for this."""
    layer, basis = beside.layer, beside.basis
    k, width = basis.vectors.shape[1], layer.n_outputs
    work = 2.0 * width * k * k * (layer.n + k)
    if basis.kind == "one" or basis.rest is not None or not keeps_blocks(k, width, memory) or work > _PATIENCE:
        return None
    (group,) = class_groups(beside, width)
    return ClassBlocks(group.inverses, basis.frame)


def keeps_blocks(k: int, width: int, memory: float) -> bool:
    """Whether the inverses of so many classes may stay in memory."""
    return 8.0 * width * k * k <= _SHARE * memory * GIB
