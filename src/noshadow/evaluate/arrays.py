"""Booleans that are some."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError

__all__ = ["Bools", "as_booleans"]

Bools = npt.NDArray[np.bool_]


def as_booleans(value: Any, name: str) -> Bools:
    """Refuse what is neither True nor False, 1 nor 0: of −1 and 1 both would count as True."""
    given = np.asarray(value)
    if given.dtype != bool and not np.isin(given, (0, 1)).all():
        raise InputError(f"{name}: expected booleans, got other values than 0 and 1; pass {name} == 1, or {name} > 0")
    return given.astype(bool)
