"""An epoch that comes in batches, in any order: each record once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.pairing import require_same_order
from noshadow.tensors import as_floats, as_tensor

__all__ = ["Epoch", "read_batch"]

_MOST = 10**9
"""More records than any data: rows beyond are names of records, not places."""


def read_batch(outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
    """Outputs (b, m) and targets with a row each, copied: a training loop may write over its own."""
    require_same_order(outputs, targets, "outputs", "targets")
    z = as_floats(outputs, "outputs").cpu()
    z = (z.unsqueeze(1) if z.ndim == 1 else z).clone()
    if z.ndim != 2:
        raise InputError(f"outputs: expected shape (n,) or (n, m), got {tuple(z.shape)}")
    if targets is None:
        return z, None
    y = as_tensor(targets, "targets").cpu().clone()
    if y.ndim == 0 or len(y) != len(z):
        raise InputError(
            f"targets: shape {tuple(y.shape)}, but outputs has {len(z)} rows; they must be the same records"
        )
    return z, y


class Epoch:
    """The batches of an epoch so far.

    n  the number of records; None: the largest row tells it when the epoch ends
    """

    def __init__(self, n: int | None) -> None:
        self._n = n
        self._seen = torch.zeros(n or 0, dtype=torch.bool)
        self._rows: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor | None] = []

    def add(self, outputs: Tensor, targets: Tensor | None, rows: Any) -> None:
        """The outputs and targets of a batch, and which records of the data they are."""
        places = self._places(rows, len(outputs))
        if self._outputs and self._outputs[0].shape[1:] != outputs.shape[1:]:
            raise InputError(
                f"outputs: {outputs.shape[1]} columns, the batches before had {self._outputs[0].shape[1]}; pass the "
                "outputs of one model"
            )
        if self._targets and (targets is None) != (self._targets[0] is None):
            raise InputError("targets: some batches of this epoch have them and some have none; pass them with all")
        if self._targets and targets is not None and self._targets[0] is not None:
            before = self._targets[0].shape[1:]
            if targets.shape[1:] != before:
                raise InputError(
                    f"targets: a batch of shape {tuple(targets.shape)} after batches of shape {('·', *before)}".replace(
                        "'", ""
                    )
                    + "; pass them in one form"
                )
        self._seen[places] = True
        self._rows.append(places)
        self._outputs.append(outputs)
        self._targets.append(targets)

    def _places(self, rows: Any, count: int) -> Tensor:
        """Rows as whole numbers, none of which was there before."""
        places = as_tensor(rows, "rows").cpu()
        whole = not (places.is_floating_point() or places.is_complex() or places.dtype == torch.bool)
        if places.ndim != 1 or len(places) != count or not (whole or count == 0):
            raise InputError(
                f"rows: expected the place of each of the {count} records in the data, whole numbers of shape "
                f"({count},), got {places.dtype} of shape {tuple(places.shape)}"
            )
        places = places.to(torch.int64)
        if count == 0:
            return places
        lowest, highest = int(places.min()), int(places.max())
        if lowest < 0 or highest >= (_MOST if self._n is None else self._n):
            raise InputError(
                f"rows: {lowest if lowest < 0 else highest} is not a row of the data"
                + ("" if self._n is None else f", which had {self._n} records in the epochs before")
                + "; rows count from 0"
            )
        if highest >= len(self._seen):
            room = torch.zeros(max(highest + 1, 2 * len(self._seen)), dtype=torch.bool)
            room[: len(self._seen)] = self._seen
            self._seen = room
        ordered = places.sort().values
        again = self._seen[ordered]
        again[1:] |= ordered[1:] == ordered[:-1]
        if twice := sorted(set(ordered[again].tolist())):
            raise InputError(
                f"rows: {name_rows(twice)} came a second time in this epoch; each record counts once: call "
                "trace.end_epoch() after each epoch"
            )
        return places

    def whole(self) -> tuple[Tensor, Tensor | None]:
        """Outputs (n, m) and targets of all records in the data's order; refused while some are missing."""
        rows = torch.cat(self._rows) if self._rows else torch.zeros(0, dtype=torch.int64)
        if not len(rows):
            raise InputError(
                "end_epoch: no record came since the last one; call trace.update(outputs=, rows=) before it"
            )
        n = int(rows.max()) + 1 if self._n is None else self._n
        missing = (~self._seen[:n]).nonzero().flatten().tolist()
        if missing:
            raise InputError(
                f"rows: {name_rows(missing)} of {n} did not come in this epoch; pass every record once (a loader with "
                "drop_last=False), or record with trace.update(model, data)"
            )
        targets = [part for part in self._targets if part is not None]
        return _placed(self._outputs, rows), _placed(targets, rows) if targets else None


def _placed(parts: list[Tensor], rows: Tensor) -> Tensor:
    values = torch.cat(parts)
    placed = torch.empty_like(values)
    placed[rows] = values
    return placed
