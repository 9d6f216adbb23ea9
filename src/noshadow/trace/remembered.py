"""What a trace remembers, and all that can be asked of it: by scores, by layers, by those who hold it."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from noshadow.records import Records
from noshadow.trace.losses import Losses
from noshadow.trace.memory import Memory

__all__ = ["Remembered"]


class Remembered:
    """A memory that can be read; ``Trace`` is what records into it."""

    _memory: Memory

    @property
    def memory(self) -> Memory:
        """What it holds, as one value."""
        return self._memory

    @property
    def epochs(self) -> int:
        """How many epochs it remembers."""
        return self._memory.epochs

    @property
    def n(self) -> int | None:
        """Number of records; None before the first epoch."""
        return self._memory.n

    @property
    def mean_outputs(self) -> Tensor | None:
        """z̄ = (1/E) Σ z_t, (n, m) in float32: logits or predictions; None where outputs were never known."""
        return None if self._memory.outputs is None else self._memory.outputs.mean

    @property
    def losses(self) -> Losses | None:
        """Mean and quartiles of the losses, by rows; None where losses were never known."""
        return self._memory.losses

    @property
    def mean_loss(self) -> Tensor | None:
        """(n,) the mean over the epochs of a record's loss, in float64."""
        return None if self.losses is None else self.losses.mean(slice(None))

    @property
    def lower_quartile(self) -> Tensor | None:
        """(n,) Q₁ over the epochs of a record's loss, in float64."""
        return None if self.losses is None else self.losses.quartiles(slice(None))[0]

    @property
    def upper_quartile(self) -> Tensor | None:
        """(n,) Q₃ over the epochs of a record's loss, in float64."""
        return None if self.losses is None else self.losses.quartiles(slice(None))[1]

    def records(self, records: Records) -> Records:
        """The same records of the layer with the mean outputs z̄ in place of the final ones, in float64."""
        if self.mean_outputs is None:
            raise RuntimeError("the mean outputs are not known: register the score with needs={'mean_outputs'}")
        return replace(records, outputs=self.mean_outputs[records.rows].to(records.outputs))

    def __repr__(self) -> str:
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        shape = "" if self.n is None else f", {self.n} records"
        known = [name for name in ("mean_outputs", "losses") if getattr(self, name) is not None]
        return f"{type(self).__name__}({epochs}{shape}{''.join(f', {name}' for name in known)})"
