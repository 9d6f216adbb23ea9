"""What a front door found: the layer, and what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from noshadow.curvature import Size
from noshadow.layer import LastLayer

Fits = Callable[[Size], object]
"""Told the size of a head before its records are read; refuses it with an InputError."""


@dataclass(frozen=True, eq=False)
class Extracted:
    """A layer, and what an audit reports about where it came from.

    source  what the model is called in reports
    index   the records' own names, where the data carry them
    facts   what was audited: layer name, shapes, which output, … ; goes into the audit's metadata
    labels  the targets as the user knows them, (n,), where they are not those of the layer
    notes   what to know before trusting the numbers, a sentence each
    """

    layer: LastLayer
    source: str
    index: pd.Index[Any] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    labels: Any = None
    notes: tuple[str, ...] = ()
