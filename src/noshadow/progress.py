"""Progress, one convention: whatever may take more than a few seconds has an argument ``progress``.

    None          a bar on stderr, where that is a terminal and the work is not part of other work that may show one
    True, False   a bar, no bar
    a function    is called as ``progress(stage, done, total)`` with each step, and draws what it likes

Only this module draws, and one bar at a time.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Advance", "Progress", "Report", "progress_bar"]


class Report(Protocol):
    """Is told how far a stage is: ``done`` of ``total`` records, models or bytes; a total of None is not known."""

    def __call__(self, stage: str, done: float, total: float | None) -> None: ...


Progress = Report | bool | None


class Advance(Protocol):
    """Call it with the number of steps just done; it may be a part of one, or negative for work that was lost."""

    def __call__(self, steps: float = 1) -> None: ...


_screen = threading.Lock()  # held while a bar is on it: there is room for one
_work = threading.local()  # how many stages this thread is in


@contextmanager
def progress_bar(
    title: str, total: int | None, progress: Progress = None, in_bytes: bool = False, done: int = 0
) -> Iterator[Advance]:
    """A stage of work: what it yields is called with each step, and shown or reported as ``progress`` says.

    ``done`` of the steps were done before; the time left is not reckoned from them.
    """
    depth = getattr(_work, "depth", 0)
    wanted = depth == 0 and sys.stderr.isatty() if progress is None else progress
    _work.depth = depth + 1
    try:
        if callable(wanted):
            yield _reporting(title, total, wanted, done)
        elif wanted and _screen.acquire(blocking=False):
            try:
                with _bar(title, total, in_bytes, done) as advance:
                    yield advance
            finally:
                _screen.release()
        else:
            yield lambda steps=1: None
    finally:
        _work.depth = depth


def _reporting(title: str, total: int | None, report: Report, done: float) -> Advance:
    report(title, done, total)

    def advance(steps: float = 1) -> None:
        nonlocal done
        done += steps
        report(title, done, total)

    return advance


@contextmanager
def _bar(title: str, total: int | None, in_bytes: bool, done: int) -> Iterator[Advance]:
    """A bar with a count, a percentage and the time left."""
    from rich.console import Console  # not for a worker process, which shows nothing
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn("{task.percentage:>5.1f}%"),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total, completed=done)

        def advance(steps: float = 1) -> None:
            bar.advance(task, steps)

        yield advance
