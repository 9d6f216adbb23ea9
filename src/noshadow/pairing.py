"""Rows that pair: frames and series carry labels, and are read by position."""

from __future__ import annotations

import sys
from typing import Any

from noshadow.errors import InputError

__all__ = ["is_pandas", "require_same_order"]


def is_pandas(values: Any) -> bool:
    """Whether it is a frame or a series. Where pandas was never imported nothing is, and it need not be for this."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(values, (pandas.DataFrame, pandas.Series))


def require_same_order(first: Any, second: Any, of: str, name: str) -> None:
    """Refuse two frames or series of the same labels in another order: rows pair by position, their owner's by label.

    Others may pair by position: a part that was counted anew, or arrays. Labels are not told, they may name somebody.
    """
    if not (is_pandas(first) and is_pandas(second)) or len(first) != len(second) or first.index.equals(second.index):
        return
    differ = (first.index != second.index).nonzero()[0]
    if len(differ) and not len(first.index.symmetric_difference(second.index, sort=False)):
        raise InputError(
            f"{name}: its index has the labels of {of} in another order, first in row {int(differ[0])} (counted from "
            f"0); pass {name}.loc[{of}.index], or {name}.to_numpy() where the rows do pair by position"
        )
