"""Which estimators are read, and how: an entry per class. Those that look as if they could be are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    LogisticRegressionCV,
    Ridge,
    RidgeClassifier,
    RidgeClassifierCV,
    RidgeCV,
    SGDClassifier,
    SGDRegressor,
)
from sklearn.neural_network import MLPClassifier, MLPRegressor

from noshadow.errors import InputError
from noshadow.extract.sklearn import linear, logistic, network, sgd
from noshadow.extract.sklearn.fit import Fit

__all__ = ["READERS", "REFUSED", "Reader", "reader_of"]

Reader = Callable[[Any, Any, "NDArray[Any] | None"], Fit]
"""(fitted estimator, y as it saw it, stated sample weights) → its last layer."""

READERS: dict[type, Reader] = {
    LinearRegression: linear.read_linear_regression,
    Ridge: linear.read_ridge,
    RidgeCV: linear.read_ridge_cv,
    RidgeClassifier: linear.read_ridge_classifier,
    RidgeClassifierCV: linear.read_ridge_classifier_cv,
    LogisticRegression: logistic.read_logistic_regression,
    LogisticRegressionCV: logistic.read_logistic_regression_cv,
    SGDClassifier: sgd.read_sgd_classifier,
    SGDRegressor: sgd.read_sgd_regressor,
    MLPClassifier: network.read_mlp_classifier,
    MLPRegressor: network.read_mlp_regressor,
}

_MARGIN = "minimises a hinge loss, which is flat or linear at most records and has no head here; fit LogisticRegression"
_TUBE = "minimises an absolute error beyond a margin, which has no head here; fit Ridge"
_L1 = "has an L1 penalty, and no Hessian at its zeros; fit Ridge"
_ROBUST = "minimises another loss than the squared error, which has no head here; fit Ridge"
_DEVIANCE = "minimises the deviance of another family, which has no head here; fit Ridge"
_EVIDENCE = "sets its penalty by the evidence of the same records; fit Ridge"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("Perceptron", "PassiveAggressiveClassifier", "LinearSVC", "SVC", "NuSVC"), _MARGIN),
    **dict.fromkeys(("PassiveAggressiveRegressor", "LinearSVR", "SVR", "NuSVR"), _TUBE),
    **dict.fromkeys(("Lasso", "LassoCV", "LassoLars", "LassoLarsCV", "LassoLarsIC", "ElasticNet", "ElasticNetCV"), _L1),
    **dict.fromkeys(("MultiTaskLasso", "MultiTaskLassoCV", "MultiTaskElasticNet", "MultiTaskElasticNetCV"), _L1),
    **dict.fromkeys(("HuberRegressor", "QuantileRegressor", "TheilSenRegressor", "RANSACRegressor"), _ROBUST),
    **dict.fromkeys(("PoissonRegressor", "GammaRegressor", "TweedieRegressor"), _DEVIANCE),
    **dict.fromkeys(("BayesianRidge", "ARDRegression"), _EVIDENCE),
}


def reader_of(estimator: Any) -> Reader:
    """How to read an estimator; that of the nearest class it descends from."""
    name = type(estimator).__name__
    for kind in type(estimator).__mro__:
        if kind in READERS:
            return READERS[kind]
        if kind.__name__ in REFUSED:
            raise InputError(f"model: {name} {REFUSED[kind.__name__]}")
    known = ", ".join(kind.__name__ for kind in READERS)
    raise InputError(
        f"model: {name} has no last linear layer that is known here; use {known}, or a Pipeline, a search or a "
        "TransformedTargetRegressor around one"
    )
