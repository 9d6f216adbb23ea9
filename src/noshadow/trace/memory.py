"""What a trace holds, as one immutable value: an epoch is either in it, whole, or not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.heads import make_head
from noshadow.trace.losses import Losses, RunningLosses, losses_of
from noshadow.trace.means import RunningMean, require_finite

__all__ = ["Memory", "marks_of", "require_same"]

_LEAST_LOSS = torch.finfo(torch.float32).tiny / torch.finfo(torch.float32).eps
_MIX = 0x1E3779B97F4A7C15  # an odd number without pattern


@dataclass(frozen=True, eq=False)
class Memory:
    """The epochs so far.

    epochs           how many
    outputs          the mean outputs, (n, m); None: never known
    losses           mean and quartiles of the losses; None: never known
    head             what the losses are of; None: not said
    label_smoothing  likewise
    marks            (n,) a number made of each record's target, by which other records are told; None: never known
    """

    epochs: int = 0
    outputs: RunningMean | None = None
    losses: Losses | None = None
    head: str | None = None
    label_smoothing: float = 0.0
    marks: Tensor | None = None

    @property
    def n(self) -> int | None:
        """Number of records; None: not known before the first epoch."""
        held = self.losses if self.outputs is None else self.outputs.mean
        return None if held is None else held.n if not isinstance(held, Tensor) else len(held)

    def require_shape(self, outputs: Tensor) -> None:
        """Outputs of another shape than in the epochs before are of other records or of another model."""
        if self.outputs is not None and self.outputs.mean.shape != outputs.shape:
            raise InputError(
                f"outputs: expected shape {tuple(self.outputs.mean.shape)} as in the epochs before, got "
                f"{tuple(outputs.shape)}; pass the same records of the same model"
            )

    def with_epoch(self, outputs: Tensor, targets: Tensor | None, head: str | None) -> Memory:
        """With one more epoch: outputs (n, m) on the CPU, whose memory is taken over, and targets in the form that the
        head takes, or None for both."""
        self.require_shape(outputs)
        if self.epochs and (self.losses is None) != (targets is None):
            before, now = ("without", "has") if self.losses is None else ("with", "has none")
            raise InputError(f"targets: the epochs before were recorded {before} targets, and this one {now}")
        if targets is None or head is None:
            return replace(self, epochs=self.epochs + 1, outputs=self._mean_with(outputs))
        marks = marks_of(targets)
        if self.marks is not None:
            require_same(self.marks, marks, "targets", "those of the epochs before")
        require_finite(outputs, "outputs", "training diverged in this epoch, which was not recorded")
        kind = make_head(head, outputs.shape[1], self.label_smoothing)
        found = losses_of(outputs, targets, kind)
        if kind.quadratic:
            _require_units(found, targets)
        if isinstance(self.losses, RunningLosses):
            losses = self.losses.with_epoch(found)
        else:
            losses = RunningLosses.of(found, outputs.shape[1])
        mean = self._mean_with(outputs)  # last: it may take the memory of the outputs
        return replace(self, epochs=self.epochs + 1, outputs=mean, losses=losses, head=head, marks=marks)

    def _mean_with(self, outputs: Tensor) -> RunningMean:
        return RunningMean.of(outputs) if self.outputs is None else self.outputs.with_term(outputs, reuse=True)


def _require_units(losses: Tensor, targets: Tensor) -> None:
    """Refuse values in units so large that float32, which losses (n,) are kept in, has nothing left of them."""
    largest = float(losses.max())
    if 0.0 < largest < _LEAST_LOSS and float(targets.square().max()) < _LEAST_LOSS:
        raise InputError(
            f"outputs, targets: squared errors of {largest:.1g} at most are beyond float32, which they are kept in; "
            "multiply both by a constant"
        )


def marks_of(targets: Tensor) -> Tensor:
    """A number per record, (n,), made of the bits of its target in float32: the same in whatever precision it comes."""
    values = targets.reshape(len(targets), -1).to(device="cpu", dtype=torch.float32) + 0.0  # −0 is 0
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    marks = torch.zeros(len(values), dtype=torch.int64)
    for column in bits.unbind(1):
        marks = (marks + column) * _MIX  # wraps around
    return marks


def require_same(marks: Tensor, others: Tensor, argument: str, whose: str) -> None:
    """Refuse records whose targets are not the same in the same order."""
    if len(marks) != len(others):
        raise InputError(f"{argument}: there are {len(others)} records, not {len(marks)} as in {whose}")
    bad = (marks != others).nonzero().flatten().tolist()
    if not bad:
        return
    moved = torch.equal(marks.sort().values, others.sort().values)
    remedy = "they look like the same records in another order" if moved else "they look like other records"
    raise InputError(
        f"{argument}: the targets of {name_rows(bad)} (counted from 0) are not {whose}; {remedy}: pass the same "
        "records in the same order"
    )
