"""From a model of any kind to its last layer: through the door that knows it, with the checks that all doors share."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from noshadow.errors import InputError
from noshadow.extract.doors import find_door
from noshadow.extract.found import Extracted, Fits, Options
from noshadow.objective import Objective
from noshadow.pairing import is_pandas
from noshadow.passes import require_engine
from noshadow.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["extract"]


def extract(
    model: Any,
    data: Any = None,
    objective: Objective | None = None,
    *,
    layer: str | None = None,
    output: str | int | None = None,
    batch_size: int = 256,
    fits: Fits = lambda _: None,
    progress: Progress = None,
    cache: str | os.PathLike[str] | None = None,
    cache_dtype: str | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> Extracted:
    """The last layer of a model that one of ``DOORS`` knows.

    The doors get the objective with its loss read (``Objective.resolved``): a stated loss is in head, class_weight and
    label_smoothing. A layer that contradicts it is refused here, whatever the door. ``fits`` is told the size of the
    head as soon as it is known, before the forward pass where that can be, and may refuse it. With a cache, ``engine``
    says who makes its shards.
    """
    require_engine(engine, address)
    name, door = find_door(model)
    objective = objective or Objective()
    if door.complete:
        for argument, value in {"data": data, **objective.stated(), "layer": layer, "output": output}.items():
            if value is not None:
                remedy = f"pass {argument} when it is made, or leave it out"
                raise InputError(f"{argument}: {name} already holds it; {remedy}")
    elif data is None:
        raise InputError("data: pass the training data, as a Dataset, a DataLoader or (X, y)")
    if cache is not None and not door.caches:
        raise InputError(f"cache: it spares the forward pass of a torch Module, and {name} has none; leave it out")
    if cache is None and cache_dtype is not None:
        raise InputError("cache_dtype: there is no cache; pass cache= too, or leave it out")
    objective = objective.resolved()
    options = Options(layer, output, batch_size, fits, progress, cache, cache_dtype, engine, address)
    found = door.open(model, data, objective, options)
    objective.require(found.layer.head)
    return found if found.index is not None else replace(found, index=_index(data))


def _index(data: Any) -> pd.Index[Any] | None:
    """The index of X where it is a frame with one of its own."""
    first: Any = data[0] if isinstance(data, (tuple, list)) and data else None
    if not is_pandas(first):
        return None
    import pandas as pd

    return None if isinstance(first.index, pd.RangeIndex) else first.index
