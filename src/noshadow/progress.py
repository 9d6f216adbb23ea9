"""Progress bars for people: on stderr, on a terminal, for anything that may take more than a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Call it with the number of steps just done; it may be a part of one, or negative for work that was lost."""

    def __call__(self, steps: float = 1) -> None: ...


@contextmanager
def progress_bar(
    title: str, total: int | None, show: bool | None = None, in_bytes: bool = False, done: int = 0
) -> Iterator[Advance]:
    """A bar with a count, a percentage and the time left. ``show=None``: only where stderr is a terminal.

    ``done`` of the steps were done before; the time left is not reckoned from them.
    """
    if not (sys.stderr.isatty() if show is None else show):
        yield lambda steps=1: None
        return
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
