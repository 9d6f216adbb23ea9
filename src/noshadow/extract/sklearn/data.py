"""X and y as users hold them: paired, complete and numeric, or refused in one sentence."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from noshadow.errors import InputError, name_rows

__all__ = [
    "Array",
    "class_index",
    "column_fault",
    "first_line",
    "n_rows",
    "numbers",
    "pair",
    "require_same_records",
    "table",
]

Array = NDArray[Any]


def pair(data: Any) -> tuple[Any, Any]:
    """X and y of the same records in the same order."""
    if not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise InputError("data: a scikit-learn model needs its training data as (X, y)")
    x, y = data
    if isinstance(x, (pd.DataFrame, pd.Series)):
        repeated = np.flatnonzero(x.index.duplicated(keep=False)).tolist()
        if repeated:
            raise InputError(
                f"data: the index of X has {_label(x.index, repeated[0])} in {name_rows(repeated)} (counted from 0), "
                "but a record needs a name of its own; pass X.reset_index(drop=True) and y.reset_index(drop=True)"
            )
    require_same_records(x, y, "y")
    return x, y


def require_same_records(x: Any, values: Any, name: str) -> None:
    """As many values as X has rows and, where both have an index, the same index: scikit-learn pairs by position."""
    n, m = n_rows(x, "X"), n_rows(values, name)
    if n != m:
        raise InputError(f"data: {name} has {m} rows, but X has {n}; they must be the same records in the same order")
    frames = (pd.DataFrame, pd.Series)
    if not (isinstance(x, frames) and isinstance(values, frames)) or x.index.equals(values.index):
        return
    differ = np.flatnonzero(np.asarray(x.index != values.index))
    if len(differ) == 0:
        return
    first = int(differ[0])
    where = f"(row {first}, counted from 0: {_label(x.index, first)} and {_label(values.index, first)})"
    if len(x.index.symmetric_difference(values.index, sort=False)) == 0:
        raise InputError(
            f"data: the index of {name} is in another order than that of X {where}; pass {name}.loc[X.index], or "
            f"{name}.to_numpy() where the rows do pair by position"
        )
    if not (_is_a_count(x.index) or _is_a_count(values.index)):
        raise InputError(
            f"data: the index of {name} names other records than that of X {where}; pass the same records, or "
            f"{name}.to_numpy() where the rows do pair by position"
        )


def _label(index: pd.Index[Any], row: int) -> str:
    """A label of an index as the user writes it: 3, not np.int64(3)."""
    label = index[row]
    return repr(label.item() if isinstance(label, np.generic) else label)


def _is_a_count(index: pd.Index[Any]) -> bool:
    """0, 1, 2, …: the index of a frame that was given none."""
    return isinstance(index, pd.RangeIndex) and index.start == 0 and index.step == 1


def n_rows(values: Any, name: str) -> int:
    """How many rows there are, whatever holds them."""
    try:
        return int(values.shape[0]) if hasattr(values, "shape") else len(values)
    except (TypeError, IndexError):
        raise InputError(f"data: {name} is {type(values).__name__}; pass an array, a frame or a list") from None


def column_fault(model: Any, x: Any) -> str | None:
    """What is wrong with the columns of X for a model that takes them as they were at fit; None: nothing."""
    fitted, given = getattr(model, "feature_names_in_", None), getattr(x, "columns", None)
    if fitted is not None and given is not None:
        missing = [name for name in fitted if name not in set(given)]
        extra = [name for name in given if name not in set(fitted)]
        if missing:
            return f"X has no column {missing[0]!r}, which {type(model).__name__} was fitted on"
        if extra:
            return f"X has the column {extra[0]!r}, which {type(model).__name__} was not fitted on"
        if list(fitted) != list(given):
            return "the columns of X are in another order than at fit; pass X[model.feature_names_in_]"
    shape, expected = x.shape, getattr(model, "n_features_in_", None)
    if len(shape) != 2:
        return f"{type(model).__name__} needs a table (n, p) as X, got shape {shape}"
    if expected is not None and shape[1] != expected:
        return f"X has {shape[1]} columns, but {type(model).__name__} was fitted on {expected}"
    return None


def table(x: Any) -> Any:
    """X as an array, or as SciPy's CSR where it is sparse."""
    return cast(Any, x).tocsr() if sparse.issparse(x) else numbers(x, "X")


def numbers(values: Any, name: str) -> Array:
    """Values as a numeric array; the missing values of pandas become NaN, which names its row later on."""
    try:
        array = np.asarray(cast(Any, values).toarray() if sparse.issparse(values) else values)
        if array.dtype.kind in "biuf":
            return array
        if isinstance(values, (pd.DataFrame, pd.Series)):
            return values.to_numpy(dtype=np.float64, na_value=np.nan)
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"data: {name} must hold numbers ({first_line(error)})") from None


def class_index(classes: Array, y: Any) -> tuple[Array, Array]:
    """Positions of the targets among the estimator's classes, (n,), and the targets themselves, (n,)."""
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"data: y must hold a class per record, shape (n,), got {labels.shape}")
    position = {label: index for index, label in enumerate(classes.tolist())}
    values = labels.tolist()
    index = np.array([position.get(value, -1) for value in values], dtype=np.int64)
    unknown = np.flatnonzero(index < 0).tolist()
    if unknown:
        raise InputError(
            f"targets: {values[unknown[0]]!r} in {name_rows(unknown)} (counted from 0) is not a class of the "
            "model; pass the data that it was trained on"
        )
    return index, labels


def first_line(error: Exception) -> str:
    """What an error of another library says first, as a part of a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(" .:") if lines else type(error).__name__
