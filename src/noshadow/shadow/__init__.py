"""Many models: plan (splits), store (atomic, resumable), train (vectorised), engines (processes, Ray)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from noshadow.shadow.plan import ModelKey, Plan
from noshadow.shadow.result import StudyResult, load
from noshadow.shadow.store import StoreError
from noshadow.shadow.study import Study, StudyError

if TYPE_CHECKING:
    from noshadow.shadow.recipe import Recipe
    from noshadow.shadow.recording import Recording
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


def __getattr__(name: str) -> Any:
    """The torch trainer, when it is asked for: a worker whose train needs no torch starts without it."""
    homes = {"Recipe": "recipe", "Recording": "recording", "TorchTrainer": "train"}
    if name in homes:
        return getattr(importlib.import_module(f"noshadow.shadow.{homes[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
