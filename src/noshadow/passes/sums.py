"""Sums over records: what a pass adds up, and how the sums of two parts of the records become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from noshadow.layer import LastLayer
from noshadow.records import Records

__all__ = ["Additive", "S", "Sums", "summed", "sums_of"]


class Sums(Protocol):
    """Something that records are added to."""

    def add(self, records: Records) -> None: ...

    def sums(self) -> dict[str, Tensor]:
        """All that it holds, in float64: that of two parts of the records, added, is that of both."""
        ...

    def take(self, sums: Mapping[str, Tensor]) -> None:
        """Hold these instead."""
        ...


class Additive:
    """Sums in the attributes that ``additive`` names, tensors or numbers; ``a.b`` is the b of an attribute a."""

    additive: ClassVar[tuple[str, ...]]

    def sums(self) -> dict[str, Tensor]:
        found = {name: reduce(getattr, name.split("."), self) for name in self.additive}
        return {
            name: value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
            for name, value in found.items()
            if value is not None
        }

    def take(self, sums: Mapping[str, Tensor]) -> None:
        for name, value in sums.items():
            *path, last = name.split(".")
            owner: Any = reduce(getattr, path, self)
            setattr(owner, last, value if isinstance(getattr(owner, last), Tensor) else float(value))


S = TypeVar("S", bound=Sums)


def summed(
    layer: LastLayer, name: str, make: Callable[[], S], chunk: int, advance: Callable[[int], None] = lambda _: None
) -> S:
    """The sums over all records of a layer, so many at a time; ``name`` tells the pass from others of the same run.

    ``make`` gives sums of no records; it and what it refers to can be sent to other processes.
    """
    sums = make()
    if layer.blocks is None:
        for rows in layer.chunks(chunk):
            records = layer.records(rows)
            sums.add(records)
            advance(len(records))
    else:
        sums.take(layer.blocks.added(layer, name, partial(sums_of, make=make, chunk=chunk), chunk, advance))
    return sums


def sums_of(layer: LastLayer, make: Callable[[], Sums], chunk: int) -> dict[str, Tensor]:
    """The sums over a window of a layer."""
    sums = make()
    for rows in layer.chunks(chunk):
        sums.add(layer.records(rows))
    return sums.sums()
