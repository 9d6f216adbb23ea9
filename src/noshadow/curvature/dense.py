"""The exact last-layer Hessian of a head and what the scores ask of it.

With x̃ᵢ the features and the constant, Wᵢ the output curvature and gᵢ the output gradient of record i, in the head's
reduced output coordinates (``noshadow.heads``), and D the penalty,

    H  = Σᵢ x̃ᵢx̃ᵢᵀ ⊗ Wᵢ + D ⊗ I,        Aᵢ = (x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ᵢ ⊗ I),        G = Σᵢ x̃ᵢgᵢᵀ + D Θ.

Wᵢ and gᵢ are those of the record's term of the objective: its weight is in them. Independent labels have an H each.

Aᵢ is the leverage block of record i. G is zero at a stationary point of the objective; ``leftover`` is x̃ᵢᵀH⁻¹G: the
Newton step that would get there moves the outputs by minus that.

H is inverted in whitened coordinates (``noshadow.curvature.whiten``), in three passes over the records in chunks: two
to build, one to read the blocks. The sums of the second are taken in these coordinates too; but where outputs are not
coupled and the columns are far from dependent, so that it makes no difference, as the records have them, which spares a
product of the size of the sum itself. (Features that are close to rank-deficient, or whose squares leave the range of
double precision, take a pass or more on top.) H is formed once, as one sum of Kronecker products; its inverse once.
Nothing of size n × (number of parameters) is ever held, so memory does not grow with n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from noshadow.curvature.gram import KroneckerSum, QuadraticForms, SquaredLengths, most_records
from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.outputs import CoupledCurvature
from noshadow.curvature.protocol import Advance, Removal, Size
from noshadow.curvature.removal import SAFE_LEVERAGE, remove_by_steps, remove_coupled, remove_uncoupled
from noshadow.curvature.stationary import Fit, Stationarity, gives_parameters
from noshadow.curvature.whiten import Whitening, whiten
from noshadow.errors import InputError, name_rows
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.passes import summed
from noshadow.records import Records
from noshadow.triangles import diagonal_places, packed_outer, packed_size, twice_off_diagonal, unpack

__all__ = ["DenseCurvature", "DenseLeverages", "dense_curvature", "dense_memory", "dense_refusal"]

_CHUNK_BYTES = 48 * 2**20  # largest array of a chunk: enough records per GEMM for its full speed
_ONE_CHUNK_BYTES = 8 * 2**20  # the same of outputs that are not coupled: GEMMs are small, and the allocator reuses it
_FAR = 1e-6  # squared singular values of unit-norm columns from which digits lost to their angles are too few to matter
_BLOCK_BYTES = 24 * 2**20  # largest array of unpacked blocks: it fits the cache and the allocator reuses its memory
_MANY_OUTPUTS = 24  # from which on a few products with A are cheaper than a system of its size
_OUTSIDE = 1e-6  # a record further off the training records' directions than this share of its length is outside


@dataclass(frozen=True, eq=False)
class DenseLeverages:
    """Some records with their blocks A: a number that all outputs share (c, 1), one per label (c, m), or (c, r, r), of
    which ``packed`` are the upper triangles, where they are at hand."""

    records: Records
    block: Tensor
    leftover: Tensor
    packed: Tensor | None = None

    @property
    def coupled(self) -> bool:
        return self.block.ndim == 3

    @cached_property
    def curvature(self) -> Tensor:
        """W', in the shape of the blocks."""
        packed = self.records.packed_curvature
        return unpack(packed, self.block.shape[-1]) if self.coupled else packed

    @cached_property
    def own_fit(self) -> Tensor:
        """W'A of outputs that are not coupled: rounding must not carry it past 1."""
        return (self.curvature * self.block).clamp(max=1.0)

    @cached_property
    def leverage(self) -> Tensor:
        if not self.coupled:
            return self.own_fit.sum(1)
        return self._trace.clamp(
            min=0.0, max=float(self.block.shape[-1])
        )  # rounding must not carry it out of its range

    @cached_property
    def _trace(self) -> Tensor:
        """tr(W'A) of coupled outputs, (c,); of many without W' as a matrix."""
        width = self.block.shape[-1]
        if self.packed is None:
            trace: Tensor = torch.linalg.vecdot(self.curvature.flatten(1), self.block.flatten(1))
            return trace
        if width < _MANY_OUTPUTS:
            products = self.records.packed_curvature * self.packed
            return 2.0 * products.sum(1) - products[:, diagonal_places(width)].sum(1)
        frame = self.records.head.reduce(torch.eye(width + 1).to(self.block))
        diagonal = self.packed @ (packed_outer(frame.T) * twice_off_diagonal(width).to(frame).unsqueeze(1))
        return CoupledCurvature.of(self.records).trace_with(self.block, diagonal, frame)

    def first_order_shift(self, pull: Tensor) -> Tensor:
        return (self.block @ pull.unsqueeze(2)).squeeze(2) if self.coupled else self.block * pull

    def removal(self, pull: Tensor) -> Removal:
        start = self.first_order_shift(pull)
        if not self.coupled:
            return remove_uncoupled(self.own_fit, start)
        easy = (self._trace >= 0.0) & (self._trace < SAFE_LEVERAGE)  # the trace bounds the eigenvalues
        if self.block.shape[-1] < _MANY_OUTPUTS or 2 * int(easy.sum()) < len(easy):
            return remove_coupled(self.block, self.curvature, start)
        shift, found = remove_by_steps(self.block, self.records.pull_curved, pull, start, easy)
        undefined = torch.zeros_like(found)
        rest = (~found).nonzero().flatten()
        if len(rest):
            curvature = unpack(self.records.some(rest).packed_curvature, self.block.shape[-1])
            shift[rest], undefined[rest] = remove_coupled(self.block[rest], curvature, start[rest])
        return Removal(shift, undefined)


