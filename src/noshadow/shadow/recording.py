"""What a training run can keep beside its final outputs, so that a new score can be tried without training again.

    epoch_losses         (E, N)     the loss of every record after each epoch
    mean_outputs         (N, m)     the mean over epochs of the outputs (logits or predictions), z̄ = (1/E) Σ z_t
    checkpoint_epochs    (C,)       after how many epochs a checkpoint was taken, evenly spread, before the end
    checkpoint_outputs   (C, N, m)  outputs then
    checkpoint_features  (C, N, p)  inputs of the last linear layer then
    features             (N, p)     the same at the end
    weights              (P,)       all trained numbers and buffers at the end, in the order of the module's state

All are taken in evaluation mode. Features are left out where the model is a single linear layer: they are its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noshadow.errors import InputError
from noshadow.extract.found import Options
from noshadow.extract.torch import extract_torch
from noshadow.heads import get_head
from noshadow.objective import Objective

__all__ = ["Recorder", "Recording", "restore"]


@dataclass(frozen=True)
class Recording:
    """Which of them a ``TorchTrainer`` keeps: losses and means always, the rest as asked.

    Parameters
    ----------
    checkpoints : int
        How many checkpoints' outputs.
    features : bool
        The inputs of the last layer.
    weights : bool
        The parameters of the network.

    Examples
    --------
    >>> from noshadow import shadow
    >>> shadow.Recording(checkpoints=4).epochs(100)
    [20, 40, 60, 80]
    """

    checkpoints: int = 4
    features: bool = True
    weights: bool = False

    def __post_init__(self) -> None:
        if self.checkpoints < 0:
            raise InputError(f"checkpoints: must not be negative, got {self.checkpoints}")

    def epochs(self, total: int) -> list[int]:
        """After which epochs the checkpoints are taken: ⌈total · k / (C + 1)⌉ for k = 1 … C."""
        return [-(-total * k // (self.checkpoints + 1)) for k in range(1, self.checkpoints + 1)]


class Recorder:
    """Collects the arrays of one run."""

    def __init__(
        self, record: Recording, epochs: int, module: nn.Module, data: tuple[Tensor, Tensor], head: str
    ) -> None:
        self._record = record
        self._module = module
        self._data = data
        self._head = head
        self._epochs = record.epochs(epochs)
        self._done = 0
        self._losses: list[Tensor] = []
        self._sum = torch.zeros(())
        self._checkpoints: list[tuple[Tensor, Tensor]] = []

    def epoch(self, outputs: Tensor) -> None:
        """To be called after each epoch with the outputs (N, m) of all records."""
        self._done += 1
        outputs = outputs.double()
        targets = self._data[1].to(outputs.device)
        self._losses.append(get_head(self._head).loss(outputs, targets).float())
        self._sum = self._sum + outputs
        if self._done in self._epochs:
            self._checkpoints += [self._snapshot()] * self._epochs.count(self._done)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was asked for, at the end of the run."""
        kept: dict[str, Any] = {
            "epoch_losses": torch.stack(self._losses),
            "mean_outputs": (self._sum / self._done).float(),
        }
        if self._checkpoints:
            features, outputs = zip(*self._checkpoints, strict=True)
            kept |= {"checkpoint_epochs": torch.tensor(self._epochs), "checkpoint_outputs": torch.stack(outputs)}
            if self._keeps_features:
                kept["checkpoint_features"] = torch.stack(features)
        if self._keeps_features:
            kept["features"] = self._snapshot()[0]
        if self._record.weights:
            kept["weights"] = torch.cat([value.flatten().float() for value in self._module.state_dict().values()])
        return {name: np.ascontiguousarray(value.cpu().numpy()) for name, value in kept.items()}

    @property
    def _keeps_features(self) -> bool:
        return self._record.features and not isinstance(self._module, nn.Linear)

    def _snapshot(self) -> tuple[Tensor, Tensor]:
        layer = extract_torch(self._module, self._data, Objective(head=self._head), Options(progress=False)).layer
        return layer.features.float(), layer.outputs.float()


def restore(module: nn.Module, weights: NDArray[Any]) -> nn.Module:
    """A freshly built module with the ``weights`` of a run: the inverse of what is kept."""
    state = module.state_dict()
    sizes = [value.numel() for value in state.values()]
    values = torch.as_tensor(weights)
    if sum(sizes) != len(values):
        raise InputError(f"weights: {len(values)} numbers, but this module has {sum(sizes)}")
    parts = zip(state.items(), torch.split(values, sizes), strict=True)
    module.load_state_dict({name: part.reshape(value.shape).to(value.dtype) for (name, value), part in parts})
    return module
