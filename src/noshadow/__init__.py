"""noshadow: per-record membership-inference risk from one trained model."""

from noshadow._version import __version__

__all__ = ["__version__"]
