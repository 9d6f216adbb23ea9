"""The predicted rates of a scored layer: what may be passed for them, when a head needs none of it, and the rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.diagnostics import Diagnostics
from noshadow.errors import InputError, name_rows
from noshadow.heads.targets import check_targets
from noshadow.layer import LastLayer
from noshadow.pairing import require_same_order
from noshadow.predict import Calibration, HeldOut, Rates, calibrate, converged_rates, plain_loss
from noshadow.run import Run
from noshadow.sandwich import Spreads
from noshadow.scores import SCORES
from noshadow.squared_law import calibrate_law, converged_law
from noshadow.tensors import as_floats, as_tensor

__all__ = [
    "LAWS",
    "WHAT_RATES_NEED",
    "Basis",
    "Law",
    "Rated",
    "basis_of",
    "has_converged",
    "has_law",
    "learned_features",
    "losses_of_others",
    "part_by_chance",
    "predicted_rates",
    "rates_of_converged",
    "read_spreads",
    "require_law",
    "require_members",
    "require_ratable",
]

_CHUNK = 65_536  # records at a time
# the scores that rates are made of, whatever the law: of a network, and of a converged head on fixed features
_OF_CALIBRATED = ("exposure", "leverage", "loss")
_OF_CONVERGED = ("leverage", "loss", "influence", "newton", "signal_shift", "signal_variance")
_SMALLEST = 1e-100  # spread
_CONVERGED = 0.1  # leftover gradients, in those of a typical record
WHAT_RATES_NEED = (
    "records that the model was not trained on, as held_out=, or the spread of the attack's statistic over "
    "retrainings, as spread=; only a converged head does without"
)


def has_converged(found: Diagnostics) -> bool:
    """A head at its optimum, on features that are as they are: its law over data is known without retraining."""
    return found.stationarity is not None and found.stationarity < _CONVERGED and not found.null_directions


def read_spreads(spread: Any, gap: Any, held_out: Any) -> tuple[float, float] | None:
    """The two spreads, checked."""
    if gap is not None and held_out is not None:
        raise InputError("gap: held_out= says it; pass one of the two")
    real = isinstance(gap, (int, float, np.floating, np.integer)) and not isinstance(gap, bool)
    if gap is not None and not (real and math.isfinite(gap)):
        raise InputError(f"gap: expected a number, mean statistic of members minus that of others, got {gap!r}")
    if spread is None:
        if gap is not None:
            raise InputError("gap: it scales the predicted rates, which need spread= too")
        return None
    try:
        if isinstance(spread, (str, bytes, Mapping, Set)):  # which have no order, or are no numbers
            raise TypeError
        inside, outside = (float(value) for value in spread if not isinstance(value, (bool, np.bool_)))
    except (TypeError, ValueError):
        raise InputError(f"spread: expected two numbers, of members and of held-out records, got {spread!r}") from None
    if not all(_SMALLEST < value < 1.0 / _SMALLEST for value in (inside, outside)):
        raise InputError(f"spread: expected two positive numbers, whose squares are numbers too, got {spread!r}")
    return inside, outside


def require_ratable(layer: LastLayer, spreads: Any, gap: Any, held_out: Any) -> None:
    """What was passed for the predicted rates is of use to this head."""
    passed = [name for name, value in (("spread", spreads), ("gap", gap), ("held_out", held_out)) if value is not None]
    if not passed:
        return
    law = require_law(layer, passed[0])
    if not law.scaled and gap is not None:
        raise InputError(f"gap: the law of {layer.kind.loss_name} is not scaled; leave it out")
    if law.scaled and passed == ["spread"]:
        raise InputError("spread: how far records move is scaled by gap= or held_out=; pass one of the two")


def require_law(layer: LastLayer, name: str) -> Law:
    """The law of the rates of such a layer; refused by the name of what was passed for them where there is none."""
    if not layer.kind.signals:
        raise InputError(
            f"{name}: independent labels have no single attack statistic; audit a label at a time, or leave it out"
        )
    law = LAWS.get(layer.kind.signal_scale)
    if law is None:
        raise InputError(f"{name}: no law of predicted rates is known of a {layer.head} head; leave it out")
    if law.one_output and layer.n_outputs > 1:
        raise InputError(
            f"{name}: rates are predicted for one output, this layer has {layer.n_outputs}; audit one at a time, or "
            "leave it out"
        )
    return law


def require_members(layer: LastLayer) -> None:
    """Records of weight 0 took no part in training: among the members they would pass for ones that fit badly."""
    left_out: list[int] = []
    weighted = layer.source.weighted or layer.class_weight is not None
    for rows in layer.chunks(_CHUNK) if weighted else ():
        weights = layer.records(rows).weights
        if weights is not None:
            left_out += ((weights == 0).all(1).nonzero().flatten() + rows.start).tolist()
    if left_out:
        given = {"sample_weight": layer.source.weighted, "class_weight": layer.class_weight is not None}
        name = ", ".join(one for one, there in given.items() if there)
        raise InputError(
            f"{name}: 0 in {name_rows(left_out)} (counted from 0), which took no part in training and are no "
            "members: leave them out for predicted rates, and pass them among held_out="
        )


def learned_features(layer: LastLayer, values: dict[str, Any], held_out: Any) -> bool:
    """Held-out records differ by more than the head alone explains: its features were trained on the members."""
    if held_out is None:
        return False
    others = HeldOut.of(layer.kind, *_pair(held_out))
    if layer.kind.classifies:
        without, theirs = _statistic_of(layer) - values["signal_shift"].mean(), others.statistic
    else:  # residuals without the record, as far off as those of others are; means of sizes, as the law takes them
        without, theirs = np.sqrt(values["loss"] + values["signal_shift"]), others.loss
    error = math.hypot(without.std() / math.sqrt(len(without)), theirs.std() / math.sqrt(len(theirs)))
    return bool(abs(without.mean() - theirs.mean()) > 3.0 * error)


def _statistic_of(layer: LastLayer) -> Any:
    """φ of all records, read by chunk."""
    found = []
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        found.append(records.head.signal(records.outputs, records.targets))
    return torch.cat(found).cpu().numpy()


def rates_of_converged(
    layer: LastLayer, influence_sum: float, values: dict[str, Any], spreads: Spreads | None
) -> tuple[Calibration, Rates]:
    """The rates of a converged head on features that nobody trained, and what they rest on."""
    return LAWS[layer.kind.signal_scale].converged(influence_sum, values, spreads)


def predicted_rates(
    layer: LastLayer,
    values: dict[str, Any],
    run: Run,
    spreads: tuple[float, float] | None,
    gap: float | None,
    held_out: Any,
    source: str,
) -> tuple[Calibration, Rates]:
    """The predicted rates of all records, and what they rest on."""
    others = None if held_out is None else HeldOut.of(layer.kind, *_pair(held_out))
    law = LAWS[layer.kind.signal_scale]
    loss, rated = law.calibrated(Basis(layer, values, run, spreads, gap, source))
    if others is None:
        return rated(None)
    chance = math.hypot(loss.std() / math.sqrt(len(loss)), others.loss.std() / math.sqrt(len(others.loss)))
    lost = float(others.loss.mean() - loss.mean())
    gap_errors = lost / chance if chance > 0.0 else None
    calibration, rates = rated(others if gap_errors is None else others.losing(-lost * part_by_chance(gap_errors)))
    apart = [abs(rated(others.losing(side * chance))[1].accuracy.mean() - rates.accuracy.mean()) for side in (2, -2)]
    return replace(calibration, margin=float(max(apart)), gap_errors=gap_errors), rates


def part_by_chance(gap_errors: float) -> float:
    """What part of a gap of so many standard errors z is chance, 0 … 1.

    The square of a gap is on average that of the true one and that of the standard error, so that g √(1 − 1/z²) is what
    is left of g: nothing up to z = 1, 94 % at 3. A gap below 0, where members fit no better, is left alone.

    >>> [round(part_by_chance(errors), 2) for errors in (-1.0, 0.5, 1.25, 3.0)]
    [0.0, 1.0, 0.4, 0.06]
    """
    if gap_errors < 0.0:
        return 0.0
    return 1.0 if gap_errors <= 1.0 else 1.0 - math.sqrt(1.0 - gap_errors**-2)


@dataclass(frozen=True, eq=False)
class Basis:
    """What rates are predicted from beside held-out records: the layer, its scores (n,), what exposure takes of the
    run, the two spreads, the gap of the means, and where the spreads are from."""

    layer: LastLayer
    values: dict[str, Any]
    run: Run
    spreads: tuple[float, float] | None
    gap: float | None
    source: str


Rated = Callable[[HeldOut | None], tuple[Calibration, Rates]]


def _of_logits(basis: Basis) -> tuple[Any, Rated]:
    kind, phi, exposure = basis.layer.kind, _statistic_of(basis.layer), basis.values["exposure"]
    loss = plain_loss(phi)

    def rated(held: HeldOut | None) -> tuple[Calibration, Rates]:
        calibration = calibrate(kind, exposure, phi, loss, held, basis.spreads, basis.gap, basis.source)
        return calibration, calibration.rates(exposure)

    return loss, rated


def _of_residuals(basis: Basis) -> tuple[Any, Rated]:
    kind, leverage, loss = basis.layer.kind, basis.values["leverage"], basis.values["loss"]
    error, size = np.sqrt(_mean_square(basis.layer, loss, basis.run)), np.sqrt(loss)

    def rated(held: HeldOut | None) -> tuple[Calibration, Rates]:
        return calibrate_law(kind, leverage, error, size, held, basis.spreads, basis.source)

    return size, rated


@dataclass(frozen=True)
class Law:
    """From what is known of the records to their predicted rates.

    converged   of a converged head: from Σ g'ᵀAg', the scores and, where they are known, the spreads over data
    calibrated  of others: the loss (n,) of the members that is compared with that of held-out records, and the rates as
                a function of these
    one_output  it is that of one output alone
    scaled      it takes a gap in place of held-out records, and beside spreads needs one of the two
    scores      what it takes beside the scores that all do: of a converged head leverage, loss, influence, newton,
                signal_shift and signal_variance, of others exposure, leverage and loss
    """

    converged: Callable[[float, dict[str, Any], Spreads | None], tuple[Calibration, Rates]]
    calibrated: Callable[[Basis], tuple[Any, Rated]]
    one_output: bool = False
    scaled: bool = True
    scores: tuple[str, ...] = ()


LAWS: dict[str, Law] = {
    "logit": Law(converged_rates, _of_logits),
    "loss": Law(converged_law, _of_residuals, one_output=True, scaled=False),
}
"""By the scale of the attack's statistic, ``Head.signal_scale``; "loss" is that of squared error."""


