"""Which loss the outputs were trained with, and which element of the records is its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from noshadow.errors import InputError
from noshadow.extract.guess import guess_head
from noshadow.extract.torch.batches import Signature
from noshadow.objective import Objective

__all__ = ["choose_head", "choose_target"]

_PROBLEM_TYPES = {
    "regression": "squared",
    "single_label_classification": "softmax",
    "multi_label_classification": "logistic",
}


def choose_target(candidates: Mapping[str, Tensor], outputs: Tensor, signature: Signature) -> tuple[Tensor, str | None]:
    """The one element of the records that can be the target of outputs (n, m), and a note on what was left out."""
    names = list(candidates)
    if len(names) == 1:
        return candidates[names[0]], None
    possible = [name for name in names if _can_be_target(candidates[name], outputs)]
    if len(possible) != 1:
        raise InputError(
            f"data: records have {len(names)} elements besides the inputs ({', '.join(names)}), of which "
            f"{len(possible) or 'none'} can be the target; pass a Dataset of (x, y)"
        )
    before = names[: names.index(possible[0])]
    if before and (signature.optional or signature.any_positional):
        raise InputError(
            f"data: {before[0]} of the records comes before the target ({possible[0]}) and may be an input of the "
            "model's forward, which takes optional ones; pass a Dataset of dictionaries with forward's argument names"
        )
    left = [name for name in names if name != possible[0]]
    note = f"data: the target is {possible[0]} of each record (counted from 0); {', '.join(left)} was left out"
    return candidates[possible[0]], note


def _can_be_target(values: Tensor, outputs: Tensor) -> bool:
    """Classes in range for several outputs, numbers other than a count of the records for one; or outputs' shape."""
    n, m = outputs.shape
    y = values.squeeze(1) if values.ndim == 2 and values.shape[1] == 1 else values
    if y.ndim != 1:
        return y.shape == outputs.shape
    whole = not y.is_floating_point()
    if m > 1:
        return whole and bool((y >= 0).all()) and bool((y < m).all())
    return not (whole and n > 2 and torch.equal(y.long() - int(y[0]), torch.arange(n)))


def choose_head(
    model: nn.Module, outputs: Tensor, targets: Tensor, activation: str, objective: Objective
) -> tuple[str, str]:
    """The head and where it was read: what is stated, a final activation, Hugging Face's rule, outputs and targets.

    Hugging Face trains by config.problem_type; where it is None, one label is a regression, several with whole-number
    targets a softmax and several with others a yes or no for each.
    """
    stated = objective.head
    by_activation = {"sigmoid": "logistic", "softmax": "softmax", "log_softmax": "softmax"}.get(activation)
    if stated is not None and by_activation is not None and stated != by_activation:
        raise InputError(
            f"head: {stated!r} does not fit a model that ends in {activation}; leave head out ({by_activation!r})"
        )
    kind, where = _hugging_face(model, outputs, targets)
    if kind is not None and where == "config.problem_type" and stated not in (None, kind):
        raise InputError(
            f"head: {stated!r}, but the model's config.problem_type says {kind!r}; leave head out, or set "
            "config.problem_type to None if it was trained with a loss of your own"
        )
    if stated is not None:
        return stated, "stated"
    if by_activation is not None:
        objective.require(by_activation)
        return by_activation, f"a final {activation}"
    if kind is not None:
        objective.require(kind)
        return kind, where
    return guess_head(outputs, targets, objective), "outputs and targets"


def _hugging_face(model: nn.Module, outputs: Tensor, targets: Tensor) -> tuple[str | None, str]:
    config: Any = getattr(model, "config", None)
    labels = getattr(config, "num_labels", None)
    if not hasattr(config, "problem_type") or labels != outputs.shape[1]:
        return None, ""
    if config.problem_type is not None:
        return _PROBLEM_TYPES.get(config.problem_type), "config.problem_type"
    if not any("Classification" in kind.__name__ for kind in type(model).__mro__):
        return None, ""  # a model of the user's own: so is its loss
    if labels == 1:
        return "squared", "config.num_labels of 1"
    return ("logistic" if targets.is_floating_point() else "softmax"), "config.num_labels and the targets' type"
