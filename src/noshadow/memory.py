"""How much memory is free, so that what cannot fit is refused before the work and not in the middle of it."""

from __future__ import annotations

import math
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from noshadow.errors import InputError

__all__ = ["GIB", "free_memory", "is_number", "require_free_memory", "working_memory"]

GIB = 2.0**30
_SHARE = 0.5  # of the free memory: the rest is for the data and for others
_SYSTEM = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> float:
    """Bytes that can be had without swapping, within the limit of a container too; infinite where it is not said."""
    free = math.inf
    with suppress(OSError, ValueError, StopIteration):  # another system, or one that does not tell
        lines = _SYSTEM.read_text().splitlines()
        free = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    with suppress(OSError, ValueError):  # another version of cgroups, or no limit, which is the word "max"
        limit, used = (float((_GROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, limit - used)
    return free


def is_number(value: Any) -> bool:
    """A number of any kind, and not a word or a truth value, which compare like numbers or not at all."""
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def working_memory(asked: float | None) -> float:
    """GiB that a computation may use: what was asked for, or half of what is free; 4 where that is not said."""
    if asked is not None:
        if not (is_number(asked) and 0 < asked < math.inf):
            raise InputError(
                f"memory: expected a positive number of GiB, got {asked!r}; leave it out for half of what is free"
            )
        return float(asked)
    free = free_memory()
    return 4.0 if math.isinf(free) else max(_SHARE * free, 0.0) / GIB


def require_free_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse ``what`` where it takes more bytes than are free."""
    free = free_memory()
    if needed > free:
        raise InputError(f"{what} takes {needed / GIB:,.1f} GiB, {free / GIB:,.1f} GiB are free; {remedy}")
