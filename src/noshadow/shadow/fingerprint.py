"""What a training procedure is, as a small JSON value: enough to notice that another one is being run.

A trainer that knows itself has a method ``fingerprint() -> dict``. For any other callable the fingerprint is
made of its source text and of the data it refers to: closure variables, globals, default and partial
arguments, with arrays by their SHA-256, and the functions of its own module likewise. It cannot see
everything (a file that is read inside, a changed library); ``Study(..., procedure=...)`` names the procedure
by hand instead.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from noshadow.shadow.work import to_numpy


def describe_procedure(train: Callable[..., Any]) -> Any:
    """The fingerprint of a ``train`` callable."""
    own = getattr(train, "fingerprint", None)
    if callable(own):
        return own()
    return _describe_callable(train, set())


def describe_value(value: Any) -> Any:
    """Numbers and strings as they are, arrays by SHA-256, anything else by its type."""
    return _describe(value, set())


def array_digest(array: Any) -> str:
    """SHA-256 of an array's type, shape and values."""
    values = np.ascontiguousarray(np.asarray(array))
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    digest.update(repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes())
    return f"{values.dtype}{list(values.shape)} {digest.hexdigest()[:16]}"


def _describe(value: Any, seen: set[int]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    value = to_numpy(value)
    if hasattr(value, "__array__") and not isinstance(value, type):  # NumPy, pandas and their like
        return array_digest(value)
    if id(value) in seen:
        return "seen above"
    seen = seen | {id(value)}
    if isinstance(value, Mapping):
        return {str(key): _describe(inner, seen) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_describe(inner, seen) for inner in value]
    if isinstance(value, types.FunctionType | types.MethodType | functools.partial):
        return _describe_callable(value, seen)
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _describe_callable(train: Any, seen: set[int]) -> dict[str, Any]:
    if isinstance(train, functools.partial):
        inner = _describe_callable(train.func, seen)
        return {**inner, "arguments": _describe([list(train.args), dict(train.keywords)], seen)}
    if isinstance(train, types.MethodType):
        state = _describe(getattr(train.__self__, "__dict__", {}), seen)
        return {**_describe_callable(train.__func__, seen), "self": state}
    if not isinstance(train, types.FunctionType):
        kind = train if isinstance(train, type) else type(train)
        name = f"{kind.__module__}.{kind.__qualname__}"
        return {"name": name, "self": _describe(getattr(train, "__dict__", {}), seen)}
    seen = seen | {id(train)}
    try:
        variables = inspect.getclosurevars(train)
        referred = {**variables.globals, **variables.nonlocals}
    except ValueError:  # a closure variable that has no value yet
        referred = {}
    for position, default in enumerate(train.__defaults__ or ()):
        referred[f"default {position}"] = default
    referred |= train.__kwdefaults__ or {}
    described = {name: _describe(value, seen) for name, value in referred.items() if _matters(value, train)}
    return {
        "name": train.__qualname__,
        "source": _source_digest(train),
        **({"uses": described} if described else {}),
    }


def _matters(value: Any, train: types.FunctionType) -> bool:
    """Libraries are not part of a procedure; data and the functions written beside it are."""
    if isinstance(value, types.ModuleType | type):
        return False
    return not isinstance(value, types.FunctionType) or value.__module__ == train.__module__


def _source_digest(function: types.FunctionType) -> str:
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt: the compiled form is all there is
        code = function.__code__
        constants = [constant for constant in code.co_consts if not isinstance(constant, types.CodeType)]
        text = f"{code.co_code.hex()} {code.co_names} {constants!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]
