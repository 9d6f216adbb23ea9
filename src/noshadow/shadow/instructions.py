"""What a function's code says and what it refers to: read off the compiled form, which is what runs.

Comments, docstrings, line numbers and annotations are not in it, so that rewording these changes nothing.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

__all__ = ["attribute_names", "global_names", "imports", "instructions", "nested", "signature"]

_ABOUT_THE_TEXT = ("__doc__", "__firstlineno__", "__static_attributes__", "__qualname__", "__module__")
_KINDS = 0x0C | 0x20 | 0x80 | 0x100 | 0x200  # *args and **kwargs, generator, coroutine, their iterables


def instructions(code: CodeType) -> Iterator[tuple[str, Any, bool]]:
    """Each instruction as (name, argument, whether that is a constant); constants may be code themselves."""
    steps = list(dis.get_instructions(code))
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        constant = step.opcode in dis.hasconst
        stored = following.argval if following is not None and following.opname == "STORE_NAME" else None
        if constant and stored in _ABOUT_THE_TEXT:  # the body of a class within a function
            continue
        yield (step.opname, step.argval, True) if constant else (step.opname, repr(step.argval), False)


def signature(code: CodeType) -> list[Any]:
    """Names and kinds of the arguments, and where exceptions are caught."""
    counts = [code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount]
    arguments = sum(counts[::2]) + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    caught = getattr(code, "co_exceptiontable", b"").hex()
    return [counts, code.co_flags & _KINDS, list(code.co_varnames[:arguments]), caught]


def nested(code: CodeType) -> Iterator[CodeType]:
    """The code and all code inside it: lambdas, comprehensions, inner functions and classes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)


def global_names(code: CodeType) -> list[str]:
    """The global names that the code, or code inside it, reads."""
    found = {
        str(step.argval)
        for inner in nested(code)
        for step in dis.get_instructions(inner)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    }
    return sorted(found - {"__name__", "__file__"})  # where a script lies is not what it does


def attribute_names(code: CodeType) -> set[str]:
    """All names that may be those of attributes: of modules, they say which part is used."""
    return {name for inner in nested(code) for name in inner.co_names}


def imports(code: CodeType) -> list[tuple[str, tuple[str, ...]]]:
    """Modules that are imported inside, relative ones with their dots, and the names taken from each."""
    found = set()
    for inner in nested(code):
        steps = list(dis.get_instructions(inner))
        for position, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":  # the level and the names are loaded just before
                level, names = steps[position - 2].argval, steps[position - 1].argval
                found.add(("." * int(level) + str(step.argval), tuple(names or ())))
    return sorted(found)
