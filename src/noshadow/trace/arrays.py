"""Whole arrays of a run, checked, as what a trace holds: losses of all epochs, outputs of all epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, equal, float32

from noshadow.errors import InputError
from noshadow.tensors import as_floats
from noshadow.trace.losses import AllLosses
from noshadow.trace.means import RunningMean, require_finite
from noshadow.trace.memory import Memory

__all__ = ["mean_of_epochs", "memory_of_losses", "read_epochs", "require_unchanged"]


def memory_of_losses(losses: Any, mean_outputs: Any) -> Memory:
    """Of losses (epochs, n) and, where they were kept, mean outputs (n, m)."""
    all_losses = AllLosses(losses)
    outputs, epochs = None, len(all_losses.values)
    if mean_outputs is not None:
        mean = as_floats(mean_outputs, "mean_outputs").cpu()
        if mean.ndim != 2 or len(mean) != all_losses.n:
            raise InputError(
                f"mean_outputs: expected shape ({all_losses.n}, m), a row per record, got {tuple(mean.shape)}"
            )
        require_finite(mean.to(float32), "mean_outputs", "leave out the epochs in which training diverged")
        outputs = replace(RunningMean.of(mean), count=epochs)
    return Memory(epochs, outputs, all_losses)


def read_epochs(outputs: Any) -> Tensor:
    """Outputs (epochs, n, m), all of them finite; held as they are, not copied."""
    values = as_floats(outputs, "outputs")
    if values.ndim != 3 or 0 in values.shape:
        hint = "; for one output per record pass outputs[..., None], for one epoch outputs[None]"
        raise InputError(
            f"outputs: expected shape (epochs, n, m), got {tuple(values.shape)}{hint if values.ndim == 2 else ''}"
        )
    for epoch, one in enumerate(values):
        require_finite(one.to(float32), f"outputs[{epoch}]", "leave out the epochs in which training diverged")
    return values


def mean_of_epochs(values: Tensor) -> RunningMean:
    """z̄ of outputs (epochs, n, m)."""
    mean = RunningMean.of(values[0])
    for one in values[1:]:
        mean = mean.with_term(one)
    return mean


def require_unchanged(values: Tensor, mean: RunningMean) -> None:
    """Refuse outputs (epochs, n, m) that were written over since their mean was taken."""
    if not equal(mean_of_epochs(values).mean, mean.mean):
        raise InputError(
            "trace: the outputs that it was made from have changed since; pass a copy of them to Trace.from_outputs, "
            "or their targets and head, with which it is done with the array at once"
        )
