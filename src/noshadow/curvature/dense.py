"""The exact last-layer Hessian of a head and what the scores ask of it.

With x̃ᵢ the features and the constant, Wᵢ the output curvature and gᵢ the output gradient of record i, in the head's
reduced output coordinates (``noshadow.heads``), and D the penalty,

    H  = Σᵢ x̃ᵢx̃ᵢᵀ ⊗ Wᵢ + D ⊗ I,        Aᵢ = (x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ᵢ ⊗ I),        G = Σᵢ x̃ᵢgᵢᵀ + D Θ.

Wᵢ and gᵢ are those of the record's term of the objective: its weight is in them. Independent labels have an H each.

Aᵢ is the leverage block of record i. G is zero at a stationary point of the objective; ``leftover`` is x̃ᵢᵀH⁻¹G, the
output shift of the Newton step that would get there, and ``decrement`` is √⟨G, H⁻¹G⟩.

All of it happens in whitened feature coordinates (``noshadow.curvature.whiten``), in three passes over the records in
chunks: two to build, one to read the blocks. H is formed once, as one sum of Kronecker products; its inverse once.
Nothing of size n × (number of parameters) is ever held, so memory does not grow with n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.kronecker import KroneckerSum, QuadraticForms, most_records
from noshadow.curvature.whiten import Whitening, whiten
from noshadow.errors import InputError
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.packing import packed_size, unpack

GIB = 2.0**30
DEFAULT_MEMORY = 4.0
"""Working memory that the curvature may use, in GiB."""
_CHUNK_BYTES = 48 * 2**20  # largest array of a chunk: enough records a GEMM for its full speed
_BLOCK_BYTES = 24 * 2**20  # largest array of unpacked blocks: it fits the cache and the allocator reuses its memory


class Blocks(NamedTuple):
    """What the curvature knows of some records."""

    rows: slice
    block: Tensor
    """A, (c, 1) for width 1, (c, m) for m labels and (c, r, r) otherwise."""
    leftover: Tensor
    """x̃ᵀH⁻¹G, (c, r or q)."""


@dataclass(frozen=True, eq=False)
class DenseCurvature:
    """The inverse Hessian of a layer and the questions it answers. Made by :func:`dense_curvature`."""

    layer: LastLayer
    chunk: int
    """Records a GEMM."""
    null_directions: int
    """Directions of the parameter space, within the range of the features, along which H vanishes."""
    decrement: float
    linearity: float
    """‖outputs − best linear function of the features‖ / ‖outputs − mean‖: 0 for the inputs of a linear layer."""
    _whitening: Whitening
    _inverses: list[Tensor]
    _forms: list[QuadraticForms]
    _newton: Tensor

    @property
    def rank(self) -> int:
        """Rank of the design matrix."""
        return self._whitening.rank

    @property
    def width(self) -> int:
        """Coupled output coordinates r: blocks are numbers for r = 1 and r × r matrices otherwise."""
        return self._forms[0].r

    def blocks(self) -> Iterator[Blocks]:
        """The leverage blocks of all records, in order, a manageable number at a time."""
        batch = max(1, _BLOCK_BYTES // (8 * len(self._forms) * self.width**2))
        for rows in self.layer.chunks(self.chunk):
            x = self.layer.design(rows) @ self._whitening.transform
            packed, leftover = torch.cat([form(x) for form in self._forms], dim=1), x @ self._newton
            for start in range(0, len(x), batch):
                part = slice(start, min(start + batch, len(x)))
                block = packed[part]
                block = block.clamp(min=0.0) if self.width == 1 else unpack(block, self.width)
                yield Blocks(slice(rows.start + part.start, rows.start + part.stop), block, leftover[part])

    def solve(self, gradient: Tensor) -> Tensor:
        """H⁻¹ (H⁺ where H is singular) applied to a gradient with respect to Θ, (n_columns, m) → (n_columns, m)."""
        kind, transform = self.layer.kind, self._whitening.transform
        solution = _apply(self._inverses, transform.T @ kind.reduce(gradient), self.width)
        return transform @ kind.expand(solution)


def dense_curvature(
    layer: LastLayer, memory: float = DEFAULT_MEMORY, advance: Callable[[int], None] = lambda _: None
) -> DenseCurvature:
    """Build the curvature of a layer within ``memory`` GiB; ``advance`` is told of every record, twice."""
    width = layer.kind.width(layer.n_outputs)
    chunk = _chunk_rows(layer, width, memory)
    whitening = whiten(layer, chunk)
    advance(layer.n)
    rank = whitening.rank
    totals = [KroneckerSum(rank, width, layer.outputs) for _ in range(layer.kind.parts(layer.n_outputs))]
    gradient = torch.zeros_like(whitening.coefficients)
    refinement = torch.zeros_like(whitening.coefficients)
    mean = layer.kind.reduce(layer.outputs.mean(0))
    misfit = spread = 0.0
    for rows in layer.chunks(chunk):
        x = layer.design(rows) @ whitening.transform
        z, y = layer.outputs[rows], layer.targets[rows]
        packed, pull = layer.kind.packed_curvature(z), layer.kind.reduce(layer.trained.gradient(z, y))
        if layer.weights is not None:
            packed, pull = layer.weights[rows] * packed, layer.weights[rows] * pull
        for total, part in zip(totals, torch.split(packed, packed_size(width), dim=1), strict=True):
            total.add(x, part)
        gradient.addmm_(x.T, pull)
        reduced = layer.kind.reduce(z)
        residual = reduced - x @ whitening.coefficients
        refinement.addmm_(x.T, residual)
        misfit += float(residual.square().sum())
        spread += float((reduced - mean).square().sum())
        advance(rows.stop - rows.start)

    penalty = whitening.penalty
    inverses, null = [], 0
    while totals:
        hessian = totals.pop(0).matrix()
        blocks = hessian.view(width, rank, width, rank)
        for a in range(width):
            blocks[a, :, a] += penalty
        inverse, vanishing = psd_inverse(hessian)
        del hessian, blocks
        inverses.append(inverse)
        null += vanishing
    gradient += penalty @ (whitening.coefficients + refinement)
    newton = _apply(inverses, gradient, width)
    misfit = max(0.0, misfit - float(refinement.square().sum()))
    return DenseCurvature(
        layer=layer,
        chunk=chunk,
        null_directions=null,
        decrement=math.sqrt(max(0.0, float((gradient * newton).sum()))),
        linearity=math.sqrt(misfit / spread) if spread > 0 else 0.0,
        _whitening=whitening,
        _inverses=inverses,
        _forms=[QuadraticForms(inverse, rank, width) for inverse in inverses],
        _newton=newton,
    )


def _apply(inverses: list[Tensor], columns: Tensor, width: int) -> Tensor:
    """Apply (r·k, r·k) to (k, r), outputs major; for width 1 one k × k matrix serves every column, or each its own."""
    if len(inverses) > 1:
        return torch.stack([own @ column for own, column in zip(inverses, columns.T, strict=True)], dim=1)
    (inverse,) = inverses
    if width == 1:
        return inverse @ columns
    return (inverse @ columns.T.reshape(-1)).reshape(width, -1).T.contiguous()


def required_memory(n: int, columns: int, outputs: int, head: str) -> float:
    """GiB that the exact curvature of such a layer needs at the least."""
    return sum(_bytes(n, columns, outputs, head)) / GIB


def require_memory(n: int, columns: int, outputs: int, head: str, memory: float, held: float = 0.0) -> None:
    """Refuse a layer whose curvature, beside ``held`` bytes, does not fit into ``memory`` GiB."""
    if not memory > 0:
        raise InputError(f"memory: expected a positive number of GiB, got {memory!r}")
    needed = required_memory(n, columns, outputs, head) + held / GIB
    if needed > memory:
        kind = make_head(head, outputs)
        width, parts = kind.width(outputs), kind.parts(outputs)
        parameters = columns * width
        table = f"the {n:,} records take {held / GIB:.1f} GiB as a dense table and " if held else ""
        raise InputError(
            f"memory: {table}the exact Hessian of this head has {f'{parts:,} × ' if parts > 1 else ''}{parameters:,} × "
            f"{parameters:,} entries ({columns:,} columns × {max(width, parts):,} outputs) and needs about "
            f"{needed - held / GIB:.1f} GiB, the budget is {memory:g} GiB; pass a larger memory=, "
            "or reduce the features (e.g. PCA) or the number of classes"
        )


def _bytes(n: int, columns: int, outputs: int, head: str) -> tuple[float, float]:
    """What the matrices take, and what each row of a chunk takes."""
    kind = make_head(head, outputs)
    width = kind.width(outputs)
    parameters = columns * width
    fixed = 8.0 * kind.parts(outputs) * (4 * parameters**2 + 2 * packed_size(columns) * packed_size(width))
    fixed += 6.0 * min(_BLOCK_BYTES, 8 * n * width**2)
    return fixed, 8.0 * (8 * columns + 8 * outputs + 4 * packed_size(width))


def _chunk_rows(layer: LastLayer, width: int, memory: float) -> int:
    """Rows a chunk so that matrices and chunk stay within the budget."""
    columns, m = layer.n_columns, layer.n_outputs
    require_memory(layer.n, columns, m, layer.head, memory)
    fixed, row = _bytes(layer.n, columns, m, layer.head)
    widest = 8 * max(columns, m, packed_size(width))
    affordable = int((memory * GIB - fixed) // row)
    return max(1, min(affordable, _CHUNK_BYTES // widest, most_records(columns, width) or layer.n))
