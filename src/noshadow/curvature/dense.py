"""The exact last-layer Hessian of a head and what the scores ask of it.

With x̃ᵢ the features and the constant, Wᵢ the output curvature and gᵢ the output gradient of record i, in the head's
reduced output coordinates (``noshadow.heads``), and D the penalty,

    H  = Σᵢ x̃ᵢx̃ᵢᵀ ⊗ Wᵢ + D ⊗ I,        Aᵢ = (x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ᵢ ⊗ I),        G = Σᵢ x̃ᵢgᵢᵀ + D Θ.

Wᵢ and gᵢ are those of the record's term of the objective: its weight is in them. Independent labels have an H each.

Aᵢ is the leverage block of record i. G is zero at a stationary point of the objective; ``leftover`` is x̃ᵢᵀH⁻¹G: the
Newton step that would get there moves the outputs by minus that.

All of it happens in whitened coordinates (``noshadow.curvature.whiten``), in three passes over the records in chunks:
two to build, one to read the blocks. (Features that are close to rank-deficient, or whose squares leave the range of
double precision, take a pass or more on top.) H is formed once, as one sum of Kronecker products; its inverse once.
Nothing of size n × (number of parameters) is ever held, so memory does not grow with n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.kronecker import KroneckerSum, QuadraticForms, most_records
from noshadow.curvature.stationary import Fit, Stationarity
from noshadow.curvature.whiten import Whitening, whiten
from noshadow.errors import InputError
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.packing import packed_size, unpack

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
    design: Tensor
    """x̃, (c, P)."""


@dataclass(frozen=True, eq=False)
class DenseCurvature:
    """The inverse Hessian of a layer and the questions it answers. Made by :func:`dense_curvature`."""

    layer: LastLayer
    chunk: int
    """Records a GEMM."""
    null_directions: int
    """Directions of the parameter space, within the range of the features, along which H vanishes."""
    stationarity: Stationarity
    linearity: float
    """‖outputs − best linear function of the features‖ / ‖outputs − mean‖: 0 for the inputs of a linear layer."""
    _whitening: Whitening
    _inverses: list[Tensor]
    _forms: list[QuadraticForms]

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
            design = self.layer.design(rows)
            x = design @ self._whitening.transform
            packed, leftover = torch.cat([form(x) for form in self._forms], dim=1), x @ self.stationarity.newton
            for start in range(0, len(x), batch):
                part = slice(start, min(start + batch, len(x)))
                block = packed[part]
                block = block.clamp(min=0.0) if self.width == 1 else unpack(block, self.width)
                place = slice(rows.start + part.start, rows.start + part.stop)
                yield Blocks(place, block, leftover[part], design[part])

    def solve(self, gradient: Tensor) -> Tensor:
        """H⁻¹ (H⁺ where H is singular) applied to a gradient Σ x̃ᵢvᵢᵀ with respect to Θ, (n_columns, m) → same."""
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
    size = whitening.transform.shape[1]
    totals = [KroneckerSum(size, width, layer.outputs) for _ in range(layer.kind.parts(layer.n_outputs))]
    fit = Fit(layer, whitening)
    for rows in layer.chunks(chunk):
        design = layer.design(rows)
        x = design @ whitening.transform
        z, y = layer.outputs[rows], layer.targets[rows]
        packed, pull = layer.kind.packed_curvature(z), layer.kind.reduce(layer.trained.gradient(z, y))
        if layer.weights is not None:
            packed, pull = layer.weights[rows] * packed, layer.weights[rows] * pull
        for total, part in zip(totals, torch.split(packed, packed_size(width), dim=1), strict=True):
            total.add(x, part)
        fit.add(rows, design, x, pull)
        advance(rows.stop - rows.start)

    inverses, null = [], 0
    while totals:
        hessian = totals.pop(0).matrix()
        blocks = hessian.view(width, size, width, size)
        for a in range(width):
            blocks[a, :, a] += whitening.penalty
        inverse, vanishing = psd_inverse(hessian)
        del hessian, blocks
        inverses.append(inverse)
        null += vanishing
    return DenseCurvature(
        layer=layer,
        chunk=chunk,
        null_directions=null,
        stationarity=fit.stationarity(lambda columns: _apply(inverses, columns, width)),
        linearity=fit.linearity,
        _whitening=whitening,
        _inverses=inverses,
        _forms=[QuadraticForms(inverse, size, width) for inverse in inverses],
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


def require_budget(n: int, columns: int, outputs: int, head: str, memory: float, held: float = 0.0) -> None:
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
    require_budget(layer.n, columns, m, layer.head, memory)
    fixed, row = _bytes(layer.n, columns, m, layer.head)
    widest = 8 * max(columns, m, packed_size(width))
    affordable = int((memory * GIB - fixed) // row)
    return max(1, min(affordable, _CHUNK_BYTES // widest, most_records(columns, width) or layer.n))
