"""Which head a model has, from its outputs and targets: only where they leave no choice."""

from __future__ import annotations

from torch import Tensor

from noshadow.errors import InputError
from noshadow.heads.targets import MULTI_LABEL, SQUARED, form_of
from noshadow.losses import Loss
from noshadow.objective import Objective

__all__ = ["guess_head"]

_LOGISTIC = "head='logistic' for a sigmoid output (binary cross-entropy)"


def guess_head(outputs: Tensor, targets: Tensor, objective: Objective | None = None) -> str:
    """The head that was stated, or the only one that outputs (n, m) and targets (n,) or (n, q) allow; else an error
    that asks for ``head=`` with the choices.

        m outputs, targets (n,)              softmax: each target names a class
        m outputs, one-hot targets (n, m)    softmax
        m outputs, values (n, m)             squared
        one output, values                   squared
        0/1, ±1 or soft targets otherwise    more than one loss is trained on such targets: ask

    The objective is a resolved one: a log loss rules out squared error.
    """
    objective = objective or Objective()
    if objective.head is not None:
        return objective.head
    m = outputs.shape[1]
    several = targets.ndim == 2 and targets.shape[1] > 1
    form = form_of(targets) if targets.ndim in (1, 2) else "values"
    if isinstance(objective.loss, Loss):  # a log loss: logistic or softmax
        return "softmax" if m > 1 and (not several or form == "one-hot") else "logistic"
    if m > 1 and (not several or form == "one-hot"):
        return "softmax"
    if form == "values":
        return "squared"
    what = "the model has one output" if m == 1 else f"the model has {m} outputs"
    soft = "soft labels (each row adds up to 1)" if form == "soft" else "numbers between 0 and 1"
    if form in ("0/1", "multi-hot"):
        choices = f"the targets are 0/1 and {what}; pass {_LOGISTIC if m == 1 else MULTI_LABEL} or {SQUARED}"
    elif form == "±1":
        choices = f"the targets are −1 and 1 and {what}; map −1 to 0 and pass {_LOGISTIC}, or pass {SQUARED}"
    else:
        choices = f"the targets are {soft} and {what}; pass {SQUARED}, or classes if the model was trained on those"
    raise InputError(f"head: it cannot be told which loss the model was trained with: {choices}")
