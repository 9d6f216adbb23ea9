"""The front doors, one table: which models go through which, and the function behind each.

A new door is a module of its own, with a function of (model, data, objective, options) that returns ``Extracted``, and
a line in ``DOORS``. Neither to recognise a model nor to name it in an error is a library imported that its owner has
not imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from noshadow.errors import InputError
from noshadow.extract.found import Extracted, Options
from noshadow.objective import Objective

__all__ = ["DOORS", "Door", "Opens", "find_door", "holds_data", "instance_of"]


class Opens(Protocol):
    """What is behind a door. The objective comes with its loss read (``Objective.resolved``)."""

    def __call__(self, model: Any, data: Any, objective: Objective, options: Options) -> Extracted: ...


@dataclass(frozen=True)
class Door:
    """One kind of models.

    recognises  whether a model is of this kind
    function    "module:function" that opens the door; imported when it is needed
    complete    its models hold their data and their objective, so that nothing may be stated beside them
    caches      it can keep the features in a folder
    """

    recognises: Callable[[Any], bool]
    function: str
    complete: bool = False
    caches: bool = False

    def open(self, model: Any, data: Any, objective: Objective, options: Options) -> Extracted:
        """The last layer of a model of this kind."""
        module, _, name = self.function.partition(":")
        return cast(Opens, getattr(importlib.import_module(module), name))(model, data, objective, options)


def instance_of(module: str, name: str) -> Callable[[Any], bool]:
    """Whether a model is an instance of a class; of a module that was never imported there are none."""

    def recognises(model: Any) -> bool:
        found = sys.modules.get(module)
        return found is not None and isinstance(model, getattr(found, name))

    return recognises


DOORS: dict[str, Door] = {
    "a torch Module": Door(instance_of("torch.nn", "Module"), "noshadow.extract.torch:extract_torch", caches=True),
    "a scikit-learn estimator": Door(
        instance_of("sklearn.base", "BaseEstimator"), "noshadow.extract.sklearn:extract_sklearn"
    ),
    "a LastLayer": Door(instance_of("noshadow.layer", "LastLayer"), "noshadow.extract.arrays:extract_layer", True),
}
"""By what errors call their models; the first that recognises a model has it."""


def find_door(model: Any) -> tuple[str, Door]:
    """The door of a model, and what its models are called."""
    for name, door in DOORS.items():
        if door.recognises(model):
            return name, door
    *names, last = DOORS
    raise InputError(f"model: expected {', '.join(names)} or {last}, got {type(model).__name__}")


def holds_data(model: Any) -> bool:
    """Whether a model comes with its records, as a LastLayer does, so that none are passed beside it."""
    return next((door.complete for door in DOORS.values() if door.recognises(model)), False)
