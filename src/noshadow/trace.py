"""Trace: what a training run remembers of each record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.tensors import as_floats

_PART = 4_194_304  # losses that are worked on at a time: 32 MiB in float64


@dataclass(frozen=True, eq=False)
class Trace:
    """The losses of n records after each epoch of training, (epochs, n), in the precision that they came in.

    They are checked here, once: finite, two epochs or more.
    """

    losses: Tensor

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
        object.__setattr__(self, "losses", values)

    @classmethod
    def of(cls, value: Any, n: int) -> Trace:
        """A trace, or the losses (epochs, n) themselves, of so many records."""
        losses = value.losses if isinstance(value, Trace) else as_floats(value, "trace")
        if losses.ndim == 2 and losses.shape[1] != n:
            transposed = losses.shape[0] == n
            remedy = "it looks transposed: pass trace.T" if transposed else "pass the same records in the same order"
            raise InputError(
                f"trace: expected shape (epochs, {n}), a row per epoch, got {tuple(losses.shape)}; {remedy}"
            )
        return value if isinstance(value, Trace) else cls(losses)

    def parts(self, rows: slice) -> Iterator[Tensor]:
        """The losses of some records in float64, some of them at a time, (·, epochs)."""
        chosen = self.losses[:, rows].T
        for part in torch.split(chosen, max(1, _PART // chosen.shape[1])):
            yield part.to(torch.float64).contiguous()
