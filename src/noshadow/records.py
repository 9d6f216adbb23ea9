"""Records: a chunk of a layer's records, and what the head says of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from noshadow.heads import Head


@dataclass(frozen=True, eq=False)
class Records:
    """Consecutive records of a layer, c of them, in float64.

    rows     which of the layer's they are
    design   (c, P)  features and, with a bias, the constant
    outputs  (c, m)
    targets  (c,) classes, or (c, m) labels or values
    weights  (c, 1), or (c, m) for m labels: what training multiplied their loss by; None: all 1
    head     the loss ℓ of a record as an attacker sees it
    trained  the loss that the weights multiply in the objective: ``head``, but for tilted targets

    Vectors in the space of the outputs are in the head's reduced coordinates, (c, r), r = m − 1 for softmax.
    """

    rows: slice
    design: Tensor
    outputs: Tensor
    targets: Tensor
    weights: Tensor | None
    head: Head
    trained: Head

    def __len__(self) -> int:
        return len(self.outputs)

    def part(self, rows: slice) -> Records:
        """Some of them, counted from the first."""
        return Records(
            slice(self.rows.start + rows.start, self.rows.start + rows.stop),
            self.design[rows],
            self.outputs[rows],
            self.targets[rows],
            None if self.weights is None else self.weights[rows],
            self.head,
            self.trained,
        )

    def some(self, rows: Tensor) -> Records:
        """Some of them, by number, in that order; ``rows`` of the layer stays that of all."""
        return Records(
            self.rows,
            self.design[rows],
            self.outputs[rows],
            self.targets[rows],
            None if self.weights is None else self.weights[rows],
            self.head,
            self.trained,
        )

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
