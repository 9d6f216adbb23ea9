"""How the passes over a layer are to be done, from what a user says of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.passes.blocks import Blocks

if TYPE_CHECKING:
    from noshadow.passes.ray_tasks import RayTasks

__all__ = ["ENGINES", "in_blocks", "on_ray", "require_engine"]

ENGINES = ("local", "ray")


def require_engine(engine: str | None, address: str | None) -> None:
    if engine is not None and engine not in ENGINES:
        raise InputError(f"engine: {engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if address is not None and engine != "ray":
        raise InputError("address: it is that of a Ray cluster; pass engine='ray' too, or leave it out")


@contextmanager
def on_ray(engine: str | None, address: str | None) -> Iterator[RayTasks | None]:
    """Tasks of the Ray cluster that was asked for, which is let go of at the end; None: none was."""
    require_engine(engine, address)
    if engine != "ray":
        yield None
        return
    from noshadow.passes.ray_tasks import RayTasks

    tasks = RayTasks(address)
    try:
        yield tasks
    finally:
        tasks.close()


@contextmanager
def in_blocks(
    layer: LastLayer,
    engine: str | None,
    address: str | None,
    store: str | os.PathLike[str] | None,
    options: Callable[[], dict[str, Any]],
) -> Iterator[tuple[LastLayer, RayTasks | None]]:
    """The layer, with its passes done by that engine and kept in that folder; as it is where neither is named.

    With it the tasks of Ray, if that is the engine. ``options`` gives all that the results depend on beside the layer.
    """
    require_engine(engine, address)
    kept = None
    if store is not None:
        from noshadow.passes.store import Store, layer_identity  # not where nothing is kept

        kept = Store(store, {**layer_identity(layer), **options()})
    with on_ray(engine, address) as tasks:
        if tasks is None and kept is None:
            yield layer, None
        else:
            yield layer.in_blocks(Blocks(store=kept) if tasks is None else Blocks(tasks, kept)), tasks
