"""Tables: the arrays of records as they are stored, in one shard or in several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from noshadow.errors import FileError

__all__ = ["Column", "Columns", "Shards", "Table"]


@dataclass(frozen=True)
class Column:
    """An array with a row per record: its type, and the shape of a row."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        width = "a number" if not self.shape else " × ".join(map(str, self.shape)) + " numbers"
        return f"{width} of type {str(self.dtype).removeprefix('torch.')} per record"


Columns = Mapping[str, Column]


class Table(Protocol):
    """Arrays by name, each with a row per record; ``read`` gives rows of those that are named."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def n(self) -> int: ...

    @property
    def columns(self) -> Columns: ...

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Shards:
    """Tables one after the other, as one. All hold the same columns."""

    parts: tuple[Table, ...]

    def __post_init__(self) -> None:
        first = self.parts[0]
        for part in self.parts[1:]:
            for name in [*first.columns, *(name for name in part.columns if name not in first.columns)]:
                here, there = part.columns.get(name), first.columns.get(name)
                if here != there:
                    raise FileError(
                        f"records: {part.name} holds {_told(name, here)}, {first.name} {_told(name, there)}; all "
                        "shards must be of the same layer, saved with arrays of one width and type"
                    )

    @property
    def name(self) -> str:
        return f"{len(self.parts)} shards from {self.parts[0].name} on"

    @cached_property
    def starts(self) -> list[int]:
        """The first row of each shard, and the end of the last."""
        starts = [0]
        for part in self.parts:
            starts.append(starts[-1] + part.n)
        return starts

    @property
    def n(self) -> int:
        return self.starts[-1]

    @property
    def columns(self) -> Columns:
        return self.parts[0].columns

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]:
        k, found = bisect_right(self.starts, rows.start) - 1, []
        start = rows.start
        while start < rows.stop:
            first, end = self.starts[k], self.starts[k + 1]
            stop = min(rows.stop, end)
            if stop > start:
                found.append(self.parts[k].read(slice(start - first, stop - first), names))
            start, k = stop, k + 1
        if len(found) == 1:
            return found[0]
        return {name: torch.cat([part[name] for part in found]) for name in names}


def _told(name: str, column: Column | None) -> str:
    return f"no {name!r}" if column is None else f"{name!r} with {column}"
