"""The exact last-layer Hessian of a head and what the scores ask of it.

With x̃ᵢ the features and the constant, Wᵢ the output curvature and gᵢ the output gradient of record i, in the head's
reduced output coordinates (``noshadow.heads``), and D the penalty,

    H  = Σᵢ x̃ᵢx̃ᵢᵀ ⊗ Wᵢ + D ⊗ I,        Aᵢ = (x̃ᵢᵀ ⊗ I) H⁻¹ (x̃ᵢ ⊗ I),        G = Σᵢ x̃ᵢgᵢᵀ + D Θ.

Aᵢ is the leverage block of record i. G is zero at a stationary point of the objective; ``leftover`` is x̃ᵢᵀH⁻¹G: the
Newton step that would get there moves the outputs by minus that.

All of it happens in whitened coordinates (``noshadow.curvature.whiten``), in three passes over the records in chunks
(four where the features are close to rank-deficient): two to build, one to read the blocks. H is formed once, as one
sum of Kronecker products; its inverse once.
Nothing of size n × (number of parameters) is ever held, so memory does not grow with n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.kronecker import KroneckerSum, QuadraticForms, most_records
from noshadow.curvature.stationary import Fit, Stationarity
from noshadow.curvature.whiten import Whitening, whiten
from noshadow.errors import InputError
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
    """A, (c,) for width 1 and (c, r, r) otherwise."""
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
    _inverse: Tensor
    _forms: QuadraticForms

    @property
    def rank(self) -> int:
        """Rank of the design matrix."""
        return self._whitening.rank

    @property
    def width(self) -> int:
        """Coupled output coordinates r: blocks are numbers for r = 1 and r × r matrices otherwise."""
        return self._forms.r

    def blocks(self) -> Iterator[Blocks]:
        """The leverage blocks of all records, in order, a manageable number at a time."""
        batch = max(1, _BLOCK_BYTES // (8 * self.width**2))
        for rows in self.layer.chunks(self.chunk):
            design = self.layer.design(rows)
            x = design @ self._whitening.transform
            packed, leftover = self._forms(x), x @ self.stationarity.newton
            for start in range(0, len(x), batch):
                part = slice(start, min(start + batch, len(x)))
                block = packed[part]
                block = block.squeeze(1).clamp(min=0.0) if self.width == 1 else unpack(block, self.width)
                place = slice(rows.start + part.start, rows.start + part.stop)
                yield Blocks(place, block, leftover[part], design[part])

    def solve(self, gradient: Tensor) -> Tensor:
        """H⁻¹ (H⁺ where H is singular) applied to a gradient Σ x̃ᵢvᵢᵀ with respect to Θ, (n_columns, m) → same."""
        kind, transform = self.layer.kind, self._whitening.transform
        solution = _apply(self._inverse, transform.T @ kind.reduce(gradient), self.width)
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
    total = KroneckerSum(size, width, layer.outputs)
    fit = Fit(layer, whitening)
    for rows in layer.chunks(chunk):
        design = layer.design(rows)
        x = design @ whitening.transform
        total.add(x, layer.kind.packed_curvature(layer.outputs[rows]))
        fit.add(rows, design, x)
        advance(rows.stop - rows.start)

    hessian = total.matrix()
    del total
    blocks = hessian.view(width, size, width, size)
    for a in range(width):
        blocks[a, :, a] += whitening.penalty
    inverse, null = psd_inverse(hessian)
    del hessian, blocks
    return DenseCurvature(
        layer=layer,
        chunk=chunk,
        null_directions=null,
        stationarity=fit.stationarity(lambda columns: _apply(inverse, columns, width)),
        linearity=fit.linearity,
        _whitening=whitening,
        _inverse=inverse,
        _forms=QuadraticForms(inverse, size, width),
    )


def _apply(inverse: Tensor, columns: Tensor, width: int) -> Tensor:
    """Apply (r·k, r·k) to (k, r), outputs major; for width 1 the one k × k matrix serves every column."""
    if width == 1:
        return inverse @ columns
    return (inverse @ columns.T.reshape(-1)).reshape(width, -1).T.contiguous()


def _chunk_rows(layer: LastLayer, width: int, memory: float) -> int:
    """Rows a chunk so that matrices and chunk stay within the budget."""
    columns, m = layer.n_columns, layer.n_outputs
    parameters = columns * width
    fixed = 8.0 * (4 * parameters**2 + 2 * packed_size(columns) * packed_size(width))
    row = 8.0 * (8 * columns + 8 * m + 4 * packed_size(width))
    fixed += 6.0 * min(_BLOCK_BYTES, 8 * layer.n * width**2)
    if not memory > 0:
        raise InputError(f"memory: expected a positive number of GiB, got {memory!r}")
    left = memory * GIB - fixed
    if left < row:
        raise InputError(
            f"memory: the exact Hessian of this head has {parameters:,} × {parameters:,} entries "
            f"({columns:,} columns × {width:,} outputs) and needs about {(fixed + row) / GIB:.1f} GiB, the budget is "
            f"{memory:g} GiB; pass a larger memory=, or reduce the features (e.g. PCA) or the number of classes"
        )
    widest = 8 * max(columns, m, packed_size(width))
    return max(1, min(int(left // row), _CHUNK_BYTES // widest, most_records(columns, width) or layer.n))
