"""What is remembered of the losses of a training run: mean and quartiles of each record.

``AllLosses`` holds the loss of every epoch and is exact. ``RunningLosses`` holds a bounded number of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.heads import Head
from noshadow.tensors import as_floats
from noshadow.trace.means import require_finite

__all__ = ["AllLosses", "Losses", "Quartiles", "RunningLosses", "losses_of", "quartiles"]

_PART = 4_194_304  # losses that are worked on at a time: 32 MiB in float64
_CACHED = 131_072  # outputs whose losses are taken at a time: they stay in the processor's cache
_LEAST = 16  # floats per record that the memory of the losses may take, whatever the number of outputs

Quartiles = tuple[Tensor, Tensor]


class Losses(Protocol):
    """Mean and quartiles over the epochs of the losses of n records; of some, by a slice or by their numbers."""

    @property
    def n(self) -> int: ...
    def mean(self, rows: slice | Tensor) -> Tensor:
        """(c,) in float64."""

    def quartiles(self, rows: slice | Tensor) -> Quartiles:
        """Q₁ and Q₃, each (c,) in float64."""


@dataclass(frozen=True, eq=False)
class AllLosses:
    """The losses of n records after each epoch of training, (epochs, n), in the precision that they came in.

    They are checked here, once: finite, two epochs or more.
    """

    values: Tensor

    def __init__(self, losses: Any) -> None:
        values = as_floats(losses, "trace")
        if values.ndim != 2:
            raise InputError(f"trace: expected shape (epochs, n), a row per epoch, got {tuple(values.shape)}")
        if len(values) < 2:
            raise InputError(
                f"trace: a spread needs at least 2 epochs, got shape {tuple(values.shape)}; a row per epoch"
            )
        finite = torch.isfinite(values)
        bad = (~finite.all(0)).nonzero().flatten().tolist()
        if bad:
            epoch = int((~finite[:, bad[0]]).nonzero()[0])
            raise InputError(
                f"trace: NaN or infinite for {name_rows(bad)} of the layer (counted from 0), first in epoch {epoch}; "
                "leave out the epochs in which training diverged, or drop those records"
            )
        object.__setattr__(self, "values", values)

    @property
    def n(self) -> int:
        return self.values.shape[1]

    def mean(self, rows: slice | Tensor) -> Tensor:
        return torch.cat([part.mean(1) for part in self._parts(rows)])

    def quartiles(self, rows: slice | Tensor) -> Quartiles:
        lower, upper = zip(*(quartiles(part) for part in self._parts(rows)), strict=True)
        return torch.cat(lower), torch.cat(upper)

    def _parts(self, rows: slice | Tensor) -> Iterator[Tensor]:
        """The losses of some records in float64, some of them at a time, (·, epochs)."""
        chosen = self.values[:, rows].T
        for part in torch.split(chosen, max(1, _PART // chosen.shape[1])):
            yield part.to(torch.float64).contiguous()


@dataclass(frozen=True, eq=False)
class RunningLosses:
    """The mean of all losses in float64, and the losses themselves, in float32, of a few epochs evenly spaced.

    average   (n,) over all epochs
    epochs    how many there were
    stride    the losses of every so many epochs are kept: epochs 0, stride, 2·stride, …
    kept      those losses, (n,) each
    capacity  how many of them there may be

    Once there are more than ``capacity``, every second is dropped and the stride doubles. So quartiles are exact, to
    float32, up to ``capacity`` epochs. After that they are those of capacity/2 or more evenly spaced epochs. Of a
    loss that only falls (or only rises) each quartile then lies between the losses of the epochs one stride before
    and one stride after its true place, and the stride is less than 1/(capacity/2) of the training.
    """

    average: Tensor
    epochs: int
    stride: int
    kept: tuple[Tensor, ...]
    capacity: int

    @classmethod
    def of(cls, losses: Tensor, outputs: int) -> RunningLosses:
        """Of one epoch, (n,), of a model with so many outputs: with the mean, max(outputs, 16) floats per record."""
        start = cls(torch.zeros(len(losses), dtype=torch.float64), 0, 1, (), max(outputs, _LEAST) // 2 * 2 - 2)
        return start.with_epoch(losses)

    def with_epoch(self, losses: Tensor) -> RunningLosses:
        """With those of one more epoch, (n,); this one stays as it was."""
        values = losses.to(device="cpu", dtype=torch.float64)
        short = values.to(torch.float32)
        require_finite(
            short, "losses", "training diverged in this epoch, which was not recorded, or the units are small"
        )
        stride, kept = self.stride, self.kept
        if self.epochs % stride == 0:
            kept = (*kept, short)
        if len(kept) > self.capacity:
            stride, kept = 2 * stride, kept[::2]
        average = self.average + (values - self.average) / (self.epochs + 1)
        return RunningLosses(average, self.epochs + 1, stride, kept, self.capacity)

    @property
    def n(self) -> int:
        return len(self.average)

    def mean(self, rows: slice | Tensor) -> Tensor:
        return self.average[rows]

    def quartiles(self, rows: slice | Tensor) -> Quartiles:
        return quartiles(torch.stack([losses[rows] for losses in self.kept], 1).to(torch.float64))


def quartiles(losses: Tensor) -> Quartiles:
    """Q₁ and Q₃ of each row. They interpolate linearly between order statistics, as NumPy's do."""
    ordered = losses.sort(dim=1).values  # torch.quantile takes no more than 16 million values

    def quantile(share: float) -> Tensor:
        place = share * (ordered.shape[1] - 1)
        below, above = math.floor(place), math.ceil(place)
        return ordered[:, below].lerp(ordered[:, above], place - below)

    return quantile(0.25), quantile(0.75)


def losses_of(outputs: Tensor, targets: Tensor, head: Head) -> Tensor:
    """ℓ(z, y) of outputs (n, m) in float64, (n,)."""
    size = max(1, _CACHED // max(1, outputs.shape[1]))
    parts = zip(torch.split(outputs, size), torch.split(targets, size), strict=True)
    return torch.cat([head.loss(z.to(torch.float64), y) for z, y in parts])
