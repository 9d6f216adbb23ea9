"""A table with as many columns as the terminal has room for: those that matter most, and the names of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

__all__ = ["FittedTable"]

_WIDEST = 24  # characters of a cell that stay on one line


@dataclass(frozen=True)
class FittedTable:
    """Records as a table; rich asks it for the lines, and says how wide they may be.

    columns  by name, each with a cell per record, in the order in which they are shown
    first    names of columns in the order in which they get room; the first two always do, those not named come last
    """

    title: str
    columns: Mapping[str, Sequence[str]]
    first: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        from rich.table import Table
        from rich.text import Text

        shown = self.shown(options.max_width)
        table = Table(title=self.title, title_justify="left", padding=(0, 0))
        for name in shown:
            table.add_column(Text(_heading(name)), justify="right", overflow="fold")
        for cells in zip(*(self.columns[name] for name in shown), strict=True):
            table.add_row(*map(Text, cells))
        yield table
        if left_out := [name for name in self.columns if name not in shown]:
            yield Text(f"no room for: {', '.join(left_out)}", style="dim")

    def shown(self, width: int) -> list[str]:
        """The columns that fit, in their order; a border stands left of each and at the end."""
        order = dict.fromkeys([name for name in self.first if name in self.columns])
        kept: list[str] = []
        used = 1
        for name in [*order, *(name for name in self.columns if name not in order)]:
            needed = 1 + self._width(name)
            if len(kept) < 2 or used + needed <= width:
                kept.append(name)
                used += needed
        return [name for name in self.columns if name in kept]

    def _width(self, name: str) -> int:
        from rich.cells import cell_len

        parts: list[Any] = [*_heading(name).split("\n"), *self.columns[name]]
        return min(max(map(cell_len, parts)), _WIDEST)


def _heading(name: str) -> str:
    """On two lines where there are two words."""
    return name.replace("_", "\n", 1)
