"""Where the processes that this one starts import from."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

__all__ = ["import_path", "worker_path"]


def worker_path() -> list[str]:
    """Where workers import from: this process's own path, so that what was imported here can be there.

    The current folder is on it only if something was imported from there (the script itself, or a module beside a
    notebook): a command that is run in someone else's folder must not run what lies in it.
    """
    here = os.path.realpath(os.getcwd())
    wanted = any(_lies_in(here, module) for module in list(sys.modules.values()))
    entries = dict.fromkeys(entry or here for entry in sys.path)
    return [entry for entry in entries if wanted or os.path.realpath(entry) != here]


def import_path() -> str:
    """The same as a PYTHONPATH."""
    return os.pathsep.join(worker_path())


def _lies_in(folder: str, module: Any) -> bool:
    """Whether a script, a module or a package, itself not part of a package, is in the folder."""
    about = vars(module) if isinstance(module, ModuleType) else {}
    if "." in about.get("__name__", "."):
        return False
    places = about["__path__"] if "__path__" in about else [about.get("__file__")]
    return any(os.path.dirname(os.path.realpath(place)) == folder for place in places if isinstance(place, str))
