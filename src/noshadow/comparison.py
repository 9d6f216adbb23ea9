"""What a second model and held-out records say: the spread of the attack's statistic, and records nobody trained on."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError, NoshadowWarning, name_rows, warn_caller
from noshadow.layer import LastLayer
from noshadow.likeness import note_unlike
from noshadow.predict import rms_difference, statistic
from noshadow.rating import require_law

__all__ = ["Pair", "Read", "check_held_out", "compare_runs"]

_APART = 1.4  # factor between the statistics of two runs of one recipe that is seldom seen
_ALIKE = 0.75  # of the change of members' φ: where held-out records move as much, the last steps may have done it
_LOSSES_APART = 1.6  # factor between the losses of members that the last steps do not explain: 1.4 has been seen
_CHUNK = 65_536  # records at a time
_DIRECTIONS, _GRAIN = 3, 1e-4  # by which a record is known again: in so many directions, to this share of the spread
_CERTAIN, _LIKELY = 5.0, 3.0  # standard errors of a difference that is taken for one, and that is told of
_COPY = 0.01  # of the spread of φ over records: two runs are further apart, a copy in fewer digits is not
_SOME, _FEWEST = 0.02, 3  # share and number of held-out records that are as members are: with fewer, rates stay
Read = Callable[[Any, Any], LastLayer]
Pair = tuple[float, float]


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
        check_held_out(others, members)
    if rerun is None:
        return None, others
    require_law(members, "rerun")
    first, second = _rerun_layers(rerun, others is not None) if complete else (read(rerun, data), None)
    inside = _spread(members, first, "rerun")
    _note_copy(members, inside)
    if others is None:
        if members.kind.classifies:  # nothing says how far records move
            _note_unused()
            return None, None
        return (inside, inside), None
    if second is None and complete:
        raise InputError("rerun: with held_out pass a pair of LastLayers, of the members and of the held-out records")
    second = second or read(rerun, held_out)
    _require_trained_alike(members, others, first, second)
    _note_other_fit(members, others, first, second)
    return (inside, _spread(others, second, "rerun")), others


def check_held_out(held_out: Any, members: LastLayer) -> None:
    """Refuse held-out records that are members, and warn of some that are, or that are not of the members' kind.

    held_out  a LastLayer of the same model; or a pair (outputs, targets), of which less can be told: records are then
              known again by all outputs, to the last bit of float32, and the target
    """
    if isinstance(held_out, LastLayer):
        _require_alike(held_out, members, "held_out")
        known = held_out.n_columns == members.n_columns
        if known:
            _require_others(held_out, members)
        note_unlike(held_out, members, known)
        return
    others = _layer_of_pair(held_out, members)
    if others is not None:
        _require_others(others, members, features=False)
        note_unlike(others, members, features=False)


def _layer_of_pair(held_out: Any, members: LastLayer) -> LastLayer | None:
    """Outputs and targets as a layer whose features are not looked at; None where the rates will refuse them."""
    try:
        outputs, targets = held_out
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoshadowWarning)  # of a layer that nobody asked for
            found = LastLayer(np.zeros((len(outputs), 1)), outputs, targets, head=members.head)
    except (InputError, TypeError, ValueError):
        return None
    if found.n_outputs != members.n_outputs:
        raise InputError(
            f"held_out: outputs with {found.n_outputs} columns, but the layer has {members.n_outputs}; pass those of "
            "the same model"
        )
    return found


def _note_unused() -> None:
    warnings.warn(
        "rerun: without held_out= it goes unused: two runs say how far an attack's statistic moves by chance, and only "
        "records that neither was trained on how far training moved it; pass held_out=",
        NoshadowWarning,
        stacklevel=3,
    )


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


def _require_others(others: LastLayer, members: LastLayer, features: bool = True) -> None:
    """Refuse held-out records that are members, by features, outputs and target; fewer than half are told of.

    Tables of a few categories repeat themselves: what the members do among each other is no sign of anything. Nor is a
    natural duplicate or two in a pool that was split as it should be; they hardly move the rates.
    """
    if members.n < 2:  # nothing says how far two records are apart
        return
    told_by = _marks if features else _marks_of_outputs
    marks, own = told_by(others, members), Counter(told_by(members, members))
    shared = [row for row, mark in enumerate(marks) if mark in own]
    repeated = sum(count for count in own.values() if count > 1) / members.n
    first = f"first {name_rows(shared[:3])} (counted from 0)"
    if len(shared) > max(0.5, 2.0 * repeated) * others.n:
        raise InputError(
            f"held_out: {len(shared)} of its {others.n} records are training records, {first}; pass records that the "
            "model was not trained on"
        )
    if len(shared) >= _FEWEST and len(shared) > max(2.0 * repeated, _SOME) * others.n:
        warn_caller(
            f"held_out: {len(shared)} of its {others.n} records are the same as training records in all that is seen "
            f"of them, {first}: they make held-out records look better fitted than they are, and predicted rates too "
            "low; leave them out"
        )


def _marks(layer: LastLayer, members: LastLayer) -> list[bytes]:
    """What a record is known by, up to the rounding of a forward pass in other batches: features, outputs and target.

    The features are seen in a few random directions; all are rounded to 10⁻⁴ of their spread over the members.
    """
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn((layer.n_columns, _DIRECTIONS), generator=generator, dtype=torch.float64)
    values, scale = _seen(layer, directions), _seen(members, directions).std(0, correction=0)
    cells = torch.where(scale > 0, values / (_GRAIN * scale), 0.0).round()
    targets = layer.targets.reshape(layer.n, -1).to(cells)
    return [row.tobytes() for row in (torch.cat([cells, targets], 1) + 0.0).numpy()]  # −0 is 0


def _marks_of_outputs(layer: LastLayer, members: LastLayer) -> list[bytes]:
    """What a record is known by where nothing is known of its features: outputs in float32, and target."""
    parts = [layer.records(rows).outputs.to(device="cpu", dtype=torch.float32) for rows in layer.chunks(_CHUNK)]
    targets = layer.targets.reshape(layer.n, -1).to(device="cpu", dtype=torch.float32)
    return [row.tobytes() for row in (torch.cat([torch.cat(parts), targets], 1) + 0.0).numpy()]


def _seen(layer: LastLayer, directions: Tensor) -> Tensor:
    """(n, directions + m): the features along the directions and the outputs of all records."""
    parts = []
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        parts.append(torch.cat([records.times(directions.to(records.outputs)), records.outputs], 1))
    return torch.cat(parts).cpu()


def _require_trained_alike(members: LastLayer, others: LastLayer, first: LastLayer, second: LastLayer) -> None:
    """A rerun fits the members better than the others, as the model does; else it was trained on something else.

    The gap of the rerun is held against that of the model, record by record: how hard a record is falls out of their
    difference, so that a few hundred records tell. Two runs of one recipe differ by chance, and by what a seed does to
    all records at once, but neither takes away four fifths of a gap that is there.
    """
    kind = members.kind
    inside, outside = (kind.loss(side.outputs, side.targets) for side in (members, others))
    again_in, again_out = (kind.loss(side.outputs, side.targets) for side in (first, second))
    gap, again = float(outside.mean() - inside.mean()), float(again_out.mean() - again_in.mean())
    if min(members.n, others.n) < 2 or again >= 0.2 * gap:
        return
    plain = _error_of_difference(outside, inside)
    paired = _error_of_difference(again_out - outside, again_in - inside)
    fits = "unlike the model, it fits the training records no better than the held-out ones"
    remedy = "pass a model trained on the same records, and for as long"
    if gap > _CERTAIN * plain or gap - again > _CERTAIN * paired:
        raise InputError(f"rerun: {fits}; {remedy}")
    if gap - again > _LIKELY * paired:
        warnings.warn(
            f"rerun: {fits} (losses of held-out records are higher by {again:.2g}, by {gap:.2g} of the model), as one "
            f"trained on others, or on both, would; {remedy}",
            NoshadowWarning,
            stacklevel=3,
        )


def _error_of_difference(one: Tensor, other: Tensor) -> float:
    """Standard error of the difference of two means."""
    return float((one.var() / len(one) + other.var() / len(other)) ** 0.5)


def _note_copy(members: LastLayer, spread: float) -> None:
    """Tell of a rerun that differs from the model by little more than rounding."""
    phi = statistic(members.kind, members.outputs, members.targets)
    share = spread / max(float(phi.std()), np.finfo(np.float64).tiny)
    if share < _COPY:
        warnings.warn(
            f"rerun: it gives all but the same outputs as the model (they differ by {share:.2g} of their spread over "
            "the records), as a copy in fewer digits or a run that went on from it would; predicted rates take that "
            "for all that another seed does: pass a second model, trained from the start with another seed",
            NoshadowWarning,
            stacklevel=3,
        )


def _note_other_fit(members: LastLayer, others: LastLayer, first: LastLayer, second: LastLayer) -> None:
    """Tell of a rerun that fits the same members far better or worse than the model: it is not of one recipe with it.

    Where the rate of learning is not lowered at the end, the last steps throw a model about, members and held-out
    records alike: by factors up to 1.9 in the mean of φ, 1.4 in losses. So it is told of where members alone are
    further apart, or farther than that: runs of a third of the epochs were, by 1.4 to 6 in φ. Of squared error the
    losses of members may differ tenfold where both are next to nothing; but both are then nearer to each other than to
    that of held-out records, and as a share of that too.
    """
    kind = members.kind
    inside, again = (kind.loss(side.outputs, side.targets).cpu().numpy() for side in (members, first))
    losses = float(inside.mean()), float(again.mean())
    if kind.classifies:
        phi, phi_again, out, out_again = (
            statistic(kind, side.outputs, side.targets) for side in (members, first, others, second)
        )
        change = phi - phi_again
        centres = [(float(np.mean(side)), float(np.median(side))) for side in (phi, phi_again)]
        alike = float(np.mean(out) - np.mean(out_again)) / (float(change.mean()) or 1.0) >= _ALIKE
        explained = alike and max(losses) <= _LOSSES_APART * min(losses)
        worse = not explained and _far_lower(centres[0], centres[1], losses)
        better = not explained and _far_lower(centres[1], centres[0], losses[::-1])
        measure, numbers = "mean statistic", (centres[0][0], centres[1][0])
    else:
        outside, outside_again = (float(kind.loss(side.outputs, side.targets).mean()) for side in (others, second))
        change, numbers, measure = again - inside, losses, "mean loss"
        worse = _far_worse(losses, (outside, outside_again))
        better = _far_worse(losses[::-1], (outside_again, outside))
    certain = abs(float(change.mean())) > _CERTAIN * float(change.std()) / math.sqrt(len(change))
    if certain and (worse or better):
        warnings.warn(
            f"rerun: it fits the training records far {'worse' if worse else 'better'} than the model does ({measure} "
            f"{numbers[1]:.3g}, of the model {numbers[0]:.3g}), as a model trained for another time would; predicted "
            "rates take the difference for what another seed does: pass a rerun of the same recipe, trained to its end",
            NoshadowWarning,
            stacklevel=3,
        )


def _far_lower(centres: Pair, again: Pair, losses: Pair) -> bool:
    """Whether mean and median of φ are lower by a factor in the second run. Of many classes that were hardly fitted
    they are below 0, where a factor says nothing: then the losses of the two runs tell."""
    if min(*centres, *again) <= 0.0:
        return losses[1] > _LOSSES_APART * losses[0]
    return all(_APART * b < a for a, b in zip(centres, again, strict=True))


def _far_worse(inside: Pair, outside: Pair) -> bool:
    """Whether the second run has lost half of what the first had of members over held-out records, plainly and as a
    share of what it loses on those itself."""
    share, again = (a / b if b > 0.0 else 1.0 for a, b in zip(inside, outside, strict=True))
    return inside[1] > 0.5 * (inside[0] + max(outside[0], inside[0])) and again > 0.5 * (share + max(1.0, share))


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
