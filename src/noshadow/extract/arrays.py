"""The door of a LastLayer: it is what was sought."""

from __future__ import annotations

from noshadow.extract.found import Extracted, Options
from noshadow.layer import LastLayer
from noshadow.objective import Objective
from noshadow.origin import Origin

__all__ = ["extract_layer"]


def extract_layer(model: LastLayer, data: None, objective: Objective, options: Options) -> Extracted:
    """The layer itself, and what it knows of where it came from."""
    known = model.origin or Origin()
    return Extracted(model, known.model, known.index, known.facts, known.labels, known.classes, known.notes)
