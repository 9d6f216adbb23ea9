"""A layer and its records once they are known to be right: its facts, and the records a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from noshadow.heads import Head, make_head
from noshadow.origin import Origin
from noshadow.records import Records
from noshadow.sources import OtherOutputs, Source
from noshadow.sparse import SparseRows
from noshadow.weights import record_weights

__all__ = ["LayerRecords"]


@dataclass(frozen=True, eq=False, repr=False)
class LayerRecords:
    """What ``LastLayer`` holds, and how all that works with it reads its records.

    How a layer is made, checked and kept is up to ``LastLayer``, which says what the fields mean.
    """

    source: Source
    head: str = "softmax"
    ridge: float = 0.0
    bias: bool = True
    penalize_bias: bool = True
    coefficients: Tensor | None = None
    class_weight: Tensor | None = None
    label_smoothing: float = 0.0
    notes: tuple[str, ...] = ()
    blocks: Any = None
    """How passes over the records are done (``noshadow.passes.Blocks``); None: in one go."""
    of_run: bool = False
    """Its outputs are the means over a training run (``at``): no parameters give them."""
    origin: Origin | None = None
    """Where it came from, where a front door or a file says it."""
    _window: tuple[int, int] | None = None

    def _weights(self, targets: Tensor, sample_weight: Tensor | None) -> Tensor | None:
        return record_weights(targets, sample_weight, self.class_weight, self.label_smoothing)

    @property
    def features(self) -> Tensor:
        """(n, p) all features in memory, in the precision that they are stored in."""
        return self._whole("features")

    @property
    def outputs(self) -> Tensor:
        """(n, m) all outputs in memory, in float64."""
        return self._whole("outputs")

    @property
    def targets(self) -> Tensor:
        """(n,) classes, or (n, m) labels or values: all in memory, as the head works with them."""
        return self._whole("targets")

    @property
    def sample_weight(self) -> Tensor | None:
        """(n,) the weights of all records in memory; None: all 1."""
        return self.source.whole("sample_weight")

    def _whole(self, name: str) -> Tensor:
        found = self.source.whole(name)
        assert found is not None
        return found

    @cached_property
    def kind(self) -> Head:
        """The loss of a record as an attacker sees it: with smoothed labels, without weights."""
        return make_head(self.head, self.n_outputs, self.label_smoothing)

    @cached_property
    def trained(self) -> Head:
        """The loss that ``weights`` multiply in the objective; class weights tilt the targets of smoothed labels."""
        tilted = self.class_weight is not None and self.label_smoothing > 0
        return make_head(self.head, self.n_outputs, self.label_smoothing, self.class_weight) if tilted else self.kind

    @property
    def weights(self) -> Tensor | None:
        """(n, 1), or (n, m) for m labels: the objective is Σᵢ weightᵢ · trained.loss(zᵢ, yᵢ) + penalty; None: all 1."""
        return self._weights(self.targets, self.sample_weight)

    @property
    def n(self) -> int:
        """Number of records."""
        return self.source.n

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix: the features and, with a bias, the constant."""
        return self.n_features + int(self.bias)

    @property
    def n_outputs(self) -> int:
        """Columns of the outputs."""
        return self.source.n_outputs

    @property
    def n_features(self) -> int:
        """Columns of the features."""
        return self.source.n_features

    @property
    def precision(self) -> torch.dtype:
        """What the features are stored in."""
        return self.source.precision

    @property
    def sparse(self) -> bool:
        """Whether the features are sparse; they stay so."""
        return self.source.sparse

    @property
    def device(self) -> torch.device:
        """Where the records are read to."""
        return self.source.device

    def records(self, rows: slice) -> Records:
        """Some consecutive records. All that looks at records outside this module reads them here, chunk by chunk."""
        rows = slice(*rows.indices(self.n)[:2])
        x, outputs, targets, sample_weight = self.source.read(rows)
        facts = (outputs, targets, self._weights(targets, sample_weight), self.kind, self.trained)
        if self.sparse:
            return Records(rows, SparseRows.of(x, slice(0, len(outputs)), self.bias), *facts)
        design = torch.empty((x.shape[0], self.n_columns), dtype=torch.float64, device=x.device)
        design[:, : x.shape[1]] = x
        if self.bias:
            design[:, -1] = 1.0
        return Records(rows, design, *facts)

    def penalty(self) -> Tensor:
        """Diagonal of the penalty, Λ or 0 for each column of the design matrix."""
        diagonal = torch.full((self.n_columns,), self.ridge, dtype=torch.float64, device=self.device)
        if self.bias and not self.penalize_bias:
            diagonal[-1] = 0.0
        return diagonal

    def chunks(self, size: int) -> Iterator[slice]:
        """Slices of at most ``size`` rows that cover all records in order."""
        rows = self.covered
        for start in range(rows.start, rows.stop, size):
            yield slice(start, min(start + size, rows.stop))

    @property
    def covered(self) -> slice:
        """The rows that ``chunks`` covers: all, but of a window."""
        return slice(*(self._window or (0, self.n)))

    def window(self, rows: slice) -> Self:
        """The same layer, of which ``chunks`` covers those rows alone. Rows keep their numbers."""
        return self._with(_window=(rows.start, rows.stop))

    def of_origin(self, origin: Origin) -> Self:
        """The same layer, which knows where it came from."""
        return self._with(origin=origin)

    def in_blocks(self, blocks: Any) -> Self:
        """The same layer, the passes over which are done so (``noshadow.passes.Blocks``)."""
        return self._with(blocks=blocks)

    def at(self, outputs: Tensor) -> Self:
        """The same layer and records with other outputs (n, m), such as the mean over the epochs of training."""
        other = OtherOutputs(self.source, outputs.to(device=self.device, dtype=torch.float64))
        blocks = None if self.blocks is None else self.blocks.labelled("at")
        # the parameters are those of its own outputs
        return self._with(source=other, blocks=blocks, coefficients=None, of_run=True)

    def _with(self, **changes: Any) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changes)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """For another process: there, passes are done in one go."""
        return {**self.__dict__, "blocks": None, "origin": None}
