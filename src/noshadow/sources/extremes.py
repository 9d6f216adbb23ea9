"""The few records that say whether all outputs lie within some bounds, kept while chunks go by."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Extremes"]


class Extremes:
    """The records with the smallest and the largest output, the sum of outputs farthest from 1, the smallest and the
    largest target: what ``Head.concern`` says of them it says of all, for it speaks of bounds and of classes seen."""

    def __init__(self) -> None:
        self.records: tuple[Tensor, Tensor] = torch.empty(0), torch.empty(0)

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """outputs (c, m) and targets (c, …) of a chunk."""
        z, y = outputs, targets
        if self.records[0].ndim == 2:
            z, y = torch.cat((self.records[0], z)), torch.cat((self.records[1], y))
        labels = y.reshape(len(y), -1)
        kept = torch.stack(
            [
                z.amin(1).argmin(),
                z.amax(1).argmax(),
                (z.sum(1) - 1).abs().argmax(),
                labels.amin(1).argmin(),
                labels.amax(1).argmax(),
            ]
        )
        self.records = z[kept], y[kept]
