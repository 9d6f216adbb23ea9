"""What a training procedure is, as a small JSON value: the same in every process, another one after any change.

A trainer that knows itself has a method ``fingerprint() -> dict``. For any other callable the fingerprint is its code
and the content of all that it refers to, see ``noshadow.shadow.content``, with the versions of the libraries it uses.
It cannot see what is outside of the process, such as a file that is read inside; ``Study(..., data=...)`` takes its
content, or a name for it. ``Study(..., procedure=...)`` names the whole procedure by hand instead.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from noshadow.errors import InputError
from noshadow.shadow.content import Content, Unknowable
from noshadow.shadow.libraries import library_of_file

__all__ = ["REMEDY", "describe_parts", "describe_procedure", "describe_value"]

REMEDY = 'leave it out, or name the procedure yourself: procedure="a name of your own"'


def describe_procedure(train: Callable[..., Any]) -> Any:
    """The fingerprint of a ``train`` callable."""
    own = getattr(train, "fingerprint", None)
    if callable(own) and not isinstance(train, type):
        return own()
    content = Content()
    try:
        return _versioned(_callable(train, content), content)
    except Unknowable as error:
        raise InputError(f"train: what it refers to cannot be told apart from another ({error}); {REMEDY}") from error


def describe_parts(parts: dict[str, Any], name: str) -> dict[str, Any]:
    """Each part by its content, with the versions of the libraries met; ``name`` is for messages."""
    content = Content()
    try:
        return _versioned(_shown(parts, content), content)
    except Unknowable as error:
        raise InputError(f"{name}: cannot be told apart from another ({error}); {REMEDY}") from error


def describe_value(value: Any, name: str = "data") -> Any:
    """Numbers and short strings as they are, arrays by SHA-256, anything else by its content."""
    return describe_parts({"": value}, name)[""]


def _callable(train: Any, content: Content) -> dict[str, Any]:
    if isinstance(train, functools.partial):
        given = {**{str(place): value for place, value in enumerate(train.args)}, **train.keywords}
        return {**_callable(train.func, content), "arguments": _shown(given, content)}
    if isinstance(train, types.MethodType):
        return {**_callable(train.__func__, content), "self": content.shown(train.__self__, "self")}
    if not isinstance(train, types.FunctionType) or library_of_file(train.__code__.co_filename):
        named = train if isinstance(train, type | types.FunctionType) else type(train)
        return {"name": named.__qualname__, "content": content.shown(train)}
    uses = _shown(content.uses(train), content)
    code = content.digest(train.__code__)[:16]
    return {"name": train.__qualname__, "code": code, **({"uses": uses} if uses else {})}


def _shown(named: dict[str, Any], content: Content) -> dict[str, Any]:
    """One level of names is kept in the open, so that a comparison says what differs."""
    return {name: content.shown(value, name) for name, value in named.items()}


def _versioned(described: dict[str, Any], content: Content) -> dict[str, Any]:
    return {**described, **({"libraries": dict(sorted(content.libraries.items()))} if content.libraries else {})}
