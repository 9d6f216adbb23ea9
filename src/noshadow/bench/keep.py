"""Expensive results in the store: arrays and facts, taken back only if they are of the very same thing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from noshadow.files import private_folder, write_bytes

Kept = tuple[dict[str, NDArray[Any]], dict[str, Any]]


def keep(path: Path, arrays: Mapping[str, NDArray[Any]], facts: Any, identity: Any) -> None:
    """Write arrays and facts; ``identity`` says what they are of."""
    about = {"identity": _text(identity), "facts": _text(facts)}
    private_folder(path.parent)
    write_bytes(path, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, about))


def kept(path: Path, identity: Any) -> Kept | None:
    """What was kept, or None where there is nothing, a damaged file, or something else."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about = file.metadata()
            if about["identity"] != _text(identity):
                return None
            return {name: file.get_tensor(name) for name in sorted(file.keys())}, json.loads(about["facts"])
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
