"""Whose code it is: the user's own, which is taken by its content, or a library's, taken by its name and version.

A library is what lies in ``site-packages`` or comes with Python. So does noshadow, whose wording may change without
the models of a study changing; only the networks and settings of its benchmark count as a user's code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from noshadow.files import file_digest

__all__ = ["compiled_digest", "library_of_file", "library_of_module", "library_version"]

_PACKAGES = ("site-packages", "dist-packages")
_STANDARD = tuple({Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")})
_OWN = Path(__file__).resolve().parents[1]


@functools.cache
def library_of_file(file: str) -> str | None:
    """The library that a source file belongs to; None for a user's own."""
    if file.startswith("<frozen"):
        return "python"
    path = Path(file)
    if not path.is_absolute() or file.startswith("<"):  # typed at a prompt, made by exec, or a script of this folder
        return None
    path = path.resolve()
    if path.is_relative_to(_OWN):
        return None if path.is_relative_to(_OWN / "bench") else "noshadow"
    for folder in _PACKAGES:
        if folder in path.parts:
            return path.parts[path.parts.index(folder) + 1].split(".")[0]
    return "python" if any(path.is_relative_to(folder) for folder in _STANDARD) else None


def library_of_module(module: ModuleType | str | None) -> str | None:
    """The library of a module, given by itself or by its name; None for a user's own."""
    if isinstance(module, str):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names and top != "__main__":
            return "python"
        module = sys.modules.get(module)
    if module is None or module.__name__ == "__main__":
        return None
    file = getattr(module, "__file__", None)
    if file is None:  # built into Python, or a folder without an __init__.py
        paths = list(getattr(module, "__path__", []))
        return library_of_file(os.path.join(paths[0], "__init__.py")) if paths else _built_in(module.__name__)
    return library_of_file(file)


@functools.cache
def library_version(library: str) -> str:
    """The version that is installed; of Python its first two numbers, which fix what code compiles to.

    A package that was installed from a folder or a repository may change without its version: there, the digest of
    the list of its files is added.
    """
    if library == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    found = _distribution(library)
    if found is None:
        return str(getattr(sys.modules.get(library), "__version__", "unknown"))
    if found.read_text("direct_url.json") is None:
        return found.version
    return f"{found.version} {hashlib.sha256((found.read_text('RECORD') or '').encode()).hexdigest()[:16]}"


def _distribution(library: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(library)
    except importlib.metadata.PackageNotFoundError:  # of another name, such as scikit-learn of sklearn
        names = importlib.metadata.packages_distributions().get(library, [])
        return importlib.metadata.distribution(names[0]) if names else None


def compiled_digest(module: str | None) -> str | None:
    """The SHA-256 of the file of a user's compiled module, which is all of its content that there is."""
    file: Any = getattr(sys.modules.get(module or ""), "__file__", None)
    return None if file is None or file.endswith(".py") else file_digest(file)[:16]


def _built_in(name: str) -> str | None:
    return "python" if name.partition(".")[0] in {*sys.builtin_module_names, *sys.stdlib_module_names} else None
