"""What an optimiser's weight decay means for the objective: the ridge rule.

Weight decay λ of SGD, or of anything that solves the penalised problem, is the gradient of λ/2 ‖θ‖²: such a head
minimises the mean loss + λ/2 ‖θ‖², and Λ is λ times what the mean divides by. Optimisers that scale each gradient by
its own history (Adam and its kin) do not: in Adam the decay is scaled along with the gradient, in AdamW it stands
beside it. Neither stops where  Σ loss + Λ/2 ‖θ‖²  is least for any Λ, and Λ = 0, the plain loss, is what the formulas
take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from noshadow.errors import InputError

__all__ = ["PENALISED", "SCALED", "Decay", "read_optimizer"]

PENALISED = ("sgd", "asgd", "lbfgs", "closed_form")
SCALED = (
    *("adam", "adamw", "adamax", "nadam", "radam", "sparseadam", "adagrad", "adadelta", "rmsprop", "rprop"),
    *("adafactor", "lion", "lamb", "muon"),
)


@dataclass(frozen=True)
class Decay:
    """weight_decay λ of the head's weights, None where only a name is known; whether its bias decays too, None where
    that is not known; and whether λ is part of an objective."""

    optimizer: str
    weight_decay: float | None = None
    on_bias: bool | None = None

    @property
    def penalises(self) -> bool:
        return self.optimizer in PENALISED


def read_optimizer(optimizer: Any, head: nn.Module | None = None) -> Decay:
    """From a name, or from a torch optimiser that holds the parameters of ``head``."""
    if isinstance(optimizer, str):
        name = optimizer.lower().replace("-", "_")
    elif isinstance(optimizer, Optimizer):
        name = type(optimizer).__name__.lower()
    else:
        raise InputError(f"optimizer: expected a name or a torch optimizer, got {type(optimizer).__name__}")
    if name not in PENALISED + SCALED:
        raise InputError(
            f"optimizer: it is not known what the weight decay of {name!r} minimises; pass ridge=, 0 unless it solves "
            f"the penalised problem, or one of {', '.join(map(repr, PENALISED + SCALED))}"
        )
    if not isinstance(optimizer, Optimizer) or head is None:
        return Decay(name)
    weight = _decay_of(optimizer, head.weight)
    if weight is None:
        raise InputError(
            "optimizer: it does not hold the weights of the last layer, so these were not trained by it; pass the one "
            "that trained the model"
        )
    bias = _decay_of(optimizer, head.bias) if isinstance(head.bias, nn.Parameter) else None
    if bias not in (None, 0.0, weight):
        raise InputError(
            f"optimizer: the bias of the last layer decays by {bias:g}, its weights by {weight:g}; such a penalty is "
            "not known here: pass ridge= or the weight_decay= of the weights"
        )
    return Decay(name, weight, None if bias is None else bias == weight)


def _decay_of(optimizer: Optimizer, parameter: Any) -> float | None:
    """The weight decay of the group that holds the parameter."""
    for group in optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return float(group.get("weight_decay", 0.0))
    return None
