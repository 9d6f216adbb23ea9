"""What a second model and held-out records say: the spread of the attack's statistic, and records nobody trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from noshadow.errors import InputError, name_rows
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
        _require_others(others, members)
    if rerun is None:
        return None, others
    first, second = _rerun_layers(rerun, others is not None) if complete else (read(rerun, data), None)
    inside = _spread(members, first, "rerun")
    if others is None:  # of classes nothing says how far records move
        return (None if members.kind.classifies else (inside, inside)), None
    if second is None and complete:
        raise InputError("rerun: with held_out pass a pair of LastLayers, of the members and of the held-out records")
    second = second or read(rerun, held_out)
    _require_trained_alike(members, others, first, second)
    return (inside, _spread(others, second, "rerun")), others


def _rerun_layers(rerun: Any, paired: bool) -> tuple[LastLayer, LastLayer | None]:
    if isinstance(rerun, (tuple, list)) and len(rerun) == 2:
        if not paired:
            raise InputError("rerun: a pair is of members and held-out records; pass held_out= too")
        return _require_layer(rerun[0], "rerun"), _require_layer(rerun[1], "rerun") if paired else None
    return _require_layer(rerun, "rerun"), None


def _require_layer(value: Any, name: str) -> LastLayer:
    if not isinstance(value, LastLayer):
        raise InputError(f"{name}: the model is a LastLayer; pass a LastLayer here too, got {type(value).__name__}")
    return value


def _require_others(others: LastLayer, members: LastLayer) -> None:
    """Refuse held-out records that are members: the same outputs to the last digit, and the same target."""
    known = set(_keys(members))
    shared = [row for row, key in enumerate(_keys(others)) if key in known]
    if len(shared) > 0.5 * others.n:
        raise InputError(
            f"held_out: {len(shared)} of its {others.n} records are training records, first {name_rows(shared[:1])} "
            "(counted from 0); pass records that the model was not trained on"
        )


def _keys(layer: LastLayer) -> list[bytes]:
    targets = layer.targets.reshape(layer.n, -1).to(layer.outputs)
    return [row.tobytes() for row in torch.cat([layer.outputs, targets], 1).cpu().numpy()]


def _require_trained_alike(members: LastLayer, others: LastLayer, first: LastLayer, second: LastLayer) -> None:
    """A rerun fits the members better than the others, as the model does; else it was trained on something else."""
    kind = members.kind
    inside, outside = (kind.loss(side.outputs, side.targets) for side in (members, others))
    again_in, again_out = (kind.loss(side.outputs, side.targets) for side in (first, second))
    gap, again = float(outside.mean() - inside.mean()), float(again_out.mean() - again_in.mean())
    error = float((outside.var() / len(outside) + inside.var() / len(inside)) ** 0.5)
    if gap > 5.0 * error and again < 0.2 * gap:
        raise InputError(
            "rerun: unlike the model, it fits the training records no better than the held-out ones; pass a model "
            "trained on the same records"
        )


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
