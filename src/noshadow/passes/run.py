"""How the passes over a layer are to be done, from what a user says of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.passes.blocks import Blocks

__all__ = ["ENGINES", "in_blocks"]

ENGINES = ("local", "ray")


@contextmanager
def in_blocks(
    layer: LastLayer,
    engine: str | None,
    address: str | None,
    store: str | os.PathLike[str] | None,
    options: Callable[[], dict[str, Any]],
) -> Iterator[LastLayer]:
    """The layer, with its passes done by that engine and kept in that folder; as it is where neither is named.

    ``options`` gives all that the results depend on beside the layer.
    """
    if engine is not None and engine not in ENGINES:
        raise InputError(f"engine: {engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if address is not None and engine != "ray":
        raise InputError("address: it is that of a Ray cluster; pass engine='ray' too, or leave it out")
    if engine in (None, "local") and store is None:
        yield layer
        return
    kept = None
    if store is not None:
        from noshadow.passes.store import Store, layer_identity  # not where nothing is kept

        kept = Store(store, {**layer_identity(layer), **options()})
    if engine != "ray":
        yield layer.in_blocks(Blocks(store=kept))
        return
    from noshadow.passes.ray_tasks import RayTasks

    tasks = RayTasks(address)
    try:
        yield layer.in_blocks(Blocks(tasks, kept))
    finally:
        tasks.close()
