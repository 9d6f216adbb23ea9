"""Records in memory, and records whose outputs are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from noshadow.sources.rows import Rows, Source
from noshadow.sparse import csr_rows

__all__ = ["Arrays", "OtherOutputs"]


@dataclass(frozen=True, eq=False)
class Arrays:
    """All records, as ``check_rows`` gave them."""

    all: Rows

    @property
    def n(self) -> int:
        return len(self.all.outputs)

    @property
    def n_features(self) -> int:
        return self.all.features.shape[1]

    @property
    def n_outputs(self) -> int:
        return self.all.outputs.shape[1]

    @property
    def precision(self) -> torch.dtype:
        return self.all.features.dtype

    @property
    def device(self) -> torch.device:
        return self.all.features.device

    @property
    def sparse(self) -> bool:
        return self.all.features.layout == torch.sparse_csr

    @property
    def weighted(self) -> bool:
        return self.all.sample_weight is not None

    def read(self, rows: slice) -> Rows:
        x, z, y, weight = self.all
        x = csr_rows(x, rows) if self.sparse else x[rows]
        return Rows(x, z[rows], y[rows], None if weight is None else weight[rows])

    def whole(self, name: str) -> Tensor | None:
        return cast("Tensor | None", getattr(self.all, name))


@dataclass(frozen=True, eq=False)
class OtherOutputs:
    """The records of a source with other outputs, (n, m) in float64 and in memory."""

    source: Source
    outputs: Tensor

    @property
    def n(self) -> int:
        return self.source.n

    @property
    def n_features(self) -> int:
        return self.source.n_features

    @property
    def n_outputs(self) -> int:
        return self.outputs.shape[1]

    @property
    def precision(self) -> torch.dtype:
        return self.source.precision

    @property
    def device(self) -> torch.device:
        return self.source.device

    @property
    def sparse(self) -> bool:
        return self.source.sparse

    @property
    def weighted(self) -> bool:
        return self.source.weighted

    def read(self, rows: slice) -> Rows:
        return self.source.read(rows)._replace(outputs=self.outputs[rows])

    def whole(self, name: str) -> Tensor | None:
        return self.outputs if name == "outputs" else self.source.whole(name)
