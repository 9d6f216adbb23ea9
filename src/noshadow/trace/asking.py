"""What a trace asks of an epoch before it takes it: its head, its targets, and whether it is the one before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.errors import InputError, warn_caller
from noshadow.heads import make_head
from noshadow.heads.targets import check_targets

__all__ = ["Seen", "asked_of_trace", "checked", "known_by"]


@contextmanager
def asked_of_trace() -> Iterator[None]:
    """A head that cannot be told is asked for where a trace takes it: when it is made."""
    try:
        yield
    except InputError as error:
        if not str(error).startswith("head: it cannot be told"):
            raise
        raise InputError(f"{error}; a trace takes it when it is made: Trace(head=…)") from None


def known_by(outputs: Tensor) -> tuple[float, float]:
    """Two numbers by which the same outputs are known again: no other epoch of training has both."""
    return float(outputs.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(outputs, dtype=torch.float64))


@dataclass(frozen=True)
class Seen:
    """The last epoch, as ``known_by`` knows its outputs, and whether they were those of the one before it."""

    mark: tuple[float, float] | None = None
    again: bool = False

    def then(self, mark: tuple[float, float], epochs: int) -> Seen:
        """One epoch on, the last of so many; of many in a row that are the same the first is told of."""
        again = mark == self.mark
        if again and not self.again:
            warn_caller(
                f"trace: epoch {epochs} has the same outputs as the one before, to the last bit: an epoch that was "
                "recorded twice, or a checkpoint that was passed twice, counts double in all means; record each once"
            )
        return Seen(mark, again)


def checked(targets: Tensor, outputs: Tensor, head: str) -> Tensor:
    """The targets in the form that the head of those outputs works with."""
    return check_targets(make_head(head, outputs.shape[1]), targets, len(outputs), outputs.shape[1], "outputs")
