"""Front doors: a model and its training data in, a LastLayer out."""

from noshadow.extract.frontdoor import Extracted, extract

__all__ = ["Extracted", "extract"]
