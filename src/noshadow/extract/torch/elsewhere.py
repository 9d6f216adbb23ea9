"""The forward pass on other machines: tasks of Ray make the shards of a cache, or read their data again.

The driver runs the first batch, which says what the head is, and keeps the folder. A task is sent the model, the data
set and the number of a shard; it reads the records of that shard alone. Batches are those of a pass in one process, so
that shards are the same to the bit where a worker rounds as this process does, with one thread.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from noshadow.errors import InputError
from noshadow.extract.torch.batches import Signature
from noshadow.extract.torch.caching import CachedPass
from noshadow.extract.torch.layers import coefficients
from noshadow.extract.torch.loaders import Batched, Source
from noshadow.extract.torch.watching import reading
from noshadow.passes import on_ray
from noshadow.passes.blocks import Parts
from noshadow.passes.ray_tasks import RayTasks
from noshadow.progress import Advance

__all__ = ["add_shards"]

_HERE = "leave engine out, and this process makes the cache"


@dataclass(frozen=True)
class _Head:
    """What the first batch said: all that a worker needs to go on as this process would."""

    signature: Signature
    layer: str | None
    output: Any
    activations: frozenset[str]
    width: tuple[int, int]
    kept_dtype: torch.dtype | None


@dataclass(frozen=True)
class _Shard:
    """Batches ``start`` to ``stop``; the facts of the shard if it is whole, so that only its data are to be read."""

    start: int
    stop: int
    whole: dict[str, Any] | None


def add_shards(seen: CachedPass, source: Source, address: str | None, advance: Advance) -> None:
    """All records, shard by shard, into the folder of ``seen``; those that are whole are compared with their data."""
    batches = source.shared
    if batches is None:
        raise InputError(
            "engine: the data are a stream, or batches of their own making, of which no worker can read a part; pass a "
            f"map-style Dataset, or {_HERE}"
        )
    if seen.device.type != "cpu":
        raise InputError(
            f"engine: the model is on {seen.device}, and a task of Ray has a core of its own and no GPU; move it with "
            f"model.cpu(), or {_HERE}"
        )
    if not len(batches):
        return
    seen.open(next(batches(0, 1)))
    with on_ray("ray", address) as tasks:
        assert tasks is not None
        _add_shards(seen, batches, tasks, advance)


def _add_shards(seen: CachedPass, batches: Batched, tasks: RayTasks, advance: Advance) -> None:
    head = _Head(seen.signature, seen.layer, seen.output, seen.activations, seen.width, seen.kept_dtype)
    sent = (
        tasks.shared(seen.model, "model: it", _HERE),
        tasks.shared(batches, "data: they", _HERE),
        tasks.shared(head, "model: its head", _HERE),
    )
    shards = [_Shard(some.start, some.stop, whole) for some, whole in seen.shards(len(batches))]
    for shard, parts in zip(shards, tasks.each(_shard, shards, *sent), strict=True):
        facts = json.loads(bytes(parts.pop("facts").tolist()))
        kept = seen.activations & frozenset(facts["activations"])
        if not kept:
            raise InputError(
                f"model: its outputs for batches {shard.start} to {shard.stop - 1} went through another activation "
                f"after layer {seen.layer!r} than those before; noshadow needs the same for all records"
            )
        seen.activations = kept
        seen.notes |= dict.fromkeys(facts["notes"])
        seen.take(shard.whole, facts["rows"], shard.stop - shard.start, parts, facts["data"])
        advance(facts["rows"])


def _shard(shard: _Shard, model: nn.Module, batches: Batched, head: _Head) -> Parts:
    """A shard, on a worker."""
    seen = CachedPass(model, head.signature, None, head.layer, head.output, folder="")
    seen.kept_dtype, seen.width, seen.activations = head.kept_dtype, head.width, head.activations
    seen.head = model.get_submodule(head.layer or "")
    seen.theta = coefficients(seen.head)
    first = batches.rows(shard.start, shard.stop).start
    seen.begin_elsewhere(first, shard.start, shard.whole)
    with reading(model):
        for raw in batches(shard.start, shard.stop):
            seen.fill(raw)
    parts, data = seen.filled()
    facts = {"data": data, "rows": seen.rows - first, "activations": sorted(seen.activations)}
    text = json.dumps({**facts, "notes": list(seen.notes)}).encode()
    return {**parts, "facts": torch.tensor(list(text), dtype=torch.uint8)}
