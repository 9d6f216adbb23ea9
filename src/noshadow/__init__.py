"""noshadow: per-record membership-inference risk from one trained model."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from noshadow._version import __version__
from noshadow.errors import InputError, NoshadowWarning

if TYPE_CHECKING:
    from noshadow import attacks, evaluate, network, shadow, theory
    from noshadow.audit import audit
    from noshadow.bundle import Bundle
    from noshadow.canary import Canaries, canaries
    from noshadow.findings import Audit
    from noshadow.layer import LastLayer
    from noshadow.predict import spread
    from noshadow.reading import last_layer
    from noshadow.scoring import score
    from noshadow.trace import Trace

__all__ = [
    "Audit",
    "Bundle",
    "Canaries",
    "InputError",
    "LastLayer",
    "NoshadowWarning",
    "Trace",
    "__version__",
    "attacks",
    "audit",
    "canaries",
    "evaluate",
    "last_layer",
    "network",
    "score",
    "shadow",
    "spread",
    "theory",
]

_PARTS = ("attacks", "evaluate", "network", "shadow", "theory")
_HOMES = {
    "Audit": "findings",
    "Bundle": "bundle",
    "Canaries": "canary",
    "LastLayer": "layer",
    "Trace": "trace",
    "audit": "audit",
    "canaries": "canary",
    "last_layer": "reading",
    "score": "scoring",
    "spread": "predict",
}


def __getattr__(name: str) -> Any:
    """The public names when they are asked for: a command's help and a worker process do without torch."""
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """``noshadow.audit`` is the function: the module of that name, which an import would put there, gives way to it."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value.audit if name == "audit" and isinstance(value, ModuleType) else value)


sys.modules[__name__].__class__ = _Package
