"""A training recipe: optimiser, epochs, batches, schedule, augmentation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from noshadow.errors import InputError
from noshadow.shadow.fingerprint import describe_value

__all__ = ["ELEMENTWISE_OPTIMIZERS", "SCHEDULES", "Augment", "Loss", "Recipe", "Schedule"]

Loss = Callable[[Tensor, Tensor], Tensor]
Augment = Callable[[Tensor, torch.Generator], Tensor]
Schedule = Callable[[float], float]

# Each of these updates every number by itself, so stacking models changes nothing for any of them.
ELEMENTWISE_OPTIMIZERS = (SGD, Adam, AdamW, RMSprop, Adagrad)

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Parameters
    ----------
    epochs, batch_size : int
        Passes over the members, and records in a step.
    optimizer : "adam", "adamw", "sgd" or callable
        Or a function parameters -> torch optimiser.
    learning_rate, weight_decay : float
        Of the optimizer; the decay is λ on a mean loss.
    momentum : float
        Of "sgd".
    schedule : "constant", "linear", "cosine" or callable
        Or a function that gives the factor of the learning rate when a fraction (0 … 1) of training is done.
    augment : callable, optional
        A function (inputs of a batch, torch.Generator) -> inputs, random by that generator only.

    Examples
    --------
    >>> from noshadow import shadow
    >>> shadow.Recipe(epochs=10, batch_size=32, optimizer="sgd", learning_rate=0.1, schedule="cosine").momentum
    0.0
    """

    epochs: int
    batch_size: int
    optimizer: str | Callable[[Iterable[Tensor]], Optimizer] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    schedule: str | Schedule = "constant"
    augment: Augment | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if not callable(self.optimizer) and self.optimizer not in ("adam", "adamw", "sgd"):
            raise InputError(f"optimizer: {self.optimizer!r} is not one of 'adam', 'adamw', 'sgd', nor a function")
        if not callable(self.schedule) and self.schedule not in SCHEDULES:
            raise InputError(f"schedule: {self.schedule!r} is not one of {sorted(SCHEDULES)}, nor a function")

    def build_optimizer(self, parameters: Iterable[Tensor]) -> Optimizer:
        parameters = list(parameters)
        if callable(self.optimizer):
            return self.optimizer(parameters)
        settings: dict[str, Any] = {"lr": self.learning_rate, "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            settings["momentum"] = self.momentum
        kind: Any = {"adam": Adam, "adamw": AdamW, "sgd": SGD}[self.optimizer]
        try:
            optimizer: Optimizer = kind(parameters, **settings, fused=True)  # one pass over the numbers, not ten
        except (RuntimeError, TypeError):  # this device or version of torch has none
            optimizer = kind(parameters, **settings)
        return optimizer

    def factor(self, done: float) -> float:
        """What the learning rate is multiplied with when this fraction of training is done."""
        schedule = self.schedule if callable(self.schedule) else SCHEDULES[self.schedule]
        return schedule(done)

    def parts(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def fingerprint(self) -> dict[str, Any]:
        """The fields as JSON: numbers and names as they are, functions by their content."""
        return {name: describe_value(value, name) for name, value in self.parts().items()}
