"""Outputs and targets of all records in one evaluation pass, in the middle of training and without a trace in it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from noshadow.errors import InputError
from noshadow.extract.torch.batches import SECOND, Batch, Signature, is_placed, split
from noshadow.extract.torch.door import Pass, require_layer
from noshadow.extract.torch.kinds import choose_head
from noshadow.extract.torch.loaders import read, undisturbed
from noshadow.extract.torch.matching import named_outputs
from noshadow.extract.torch.watching import evaluating, require_readable, running_eagerly, unwrapped
from noshadow.objective import Objective

__all__ = ["Evaluated", "evaluate_torch"]

_RECORDS, _MOST_RECORDS, _NUMBERS = 256, 2048, 2**18


@dataclass(frozen=True, eq=False)
class Evaluated:
    """What an evaluation pass gave, in the data set's order.

    outputs  (n, m) logits or predictions of the last linear layer
    targets  as the data have them
    head     the loss that they are of
    layer    the name of the layer
    notes    what to know of the data, a sentence each
    """

    outputs: Tensor
    targets: Tensor
    head: str
    layer: str | None
    notes: tuple[str, ...]


def evaluate_torch(
    model: nn.Module,
    data: Any,
    objective: Objective,
    *,
    layer: str | None = None,
    output: str | int | None = None,
    batch_size: int | None = None,
) -> Evaluated:
    """One forward pass in evaluation mode, without gradients and without autocast.

    The data are read and the layer is found as an audit does it, in the first batch; the others are forward passes and
    nothing else. Modes, random states and gradients are afterwards what they were before. Autocast around a
    training loop is off here: outputs are in the model's own precision, as an audit sees them. ``batch_size``: where
    the data come in no batches of their own; None: 256, and more of small records in memory.
    """
    network = unwrapped(model)
    require_readable(network)
    require_layer(network, layer)
    signature = Signature.of(network)
    with undisturbed(), evaluating(network), running_eagerly(), torch.no_grad():
        source = read(data, batch_size or _records_a_batch(data), signature)
        seen = _OutputsPass(network, signature, source.total, layer, output)
        with torch.autocast(seen.device.type, enabled=False):
            for batch in source.batches:
                seen.add(batch)
        outputs, targets, note = seen.collected()
        head, _ = choose_head(network, outputs, targets, seen.activation, objective)
    notes = (*source.notes, *seen.notes, *([note] if note else []))
    return Evaluated(outputs, targets, head, seen.layer, notes)


def _records_a_batch(data: Any) -> int:
    """As many small records as make up a batch of few large ones: then a pass is its arithmetic, not its calls.

    Whole numbers are tokens, as a rule: a model makes a vector of each, and a record is not small.
    """
    inputs = data.tensors[0] if type(data) is TensorDataset else data[0] if isinstance(data, tuple) else None
    if not isinstance(inputs, (Tensor, np.ndarray)) or inputs.ndim < 2 or not _is_floating(inputs):
        return _RECORDS
    return min(max(_RECORDS, _NUMBERS // max(1, math.prod(inputs.shape[1:]))), _MOST_RECORDS)


def _is_floating(inputs: Tensor | np.ndarray[Any, Any]) -> bool:
    return inputs.is_floating_point() if isinstance(inputs, Tensor) else inputs.dtype.kind == "f"


class _OutputsPass(Pass):
    """Once the layer is found and the model returns what it gives, there is nothing left to watch."""

    compared = 32  # features are not kept: all that is asked is whether the layer is linear

    def add(self, raw: Any) -> int:
        batch = self._pair(raw) or split(raw, self.signature).placed(self.device, self.dtype)
        if batch.notes:
            self.notes |= dict.fromkeys(batch.notes)
        if self.head is None or "identity" not in self.activations:
            return self._keep(batch, self._checked(batch)[1])
        (result,) = named_outputs(self._call(batch), batch.count, self.output).values()
        if not result.ndim or len(result) != batch.count:
            raise InputError(
                f"model: it gives outputs of shape {tuple(result.shape)} for {self._where(batch)}, not a row per record"
            )
        if not math.isfinite(result.sum().item()):  # one reduction where all is well
            self._require_finite(batch, {self.output: result})
        return self._keep(batch, result.reshape(batch.count, -1))

    def _pair(self, raw: Any) -> Batch | None:
        """A batch that is two tensors, the inputs in their place, as ``split`` would give it.

        Of small records, asking every batch what it is takes as long as the model does.
        """
        if self.head is None or type(raw) not in (list, tuple) or len(raw) != 2 or len(self.signature.required) > 1:
            return None
        x, y = raw
        plain = type(x) is Tensor and type(y) is Tensor and bool(y.ndim)
        return Batch((x,), {}, {SECOND: y}) if plain and is_placed(x, self.device, self.dtype) else None
