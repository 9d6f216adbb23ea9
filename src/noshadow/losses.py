"""Losses by name or as torch criteria: which head they train, and with which weights.

A loss that has no head here is refused by its name, and so is what only resembles a known one: a subclass of a
criterion may compute anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noshadow.errors import InputError

__all__ = ["Loss", "read_loss"]

_NAMES: dict[str, tuple[str, ...]] = {
    "mse": ("squared",),
    "squarederror": ("squared",),
    "meansquarederror": ("squared",),
    "bce": ("logistic",),
    "bcewithlogits": ("logistic",),
    "binarycrossentropy": ("logistic",),
    "binarycrossentropywithlogits": ("logistic",),
    "crossentropy": ("softmax",),
    "categoricalcrossentropy": ("softmax",),
    "sparsecategoricalcrossentropy": ("softmax",),
    "nll": ("softmax",),
    "log": ("logistic", "softmax"),
}
_KNOWN = "'mse', 'bce_with_logits', 'cross_entropy' or 'log_loss', or nn.MSELoss, nn.BCEWithLogitsLoss, nn.BCELoss, "
_KNOWN += "nn.CrossEntropyLoss or nn.NLLLoss"


@dataclass(frozen=True, eq=False)
class Loss:
    """What a stated loss says.

    name             what it is called
    heads            the heads that it may be the loss of; two for a log loss, which is logistic or softmax
    class_weight     None, (m,) for softmax, (k, 2) for logistic: the weights of 0 and of 1, for k = 1 or m labels
    label_smoothing  None: it says nothing
    reduction        "mean", "sum" or "none", as torch has it
    """

    name: str
    heads: tuple[str, ...]
    class_weight: Tensor | None = None
    label_smoothing: float | None = None
    reduction: str = "mean"


def read_loss(loss: Any) -> Loss:
    """A loss by name, as a function of torch.nn.functional or as a torch criterion."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        return Loss(loss, _heads(loss))
    if isinstance(loss, type):
        raise InputError(f"loss: {loss.__name__} is a class; pass the criterion itself, e.g. {loss.__name__}()")
    name = getattr(loss, "__name__", type(loss).__name__)
    if isinstance(loss, nn.Module):
        return _criterion(loss, name)
    if getattr(nn.functional, name, None) is loss:
        return Loss(name, _heads(name))
    raise _unknown(name)


def _heads(name: str) -> tuple[str, ...]:
    compact = "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("loss")
    if compact not in _NAMES:
        raise _unknown(name)
    return _NAMES[compact]


def _unknown(name: str) -> InputError:
    return InputError(f"loss: {name!r} has no head that is known here; audit models trained with {_KNOWN}")


def _criterion(loss: nn.Module, name: str) -> Loss:
    # by exact type: a focal loss may well be a subclass of nn.CrossEntropyLoss
    if type(loss) is nn.MSELoss:
        return Loss(name, ("squared",), reduction=loss.reduction)
    if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss):
        return _softmax(loss, name)
    if type(loss) in (nn.BCELoss, nn.BCEWithLogitsLoss):
        return _logistic(loss, name)
    raise _unknown(name)


def _softmax(loss: Any, name: str) -> Loss:
    if loss.ignore_index >= 0:
        raise InputError(
            f"loss: {name}(ignore_index={loss.ignore_index}) left the records of class {loss.ignore_index} out of "
            "training; leave them out of data too, and pass the criterion without ignore_index"
        )
    weight = None if loss.weight is None else loss.weight.detach()
    return Loss(name, ("softmax",), weight, getattr(loss, "label_smoothing", None), loss.reduction)


def _logistic(loss: Any, name: str) -> Loss:
    """A weight per label times a weight of its positives; weights per record belong in sample_weight."""
    weight, positive = loss.weight, getattr(loss, "pos_weight", None)
    if weight is None and positive is None:
        return Loss(name, ("logistic",), reduction=loss.reduction)
    for argument, given in (("weight", weight), ("pos_weight", positive)):
        if given is not None and given.ndim > 1:
            raise InputError(
                f"loss: {name}({argument}=) has shape {tuple(given.shape)}, but noshadow takes one number per label, "
                "(m,); pass weights of records as sample_weight="
            )
    one = torch.ones(1, dtype=torch.float64)
    label = one if weight is None else weight.detach().to(one).reshape(-1)
    ones = label * (one if positive is None else positive.detach().to(one).reshape(-1))
    return Loss(name, ("logistic",), torch.stack((label.expand_as(ones), ones), 1), reduction=loss.reduction)
