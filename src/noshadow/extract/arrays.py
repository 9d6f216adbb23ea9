"""The door of a LastLayer: it is what was sought."""

from __future__ import annotations

from noshadow.extract.found import Extracted, Options
from noshadow.layer import LastLayer
from noshadow.objective import Objective

__all__ = ["extract_layer"]


def extract_layer(model: LastLayer, data: None, objective: Objective, options: Options) -> Extracted:
    """The layer itself."""
    return Extracted(model, "LastLayer")
