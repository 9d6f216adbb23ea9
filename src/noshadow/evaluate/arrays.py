"""What is asked of arrays before they are compared: booleans that are some, and rows that pair."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError

__all__ = ["Bools", "as_booleans", "require_paired"]

Bools = npt.NDArray[np.bool_]


def as_booleans(value: Any, name: str) -> Bools:
    """Refuse what is neither True nor False, 1 nor 0: of −1 and 1 both would count as True."""
    given = np.asarray(value)
    if given.dtype != bool and not np.isin(given, (0, 1)).all():
        raise InputError(f"{name}: expected booleans, got other values than 0 and 1; pass {name} == 1, or {name} > 0")
    return given.astype(bool)


def require_paired(first: Any, second: Any, of: str, name: str) -> None:
    """Refuse two series of the same labels in another order: records pair by position, their owner's by label.

    A column that was sorted by its values keeps its labels. Others may pair by position: arrays, or rows counted anew.
    """
    if not (_is_series(first) and _is_series(second)) or len(first) != len(second) or first.index.equals(second.index):
        return
    differ = (first.index != second.index).nonzero()[0]
    if len(differ) and not len(first.index.symmetric_difference(second.index, sort=False)):
        raise InputError(
            f"{name}: its index has the labels of {of} in another order, first in row {int(differ[0])} (counted from "
            f"0); pass {name}.loc[{of}.index], or {name}.to_numpy() where the rows do pair by position"
        )


def _is_series(values: Any) -> bool:
    """Where pandas was never imported nothing is, and it need not be for this."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(values, pandas.Series)