@dataclass(frozen=True, eq=False)
class DenseCurvature:
    """The inverse Hessian of a layer, exact. Made by :func:`dense_curvature`."""

    layer: LastLayer
    chunk: int
    """Records per GEMM."""
    null_directions: int
    stationarity: Stationarity
    linearity: float
    _newton: Tensor
    """H⁻¹G in whitened coordinates, (k, r)."""
    _whitening: Whitening
    _inverses: list[Tensor]
    _forms: list[QuadraticForms] | list[SquaredLengths]

    @property
    def rank(self) -> int:
        return self._whitening.rank

    @property
    def width(self) -> int:
        """Coupled output coordinates r: blocks are numbers for r = 1 and r × r matrices otherwise."""
        return self._forms[0].r

    @property
    def exact(self) -> bool:
        """Nothing is approximated."""
        return True

    @property
    def beside(self) -> None:
        """It needs none."""
        return None

    def chunks(self) -> Iterator[DenseLeverages]:
        """The leverage blocks of all records, in order: those of a chunk in one GEMM, unpacked a cacheful at a time."""
        batch = max(1, _BLOCK_BYTES // (8 * len(self._forms) * self.width**2))
        for rows in self.layer.chunks(self.chunk):
            records = self.layer.records(rows)
            packed, leftover = self._read(records)
            for start in range(0, len(records), batch):
                part = slice(start, min(start + batch, len(records)))
                if self.width == 1:
                    yield DenseLeverages(records.part(part), packed[part].clamp(min=0.0), leftover[part])
                else:
                    block = unpack(packed[part], self.width)
                    yield DenseLeverages(records.part(part), block, leftover[part], packed[part])

    def leverages(self, records: Records) -> DenseLeverages:
        """Other records, seen through this Hessian; those that it says nothing of are refused by row."""
        packed, leftover = self._read(records)
        unseen = self._unseen(records).unsqueeze(1)
        if self.width == 1:
            return DenseLeverages(records, packed.clamp(min=0.0) + unseen, leftover)
        block = unpack(packed, self.width)
        block.diagonal(dim1=1, dim2=2).add_(unseen)
        return DenseLeverages(records, block, leftover)

    def _read(self, records: Records) -> tuple[Tensor, Tensor]:
        """Packed blocks and what is left of a Newton step."""
        x = records.design
        if self.width == 1:
            return torch.cat([form(x) for form in self._forms], dim=1), x @ self._step
        x = x @ self._whitening.transform
        (form,) = self._forms
        return form(x).contiguous(), x @ self._newton

    @cached_property
    def _step(self) -> Tensor:
        """H⁻¹G in the parameters themselves, (P, r)."""
        return self._whitening.transform @ self._newton

    def _unseen(self, records: Records) -> Tensor:
        """What A has, (c,), from directions that no training record points in.

        Coordinates of them are left out of T. In units of each column's length they are the orthogonal complement U
        of T's, where H is UᵀDU ⊗ I, the penalty alone: the term is x̃ᵀU(UᵀDU)⁻¹Uᵀx̃, and without a penalty infinite.
        """
        transform, penalty = self._whitening.transform, self.layer.penalty()
        columns, rank = transform.shape
        none = records.design.new_zeros(len(records))
        if rank == columns:
            return none
        length = torch.hypot(self._whitening.norms, penalty.sqrt())
        unit = torch.where(length > 0, length, 1.0)
        basis = torch.linalg.qr(transform * unit.unsqueeze(1), mode="complete").Q[:, rank:]
        scaled = records.design / unit
        off = scaled @ basis
        outside = torch.linalg.vector_norm(off, dim=1) > _OUTSIDE * torch.linalg.vector_norm(scaled, dim=1)
        if not bool(outside.any()):
            return none
        inner = basis.T @ ((penalty / unit.square()).unsqueeze(1) * basis)
        factor, failed = torch.linalg.cholesky_ex(inner)
        if int(failed):
            rows = (outside.nonzero().flatten() + records.span.start).tolist()
            raise InputError(
                f"candidates: features in {name_rows(rows)} (counted from 0) point where those of no training record "
                "do, and there is no ridge: the model would fit them whatever their targets; leave those records out"
            )
        term: Tensor = torch.linalg.solve_triangular(factor, off.T, upper=False).square().sum(0)
        return torch.where(outside, term, 0.0)

    @property
    def sandwich_memory(self) -> float:
        """GiB that :meth:`sandwich` takes; infinite of labels, which have a Hessian each."""
        return 4 * self._inverses[0].numel() * 8 / GIB if len(self._inverses) == 1 else math.inf

    def sandwich(self, pulls: Iterable[tuple[Records, Tensor]]) -> Callable[[Records], Tensor]:
        """S = (x̃ᵀ ⊗ I) H⁻¹ (Σ x̃x̃ᵀ ⊗ uuᵀ) H⁻¹ (x̃ ⊗ I) of records, (c, r, r), for the sum over pulls u (c, r) of all."""
        total = KroneckerSum(self._whitening.transform.shape[1], self.width, self._whitening.transform)
        for records, pull in pulls:
            total.add(records.design @ self._whitening.transform, packed_outer(pull.T).T.contiguous())
        return self._between(total.matrix())

    def expected_sandwich(self) -> Callable[[Records], Tensor]:
        """The same with W' in place of uuᵀ, which it is on average where the model is right: H without its penalty."""
        size, width = self._whitening.transform.shape[1], self.width
        (inverse,) = self._inverses
        penalised = inverse.new_zeros((width, size, width, size))
        for a in range(width):
            penalised[a, :, a] = self._whitening.penalty
        return self._forms_of(inverse - inverse @ penalised.reshape(width * size, width * size) @ inverse)

    def _between(self, middle: Tensor) -> Callable[[Records], Tensor]:
        (inverse,) = self._inverses
        return self._forms_of(inverse @ middle @ inverse)

    def _forms_of(self, matrix: Tensor) -> Callable[[Records], Tensor]:
        transform, width = self._whitening.transform, self.width
        forms = QuadraticForms(matrix, transform.shape[1], width)
        return lambda records: unpack(forms(records.design @ transform).contiguous(), width)

    def solve(self, gradient: Tensor) -> Tensor:
        """H⁻¹ (H⁺ where H is singular) applied to a gradient Σ x̃ᵢvᵢᵀ with respect to Θ, (n_columns, m) → same."""
        kind, transform = self.layer.kind, self._whitening.transform
        solution = _apply(self._inverses, transform.T @ kind.reduce(gradient), self.width)
        return transform @ kind.expand(solution)


def dense_curvature(layer: LastLayer, memory: float, advance: Advance = lambda _: None) -> DenseCurvature:
    """Build the curvature of a layer within ``memory`` GiB; ``advance`` is told of every record, twice."""
    width = layer.kind.width(layer.n_outputs)
    chunk = _chunk_rows(layer, width, memory)
    whitening = whiten(layer, chunk)
    advance(layer.n)
    size = whitening.transform.shape[1]
    found = summed(layer, "hessian", partial(_Moments, layer, whitening), chunk, advance)
    totals, fit = found.totals, found.fit
    inverses, null = [], 0
    forms: list[Any] = []
    while totals:
        hessian = totals.pop(0).matrix()
        if found.raw:
            hessian = whitening.transform.T @ hessian @ whitening.transform
            hessian = 0.5 * (hessian + hessian.T)
        blocks = hessian.view(width, size, width, size)
        for a in range(width):
            blocks[a, :, a] += whitening.penalty
        inverse, vanishing, root = psd_inverse(hessian, rooted=width == 1)
        del hessian, blocks
        inverses.append(inverse)
        forms += [] if root is None else [SquaredLengths(whitening.transform, root)]
        null += vanishing
    gradient = fit.whitened_gradient()
    newton = _apply(inverses, gradient, width)
    return DenseCurvature(
        layer=layer,
        chunk=chunk,
        null_directions=null,
        stationarity=fit.described(math.sqrt(max(0.0, float((gradient * newton).sum())))),
        linearity=fit.linearity,
        _newton=newton,
        _whitening=whitening,
        _inverses=inverses,
        _forms=forms or [QuadraticForms(inverse, size, width) for inverse in inverses],
    )


class _Moments:
    """The sums of the second pass: the Hessian of each part, in whitened coordinates, and the fit."""

    def __init__(self, layer: LastLayer, whitening: Whitening) -> None:
        self._transform, self._packed = whitening.transform, packed_size(layer.kind.width(layer.n_outputs))
        size, width = whitening.transform.shape[1], layer.kind.width(layer.n_outputs)
        parts = layer.kind.parts(layer.n_outputs)
        self.raw = width == 1 and whitening.room > _FAR and not gives_parameters(layer, whitening)
        self.fit = Fit(layer, whitening, plain=self.raw)
        self.totals = [
            KroneckerSum(layer.n_columns if self.raw else size, width, whitening.transform) for _ in range(parts)
        ]

    def add(self, records: Records) -> None:
        x = records.design if self.raw else records.design @ self._transform
        parts = torch.split(records.packed_curvature, self._packed, dim=1)
        for total, part in zip(self.totals, parts, strict=True):
            total.add(x, part)
        self.fit.add(records, None if self.raw else x)

    def sums(self) -> dict[str, Tensor]:
        return {**self.fit.sums(), **{f"total {k}": one.total for k, one in enumerate(self.totals)}}

    def take(self, sums: Mapping[str, Tensor]) -> None:
        for k, one in enumerate(self.totals):
            one.total = sums[f"total {k}"]
        self.fit.take({name: value for name, value in sums.items() if not name.startswith("total ")})


def _apply(inverses: list[Tensor], columns: Tensor, width: int) -> Tensor:
    """Apply (r·k, r·k) to (k, r), outputs major; for width 1 one k × k matrix serves every column, or each its own."""
    if len(inverses) > 1:
        return torch.stack([own @ column for own, column in zip(inverses, columns.T, strict=True)], dim=1)
    (inverse,) = inverses
    if width == 1:
        return inverse @ columns
    return (inverse @ columns.T.reshape(-1)).reshape(width, -1).T.contiguous()


def dense_memory(size: Size) -> float:
    """GiB that the exact curvature of such a layer needs at the least."""
    return sum(_bytes(size)) / GIB


def dense_refusal(size: Size) -> str:
    """What is so large about it."""
    kind = make_head(size.head, size.outputs)
    width, parts = kind.width(size.outputs), kind.parts(size.outputs)
    parameters = size.columns * width
    return (
        f"the exact Hessian of this head has {f'{parts:,} × ' if parts > 1 else ''}{parameters:,} × {parameters:,} "
        f"entries ({size.columns:,} columns × {max(width, parts):,} outputs)"
    )


def _bytes(size: Size) -> tuple[float, float]:
    """What the matrices take, and what each row of a chunk takes."""
    kind = make_head(size.head, size.outputs)
    width = kind.width(size.outputs)
    parameters = size.columns * width
    fixed = 8.0 * kind.parts(size.outputs) * (4 * parameters**2 + 2 * packed_size(size.columns) * packed_size(width))
    fixed += 6.0 * min(_BLOCK_BYTES, 8 * size.n * width**2)
    return fixed, 8.0 * (8 * size.columns + 8 * size.outputs + 4 * packed_size(width))


def _chunk_rows(layer: LastLayer, width: int, memory: float) -> int:
    """Rows of a chunk so that matrices and chunk stay within the budget."""
    fixed, row = _bytes(Size.of(layer))
    widest = 8 * max(layer.n_columns, layer.n_outputs, packed_size(width))
    affordable = int((memory * GIB - fixed) // row)
    largest = _ONE_CHUNK_BYTES if width == 1 else _CHUNK_BYTES
    return max(1, min(affordable, largest // widest, most_records(layer.n_columns, width) or layer.n))
