"""From a fitted estimator and its training data to a LastLayer.

What is known without X comes first: the estimator, its penalty and weights. X is transformed only when the rest is
right; a sparse X stays sparse.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator

from noshadow.curvature import Size
from noshadow.errors import InputError
from noshadow.extract.found import Extracted, Options
from noshadow.extract.sklearn.data import n_rows, numbers, pair, table
from noshadow.extract.sklearn.fit import Fit
from noshadow.extract.sklearn.registry import reader_of
from noshadow.extract.sklearn.unwrap import require_fitted, unwrap
from noshadow.extract.sklearn.weights import require_agreement, stated_weights
from noshadow.layer import LastLayer
from noshadow.objective import Objective

__all__ = ["Array", "extract_sklearn"]

Array = NDArray[Any]


def extract_sklearn(
    model: BaseEstimator,
    data: Any,
    objective: Objective,
    options: Options = Options(),  # noqa: B008  it is frozen, and may be shared
) -> Extracted:
    """The last layer of a fitted estimator on its training data (X, y)."""
    for argument, value in {
        "weight_decay": objective.weight_decay,
        "optimizer": objective.optimizer,
        "layer": options.layer,
        "output": options.output,
    }.items():
        if value is not None:
            raise InputError(f"{argument}: it is for torch modules; scikit-learn estimators carry their own")
    if objective.label_smoothing:
        raise InputError("label_smoothing: scikit-learn estimators smooth no labels; leave it out")
    inner = unwrap(model)
    estimator, name = inner.estimator, type(inner.estimator).__name__
    read = reader_of(estimator)
    require_fitted(estimator, model)
    x, y = pair(data)
    seen = inner.values(y)
    require_agreement(estimator, seen, objective.class_weight)
    fit = read(estimator, seen, stated_weights(objective.sample_weight, x))
    if objective.head not in (None, fit.head):
        raise InputError(f"head: {name} trains a {fit.head} head, not {objective.head!r}; leave head out")
    options.fits(Size(n_rows(x, "X"), fit.n_columns, fit.weights.shape[1], fit.head))
    with np.errstate(invalid="ignore", over="ignore"):  # the layer names the rows that are not finite
        features = _features(fit, inner.features(x))
        outputs = _outputs(features, fit)
    weights: dict[str, Any] = {"sample_weight": fit.sample_weight, "class_weight": fit.class_weight}
    layer = LastLayer(
        features,
        outputs,
        fit.targets,
        fit.head,
        fit.ridge if objective.ridge is None else objective.ridge,
        bias=fit.intercept is not None,
        penalize_bias=False,
        coefficients=fit.coefficients,
        **{key: value for key, value in weights.items() if value is not None},
    )
    notes = (*inner.notes, *fit.notes, *_ridge_notes(fit, objective.ridge, name))
    labels = np.asarray(y) if inner.targets else fit.labels
    return Extracted(
        layer,
        type(model).__name__,
        facts={"layer": f"{name}.{fit.layer}"},
        labels=labels,
        classes=fit.classes,
        notes=notes,
    )


def _features(fit: Fit, x: Any) -> Any:
    """The inputs of the last layer, (n, p); sparse where X is."""
    if fit.hidden is not None:
        return fit.hidden(x if sparse.issparse(x) else numbers(x, "X"))
    features = table(x)
    if fit.constant is None:
        return features
    if sparse.issparse(features):
        constant = sparse.csr_matrix(np.full((n_rows(features, "X"), 1), fit.constant))
        return sparse.hstack([cast(Any, features), constant], format="csr")
    return np.hstack([features, np.full((len(features), 1), fit.constant)])


def _outputs(features: Any, fit: Fit, rows: int = 65_536) -> Array:
    """The outputs, (n, m), some rows at a time: in float64 without a copy of float32 features."""
    outputs = np.empty((features.shape[0], fit.weights.shape[1]))
    for start in range(0, len(outputs), rows):
        outputs[start : start + rows] = features[start : start + rows] @ fit.weights
    return outputs if fit.intercept is None else outputs + fit.intercept


def _ridge_notes(fit: Fit, stated: float | None, name: str) -> list[str]:
    if stated is None or np.isclose(stated, fit.ridge, rtol=1e-6):
        return []
    return [f"ridge: {stated:g} as stated, but {name} was fitted with Λ = {fit.ridge:g}; leave ridge out to use that"]
