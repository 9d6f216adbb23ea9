"""One Hessian per class, and the coupling of the classes put back from what the blocks say of the records.

    B_k = Σᵢ w_ik x̃ᵢx̃ᵢᵀ + D,   w_ik = ωᵢ pᵢₖ(1 − pᵢₖ),        a_ik = x̃ᵢᵀB_k⁻¹x̃ᵢ,

a weighted Gram matrix and its inverse a class, as many classes at a time as memory holds: the blocks are never all
there, the n × m numbers a are. For independent labels they are the whole truth. A softmax couples its classes by
W'_jk = −ω p_j p_k; in units of the blocks that is, averaged over the directions of the features,

    L_jk = (1/k) Σᵢ √a_ij W'ᵢ_jk √a_ik (j ≠ k),   L_kk = 1,

because x̃ᵀB_j^−½B_k^−½x̃ is √(a_j a_k) where the blocks are multiples of one matrix. In that case, and for equal W', the
answer is exact. What is kept of H is without the record itself (``noshadow.curvature.factored``), exactly so in each
block: a₋ = a/(1 − wa).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from noshadow.curvature.class_blocks import ClassBlocks, class_groups, keeps_blocks
from noshadow.curvature.dense import DenseLeverages
from noshadow.curvature.factored import FactoredLeverages, ScaledCoupling
from noshadow.curvature.kronecker import KroneckerCurvature, kronecker_curvature, kronecker_memory
from noshadow.curvature.outputs import CoupledCurvature, kind_of
from noshadow.curvature.protocol import Advance, Leverages, Size
from noshadow.curvature.removal import LEVERAGE_FLOOR
from noshadow.curvature.stationary import Stationarity
from noshadow.curvature.symmetric import quadratic_form
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.records import Records

__all__ = ["BlocksCurvature", "blocks_curvature", "blocks_memory", "blocks_refusal", "blocks_work"]

_LEAST_TRACE = 1e-30  # of a block, relative to the largest: a class that no record comes near
_TINY = torch.finfo(torch.float64).tiny
_LEAST_COUPLING = 1e-10  # of a direction of the classes, in units of the blocks: rounding


@dataclass(frozen=True, eq=False)
class BlocksCurvature:
    """Made by :func:`blocks_curvature`. Basis and diagnostics are those of the Kronecker curvature beside it."""

    layer: LastLayer
    null_directions: int
    beside: KroneckerCurvature
    sizes: Tensor
    """a (n, m), or (n, 1) where the outputs share a block."""
    _coupling: Tensor | None
    """K (m, r), KKᵀ = L⁻¹ off the all-equal direction; None where nothing is coupled."""
    kept: ClassBlocks | None = None
    """The inverses, where they fit all at once: exact answers are found from them."""

    @property
    def rank(self) -> int:
        return self.beside.rank

    @property
    def linearity(self) -> float:
        return self.beside.linearity

    @property
    def stationarity(self) -> Stationarity:
        return self.beside.stationarity

    @property
    def exact(self) -> bool:
        """Whether nothing is approximated."""
        return self._coupling is None

    def chunks(self) -> Iterator[Leverages]:
        beside = self.beside
        for rows in self.layer.chunks(beside.chunk):
            records = self.layer.records(rows)
            yield self._leverages(records, self.sizes[rows], partial(beside.leftover, records))

    def _leverages(self, records: Records, sizes: Tensor, newton_step: Callable[[], Tensor]) -> Leverages:
        if self._coupling is None:
            return DenseLeverages(records, sizes, newton_step())
        curvature = CoupledCurvature.of(records)
        room = 1.0 - curvature.diagonal * sizes
        factor = ScaledCoupling(self._coupling, (sizes / room.clamp(min=LEVERAGE_FLOOR)).sqrt())
        leverage = _leverage(curvature, self._coupling, sizes)
        return FactoredLeverages(records, curvature, factor, leverage, newton_step, (room < LEVERAGE_FLOOR).any(1))


def _leverage(curvature: CoupledCurvature, coupling: Tensor, sizes: Tensor) -> Tensor:
    """tr(W'A) for A = P S^½ KKᵀ S^½ P, (c,), term by term of W' = ω(eₜdᵀ + deₜᵀ − diag(d) − ddᵀ)."""
    root, deficit, top = sizes.sqrt(), curvature.deficit, curvature.top
    inverse = coupling @ coupling.T
    scaled = deficit * root
    trace = 2.0 * root.gather(1, top).squeeze(1) * (inverse[top.squeeze(1)] * scaled).sum(1)
    trace -= (deficit * sizes) @ inverse.diagonal() + (scaled @ coupling).square().sum(1)
    trace = trace if curvature.weights is None else trace * curvature.weights.squeeze(1)
    return trace.clamp(min=0.0, max=float(coupling.shape[1]))


def blocks_curvature(layer: LastLayer, memory: float, advance: Advance = lambda _: None) -> BlocksCurvature:
    """Build it within ``memory`` GiB; ``advance`` is told of every record, twice."""
    beside = kronecker_curvature(layer, memory, advance)
    kind, basis = kind_of(layer), beside.basis
    width = 1 if kind == "one" else layer.n_outputs
    k = max(1, basis.vectors.shape[1])  # features that are all 0 leave none
    sizes = basis.vectors.new_empty((layer.n, width))
    traces, null = sizes.new_zeros(width), 0
    spare = memory * GIB - 8.0 * layer.n * width - GIB * kronecker_memory(Size.of(layer))
    group = max(1, min(width, int(spare // (8 * 3 * k * k))))
    kept = None
    for found in class_groups(beside, group):
        traces[found.classes] = found.traces
        null += found.null
        for rows in layer.chunks(beside.chunk):
            x = layer.records(rows).times(basis.vectors)
            for column, inverse in zip(found.classes.tolist(), found.inverses, strict=True):
                sizes[rows, column] = quadratic_form(x, inverse).clamp_(min=0.0)
        if group == width and kind == "coupled" and basis.rest is None and keeps_blocks(k, width, memory):
            kept = ClassBlocks(found.inverses, basis.frame)
    coupling = _coupling(layer, sizes, traces, k, beside.chunk) if kind == "coupled" else None
    return BlocksCurvature(layer, null, beside, sizes, coupling, kept)


def _coupling(layer: LastLayer, sizes: Tensor, traces: Tensor, k: int, chunk: int) -> Tensor:
    """K (m, r) with KKᵀ the inverse of L off the direction that stands for "all classes equal" in units of the blocks:
    it is c^−½, c_k the trace of block k."""
    total = sizes.new_zeros((layer.n_outputs, layer.n_outputs))
    for rows in layer.chunks(chunk):
        total += CoupledCurvature.of(layer.records(rows)).total(sizes[rows].sqrt())
    total /= k
    total.fill_diagonal_(1.0)
    equal = torch.rsqrt((traces / traces.amax().clamp(min=_TINY)).clamp(min=_LEAST_TRACE))
    equal = (equal / torch.linalg.vector_norm(equal)).unsqueeze(1)
    total = total - equal @ (equal.T @ total)
    total = total - (total @ equal) @ equal.T
    values, vectors = torch.linalg.eigh(0.5 * (total + total.T) + (2 * len(total)) * equal @ equal.T)
    values, vectors = values[:-1], vectors[:, :-1]  # the last one is the direction that was set apart
    real = values > _LEAST_COUPLING
    coupling: Tensor = vectors * torch.where(real, torch.rsqrt(torch.where(real, values, 1.0)), 0.0)
    return coupling


def blocks_memory(size: Size) -> float:
    """GiB that it needs at the least: one block at a time, and a number per record and class."""
    kind = make_head(size.head, size.outputs)
    width = max(kind.width(size.outputs), kind.parts(size.outputs))
    return kronecker_memory(size) + 8.0 * (size.n * (width + 1) + 4 * size.columns**2) / GIB


def blocks_refusal(size: Size) -> str:
    """What is so large about it."""
    return f"one block of the Hessian has {size.columns:,} × {size.columns:,} entries"


def blocks_work(size: Size) -> float:
    """Floating-point operations: a Gram matrix and a quadratic form of all records for every class."""
    kind = make_head(size.head, size.outputs)
    width = max(kind.width(size.outputs), kind.parts(size.outputs))
    return 4.0 * width * size.columns**2 * (size.n + size.columns)
