"""How much memory is left, so that what cannot fit is refused before the work and not in the middle of it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from noshadow.errors import InputError

GIB = 2.0**30


def available_memory() -> float | None:
    """Bytes that can still be allocated here, within the limit of a container too; None where it cannot be told."""
    if sys.platform != "linux":
        return None
    left = [
        1024.0 * int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no limit: another version of cgroups, or "max"
        left.append(float((group / "memory.max").read_text()) - float((group / "memory.current").read_text()))
    return min(left, default=None)


def require_memory(needed: float, what: str, remedy: str) -> None:
    """Refuse ``what`` where it takes more bytes than there are."""
    available = available_memory()
    if available is not None and needed > available:
        raise InputError(f"{what} takes {needed / GIB:,.1f} GiB, {available / GIB:,.1f} GiB are free; {remedy}")
