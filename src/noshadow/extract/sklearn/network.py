"""MLPClassifier and MLPRegressor: the last layer on the activations below it.

With b records per batch (all of them for lbfgs):

    MLPClassifier   Σ wᵢ ℓᵢ over a batch + α/2 ‖θ‖²         Λ = α n/b; several labels: a logistic problem each
    MLPRegressor    ½Σ wᵢ(yᵢ−ŷᵢ)² over a batch + α/2 ‖θ‖²   Λ = 2α n/b

Intercepts are free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import class_index, numbers
from noshadow.extract.sklearn.fit import Fit
from noshadow.extract.sklearn.sgd import HELD_OUT

__all__ = ["Array", "read_mlp_classifier", "read_mlp_regressor"]

Array = NDArray[Any]

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda u: u,
    "logistic": lambda u: 0.5 * (1.0 + np.tanh(0.5 * u)),
    "tanh": np.tanh,
    "relu": lambda u: np.maximum(u, 0.0),
}


def read_mlp_classifier(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """MLPClassifier: two classes, several classes or several labels."""
    if model._label_binarizer.y_type_.startswith("multilabel"):
        targets = labels = numbers(y, "y")
        classes = None
    else:
        classes = model.classes_
        targets, labels = class_index(classes, y)
    head = "softmax" if model.out_activation_ == "softmax" else "logistic"
    return replace(_network(model, head, targets, sample_weight, scale=1.0), labels=labels, classes=classes)


def read_mlp_regressor(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """MLPRegressor with the squared error."""
    if model.loss != "squared_error":
        raise InputError(f"model: MLPRegressor with loss={model.loss!r}; only 'squared_error' has a known head")
    return _network(model, "squared", numbers(y, "y"), sample_weight, scale=2.0)


def _network(model: Any, head: str, targets: Array, sample_weight: Array | None, scale: float) -> Fit:
    n, by_batches = len(targets), model.solver != "lbfgs"
    batch = (min(200, n) if model.batch_size == "auto" else min(model.batch_size, n)) if by_batches else n
    held_out = model.early_stopping and by_batches
    return Fit(
        head,
        targets,
        np.asarray(model.coefs_[-1], dtype=np.float64),
        np.asarray(model.intercepts_[-1], dtype=np.float64),
        ridge=scale * float(model.alpha) * n / batch,
        hidden=_below(model) if len(model.coefs_) > 1 else None,
        sample_weight=sample_weight,
        layer="coefs_[-1]",
        notes=(HELD_OUT.format(share=model.validation_fraction),) if held_out else (),
    )


def _below(model: Any) -> Callable[[Any], Array]:
    """Activations of the last hidden layer; a sparse X stays sparse."""
    activate = _ACTIVATIONS[model.activation]

    def activations(x: Any) -> Array:
        values = x
        for weights, intercepts in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
            values = activate(np.asarray(values @ np.asarray(weights, dtype=np.float64)) + intercepts)
        result: Array = values
        return result

    return activations
