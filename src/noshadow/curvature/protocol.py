"""What scores ask of a curvature: operations on a chunk of records, never its matrices.

With x̃ the features and the constant of a record, W' and g' the curvature and the gradient of its term of the objective
in the outputs, and H the Hessian of the objective,

    A = (x̃ᵀ ⊗ I) H⁻¹ (x̃ ⊗ I)        is how the record's own outputs answer to a pull at them.

A curvature may hold A exactly, factored, or not at all: what it offers are products with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from noshadow.curvature.stationary import Stationarity
from noshadow.layer import LastLayer
from noshadow.records import Records

if TYPE_CHECKING:
    from noshadow.curvature.kronecker import KroneckerCurvature

__all__ = ["Advance", "Curvature", "Leverages", "Removal", "Size"]

Advance = Callable[[int], None]


class Removal(NamedTuple):
    """shift (c, r): how the outputs move when the record is taken out; undefined (c,): no fit is left without it."""

    shift: Tensor
    undefined: Tensor


class Leverages(Protocol):
    """A chunk of c records and what the curvature knows of them. Vectors are in the head's reduced coordinates."""

    @property
    def records(self) -> Records: ...

    @property
    def leverage(self) -> Tensor:
        """tr(W'A), (c,), of squared error that of one output: how much of its own fit the record decides."""
        ...

    @property
    def leftover(self) -> Tensor:
        """x̃ᵀH⁻¹G, (c, r): the Newton step to a stationary point moves the outputs by minus that."""
        ...

    def first_order_shift(self, pull: Tensor) -> Tensor:
        """A v for v (c, r): how the outputs answer, to first order, when that pull is taken away."""
        ...

    def removal(self, pull: Tensor) -> Removal:
        """A(I − W'A)⁻¹v: the same when the record's curvature is taken away with it."""
        ...


class Curvature(Protocol):
    """The Hessian of a layer and the questions it answers."""

    @property
    def layer(self) -> LastLayer:
        """The layer as it sees it: with fewer records than columns, perhaps the n-sided form."""
        ...

    @property
    def rank(self) -> int:
        """Rank of the design matrix."""
        ...

    @property
    def null_directions(self) -> int:
        """Directions of the parameter space, within the range of the features, along which H vanishes."""
        ...

    @property
    def linearity(self) -> float:
        """‖outputs − best linear function of the features‖ / ‖outputs − mean‖: 0 for the inputs of a linear layer."""
        ...

    @property
    def stationarity(self) -> Stationarity: ...

    @property
    def exact(self) -> bool:
        """Whether its answers are those of H itself, up to rounding or a stated residual."""
        ...

    @property
    def beside(self) -> KroneckerCurvature | None:
        """The Kronecker curvature of the same layer, where one is at hand: of an approximation, exact answers for
        single records are found from it. None: it is built when they are asked for."""
        ...

    def chunks(self) -> Iterator[Leverages]:
        """All records in order, a manageable number at a time."""
        ...


@dataclass(frozen=True)
class Size:
    """What a layer will take, before its records are read: n records, columns of the design matrix, outputs, head."""

    n: int
    columns: int
    outputs: int
    head: str

    @classmethod
    def of(cls, layer: LastLayer) -> Size:
        return cls(layer.n, layer.n_columns, layer.n_outputs, layer.head)

    @property
    def sided(self) -> Size:
        """The size of the n-sided form (``noshadow.curvature.sided``) where that has fewer columns."""
        return replace(self, columns=min(self.columns, self.n + 1))
