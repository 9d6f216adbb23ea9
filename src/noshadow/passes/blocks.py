"""Records in blocks. A pass is a function of a block; the results of all blocks are added, or handed on in order.

Sums are added in a binary tree over the blocks, 0 with 1, 2 with 3, those two, …, whoever computes them and in whatever
order they come in: an interrupted run, a run on many machines and a run in one go give the same bits. With a store, at
most log₂ of the number of blocks are kept at a time: two that were added give way to their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from noshadow.layer import LastLayer

if TYPE_CHECKING:
    from noshadow.passes.store import Store

__all__ = ["MOST_BLOCKS", "Advance", "Blocks", "Job", "Parts", "Runner", "in_turn"]

MOST_BLOCKS = 64
Parts = dict[str, Tensor]
Job = Callable[[LastLayer], Parts]
"""What is computed of the window of a layer that one block is."""
Advance = Callable[[int], None]


class Runner(Protocol):
    """Computes a job for each block; yields the results in the order of the blocks."""

    def __call__(self, layer: LastLayer, job: Job, blocks: Sequence[slice]) -> Iterator[Parts]: ...


def in_turn(layer: LastLayer, job: Job, blocks: Sequence[slice]) -> Iterator[Parts]:
    """In this process, one after the other."""
    for rows in blocks:
        yield job(layer.window(rows))


@dataclass(frozen=True, eq=False)
class Blocks:
    """How the passes over a layer are done: by whom, and what is kept, under names that begin with ``label``."""

    runner: Runner = in_turn
    store: Store | None = None
    label: str = ""

    def labelled(self, label: str) -> Blocks:
        """The same for a layer with other outputs, whose passes have names of their own."""
        return replace(self, label=f"{self.label}{label}-")

    @staticmethod
    def of(layer: LastLayer, chunk: int) -> list[slice]:
        """At most ``MOST_BLOCKS``, each of whole chunks but the last."""
        rows = chunk * max(1, -(-layer.n // (MOST_BLOCKS * chunk)))
        return list(layer.chunks(rows))

    def added(self, layer: LastLayer, name: str, job: Job, chunk: int, advance: Advance) -> Parts:
        """The sum of the job's results over all blocks."""
        blocks = self.of(layer, chunk)
        name = _of_size(name, blocks, chunk)
        kept = self._kept(name, len(blocks))
        missing, k = [], 0
        while k < len(blocks):
            if k in kept:
                k += 1 << kept[k][0]
            else:
                missing.append(blocks[k])
                k += 1
        results = self.runner(layer, job, missing)
        nodes: list[tuple[int, int, Parts]] = []  # level, number at that level, sums; levels fall from left to right
        k = 0
        while k < len(blocks):
            if k in kept:
                level, parts = kept[k]
            else:
                level, parts = 0, next(results)
                self._keep(_node(name, 0, k), parts)
            advance(sum(rows.stop - rows.start for rows in blocks[k : k + (1 << level)]))
            nodes.append((level, k >> level, parts))
            while len(nodes) > 1 and nodes[-1][0] == nodes[-2][0]:
                right, left = nodes.pop(), nodes.pop()
                merged = {key: value + right[2][key] for key, value in left[2].items()}
                nodes.append((left[0] + 1, left[1] >> 1, merged))
                self._keep(_node(name, *nodes[-1][:2]), merged)
                self._drop(_node(name, *left[:2]), _node(name, *right[:2]))
            k += 1 << level
        total = nodes.pop()[2]
        while nodes:
            left = nodes.pop()
            total = {key: value + total[key] for key, value in left[2].items()}
        return total

    def mapped(self, layer: LastLayer, name: str, job: Job, chunk: int) -> Iterator[tuple[slice, Parts]]:
        """The job's result for each block, in order; each is kept."""
        blocks = self.of(layer, chunk)
        name = _of_size(name, blocks, chunk)
        # each is asked for once: a file that goes in between would shift the results by one
        asked = ((k, self._get(f"{name}-{k:05d}")) for k in range(len(blocks)))
        kept = {k: parts for k, parts in asked if parts is not None}
        results = self.runner(layer, job, [rows for k, rows in enumerate(blocks) if k not in kept])
        for k, rows in enumerate(blocks):
            parts = kept.pop(k, None)
            if parts is None:
                parts = next(results)
                self._keep(f"{name}-{k:05d}", parts)
            yield rows, parts

    def _kept(self, name: str, count: int) -> dict[int, tuple[int, Parts]]:
        """By the first block of each: level and sums of what is kept, the largest first."""
        found: dict[int, tuple[int, Parts]] = {}
        k = 0
        while self.store is not None and k < count:
            for level in range(count.bit_length(), -1, -1):
                if k % (1 << level) == 0 and k + (1 << level) <= count:
                    parts = self._get(_node(name, level, k >> level))
                    if parts is not None:
                        found[k] = level, parts
                        break
            k += 1 << found[k][0] if k in found else 1
        return found

    def _get(self, name: str) -> Parts | None:
        return None if self.store is None else self.store.get(self.label + name)

    def _keep(self, name: str, parts: Parts) -> None:
        if self.store is not None:
            self.store.keep(self.label + name, parts)

    def _drop(self, *names: str) -> None:
        for name in names:
            if self.store is not None:
                self.store.drop(self.label + name)


def _of_size(name: str, blocks: list[slice], chunk: int) -> str:
    """What a pass is kept as: what was kept for blocks or chunks of another size is not taken for that of these, whose
    sums may be in other coordinates by as much as rounding turns them."""
    return f"{name}-{blocks[0].stop}-{chunk}"


def _node(name: str, level: int, number: int) -> str:
    return f"{name}-{level}-{number:05d}"
