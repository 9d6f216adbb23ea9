"""Class and sample weights, as each estimator multiplies them into its loss.

``fit(sample_weight=)`` leaves no trace on an estimator: the user states those weights. ``class_weight`` is one of its
parameters and is read off it. "balanced" weights stay those of all records when one of them is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.class_weight import compute_class_weight

from noshadow.errors import InputError
from noshadow.extract.sklearn.data import class_index, first_line, numbers, require_same_records

__all__ = ["Array", "per_class", "require_agreement", "stated_weights", "times"]

Array = NDArray[Any]

# LogisticRegression balances classes by their weight from the release on in which this function learned to
_BALANCES_BY_WEIGHT = "sample_weight" in inspect.signature(compute_class_weight).parameters


def stated_weights(sample_weight: Any, x: Any) -> Array | None:
    """The weights that the user states, (n,)."""
    if sample_weight is None:
        return None
    if np.ndim(sample_weight) == 0:
        raise InputError("sample_weight: expected a weight per record, shape (n,), got one number")
    require_same_records(x, sample_weight, "sample_weight")
    weights = numbers(sample_weight, "sample_weight").astype(np.float64).reshape(len(sample_weight), -1)
    if weights.shape[1] != 1:
        raise InputError(f"sample_weight: expected a weight per record, shape (n,), got {weights.shape}")
    return weights[:, 0]


def per_class(class_weight: Any, classes: Array, index: Array, sample_weight: Array | None = None) -> Array:
    """(m,) the weight of each class; "balanced" counts records by ``sample_weight`` where scikit-learn does."""
    options = {"sample_weight": sample_weight} if _BALANCES_BY_WEIGHT and sample_weight is not None else {}
    weights: Array = compute_class_weight(class_weight, classes=classes, y=classes[index], **options)
    return weights


def times(sample_weight: Array | None, weights: Array) -> Array:
    """The product of the stated weights and others, (n,)."""
    return weights if sample_weight is None else sample_weight * weights


def require_agreement(model: Any, y: Any, stated: Any) -> None:
    """Refuse a stated class_weight that is not the estimator's own."""
    if stated is None:
        return
    name = type(model).__name__
    if not hasattr(model, "class_weight"):
        raise InputError(
            f"class_weight: {name} takes none; state what its fit(sample_weight=) was given as sample_weight="
        )
    index, _ = class_index(model.classes_, y)
    if not isinstance(stated, (str, Mapping)):
        values = numbers(stated, "class_weight")
        if values.shape != model.classes_.shape:
            raise InputError(
                f"class_weight: expected a weight for each of {len(model.classes_)} classes, got {stated!r}"
            )
        stated = dict(zip(model.classes_.tolist(), values.tolist(), strict=True))
    try:
        said = per_class(stated, model.classes_, index)
    except (TypeError, ValueError) as error:
        raise InputError(f"class_weight: {first_line(error)}") from None
    if not np.allclose(said, per_class(model.class_weight, model.classes_, index), rtol=1e-6):
        raise InputError(
            f"class_weight: {name} was fitted with class_weight={model.class_weight!r}, not with the one stated; leave "
            "it out, it is read off the estimator"
        )
