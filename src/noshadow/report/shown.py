"""The nouns of a report: what may be shown, and nothing else. Renderers see these, never the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EXPOSED_FROM",
    "NOT_RATED_KIND",
    "RANKED_SHARE",
    "Breakdown",
    "Cloud",
    "Item",
    "Line",
    "Range",
    "Record",
    "Row",
    "Shown",
    "Strip",
]

_Floats = NDArray[np.float64]

NOT_RATED_KIND = 4
"""The place after the bands: of records without a rate."""
EXPOSED_FROM = 2
"""The lowest band whose records count as exposed: "high"."""
RANKED_SHARE = 0.05
"""Without predicted rates: the share of the records, those ranked highest, that tables of classes and groups count."""


@dataclass(frozen=True)
class Range:
    """Records whose predicted success rate lies in one band, or in several that were put together.

    names   of the bands, lowest first
    kinds   their places among the bands, 0 the lowest; what colours and patterns go by
    """

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    low: float
    high: float
    meaning: str
    count: int
    share: float

    @property
    def name(self) -> str:
        bands = [name for name, kind in zip(self.names, self.kinds, strict=True) if kind < NOT_RATED_KIND]
        together = [" to ".join(dict.fromkeys((bands[0], bands[-1])))] if bands else []
        return " or ".join([*together, *self.names[len(bands) :]])


@dataclass(frozen=True)
class Row:
    """The records of one class or group. ``exposed``: how many of them are; None: withheld."""

    name: str
    records: int
    exposed: int | None
    mean: float | None = None

    @property
    def share(self) -> float | None:
        return None if self.exposed is None else self.exposed / self.records


@dataclass(frozen=True)
class Breakdown:
    """The records by class, or by one of the user's groups. ``merged``: values with too few records, in the last row.

    ``counted`` is False where so few records are exposed that no row may say how many of them it has.
    """

    title: str
    rows: tuple[Row, ...]
    merged: int
    counted: bool


@dataclass(frozen=True)
class Item:
    """What the user chose to show of a record: a text, or an image as a data: address."""

    text: str = ""
    image: str = ""


@dataclass(frozen=True)
class Record:
    """One of the most exposed records."""

    rank: int
    name: str
    target: str
    groups: tuple[str, ...]
    scores: Mapping[str, float]
    kind: int | None
    band: str
    flagged: bool
    reason: str
    nearest: str
    item: Item | None = None


@dataclass(frozen=True)
class Line:
    """Where a score is the same: ``difficulty = exp(intercept + slope · log leverage)``."""

    label: str
    intercept: float
    slope: float


@dataclass(frozen=True, eq=False)
class Cloud:
    """All records by leverage and difficulty, both as logarithms to base 10, counted in hexagons.

    hexagons    (k, 3): centre and count
    radius      of a hexagon, in units of the width
    marked      (t, 2): the most exposed, of which the first is the most exposed of all
    fit         share of the variance of the logarithm of the score that the lines of equal risk explain
    """

    hexagons: _Floats
    x: tuple[float, float]
    y: tuple[float, float]
    columns: int
    marked: _Floats
    lines: tuple[Line, ...]
    fit: float
    difficulty: str


@dataclass(frozen=True, eq=False)
class Strip:
    """The distribution of one class: counts (bins,) between the ends that all strips share, and its median."""

    name: str
    records: int
    counts: NDArray[np.int64]
    median: float


@dataclass(frozen=True, eq=False)
class Shown:
    """Everything that a report may show.

    facts       of the metadata: all of them, or those that are fit for everybody
    ranges      the bands, None where no rate was predicted
    exposed     how many records are: a success rate of 75 % or more, or flagged; without rates those ranked highest;
                None: withheld
    few         whether it is withheld because it is 1 to 9
    highest     the highest predicted rate
    groups_left_out  names of the groups that there is no room for among the breakdowns
    """

    public: bool
    records: int
    facts: Mapping[str, Any]
    ranges: tuple[Range, ...] | None
    exposed: int | None
    few: bool
    highest: float | None
    flagged: int | None
    breakdowns: tuple[Breakdown, ...]
    groups_left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    top: tuple[Record, ...] = ()
    columns: tuple[str, ...] = ()
    group_names: tuple[str, ...] = ()
    cloud: Cloud | None = None
    strips: tuple[Strip, ...] = ()
    strip_ends: tuple[float, float] = (0.5, 1.0)
    agreement: tuple[tuple[str, ...], _Floats] | None = None
    verdict: tuple[bool, str] | None = None

    @property
    def rated(self) -> bool:
        return self.ranges is not None
