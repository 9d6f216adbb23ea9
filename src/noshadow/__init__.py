"""noshadow: per-record membership-inference risk from one trained model."""

from noshadow._version import __version__
from noshadow.audit import Audit, audit
from noshadow.errors import InputError, NoshadowWarning
from noshadow.layer import LastLayer
from noshadow.scores import score

__all__ = ["Audit", "InputError", "LastLayer", "NoshadowWarning", "__version__", "audit", "score"]
