"""Exact answers without a Hessian: conjugate gradients on products with it, for many records at once.

What is asked of record i are single systems in the parameters, with its curvature in the Hessian or without it:

    first order  H u = x̃ ⊗ v,                   A v = x̃ᵀu
    removal      (H − x̃x̃ᵀ ⊗ W') u = x̃ ⊗ v,      A(I − W'A)⁻¹v = x̃ᵀu

one right-hand side a record; only the leverage, a trace, takes one per output, and so does the removal of a record that
decides its own fit, without which a system is singular or nearly so: its block A says how far it is. Systems are
preconditioned by the Hessians of the classes (``noshadow.curvature.class_blocks``) or, where those do not fit, by the
Kronecker curvature, which in its own basis is diagonal; without the record where the system is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from noshadow.curvature.blocks import BlocksCurvature
from noshadow.curvature.class_blocks import ClassBlocks, affordable_blocks, class_weights
from noshadow.curvature.kronecker import KroneckerCurvature, kronecker_curvature, kronecker_memory
from noshadow.curvature.operator import HessianOperator, Own, Precondition, conjugate_gradients
from noshadow.curvature.outputs import CoupledCurvature
from noshadow.curvature.protocol import Advance, Curvature, Removal, Size
from noshadow.curvature.removal import remove_coupled, remove_uncoupled
from noshadow.curvature.stationary import Stationarity
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.records import Records
from noshadow.triangles import unpack

__all__ = [
    "Effort",
    "IterativeCurvature",
    "IterativeLeverages",
    "Solver",
    "exact_solver",
    "iterative_curvature",
    "iterative_memory",
    "iterative_refusal",
    "system_work",
]

_TOLERANCE = 1e-7  # of the residual; a score is nearly a quadratic form, its error is nearly the square of that
_CHECK_TOLERANCE = 1e-4  # enough to measure approximations and to rank: scores to about 1e-6
_MOST_STEPS, _CHECK_STEPS = 500, 150
_VECTORS = 10  # of the size of the parameters that a system keeps
_MOST_SYSTEMS = 64
_MOST_OUTPUTS = 256  # for which a record whose removal does not converge gets a system per output instead


@dataclass
class Effort:
    """What the systems took: how many, the steps of all, the largest residual that was left, how many fell short."""

    systems: int = 0
    steps: int = 0
    residual: float = 0.0
    unconverged: int = 0

    def add(self, steps: Tensor, residual: Tensor, singular: Tensor, tolerance: float) -> None:
        self.systems += len(steps)
        self.steps += int(steps.sum())
        real = residual[~singular]
        if len(real):
            self.residual = max(self.residual, float(real.max()))
            self.unconverged += int((real > tolerance).sum())

    def sums(self) -> Tensor:
        """All of it, to be sent."""
        return torch.tensor([self.systems, self.steps, self.residual, self.unconverged], dtype=torch.float64)

    def join(self, other: Tensor) -> None:
        """With what other systems took, as ``sums`` gives it."""
        systems, steps, residual, unconverged = other.tolist()
        self.systems, self.steps = self.systems + int(systems), self.steps + int(steps)
        self.residual, self.unconverged = max(self.residual, residual), self.unconverged + int(unconverged)


@dataclass(frozen=True, eq=False)
class Solver:
    """Systems with the exact Hessian of a layer."""

    beside: KroneckerCurvature
    blocks: ClassBlocks | None
    operator: HessianOperator
    batch: int
    tolerance: float
    most_steps: int
    effort: Effort = field(default_factory=Effort)

    @classmethod
    def of(
        cls,
        beside: KroneckerCurvature,
        memory: float,
        tolerance: float = _TOLERANCE,
        most_steps: int = _MOST_STEPS,
        blocks: ClassBlocks | None = None,
    ) -> Solver:
        basis, layer = beside.basis, beside.layer
        operator = HessianOperator(layer, basis.columns, basis.frame, beside.chunk)
        spare = 0.5 * memory * GIB
        vector = 8.0 * max(layer.n_columns, operator.shape[0]) * layer.n_outputs
        batch = max(1, min(_MOST_SYSTEMS, int(spare // (_VECTORS * vector))))
        return cls(beside, blocks or affordable_blocks(beside, memory), operator, batch, tolerance, most_steps)

    def shift(self, records: Records, x: Tensor, vectors: Tensor, without_own: bool) -> tuple[Tensor, Tensor]:
        """x̃ᵀu (c, r) of the system whose right-hand side is x̃ ⊗ v, v (c, r) reduced; and where there is none that was
        found: it is singular, or would take too many steps and can be had otherwise."""
        answers, missing = torch.empty_like(vectors), torch.zeros(len(x), dtype=torch.bool, device=x.device)
        pulls = self.operator.from_reduced(vectors)
        for some in torch.split(torch.arange(len(x), device=x.device), self.batch):
            own = Own(x[some], records.some(some)) if without_own else None
            right = x[some].unsqueeze(2) * pulls[some].unsqueeze(1)
            precondition = self._precondition(own)
            found = conjugate_gradients(self.operator, right, precondition, self.tolerance, self.most_steps, own)
            lost = found.singular
            if without_own and vectors.shape[1] <= _MOST_OUTPUTS:
                lost = lost | (found.residual > self.tolerance)
            # a system with H itself that ends on a direction without curvature is not solved any other way
            aside = lost if without_own else lost & (found.residual <= self.tolerance)
            self.effort.add(found.steps, found.residual, aside, self.tolerance)
            moved = (x[some].unsqueeze(1) @ found.solution).squeeze(1)
            answers[some], missing[some] = self.operator.to_reduced(moved), lost
        return answers, missing

    def _precondition(self, own: Own | None) -> Precondition:
        basis = self.beside.basis
        if self.blocks is None:
            return basis.precondition() if own is None else basis.precondition(own.x, basis.weights(own.records))
        if own is None:
            return self.blocks.precondition()
        return self.blocks.precondition(own.x, class_weights(own.records, basis.kind))

    def block(self, records: Records, x: Tensor) -> Tensor:
        """A: (c, r, r) of coupled outputs, a system per output; a number (c, 1) or one per label (c, m) otherwise."""
        kind = self.beside.basis.kind
        width = records.gradient.shape[1]
        if kind != "coupled":
            block, _ = self.shift(records, x, torch.ones_like(records.gradient), False)
            return block[:, :1] if kind == "one" else block
        columns = []
        for output in torch.eye(width, dtype=x.dtype, device=x.device):
            columns.append(self.shift(records, x, output.expand(len(x), -1).contiguous(), False)[0])
        block = torch.stack(columns, dim=2)
        return 0.5 * (block + block.transpose(1, 2))

    def leverages(self, records: Records) -> IterativeLeverages:
        """What is asked of some records, worked out when it is."""
        return IterativeLeverages(records, self.operator.columns.of(records), self)

    def gather(self, rows: Tensor) -> Records:
        """Some records of the layer, by number."""
        parts = [self.beside.layer.records(slice(row, row + 1)) for row in rows.tolist()]
        weights = [part.weights for part in parts if part.weights is not None]
        first = parts[0]
        return Records(
            rows,
            torch.cat([part.design for part in parts]),  # few: dense even where the layer is sparse
            torch.cat([part.outputs for part in parts]),
            torch.cat([part.targets for part in parts]),
            torch.cat(weights) if weights else None,
            first.head,
            first.trained,
        )


@dataclass(frozen=True, eq=False)
class IterativeLeverages:
    """Some records, their coordinates x (c, k), and the solver."""

    records: Records
    x: Tensor
    solver: Solver

    @cached_property
    def leverage(self) -> Tensor:
        if self.solver.beside.basis.kind != "coupled":
            return (self.records.packed_curvature * self._block).clamp(max=1.0).sum(1)
        curvature, head = CoupledCurvature.of(self.records), self.records.head
        columns = head.reduce(curvature.apply(head.expand(self._block)))  # rows of A, which is symmetric: (W'A)ᵀ
        trace = columns.diagonal(dim1=1, dim2=2).sum(1)
        return trace.clamp(min=0.0, max=float(self._block.shape[2]))

    @cached_property
    def _block(self) -> Tensor:
        return self.solver.block(self.records, self.x)

    @cached_property
    def leftover(self) -> Tensor:
        return self.solver.beside.leftover(self.records)

    def first_order_shift(self, pull: Tensor) -> Tensor:
        return self.solver.shift(self.records, self.x, pull, False)[0]

    def removal(self, pull: Tensor) -> Removal:
        shift, missing = self.solver.shift(self.records, self.x, pull, True)
        undefined = torch.zeros_like(missing)
        near = missing.nonzero().flatten()
        if len(near):  # without them nothing is left along some direction: the block says how far it is
            records = self.records.some(near)
            block = self.solver.block(records, self.x[near])
            if block.ndim == 3:
                start = (block @ pull[near].unsqueeze(2)).squeeze(2)
                found = remove_coupled(block, unpack(records.packed_curvature, block.shape[-1]), start)
            else:
                found = remove_uncoupled((records.packed_curvature * block).clamp(max=1.0), block * pull[near])
            shift[near], undefined[near] = found
        return Removal(shift, undefined)


@dataclass(frozen=True, eq=False)
class IterativeCurvature:
    """Made by :func:`iterative_curvature`."""

    layer: LastLayer
    solver: Solver

    @property
    def rank(self) -> int:
        return self.solver.beside.rank

    @property
    def null_directions(self) -> int:
        return self.solver.beside.null_directions

    @property
    def linearity(self) -> float:
        return self.solver.beside.linearity

    @property
    def stationarity(self) -> Stationarity:
        return self.solver.beside.stationarity

    @property
    def exact(self) -> bool:
        return True

    @property
    def beside(self) -> KroneckerCurvature:
        return self.solver.beside

    def chunks(self) -> Iterator[IterativeLeverages]:
        for rows in self.layer.chunks(max(self.solver.batch, min(self.solver.beside.chunk, 256))):
            yield self.solver.leverages(self.layer.records(rows))


def iterative_curvature(layer: LastLayer, memory: float, advance: Advance = lambda _: None) -> IterativeCurvature:
    """Build it within ``memory`` GiB; ``advance`` is told of every record, twice."""
    return IterativeCurvature(layer, Solver.of(kronecker_curvature(layer, memory, advance), memory))


def exact_solver(curvature: Curvature, memory: float) -> Solver | None:
    """Exact answers for single records of an approximate curvature; None where it is exact itself."""
    if curvature.exact:
        return None
    beside = curvature.beside
    if beside is None:
        beside = kronecker_curvature(curvature.layer, memory)
    kept = curvature.kept if isinstance(curvature, BlocksCurvature) else None
    # gᵀAg' of a g' that is no multiple of g has the error of the system, not its square
    tolerance = _CHECK_TOLERANCE if beside.layer.trained is beside.layer.kind else _TOLERANCE
    return Solver.of(beside, memory, tolerance, _CHECK_STEPS, kept)


def iterative_memory(size: Size) -> float:
    """GiB that it needs at the least: the preconditioner, and the vectors of one system."""
    return kronecker_memory(size) + 8.0 * _VECTORS * size.columns * size.outputs / GIB


def iterative_refusal(size: Size) -> str:
    """What is so large about it."""
    return f"its preconditioner has {size.columns:,} × {size.columns:,} entries"


def system_work(size: Size) -> float:
    """Floating-point operations of one step of one system."""
    return 4.0 * size.n * size.columns * max(1, make_head(size.head, size.outputs).parts(size.outputs), size.outputs)
