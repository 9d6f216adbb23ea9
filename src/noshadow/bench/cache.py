"""What is expensive to compute, kept as arrays and facts, and taken back only if it is of the very same thing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from noshadow._version import __version__
from noshadow.artefact import Arrays, UnusableArtefact, read_artefact, write_artefact
from noshadow.files import private_folder

__all__ = ["RESULTS", "Kept", "keep", "kept"]

RESULTS = 1
"""Raised when a result of the same name and options means something else than before."""

Kept = tuple[Arrays, Any]


def keep(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Any, identity: Any) -> None:
    """Write arrays and facts; ``identity`` says what they are of: study, method, options."""
    private_folder(path.parent)
    write_artefact(path, arrays, _versioned(identity), facts)


def kept(path: Path, identity: Any) -> Kept | None:
    """What was kept, or None where there is nothing, a damaged file, or something else."""
    try:
        found = read_artefact(path, _versioned(identity))
    except (FileNotFoundError, UnusableArtefact):
        return None
    return found.arrays, found.facts


def _versioned(identity: Any) -> dict[str, Any]:
    return {"of": identity, "results": RESULTS, "noshadow": __version__}
