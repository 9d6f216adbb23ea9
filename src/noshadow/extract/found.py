"""What a front door is told, and what it found: the layer, and what to say of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from noshadow.curvature import Size
from noshadow.layer import LastLayer
from noshadow.progress import Progress

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Extracted", "Fits", "Options"]


Fits = Callable[[Size], object]
"""Told the size of a head before its records are read; refuses it with an InputError."""


def _anything(size: Size) -> None:
    """No size is refused."""


@dataclass(frozen=True)
class Options:
    """How a model is read; a door takes what concerns its models.

    layer       the dotted name of the linear layer to audit, where there are several
    output      a key, attribute or position in what the model returns, likewise
    batch_size  records in a forward pass
    fits        is told the size of the head as soon as it is known; refuses it with an InputError
    progress    see ``noshadow.progress``
    cache       a folder that keeps what the layer sees and gives; None: it is held in memory
    cache_dtype what features are kept in, "float32" or "bfloat16"; None: as the model gives them
    engine      "ray": the shards of the cache are made by tasks of Ray
    address     of its cluster; None: one is started on this machine
    """

    layer: str | None = None
    output: str | int | None = None
    batch_size: int = 256
    fits: Fits = _anything
    progress: Progress = None
    cache: str | os.PathLike[str] | None = None
    cache_dtype: str | None = None
    engine: str | None = None
    address: str | None = None


@dataclass(frozen=True, eq=False)
class Extracted:
    """A layer, and what an audit reports about where it came from.

    source  what the model is called in reports
    index   the records' own names, where the data carry them
    facts   what was audited: layer name, shapes, which output, … ; goes into the audit's metadata
    labels  the targets as the user knows them, (n,), where they are not those of the layer
    classes the classes 0, 1, … of the layer as the user knows them, where they are others
    notes   what to know before trusting the numbers, a sentence each
    """

    layer: LastLayer
    source: str
    index: pd.Index[Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Any = None
    classes: Any = None
    notes: tuple[str, ...] = ()
