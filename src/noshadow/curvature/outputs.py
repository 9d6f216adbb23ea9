"""The curvature W' of a chunk of records in the space of their outputs, as products: never as matrices.

Three kinds of heads:

    one      all outputs share one number per record (squared error, one logit, two classes): one Hessian for all
    labels   one number per record and label: a Hessian each
    coupled  softmax of three classes or more, W' = ω(diag(p) − ppᵀ): one Hessian that couples the classes

With t the class of the largest logit and d = eₜ − p, W = −diag(d) + eₜdᵀ + deₜᵀ − ddᵀ: every term is as small as d, so
saturated outputs lose no digits. Vectors here are in the coordinates of the classes (m), not in reduced ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from noshadow.layer import LastLayer
from noshadow.records import Records

__all__ = ["CoupledCurvature", "Kind", "kind_of", "output_frame"]

Kind = Literal["one", "labels", "coupled"]


def kind_of(layer: LastLayer) -> Kind:
    """Which of the three kinds a layer's head is."""
    if layer.kind.parts(layer.n_outputs) > 1:
        return "labels"
    return "one" if layer.kind.width(layer.n_outputs) == 1 else "coupled"


def output_frame(layer: LastLayer) -> Tensor | None:
    """(m, r): the reduced coordinates in those of the classes, orthonormal; None where there is no reduction."""
    identity = torch.eye(layer.n_outputs, dtype=torch.float64, device=layer.device)
    frame = layer.kind.reduce(identity)
    return frame if frame.shape[1] < layer.n_outputs else None


@dataclass(frozen=True, eq=False)
class CoupledCurvature:
    """W' of c records of a softmax head: deficit d (c, m), its top class (c, 1), weights (c, 1) or None."""

    deficit: Tensor
    top: Tensor
    weights: Tensor | None

    @classmethod
    def of(cls, records: Records) -> CoupledCurvature:
        z = records.outputs
        top = z.argmax(1, keepdim=True)
        others = torch.softmax(z, 1).scatter_(1, top, 0.0)
        deficit = others.neg().scatter_(1, top, others.sum(1, keepdim=True))
        return cls(deficit, top, records.weights)

    @cached_property
    def probabilities(self) -> Tensor:
        """p, (c, m)."""
        return self.deficit.neg().scatter_add_(1, self.top, torch.ones_like(self.deficit[:, :1]))

    def some(self, rows: Tensor) -> CoupledCurvature:
        """Some of the records."""
        weights = None if self.weights is None else self.weights[rows]
        return CoupledCurvature(self.deficit[rows], self.top[rows], weights)

    def apply(self, vectors: Tensor) -> Tensor:
        """W' v for v (c, m), or for several of each record, (c, R, m): p ∘ (u − pᵀu) with u = v − vₜ."""
        p, top, weights = self.probabilities, self.top, self.weights
        if vectors.ndim == 2:
            apart = vectors - vectors.gather(1, top)
            product: Tensor = (apart - torch.linalg.vecdot(apart, p).unsqueeze(1)).mul_(p)
            return product if weights is None else product.mul_(weights)
        apart = vectors - vectors.gather(2, top.unsqueeze(1).expand(-1, vectors.shape[1], -1))
        product = apart.sub_(torch.bmm(apart, p.unsqueeze(2))).mul_(p.unsqueeze(1))
        return product if weights is None else product.mul_(weights.unsqueeze(1))

    @property
    def diagonal(self) -> Tensor:
        """ω pₖ(1 − pₖ), (c, m)."""
        plain = (self.deficit.abs() * (1.0 - self.deficit.abs())).clamp_(min=0.0)
        return plain if self.weights is None else plain * self.weights

    @property
    def trace(self) -> Tensor:
        """tr W', (c, 1)."""
        return self.diagonal.sum(1, keepdim=True)

    def trace_with(self, block: Tensor, diagonal: Tensor, frame: Tensor) -> Tensor:
        """tr(W'A) = ω(2eₜᵀAd − dᵀAd − Σ dₖAₖₖ), (c,), of blocks (c, r, r) in a frame Q (m, r), A = Q block Qᵀ, of which
        the diagonal (c, m) is at hand."""
        inner = self.deficit @ frame
        moved = torch.bmm(block, inner.unsqueeze(2)).squeeze(2)
        trace: Tensor = torch.linalg.vecdot(2.0 * frame[self.top.squeeze(1)] - inner, moved)
        trace -= torch.linalg.vecdot(self.deficit, diagonal)
        return trace if self.weights is None else trace * self.weights.squeeze(1)

    def along(self, frame: Tensor) -> Tensor:
        """qᵀW'q for every column q of a frame (m, r), (c, r)."""
        inner = self.deficit @ frame
        form = 2.0 * frame[self.top.squeeze(1)] * inner - self.deficit @ frame.square() - inner.square()
        form = form.clamp_(min=0.0)
        return form if self.weights is None else form.mul_(self.weights)

    def total(self, scale: Tensor | None = None) -> Tensor:
        """Σᵢ sᵢ∘W'ᵢ∘sᵢ over the records, (m, m), with scales s (c, m) of the outputs or without."""
        d, top = self.deficit, self.top
        weighted = d if self.weights is None else d * self.weights
        peak = torch.ones_like(top, dtype=d.dtype)
        if scale is not None:
            peak, d, diagonal = scale.gather(1, top), d * scale, (weighted * scale.square()).sum(0)
            weighted = weighted * scale
        else:
            diagonal = weighted.sum(0)
        total = torch.zeros((d.shape[1], d.shape[1]), dtype=d.dtype, device=d.device)
        total.index_add_(0, top.squeeze(1), peak * weighted)
        total = total + total.T
        total.addmm_(weighted.T, d, alpha=-1.0)
        total.diagonal().sub_(diagonal)
        return 0.5 * (total + total.T)
