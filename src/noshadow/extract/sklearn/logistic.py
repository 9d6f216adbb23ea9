"""LogisticRegression and LogisticRegressionCV:  C Σ wᵢ ℓᵢ + ½‖θ‖²,  so Λ = 1/C, intercept free.

Two classes are one logit, more are a softmax, with these exceptions of scikit-learn before 1.8:

    multi_class="ovr", liblinear    a problem for each class against the rest: a logistic head of several columns
    multi_class="multinomial"       two classes are a softmax too, whose logits are −z and z

liblinear's intercept is the weight of a constant feature (``intercept_scaling``), penalised like any other.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import class_index
from noshadow.extract.sklearn.fit import Fit, linear_parameters
from noshadow.extract.sklearn.weights import per_class, times

__all__ = ["Array", "read_logistic_regression", "read_logistic_regression_cv"]

Array = NDArray[Any]


def read_logistic_regression(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """LogisticRegression: the C that was set."""
    return _read(model, y, sample_weight, float(model.C), model.l1_ratio, float(model.intercept_scaling))


def read_logistic_regression_cv(model: Any, y: Any, sample_weight: Array | None) -> Fit:
    """LogisticRegressionCV: the C that was chosen."""
    if not model.refit:
        raise InputError(
            "model: LogisticRegressionCV with refit=False averages the models of its folds and minimises nothing; pass "
            "refit=True, or fit LogisticRegression with the C that it found"
        )
    chosen = np.unique(np.asarray(model.C_, dtype=float))
    if len(chosen) != 1:
        raise InputError(
            "model: LogisticRegressionCV chose a different C for each class (one against the rest); refit with "
            "multi_class='multinomial'"
        )
    shares = [share or 0.0 for share in np.asarray(model.l1_ratio_, dtype=object).reshape(-1)]
    # its last fit leaves intercept_scaling at 1, whatever was set
    return _read(model, y, sample_weight, float(chosen[0]), max(shares), 1.0)


def _read(model: Any, y: Any, sample_weight: Array | None, c: float, l1_ratio: Any, scaling: float) -> Fit:
    penalty = getattr(model, "penalty", "deprecated")  # since 1.8 l1_ratio alone says which
    penalised = penalty not in (None, "none") and math.isfinite(c)
    l1_share = {"l1": 1.0, "l2": 0.0}.get(penalty, l1_ratio or 0.0)
    if penalised and l1_share:
        raise InputError(
            f"model: {type(model).__name__} with an L1 penalty has no Hessian at its zeros; refit with an L2 penalty"
        )
    classes = model.classes_
    index, labels = class_index(classes, y)
    weights, intercept = linear_parameters(model)
    constant, label_weight = None, None
    if len(classes) > 2 and _one_against_the_rest(model):
        head, targets = "logistic", np.eye(len(classes), dtype=np.int64)[index]
        sample_weight, label_weight = _weights_of_problems(model, classes, index, sample_weight)
    else:
        head, targets = "logistic" if len(classes) == 2 else "softmax", index
        if len(classes) == 2 and getattr(model, "multi_class", None) == "multinomial":
            head, weights = "softmax", np.hstack([-weights, weights])
            intercept = None if intercept is None else np.concatenate([-intercept, intercept])
        if model.class_weight is not None:
            weight = per_class(model.class_weight, classes, index, sample_weight)
            sample_weight = times(sample_weight, weight[index])
    if model.solver == "liblinear" and intercept is not None:
        constant, weights, intercept = scaling, np.vstack([weights, intercept / scaling]), None
    return Fit(
        head,
        targets,
        weights,
        intercept,
        ridge=1.0 / c if penalised else 0.0,
        constant=constant,
        sample_weight=sample_weight,
        class_weight=label_weight,
        labels=labels,
        classes=classes,
    )


def _one_against_the_rest(model: Any) -> bool:
    stated = getattr(model, "multi_class", "auto")
    if stated in ("auto", "deprecated"):
        version = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
        return model.solver == "liblinear" or (model.solver == "newton-cholesky" and version < (1, 6))
    return bool(stated == "ovr")


def _weights_of_problems(
    model: Any, classes: Array, index: Array, sample_weight: Array | None
) -> tuple[Array | None, Array | None]:
    """Weights per record (n,), and those of the rest and of the class in the problem of each class (m, 2)."""
    if model.class_weight is None:
        return sample_weight, None
    chooses = hasattr(model, "C_")  # LogisticRegressionCV weighs records by their class before it splits the problem
    if model.solver == "liblinear" and not chooses:
        weight = per_class(model.class_weight, classes, index, sample_weight)
        return sample_weight, np.stack([np.ones(len(classes)), weight], 1)
    if model.class_weight == "balanced" and not chooses:
        sides = np.arange(2)
        problems = [per_class("balanced", sides, (index == k).astype(int), sample_weight) for k in range(len(classes))]
        return sample_weight, np.stack(problems)
    return times(sample_weight, per_class(model.class_weight, classes, index, sample_weight)[index]), None