def has_law(layer: LastLayer) -> bool:
    """Whether the rates of such a layer can be predicted."""
    law = LAWS.get(layer.kind.signal_scale)
    return bool(layer.kind.signals) and law is not None and not (law.one_output and layer.n_outputs > 1)


def basis_of(layer: LastLayer, converged: bool, calibrated: bool) -> list[str]:
    """The scores that the rates of such a layer are made of, as a converged head, as another, or as either."""
    more = LAWS[layer.kind.signal_scale].scores
    wanted = [*(_OF_CONVERGED if converged else ()), *(_OF_CALIBRATED if calibrated else ()), *more]
    return [name for name in wanted if SCORES[name].obstacle(layer.kind) is None]


def losses_of_others(layer: LastLayer, held_out: Any) -> Tensor | None:
    """(k,) the losses of held-out records, as the layer's own are taken: smoothed labels are in them."""
    if held_out is None:
        return None
    outputs, targets = _pair(held_out)
    try:
        HeldOut.of(layer.kind, outputs, targets)  # refuses what is no such record
    except InputError as error:
        raise error if error.argument.startswith("held_out") else InputError(f"held_out, {error}") from None
    z = as_floats(outputs, "held_out").to(torch.float64).reshape(len(outputs), -1)
    y = check_targets(layer.kind, as_tensor(targets, "targets"), len(z), z.shape[1], "held_out")
    return layer.kind.loss(z, y.to(z.device)).cpu()


def _mean_square(layer: LastLayer, final: Any, run: Run) -> Any:
    """Of the residual over the run, (n,): where losses were kept; else of the outputs of the run, or the final ones."""
    if run.loss is not None:
        return run.loss.numpy()
    if run.outputs is not None:
        return layer.kind.loss(run.outputs.to(layer.outputs), layer.targets).numpy()
    return final


def _pair(held_out: Any) -> tuple[Any, Any]:
    if isinstance(held_out, LastLayer):
        return held_out.outputs, held_out.targets
    if not (isinstance(held_out, (tuple, list)) and len(held_out) == 2):
        raise InputError("held_out: expected (outputs, targets) of records that the model was not trained on")
    outputs, targets = held_out
    require_same_order(outputs, targets, "held_out[0]", "held_out[1]")
    return outputs, targets
