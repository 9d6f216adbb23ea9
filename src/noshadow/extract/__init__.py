"""Front doors: a model and its training data in, a LastLayer out."""

from noshadow.extract.doors import holds_data
from noshadow.extract.found import Extracted
from noshadow.extract.frontdoor import extract

__all__ = ["Extracted", "extract", "holds_data"]
