"""Progress bars for people: on stderr, on a terminal, for anything that may take more than a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Advance(Protocol):
    """Call it with the number of steps just done."""

    def __call__(self, steps: int = 1) -> None: ...


@contextmanager
def progress_bar(title: str, total: int | None, show: bool | None = None, in_bytes: bool = False) -> Iterator[Advance]:
    """A bar with a count and the time left. ``show=None``: only where stderr is a terminal."""
    visible = sys.stderr.isatty() if show is None else show
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not visible,
    ) as bar:
        task = bar.add_task(title, total=total)

        def advance(steps: int = 1) -> None:
            bar.advance(task, steps)

        yield advance
