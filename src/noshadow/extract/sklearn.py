"""scikit-learn estimators: the last linear layer, with the regularisation that the estimator was fitted with.

What scikit-learn minimises, in our terms Σ loss + Λ/2‖θ‖² with squared error not halved:

    LinearRegression     Σ(y−ŷ)²                                   Λ = 0
    Ridge                Σ(y−ŷ)² + α‖w‖²                           Λ = 2α, intercept free
    LogisticRegression   C Σ loss + ½‖w‖²                          Λ = 1/C, intercept free (liblinear: penalised)
    MLPClassifier        Σ loss over a batch of b, + α/2 ‖w‖²      Λ = α n/b, intercepts free
    MLPRegressor         ½Σ(y−ŷ)² over a batch of b, + α/2 ‖w‖²    Λ = 2α n/b, intercepts free
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.extract.found import Extracted
from noshadow.layer import LastLayer
from noshadow.objective import Objective

Array = NDArray[Any]
_SUPPORTED = "LinearRegression, Ridge, LogisticRegression, MLPClassifier, MLPRegressor, or a Pipeline ending in one"


def extract_sklearn(model: BaseEstimator, data: Any, objective: Objective) -> Extracted:
    """The last layer of a fitted estimator on its training data (X, y)."""
    source, head, ridge = type(model).__name__, objective.head, objective.ridge
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise InputError("data: a scikit-learn model needs its training data as (X, y)")
    x, y = data
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise InputError(f"model: this {type(model).__name__} is not fitted; call fit(X, y) first") from None
    while isinstance(model, (Pipeline, GridSearchCV, RandomizedSearchCV)):
        if isinstance(model, Pipeline):
            x = model[:-1].transform(x) if len(model.steps) > 1 else x
            model = model.steps[-1][1]
        else:
            model = model.best_estimator_
    builders = {
        LogisticRegression: _logistic,
        Ridge: _ridge,
        LinearRegression: _linear,
        MLPClassifier: _mlp_classifier,
        MLPRegressor: _mlp_regressor,
    }
    for kind, build in builders.items():
        if isinstance(model, kind):
            layer = build(model, _dense(x), y)
            break
    else:
        raise InputError(f"model: {type(model).__name__} has no last linear layer that is known here; use {_SUPPORTED}")
    if head is not None and head != layer.head:
        raise InputError(f"head: {type(model).__name__} trains a {layer.head} head, not {head!r}; leave head out")
    return Extracted(layer if ridge is None else _with_ridge(layer, ridge), source)


def _linear(model: LinearRegression, x: Array, y: Any) -> LastLayer:
    return LastLayer(x, model.predict(x), y, head="squared", bias=bool(model.fit_intercept))


def _ridge(model: Ridge, x: Array, y: Any) -> LastLayer:
    alphas = np.unique(np.asarray(model.alpha, dtype=float))
    if len(alphas) != 1:
        raise InputError("model: Ridge with a different alpha for each target; fit and audit the targets one by one")
    return LastLayer(
        x,
        model.predict(x),
        y,
        head="squared",
        ridge=2.0 * float(alphas[0]),
        bias=bool(model.fit_intercept),
        penalize_bias=False,
    )


def _logistic(model: LogisticRegression, x: Array, y: Any) -> LastLayer:
    if _l1_share(model) != 0:
        raise InputError(
            "model: LogisticRegression with an L1 penalty has no Hessian at its zeros; refit with an L2 penalty"
        )
    if model.class_weight is not None:
        _warn("LogisticRegression was fitted with class_weight; the scores count every record once")
    classes = model.classes_
    binary = len(classes) == 2
    if not binary and model.solver == "liblinear":
        raise InputError("model: liblinear fits one classifier a class, not a softmax; refit with solver='lbfgs'")
    ridge = 1.0 / float(model.C) if _is_penalised(model) else 0.0
    outputs = model.decision_function(x)
    bias = bool(model.fit_intercept)
    if bias and model.solver == "liblinear":
        # liblinear's intercept is the weight of a constant feature, penalised like any other
        constant = np.full((len(x), 1), float(model.intercept_scaling))
        x, bias = np.hstack([x, constant]), False
    return LastLayer(
        x,
        outputs,
        _class_index(classes, y),
        head="logistic" if binary else "softmax",
        ridge=ridge,
        bias=bias,
        penalize_bias=False,
    )


def _is_penalised(model: LogisticRegression) -> bool:
    return getattr(model, "penalty", "l2") is not None and math.isfinite(model.C)


def _l1_share(model: LogisticRegression) -> float:
    if not _is_penalised(model):
        return 0.0
    penalty = getattr(model, "penalty", "l2")
    if penalty == "l1":
        return 1.0
    return 0.0 if penalty == "l2" else float(model.l1_ratio or 0.0)


def _mlp_classifier(model: MLPClassifier, x: Array, y: Any) -> LastLayer:
    if model.out_activation_ not in ("logistic", "softmax") or model._label_binarizer.y_type_.startswith("multilabel"):
        raise InputError("model: this MLPClassifier is multi-label; audit one label at a time")
    features, outputs = _mlp_forward(model, x)
    head = "logistic" if model.out_activation_ == "logistic" else "softmax"
    targets = _class_index(model.classes_, y)
    return _mlp_layer(model, features, outputs, targets, head, scale=1.0)


def _mlp_regressor(model: MLPRegressor, x: Array, y: Any) -> LastLayer:
    if model.loss != "squared_error":
        raise InputError(f"model: MLPRegressor with loss={model.loss!r}; only 'squared_error' has a known head")
    features, outputs = _mlp_forward(model, x)
    return _mlp_layer(model, features, outputs, y, "squared", scale=2.0)


def _mlp_layer(model: Any, features: Array, outputs: Array, targets: Any, head: str, scale: float) -> LastLayer:
    n = len(features)
    if getattr(model, "early_stopping", False):
        _warn("the network held out a validation share (early_stopping); those records are scored as if trained on")
    batch = n if model.solver == "lbfgs" else min(200, n) if model.batch_size == "auto" else min(model.batch_size, n)
    return LastLayer(
        features,
        outputs,
        targets,
        head=head,
        ridge=scale * float(model.alpha) * n / batch,
        penalize_bias=False,
    )


def _mlp_forward(model: Any, x: Array) -> tuple[Array, Array]:
    """Activations of the last hidden layer and the outputs before the output activation."""
    activations: dict[str, Callable[[Array], Array]] = {
        "identity": lambda u: u,
        "logistic": lambda u: 0.5 * (1.0 + np.tanh(0.5 * u)),
        "tanh": np.tanh,
        "relu": lambda u: np.maximum(u, 0.0),
    }
    activate = activations[model.activation]
    features = np.asarray(x, dtype=np.float64)
    for weights, intercepts in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        features = activate(features @ weights + intercepts)
    return features, features @ model.coefs_[-1] + model.intercepts_[-1]


def _class_index(classes: Array, y: Any) -> Array:
    """Positions of the targets among the estimator's classes."""
    targets = np.asarray(y).reshape(-1)
    position = {label: index for index, label in enumerate(classes.tolist())}
    index = np.array([position.get(label, -1) for label in targets.tolist()], dtype=np.int64)
    unknown = np.flatnonzero(index < 0).tolist()
    if unknown:
        raise InputError(
            f"targets: {targets.tolist()[unknown[0]]!r} in {name_rows(unknown)} (counted from 0) is not a class of the "
            "model; pass the data that it was trained on"
        )
    return index


def _dense(x: Any) -> Array:
    array: Array = cast(Any, x).toarray() if sparse.issparse(x) else np.asarray(x)
    return array.astype(np.float64) if array.dtype == object else array


def _with_ridge(layer: LastLayer, ridge: float) -> LastLayer:
    return LastLayer(
        layer.features,
        layer.outputs,
        layer.targets,
        layer.head,
        ridge,
        bias=layer.bias,
        penalize_bias=layer.penalize_bias,
    )


def _warn(message: str) -> None:
    warnings.warn(f"model: {message}", NoshadowWarning, stacklevel=4)
