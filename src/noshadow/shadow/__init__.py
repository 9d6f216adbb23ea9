"""Many models: plan (splits), store (atomic, resumable), train (vectorised), engines (processes, Ray)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noshadow.shadow.plan import ModelKey, Plan
    from noshadow.shadow.recipe import Recipe
    from noshadow.shadow.recording import Recording
    from noshadow.shadow.result import StudyResult, load
    from noshadow.shadow.store import StoreError
    from noshadow.shadow.study import Study, StudyError
    from noshadow.shadow.train import TorchTrainer

__all__ = [
    "ModelKey",
    "Plan",
    "Recipe",
    "Recording",
    "StoreError",
    "Study",
    "StudyError",
    "StudyResult",
    "TorchTrainer",
    "load",
]

_HOMES = {
    "ModelKey": "plan",
    "Plan": "plan",
    "Recipe": "recipe",
    "Recording": "recording",
    "StoreError": "store",
    "Study": "study",
    "StudyError": "study",
    "StudyResult": "result",
    "TorchTrainer": "train",
    "load": "result",
}


def __getattr__(name: str) -> Any:
    """The public names when they are asked for: a worker process imports what its task needs and no more."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
