"""SGDClassifier and SGDRegressor: a step is −η(wᵢ ∇ℓᵢ + α θ), so n of them descend  Σ wᵢ ℓᵢ + nα/2 ‖θ‖².

    SGDClassifier(log_loss)      logistic; more than two classes: one problem per class      Λ = nα
    SGDRegressor(squared_error)  ℓ = ½(y−ŷ)², half of ours                                   Λ = 2nα

The intercept is free.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import class_index, numbers
from noshadow.extract.sklearn.fit import Fit, linear_parameters
from noshadow.extract.sklearn.weights import per_class, times

__all__ = ["HELD_OUT", "Array", "read_sgd_classifier", "read_sgd_regressor"]

Array = NDArray[Any]

HELD_OUT = (
    "model: early_stopping held out a share of the records (validation_fraction={share:g}); which ones is not stored, "
    "and they are scored as if trained on"
)


def read_sgd_classifier(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """SGDClassifier with the logistic loss."""
    ridge = len(y) * _alpha(model, "log_loss", "fit it with loss='log_loss', or use LogisticRegression")
    classes = model.classes_
    index, labels = class_index(classes, y)
    targets, label_weight = index, None
    weight = None if model.class_weight is None else per_class(model.class_weight, classes, index)
    if len(classes) > 2:
        targets = np.eye(len(classes), dtype=np.int64)[index]
        # a class has its weight in its own problem only: in the others its records count as the rest, once
        label_weight = None if weight is None else np.stack([np.ones(len(classes)), weight], 1)
    elif weight is not None:
        sample_weight = times(sample_weight, weight[index])
    weights, intercept = linear_parameters(model)
    return Fit(
        "logistic",
        targets,
        weights,
        intercept,
        ridge,
        sample_weight=sample_weight,
        class_weight=label_weight,
        labels=labels,
        classes=classes,
        notes=_notes(model),
    )


def read_sgd_regressor(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """SGDRegressor with the squared error."""
    ridge = 2.0 * len(y) * _alpha(model, "squared_error", "fit it with loss='squared_error', or use Ridge")
    weights, intercept = linear_parameters(model)
    return Fit("squared", numbers(y, "y"), weights, intercept, ridge, sample_weight=sample_weight, notes=_notes(model))


def _alpha(model: Any, loss: str, remedy: str) -> float:
    """The strength of the L2 penalty of a model with this loss."""
    name = type(model).__name__
    if model.loss != loss:
        raise InputError(f"model: {name} with loss={model.loss!r} has no head that is known here; {remedy}")
    if model.penalty == "l1" or (model.penalty == "elasticnet" and model.l1_ratio):
        raise InputError(f"model: {name} with an L1 penalty has no Hessian at its zeros; refit with penalty='l2'")
    return 0.0 if model.penalty is None else float(model.alpha)


def _notes(model: Any) -> tuple[str, ...]:
    return (HELD_OUT.format(share=model.validation_fraction),) if model.early_stopping else ()
