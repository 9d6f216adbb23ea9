"""Where a layer came from, as far as its arrays do not say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FEATURES", "Origin"]

FEATURES = ("trained", "fixed", "unknown")


@dataclass(frozen=True, eq=False)
class Origin:
    """What a front door knows of a layer's model and records.

    model           what the model is called in reports
    facts           what was audited: layer name, shapes, which output, …
    notes           what to know before trusting the numbers, a sentence each
    index           (n,) the records' own names, where the data carry them
    labels          (n,) or (n, q) the targets as the user knows them, where they are not those of the layer
    classes         the classes 0, 1, … of the layer as the user knows them, where they are others
    features        "trained": a network learned them from these very records; "fixed": nobody did; "unknown"
    weights_sha256  of the model's weights (``noshadow.provenance``)
    file            of the file that the layer was read from: its checksum, and when and with what it was written
    """

    model: str = "LastLayer"
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    index: Any = None
    labels: Any = None
    classes: Any = None
    features: str = "unknown"
    weights_sha256: str | None = None
    file: Mapping[str, Any] | None = None
