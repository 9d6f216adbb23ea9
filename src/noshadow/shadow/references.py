"""What a user's function refers to: globals, closure variables, defaults, parts of modules, imports inside."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from noshadow.shadow.instructions import attribute_names, global_names, imports
from noshadow.shadow.libraries import library_of_file, library_of_module

__all__ = ["patches", "references", "resolves_to"]

_EMPTY = "nothing yet"


def references(function: FunctionType) -> tuple[dict[str, Any], set[str]]:
    """The values that a function refers to, by name, and the libraries whose modules it uses."""
    code = function.__code__
    named: dict[str, Any] = {f"default {place}": value for place, value in enumerate(function.__defaults__ or ())}
    named |= {f"default {name}": value for name, value in sorted((function.__kwdefaults__ or {}).items())}
    named |= {f"its {name}": value for name, value in sorted(vars(function).items())}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    named |= {name: _inside(cell) for name, cell in cells}
    for name in global_names(code):
        if name in function.__globals__:
            named.setdefault(name, function.__globals__[name])
        elif not hasattr(builtins, name):
            named.setdefault(f"{name} (not defined)", None)
    libraries = set()
    for name, taken in imports(code):
        library, module = _imported(name, taken, function.__globals__.get("__package__"))
        libraries |= {library} if library else set()
        if module is not None:
            named[f"import {name}"] = module
    found: dict[str, Any] = {}
    for name, value in named.items():
        if isinstance(value, ModuleType):
            used, of = _parts_of_module(value, attribute_names(code), (), name)
            found |= used
            libraries |= of
        else:
            found[name] = value
    return found, libraries


def resolves_to(module: str, value: Any) -> bool:
    """The value is what its module has under its name."""
    try:
        return functools.reduce(getattr, value.__qualname__.split("."), sys.modules.get(module)) is value
    except AttributeError:
        return False


def patches(kind: type) -> dict[str, Any]:
    """The methods of a library's class, and of those that it inherits from, that a user's code has put there."""
    bases = [base for base in kind.__mro__ if library_of_module(base.__module__)]
    members = ((f"{base.__qualname__}.{name}", value) for base in bases for name, value in vars(base).items())
    return {name: value for name, value in sorted(members, key=lambda member: member[0]) if _is_own(value)}


def _is_own(value: Any) -> bool:
    """Whether it is a user's function, or holds one.

    Told by the globals that it runs in: its name and its module may be copied from the function that it replaces, and
    the methods that dataclasses write have no file.
    """
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if not isinstance(value, FunctionType) or library_of_file(value.__code__.co_filename):
        return False
    return library_of_module(str(value.__globals__.get("__name__", "__main__"))) is None


def _is_patched(value: Any) -> bool:
    """What a library keeps under one of its names is a user's function, or a class of which a method is."""
    return bool(patches(value)) if isinstance(value, type) else _is_own(value)


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a closure variable that has no value yet
        return _EMPTY


def _parts_of_module(
    module: ModuleType, names: set[str], above: tuple[ModuleType, ...], label: str
) -> tuple[dict[str, Any], set[str]]:
    """What may be used of a module: all that has the name of an attribute in the code; of a library, its name.

    And of a library what a user's code has put into it.
    """
    if library := library_of_module(module):
        used = {f"{label}.{name}": vars(module)[name] for name in sorted(names & vars(module).keys())}
        return {name: value for name, value in used.items() if _is_patched(value)}, {library}
    found: dict[str, Any] = {}
    libraries: set[str] = set()
    for name, value in sorted(vars(module).items()):
        if name in names and not isinstance(value, ModuleType):
            found[f"{label}.{name}"] = value
        elif name in names and value not in above:
            used, of = _parts_of_module(value, names, (*above, module), f"{label}.{name}")
            found |= used
            libraries |= of
    return found, libraries


def _imported(name: str, taken: Iterable[str], package: str | None) -> tuple[str | None, ModuleType | None]:
    """The library of a module that is imported inside, or the module itself if it is a user's own."""
    try:
        full = importlib.util.resolve_name(name, package) if name.startswith(".") else name
        top = full.partition(".")[0]
        spec = None if top in sys.stdlib_module_names else importlib.util.find_spec(top)
        if spec is None:
            return ("python" if top in sys.stdlib_module_names else None), None
        for place in _places(spec):
            if library := library_of_file(place):
                return library, None
        module = importlib.import_module(full)
        for inner in taken:
            if not hasattr(module, inner):
                importlib.import_module(f"{full}.{inner}")
    except (ImportError, ValueError):  # it is optional, or the function will fail when it gets there
        return None, None
    return None, module if list(taken) else sys.modules[top]


def _places(spec: Any) -> Iterator[str]:
    if spec.origin is not None:
        yield spec.origin
    else:
        yield from (f"{folder}/__init__.py" for folder in spec.submodule_search_locations or ())
