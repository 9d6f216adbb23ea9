"""What a second model and held-out records say: the spread of the attack's statistic, and records nobody trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.predict import rms_difference, statistic

__all__ = ["Read", "compare_runs"]

Read = Callable[[Any, Any], LastLayer]


def compare_runs(
    model: Any, data: Any, members: LastLayer, rerun: Any, held_out: Any, read: Read
) -> tuple[tuple[float, float] | None, LastLayer | None]:
    """The spreads (σ_in, σ_out) of a rerun, and the model's outputs for held-out records; None where not given.

    Parameters
    ----------
    model, data, members
        The audited model, its training data and the layer that was read from them.
    rerun
        A second model of the same recipe, trained on the same data with another seed. Where the model is a LastLayer: a
        LastLayer of the same records, or a pair of those of the members and of the held-out records.
    held_out
        Records that neither was trained on, in the form of the data; a LastLayer where the model is one.
    read
        From a model and data to its last layer.

    Without held-out records the spread of members stands for theirs.
    """
    complete = isinstance(model, LastLayer)
    others = None
    if held_out is not None:
        others = _require_layer(held_out, "held_out") if complete else read(model, held_out)
        _require_alike(others, members, "held_out")
    if rerun is None:
        return None, others
    first, second = _rerun_layers(rerun, others is not None) if complete else (read(rerun, data), None)
    inside = _spread(members, first, "rerun")
    if others is None:
        return (inside, inside), None
    if second is None and complete:
        raise InputError("rerun: with held_out pass a pair of LastLayers, of the members and of the held-out records")
    return (inside, _spread(others, second or read(rerun, held_out), "rerun")), others


def _rerun_layers(rerun: Any, paired: bool) -> tuple[LastLayer, LastLayer | None]:
    if isinstance(rerun, (tuple, list)) and len(rerun) == 2:
        return _require_layer(rerun[0], "rerun"), _require_layer(rerun[1], "rerun") if paired else None
    return _require_layer(rerun, "rerun"), None


def _require_layer(value: Any, name: str) -> LastLayer:
    if not isinstance(value, LastLayer):
        raise InputError(f"{name}: the model is a LastLayer; pass a LastLayer here too, got {type(value).__name__}")
    return value


def _require_alike(other: LastLayer, members: LastLayer, name: str) -> None:
    if other.head != members.head or other.n_outputs != members.n_outputs:
        raise InputError(
            f"{name}: a {other.head} head with {other.n_outputs} outputs, but the model has a {members.head} head with "
            f"{members.n_outputs}"
        )


def _spread(one: LastLayer, other: LastLayer, name: str) -> float:
    """Of two models on the same records."""
    _require_alike(other, one, name)
    if other.n != one.n or not torch.equal(other.targets.cpu(), one.targets.cpu()):
        raise InputError(f"{name}: its records are not those of the model in the same order; their targets differ")
    kind = one.kind
    return rms_difference(statistic(kind, one.outputs, one.targets), statistic(kind, other.outputs, other.targets))
