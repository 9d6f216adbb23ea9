"""The trace itself: what can be asked of it, and how it is bound to a layer."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from noshadow.errors import InputError, NoshadowWarning
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.records import Records
from noshadow.targets import check_targets
from noshadow.tensors import as_floats, as_tensor
from noshadow.trace.losses import AllLosses, Losses, losses_of
from noshadow.trace.means import RunningMean, require_finite
from noshadow.trace.memory import Memory, marks_of, require_same


class Trace:
    """What a training run remembers of each record: its mean output and its losses over the epochs.

    For n records and m outputs it holds, whatever the number of epochs, the mean outputs in float32 with what rounding
    took away (1.5 m floats per record), and of the losses the mean and those of a few epochs (max(m, 16) floats):
    see ``noshadow.trace.means`` and ``noshadow.trace.losses`` for how accurate they are.

    Parameters
    ----------
    head : "squared", "logistic" or "softmax"; None: read off the model and the targets, or asked for where they leave
        a choice
    loss : the loss that the model is trained with, by name or as a torch criterion; says the head too
    label_smoothing : ε of a softmax trained on (1 − ε)·e_y + ε/m
    """

    def __init__(self, head: str | None = None, *, loss: Any = None, label_smoothing: float | None = None) -> None:
        self._objective = Objective(head, loss, label_smoothing=label_smoothing).resolved()
        self._memory = Memory(label_smoothing=self._objective.label_smoothing or 0.0)
        self._unread: Tensor | None = None

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

    @classmethod
    def from_losses(cls, losses: Any, mean_outputs: Any = None) -> Trace:
        """From the losses (epochs, n) after each epoch and, where they were kept, the mean outputs (n, m)."""
        all_losses = AllLosses(losses)
        outputs, epochs = None, len(all_losses.values)
        if mean_outputs is not None:
            mean = as_floats(mean_outputs, "mean_outputs").cpu()
            if mean.ndim != 2 or len(mean) != all_losses.n:
                raise InputError(
                    f"mean_outputs: expected shape ({all_losses.n}, m), a row per record, got {tuple(mean.shape)}"
                )
            outputs = replace(RunningMean.of(mean), count=epochs)
        return cls()._with(Memory(epochs, outputs, all_losses))

    @classmethod
    def from_outputs(
        cls, outputs: Any, targets: Any = None, head: str | None = None, *, label_smoothing: float | None = None
    ) -> Trace:
        """From the outputs (epochs, n, m) of all records, in their order, after each epoch.

        Losses are taken at once where targets and head are given; else when the trace meets a layer, which has both.
        The array is held, not copied, until then.
        """
        values = as_floats(outputs, "outputs")
        if values.ndim != 3 or 0 in values.shape:
            hint = "; for one output per record pass outputs[..., None], for one epoch outputs[None]"
            raise InputError(
                f"outputs: expected shape (epochs, n, m), got {tuple(values.shape)}{hint if values.ndim == 2 else ''}"
            )
        if (targets is None) != (head is None):
            raise InputError("targets, head: give both or neither: a loss needs both")
        for epoch, one in enumerate(values):
            require_finite(one, f"outputs[{epoch}]", "leave out the epochs in which training diverged")
        mean = RunningMean.of(values[0])
        for one in values[1:]:
            mean = mean.with_term(one)
        trace = cls(head, label_smoothing=label_smoothing)
        trace._memory = replace(trace._memory, epochs=len(values), outputs=mean)
        trace._unread = values
        if head is None:
            return trace
        return trace._with_losses(check_targets(as_tensor(targets, "targets"), values[0], head), head)

    @classmethod
    def of(cls, value: Any, layer: LastLayer) -> Trace:
        """A trace, or losses (epochs, n), of the records of this layer; refused where it is of others."""
        if not isinstance(value, Trace):
            return cls.from_losses(_losses_of_layer(value, layer.n))
        memory = value._memory
        if not value.epochs:
            raise InputError("trace: it holds no epoch; call trace.update(model, data) after each epoch of training")
        if isinstance(memory.losses, AllLosses):
            _losses_of_layer(memory.losses.values, layer.n)
        if memory.outputs is not None:
            _require_shape(value._unread, memory.outputs.mean, layer)
            _require_logits(memory.outputs.mean, layer)
        if memory.head is not None and memory.head != layer.head:
            raise InputError(
                f"trace: its losses are those of a {memory.head} head, the layer has a {layer.head} one; make it with "
                f"Trace(head={layer.head!r})"
            )
        if memory.marks is not None:
            require_same(memory.marks, marks_of(layer.targets), "trace", "the layer's")
        if memory.head is not None and memory.label_smoothing != layer.label_smoothing:
            warnings.warn(
                f"trace: its losses were taken with label_smoothing={memory.label_smoothing:g}, the layer has "
                f"{layer.label_smoothing:g}; mean_trace and trace_iqr are of the former. Make the trace with "
                f"Trace(label_smoothing={layer.label_smoothing:g})",
                NoshadowWarning,
                stacklevel=3,
            )
        if value._unread is not None and value.losses is None:
            smoothed = value._with(replace(memory, label_smoothing=layer.label_smoothing))
            return smoothed._with_losses(layer.targets, layer.head)
        return value

    def _with(self, memory: Memory) -> Trace:
        """Another trace with this memory."""
        other = Trace()
        other.__dict__.update(self.__dict__, _memory=memory)
        return other

    def _with_losses(self, targets: Tensor, head: str) -> Trace:
        """With the losses of the outputs that are held, for targets in the form that the head takes."""
        assert self._unread is not None
        kind = make_head(head, self._unread.shape[2], self._memory.label_smoothing)
        where = self._unread.device
        losses = torch.stack([losses_of(one, targets.to(where), kind) for one in self._unread])
        if len(losses) < 2:  # no spread: the mean outputs are all there is
            return self
        return self._with(replace(self._memory, losses=AllLosses(losses), head=head, marks=marks_of(targets)))

    def __repr__(self) -> str:
        shape = "" if self.n is None else f", {self.n} records"
        known = [name for name in ("mean_outputs", "losses") if getattr(self, name) is not None]
        return f"Trace({self.epochs} epochs{shape}{''.join(f', {name}' for name in known)})"


def _losses_of_layer(value: Any, n: int) -> Tensor:
    """Losses (epochs, n); a transposed array is named."""
    losses = as_floats(value, "trace")
    if losses.ndim == 3:
        raise InputError(
            f"trace: expected shape (epochs, n), a row per epoch, got {tuple(losses.shape)}; outputs (epochs, n, m) "
            "are passed as noshadow.Trace.from_outputs(outputs)"
        )
    if losses.ndim == 2 and losses.shape[1] != n:
        transposed = losses.shape[0] == n
        remedy = "it looks transposed: pass trace.T" if transposed else "pass the same records in the same order"
        raise InputError(f"trace: expected shape (epochs, {n}), a row per epoch, got {tuple(losses.shape)}; {remedy}")
    return losses


def _require_shape(outputs: Tensor | None, mean: Tensor, layer: LastLayer) -> None:
    """Mean outputs (n, m) of the layer's records; outputs (epochs, n, m) with other axes are named."""
    n, m = layer.n, layer.n_outputs
    if tuple(mean.shape) == (n, m):
        return
    if outputs is not None:
        turns = {(0, 2, 1): "outputs.transpose(0, 2, 1)", (1, 0, 2): "outputs.transpose(1, 0, 2)"}
        for order, turn in turns.items():
            if tuple(outputs.shape[axis] for axis in order)[1:] == (n, m):
                raise InputError(
                    f"trace: expected outputs of shape (epochs, {n}, {m}), got {tuple(outputs.shape)}; they look "
                    f"transposed: pass {turn}"
                )
    remedy = "pass the same records in the same order" if mean.shape[1] == m else "it is of another model or output"
    raise InputError(
        f"trace: it is of {mean.shape[0]} records with {mean.shape[1]} outputs, the layer has {n} with {m}; {remedy}"
    )


def _require_logits(mean: Tensor, layer: LastLayer) -> None:
    """Refuse mean probabilities where the layer's outputs are logits."""
    if layer.head == "squared" or not _within_unit(mean) or _within_unit(layer.outputs):
        return
    if layer.head == "softmax" and not bool(((mean.sum(1) - 1).abs() < 5e-3).all()):
        return
    raise InputError(
        "trace: its outputs look like probabilities (all within [0, 1]), those of the layer are logits; record the "
        "outputs of the last linear layer, before softmax or sigmoid"
    )


def _within_unit(values: Tensor) -> bool:
    return bool((values >= 0).all()) and bool((values <= 1).all())
