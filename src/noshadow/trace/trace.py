"""The trace itself: how it is recorded, kept, and bound to a layer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noshadow.errors import InputError, NoshadowWarning
from noshadow.extract.guess import guess_head
from noshadow.extract.torch import evaluate_torch, unwrapped
from noshadow.files import check_output
from noshadow.heads import make_head
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.tensors import as_floats, as_tensor
from noshadow.trace.arrays import mean_of_epochs, memory_of_losses, read_epochs, require_unchanged
from noshadow.trace.asking import Seen, asked_of_trace, checked, known_by
from noshadow.trace.binding import losses_for, require_bound
from noshadow.trace.checkpoints import each_loaded
from noshadow.trace.epoch import Epoch, read_batch
from noshadow.trace.losses import AllLosses, losses_of
from noshadow.trace.memory import Memory, marks_of
from noshadow.trace.remembered import Remembered
from noshadow.trace.storage import memory_of, parts_of, read_memory, write_memory

__all__ = ["Trace"]


class Trace(Remembered):
    """What a training run remembers of each record: its mean output and its losses over the epochs.

    For n records and m outputs it holds, whatever the number of epochs, the mean outputs in float32 with what rounding
    took away (1.5 m floats per record), and of the losses the mean and those of a few epochs (max(m, 16) floats):
    see ``noshadow.trace.means`` and ``noshadow.trace.losses`` for how accurate they are.

    Parameters
    ----------
    head : "squared", "logistic" or "softmax", optional
        None: read off the model and the targets, or asked for where they leave a choice.
    loss : str or torch criterion, optional
        The loss that the model is trained with; says the head too.
    label_smoothing : float, optional
        ε of a softmax trained on (1 − ε)·e_y + ε/m.
    layer, output : str or int, optional
        Which linear layer, which of several outputs of a torch module, as in ``noshadow.audit``.
    batch_size : int, optional
        Records in a forward pass, where the data come in no batches of their own. None: 256, and more of small records.

    Examples
    --------
    >>> import noshadow, tempfile, torch
    >>> data = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> trace = noshadow.Trace()
    >>> for epoch in range(5):
    ...     optimizer.zero_grad()
    ...     torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    ...     _ = optimizer.step()
    ...     trace.update(model, data)
    >>> trace.epochs, trace.n, tuple(trace.mean_outputs.shape)
    (5, 40, (40, 2))
    >>> bool((trace.lower_quartile <= trace.upper_quartile).all())
    True
    >>> path = trace.save(f"{tempfile.mkdtemp()}/trace.safetensors")
    >>> again = noshadow.Trace.load(path)  # goes on from there; so does a new one, after new.resume(path)
    >>> again.update(model, data)
    >>> again.resume(path)
    >>> again.epochs
    5
    """

    def __init__(
        self,
        head: str | None = None,
        *,
        loss: Any = None,
        label_smoothing: float | None = None,
        layer: str | None = None,
        output: str | int | None = None,
        batch_size: int | None = None,
    ) -> None:
        self._objective = Objective(head, loss, label_smoothing=label_smoothing).resolved()
        self._choices: dict[str, Any] = {"layer": layer, "output": output, "batch_size": batch_size}
        self._memory = Memory(label_smoothing=self._objective.label_smoothing or 0.0)
        self._epoch: Epoch | None = None
        self._unread: Tensor | None = None
        self._said: set[str] = set()
        self._seen = Seen()

    def update(
        self, model: Any = None, data: Any = None, *, outputs: Any = None, targets: Any = None, rows: Any = None
    ) -> None:
        """Remember one more epoch, or a batch of it. An epoch that is refused leaves the trace as it was.

        ``update(model, data)`` after each epoch of training: one forward pass over the records in the data set's
        order, in evaluation mode. Nothing of the training changes: modes, random states, gradients.

        ``update(outputs=, targets=)``, (n, m) and targets of all records in their order: one epoch.

        ``update(outputs=, targets=, rows=)``, a batch and the places of its records in the data: part of an epoch,
        which ``end_epoch()`` ends. Each record comes once in an epoch.

        Without targets the mean outputs alone are remembered.

        Parameters
        ----------
        model : torch.nn.Module, optional
            The model as it is after the epoch.
        data : Dataset, DataLoader or (X, y), optional
            Its training data, as ``noshadow.audit`` takes them.
        outputs : array (b, m), optional
            Logits or predictions.
        targets : array (b,) or (b, q), optional
            Of the same records.
        rows : array (b,) of int, optional
            Their places in the data, from 0.

        Raises
        ------
        InputError
            Records that are missing, repeated or others than before; values that are not finite.

        Examples
        --------
        >>> import noshadow
        >>> trace = noshadow.Trace("squared")
        >>> trace.update(outputs=[[0.0], [1.0]], targets=[1.0, 1.0])
        >>> trace.update(outputs=[[1.0]], targets=[1.0], rows=[1])  # the next epoch, in batches
        >>> trace.update(outputs=[[1.0]], targets=[1.0], rows=[0])
        >>> trace.end_epoch()
        >>> trace.mean_outputs.tolist(), trace.mean_loss.tolist()
        ([[0.5], [1.0]], [0.5, 0.0])
        """
        if (model is None) == (outputs is None):
            raise InputError("model, outputs: pass either the model and its data, or outputs")
        if isinstance(self._memory.losses, AllLosses) or self._unread is not None:
            raise InputError("trace: it was made from whole arrays and takes no more epochs; begin a new Trace()")
        if model is not None:
            if targets is not None or rows is not None:
                raise InputError("targets, rows: they go with outputs=; the model's data has its own")
            self._evaluate(model, data)
            return
        if data is not None:
            raise InputError("data: it goes with a model; pass the targets of outputs as targets=")
        z, y = read_batch(outputs, targets)
        if rows is not None:
            epoch = self._epoch or Epoch(self.n)
            epoch.add(z, y, rows)
            self._epoch = epoch
            return
        self._require_no_batches()
        if not len(z):
            raise InputError("outputs: there are no rows")
        self._remember(z, y)

    def end_epoch(self) -> None:
        """The end of an epoch that came in batches; refused while a record is missing."""
        outputs, targets = (self._epoch or Epoch(self.n)).whole()
        self._epoch = None  # one that is refused from here on, as it diverged, is over too: the next may begin
        self._remember(outputs, targets)

    def _evaluate(self, model: Any, data: Any) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model: expected a torch Module, got {type(model).__name__}; of others pass outputs= and targets="
            )
        if data is None:
            raise InputError("data: pass the training data, as a Dataset, a DataLoader or (X, y)")
        self._require_no_batches()
        with asked_of_trace():
            found = evaluate_torch(model, data, self._objective, **self._choices)
        self._remember(found.outputs, found.targets, found.head)
        self._choices["layer"] = found.layer or None  # later epochs need not look for it
        for note in found.notes:
            if note not in self._said:
                warnings.warn(note, NoshadowWarning, stacklevel=3)
        self._said.update(found.notes)

    def _remember(self, outputs: Tensor, targets: Tensor | None, head: str | None = None) -> None:
        self._memory.require_shape(outputs)  # first: what is said of targets takes their width as given
        mark = known_by(outputs)  # before the memory of the outputs is taken over
        if targets is None:
            self._memory = self._memory.with_epoch(outputs, None, None)
        else:
            with asked_of_trace():
                kind = self._memory.head or head or guess_head(outputs, targets, self._objective)
            self._memory = self._memory.with_epoch(outputs, checked(targets, outputs, kind), kind)
        self._seen = self._seen.then(mark, self.epochs)

    def _require_no_batches(self) -> None:
        if self._epoch is not None:
            raise InputError("rows: an epoch in batches has begun; end it with trace.end_epoch() first")

    @classmethod
    def of_memory(cls, memory: Memory) -> Trace:
        """A trace that holds this."""
        return cls()._with(memory)

    @classmethod
    def from_losses(cls, losses: Any, mean_outputs: Any = None) -> Trace:
        """From the losses after each epoch and, where they were kept, the mean outputs; both are copied.

        Parameters
        ----------
        losses : array (epochs, n)
            In nats, or in squared units of the target.
        mean_outputs : array (n, m), optional
            z̄ of the records.

        Returns
        -------
        Trace

        Examples
        --------
        >>> import noshadow
        >>> noshadow.Trace.from_losses([[2.0, 1.0], [1.0, 0.5]]).mean_loss.tolist()
        [1.5, 0.75]
        """
        kept = as_floats(losses, "trace").clone()  # a training loop may write over its own
        return cls()._with(memory_of_losses(kept, mean_outputs))

    @classmethod
    def from_outputs(
        cls, outputs: Any, targets: Any = None, head: str | None = None, *, label_smoothing: float | None = None
    ) -> Trace:
        """From the outputs of all records, in their order, after each epoch.

        Losses are taken at once where targets and head are given; else when the trace meets a layer, which has both.
        The array is held, not copied, until then: one that was written over by then is refused.

        Parameters
        ----------
        outputs : array (epochs, n, m)
            Logits or predictions.
        targets : array (n,) or (n, q), optional
            Of the records.
        head : "squared", "logistic" or "softmax", optional
            With the targets.
        label_smoothing : float, optional
            ε of the labels that the losses are to.

        Returns
        -------
        Trace

        Examples
        --------
        >>> import noshadow
        >>> trace = noshadow.Trace.from_outputs([[[0.0], [1.0]], [[2.0], [3.0]]], [1, 1], "logistic")
        >>> trace.epochs, trace.mean_outputs.tolist()
        (2, [[1.0], [2.0]])
        """
        if (targets is None) != (head is None):
            raise InputError("targets, head: give both or neither: a loss needs both")
        if head is None and label_smoothing is not None:
            raise InputError(
                "label_smoothing: without targets and head the losses are those of the layer, with its own; leave it "
                "out, or give all three"
            )
        values = read_epochs(outputs)
        trace = cls(head, label_smoothing=label_smoothing)
        trace._memory = replace(trace._memory, epochs=len(values), outputs=mean_of_epochs(values))
        trace._unread = values
        if head is None:
            return trace
        return trace._with_losses(checked(as_tensor(targets, "targets"), values[0], head), head)

    @classmethod
    def from_checkpoints(cls, model: nn.Module, state_dicts: Iterable[Any], data: Any, **options: Any) -> Trace:
        """From the weights after some of the epochs: one evaluation pass for each.

        Parameters
        ----------
        model : torch.nn.Module
            Its own weights are back at the end, whatever happens.
        state_dicts : list of mappings or paths
            Of this model, in any number: state dicts, .safetensors files, .pt files that hold nothing but tensors, or
            folders with one of them.
        data : Dataset, DataLoader or (X, y)
            The training data, as ``noshadow.audit`` takes them.
        **options
            As for ``Trace``.

        Returns
        -------
        Trace

        Examples
        --------
        >>> import noshadow, torch
        >>> data = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])
        >>> checkpoints = [torch.nn.Linear(3, 2).state_dict() for _ in range(4)]
        >>> noshadow.Trace.from_checkpoints(torch.nn.Linear(3, 2), checkpoints, data).epochs
        4
        """
        if not isinstance(model, nn.Module):
            raise InputError(f"model: expected a torch Module, got {type(model).__name__}")
        trace = cls(**options)
        for _ in each_loaded(unwrapped(model), state_dicts):
            trace.update(model, data)
        if not trace.epochs:
            raise InputError("state_dicts: there is none; pass one for each checkpoint")
        return trace

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Keep it in a safetensors file with a checksum, for its owner alone to read; ``load`` goes on from there."""
        self._require_no_batches()
        target = check_output(path, (".safetensors",), "path")
        if self._unread is not None and self.losses is None:
            warnings.warn(
                "trace: its losses are not known yet, so the file lacks them; pass targets and head to from_outputs",
                NoshadowWarning,
                stacklevel=2,
            )
        write_memory(target, self._memory)
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Trace:
        """What was saved. It can be updated further, with the same records: others are told by their targets.

        ``options`` are those of ``Trace``; the head and the smoothing of the losses are in the file.
        """
        trace = cls(**options)
        trace.resume(path)
        return trace

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Go on from what was saved, in place of what this trace holds."""
        self._resumed(read_memory(path))

    def state_dict(self) -> dict[str, Any]:
        """What it holds, for the checkpoints of a training run: arrays as tensors, facts as plain values.

        With ``load_state_dict`` it is all that such a checkpoint asks for: ``accelerator.register_for_checkpointing``
        takes a trace as it is. An epoch in batches that has not ended is not in it.
        """
        arrays, facts = parts_of(self._memory)
        return {"arrays": {name: torch.from_numpy(array) for name, array in arrays.items()}, "facts": facts}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave, in place of what this trace holds."""
        try:
            arrays = {name: np.asarray(value.cpu()) for name, value in state_dict["arrays"].items()}
            facts = dict(state_dict["facts"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InputError("state_dict: it is not that of a trace; pass what Trace.state_dict() gave") from None
        self._resumed(memory_of(arrays, facts))

    def _resumed(self, memory: Memory) -> None:
        """Take over what was kept; refused where it was recorded with another loss than this one is for."""
        stated = self._objective
        if memory.head is not None:
            stated.require(memory.head)
        smoothing = stated.label_smoothing
        if smoothing is not None and smoothing != memory.label_smoothing:
            raise InputError(
                f"label_smoothing: {smoothing:g}, but the losses of the trace were taken with "
                f"{memory.label_smoothing:g}; leave it out"
            )
        self._memory, self._epoch, self._unread, self._seen = memory, None, None, Seen()

    @classmethod
    def of(cls, value: Any, layer: LastLayer) -> Trace:
        """A trace, or losses (epochs, n), of the records of this layer; refused where it is of others.

        The only place where a trace and a layer meet.
        """
        if not isinstance(value, Trace):
            return cls()._with(memory_of_losses(losses_for(value, layer), None))
        value._require_no_batches()
        require_bound(value._memory, value._unread, layer)
        if value._unread is None or value.losses is not None:
            return value
        assert value._memory.outputs is not None
        require_unchanged(value._unread, value._memory.outputs)
        smoothed = value._with(replace(value._memory, label_smoothing=layer.label_smoothing))
        return smoothed._with_losses(layer.targets, layer.head)

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
        known = replace(self._memory, head=head, marks=marks_of(targets))
        if len(self._unread) < 2:  # no spread: the mean outputs are all there is
            return self._with(known)
        losses = torch.stack([losses_of(one, targets.to(where), kind) for one in self._unread])
        return self._with(replace(known, losses=AllLosses(losses)))
