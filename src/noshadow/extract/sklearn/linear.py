"""Least squares: LinearRegression, Ridge and RidgeCV, RidgeClassifier and RidgeClassifierCV.

LinearRegression     Σ wᵢ(yᵢ−ŷᵢ)²                Λ = 0
Ridge(CV)            Σ wᵢ(yᵢ−ŷᵢ)² + α‖θ‖²        Λ = 2α, intercept free
RidgeClassifier(CV)  the same with yᵢ = ±1; more than two classes: a column each, 1 for the record's own class
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_sample_weight

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import class_index, numbers
from noshadow.extract.sklearn.fit import Fit, linear_parameters
from noshadow.extract.sklearn.weights import times

__all__ = [
    "Array",
    "read_linear_regression",
    "read_ridge",
    "read_ridge_classifier",
    "read_ridge_classifier_cv",
    "read_ridge_cv",
]

Array = NDArray[Any]


def read_linear_regression(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """LinearRegression: no penalty."""
    return _least_squares(model, numbers(y, "y"), sample_weight, alpha=0.0)


def read_ridge(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """Ridge: the alpha that was set."""
    return _least_squares(model, numbers(y, "y"), sample_weight, model.alpha)


def read_ridge_cv(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """RidgeCV: the alpha that was chosen."""
    return _least_squares(model, numbers(y, "y"), sample_weight, model.alpha_)


def read_ridge_classifier(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """RidgeClassifier: the alpha that was set."""
    return _classifier(model, y, sample_weight, model.alpha)


def read_ridge_classifier_cv(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """RidgeClassifierCV: the alpha that was chosen."""
    return _classifier(model, y, sample_weight, model.alpha_)


def _least_squares(model: Any, targets: Array, sample_weight: Array | None, alpha: Any) -> Fit:
    name = type(model).__name__
    if getattr(model, "positive", False):
        raise InputError(f"model: {name} with positive=True has no Hessian at its bounds; refit without it")
    alphas = np.unique(np.asarray(alpha, dtype=float))
    if len(alphas) != 1:
        raise InputError(f"model: {name} with a different alpha for each target; fit and audit the targets one by one")
    weights, intercept = linear_parameters(model)
    return Fit(
        "squared",
        targets,
        weights,
        intercept,
        ridge=2.0 * float(alphas[0]),
        sample_weight=sample_weight,
    )


def _classifier(model: Any, y: Any, sample_weight: Array | None, alpha: Any) -> Fit:
    classes = None
    if model._label_binarizer.y_type_.startswith("multilabel"):
        seen = labels = numbers(y, "y")
        targets = np.where(labels > 0, 1.0, -1.0)
    else:
        classes = model.classes_
        index, labels = class_index(classes, y)
        seen = classes[index]
        targets = np.where(index[:, None] == np.arange(len(classes)), 1.0, -1.0)
        targets = targets[:, 1:] if len(classes) == 2 else targets
    if model.class_weight:
        sample_weight = times(sample_weight, compute_sample_weight(model.class_weight, seen))
    return replace(_least_squares(model, targets, sample_weight, alpha), labels=labels, classes=classes)
