"""Records: a chunk of a layer's records, and what the head says of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from noshadow.heads import Head
from noshadow.sparse import SparseRows

__all__ = ["Records", "row_lengths"]


@dataclass(frozen=True, eq=False)
class Records:
    """Records of a layer, c of them, in float64: consecutive ones or, where a few are asked about, any.

    rows     which of the layer's they are: a slice, or their numbers (c,); arrays of all records take either
    source   their features and, with a bias, the constant: a tensor (c, P), or sparse; ``design`` is dense
    outputs  (c, m)
    targets  (c,) classes, or (c, m) labels or values
    weights  (c, 1), or (c, m) for m labels: what training multiplied their loss by; None: all 1
    head     the loss ℓ of a record as an attacker sees it
    trained  the loss that the weights multiply in the objective: ``head``, but for tilted targets

    Vectors in the space of the outputs are in the head's reduced coordinates, (c, r), r = m − 1 for softmax.
    """

    rows: slice | Tensor
    source: Tensor | SparseRows
    outputs: Tensor
    targets: Tensor
    weights: Tensor | None
    head: Head
    trained: Head

    def __len__(self) -> int:
        return len(self.outputs)

    @cached_property
    def design(self) -> Tensor:
        """X̃, (c, P), dense."""
        return self.source if isinstance(self.source, Tensor) else self.source.dense()

    def times(self, matrix: Tensor) -> Tensor:
        """X̃ M, (P, k) → (c, k); sparse features stay sparse."""
        return self.source @ matrix if isinstance(self.source, Tensor) else self.source.times(matrix)

    def gathered(self, vectors: Tensor) -> Tensor:
        """X̃ᵀV, (c, k) → (P, k)."""
        return self.source.T @ vectors if isinstance(self.source, Tensor) else self.source.gathered(vectors)

    def square_sums(self) -> Tensor:
        """Σ x̃² of every column, (P,)."""
        return self.source.square().sum(0) if isinstance(self.source, Tensor) else self.source.square_sums()

    @property
    def span(self) -> slice:
        """``rows`` of consecutive records."""
        if isinstance(self.rows, Tensor):
            raise RuntimeError("records that were picked by number are not consecutive")
        return self.rows

    def part(self, rows: slice) -> Records:
        """Some of them, counted from the first."""
        return self._picked(rows, slice(self.span.start + rows.start, self.span.start + rows.stop))

    def some(self, rows: Tensor) -> Records:
        """Some of them, by number, in that order; ``rows`` of the layer stays that of all."""
        return self._picked(rows, self.rows)

    def _picked(self, rows: slice | Tensor, of_layer: slice | Tensor) -> Records:
        weights = None if self.weights is None else self.weights[rows]
        arrays = (self.source[rows], self.outputs[rows], self.targets[rows], weights)
        return Records(of_layer, *arrays, self.head, self.trained)

    def squares_times(self, matrix: Tensor) -> Tensor:
        """X̃² M, entries squared, (P, k) → (c, k)."""
        return self.source.square() @ matrix if isinstance(self.source, Tensor) else self.source.squares_times(matrix)

    @cached_property
    def lengths(self) -> Tensor:
        """‖x̃‖, (c,)."""
        return row_lengths(self.source) if isinstance(self.source, Tensor) else self.source.lengths()

    @cached_property
    def gradient(self) -> Tensor:
        """g = ∂ℓ/∂z, (c, r)."""
        return self.head.reduce(self.head.gradient(self.outputs, self.targets))

    @cached_property
    def pull(self) -> Tensor:
        """g', the gradient of the record's term of the objective, (c, r)."""
        own = self.gradient
        if self.trained is not self.head:
            own = self.head.reduce(self.trained.gradient(self.outputs, self.targets))
        return own if self.weights is None else self.weights * own

    @property
    def pulls_along(self) -> bool:
        """Whether g' is a multiple of g for every record, so that forms of the two are semi-definite."""
        return self.trained is self.head

    @cached_property
    def packed_curvature(self) -> Tensor:
        """W' of the record's term of the objective: upper triangles (c, r(r+1)/2), or a number per label (c, k)."""
        plain = self.head.packed_curvature(self.outputs)
        return plain if self.weights is None else self.weights * plain

    def curved(self, vectors: Tensor) -> Tensor:
        """W v, (c, r)."""
        return self.head.reduce(self.head.curved(self.outputs, self.head.expand(vectors)))

    def pull_curved(self, vectors: Tensor) -> Tensor:
        """W' v, (c, r)."""
        product = self.curved(vectors)
        return product if self.weights is None else self.weights * product


def row_lengths(rows: Tensor) -> Tensor:
    """‖row‖, (c,), whatever its size: squares are taken in units of the largest entry."""
    unit = rows.abs().amax(1, keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)
    return (rows / unit).square().sum(1).sqrt() * unit.squeeze(1)
