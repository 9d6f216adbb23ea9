"""Many models: plan (splits), store (atomic, resumable), train (vectorised), engines (processes, Ray)."""

from noshadow.shadow.plan import ModelKey, Plan
from noshadow.shadow.result import StudyResult, load
from noshadow.shadow.store import StoreError
from noshadow.shadow.study import Study, StudyError

__all__ = ["ModelKey", "Plan", "StoreError", "Study", "StudyError", "StudyResult", "load"]
