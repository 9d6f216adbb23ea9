"""What noshadow raises and warns with. Every message names the argument, the row and the remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = [
    "FileError",
    "InputError",
    "MissingExtra",
    "NoshadowWarning",
    "missing_extra",
    "name_rows",
    "rows_from",
    "warn_caller",
]

_BETWEEN = ("noshadow", "contextlib")
"""Packages between the caller and what warns: ours, and what makes a decorator of a context manager."""
_first_row: ContextVar[int] = ContextVar("the number of the first row", default=0)


class InputError(ValueError):
    """Something that was passed in cannot be used: ``argument: what is wrong with it, where, and what to do``.

    Examples
    --------
    >>> import noshadow
    >>> try:
    ...     noshadow.LastLayer([[1.0], [float("nan")]], [0.0, 1.0], [0, 1], head="logistic")
    ... except noshadow.InputError as error:
    ...     print(error.argument, "|", error)
    features | features: NaN or infinite in row 1 (counted from 0); drop or impute those records before ...
    """

    @property
    def argument(self) -> str:
        """What the message is about: its words before the first colon."""
        return str(self).partition(":")[0]


class FileError(InputError):
    """A file or folder was named rightly but cannot be used: damaged, too large, not to be had, not writable.

    Examples
    --------
    >>> import noshadow
    >>> noshadow.LastLayer.load("nowhere.safetensors")
    Traceback (most recent call last):
        ...
    noshadow.errors.FileError: path: nowhere.safetensors cannot be read (No such file or directory)
    """


class MissingExtra(ImportError):
    """An optional dependency is not installed; the message holds the command that installs it.

    Examples
    --------
    >>> from noshadow.errors import missing_extra
    >>> raise missing_extra("ray", "ray")
    Traceback (most recent call last):
        ...
    noshadow.errors.MissingExtra: ray is not installed; install it with: pip install 'noshadow[ray]'
    """


class NoshadowWarning(UserWarning):
    """The answer is valid but needs care; the message says why and what to do.

    Examples
    --------
    >>> import warnings
    >>> import noshadow
    >>> from noshadow import attacks
    >>> with warnings.catch_warnings(record=True) as heard:
    ...     warnings.simplefilter("always", noshadow.NoshadowWarning)
    ...     signal = attacks.signal([[0.2, 0.9]], [0, 1], "logistic")
    >>> print(heard[0].message)
    outputs: these look like probabilities (all within [0, 1]); noshadow needs logits. Pass the outputs of the last ...
    """


def warn_caller(message: str) -> None:
    """A ``NoshadowWarning`` at the line that called noshadow, by whatever way it came to what warns."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, NoshadowWarning, stacklevel=level)


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an absent optional dependency."""
    return MissingExtra(f"{package} is not installed; install it with: pip install 'noshadow[{extra}]'")


def name_rows(rows: Sequence[int], limit: int = 5) -> str:
    """``row 3`` or ``rows 3, 17, 40 and 12 more``: how messages name offending rows."""
    shown = ", ".join(str(int(row) + _first_row.get()) for row in rows[:limit])
    more = len(rows) - limit
    return f"row{'s' if len(rows) > 1 else ''} {shown}" + (f" and {more} more" if more > 0 else "")


@contextmanager
def rows_from(start: int) -> Iterator[None]:
    """Rows that messages name inside of the block are those of a chunk that starts there, counted over all records."""
    token = _first_row.set(start)
    try:
        yield
    finally:
        _first_row.reset(token)
