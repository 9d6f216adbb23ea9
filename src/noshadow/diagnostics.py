"""What the scoring pass finds out about a layer, and what a person should be told of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from noshadow.errors import name_rows
from noshadow.layer import LastLayer
from noshadow.predict import Calibration
from noshadow.repeats import Repeats

__all__ = ["FEW_HELD_OUT", "LEFT_OPEN", "TOLD_FROM_CHANCE", "Accuracy", "Diagnostics", "concerns"]

_LINEAR = 0.02
_STATIONARY = 1.0  # leftover gradients, in those of a typical record, that are not worth a word
_UNRELATED = -2.0  # standard errors by which halved outputs fit better; training makes it positive, one outlier −1
# Share of the leftover gradient below which another ridge explains it. Of networks stopped early it leaves more than
# half, but a ridge that nobody used and that is far too large swamps what they had left.
_AGREEMENT = 4.0  # standard errors of a rank correlation of nothing: a trace has more with its own model's outputs
_TOO_LARGE = 0.3
_TOO_SMALL = 0.1
_DECIDED_BY_FEW = 10.0  # of the variance by the jackknife in that to first order; 1.1 … 4 where rates are right
_CROWDED = 0.5  # weights of the last layer per record and output; rates were right up to 0.35, and too high at 0.6
FEW_HELD_OUT = 100
"""With fewer held-out records predicted rates are rough."""
TOLD_FROM_CHANCE = 2.0
"""Standard errors: a smaller gap between held-out records and members leaves open whether there is any."""
LEFT_OPEN = 0.05
"""By a larger margin predicted rates are rough, too."""


@dataclass(frozen=True)
class Accuracy:
    """An approximation against converged answers.

    score            the score that was compared, the one to rank by
    sampled, top     random records, and records with the highest approximate scores, that were scored exactly
    spearman         rank correlation on the random sample, and on the top with it where fewer than ten were sampled
    median_error, error_95    median and 95 % quantile of |approximate − exact| / exact on the random sample
    top_error        the median on the top
    top_kept         share of the exactly highest that the approximation has among its own highest, as many
    top_share        of what share of the records that was said
    refined, stable  records with exact scores in the table, and whether no other is expected in the top
    unconverged      systems that fell short of the residual that was aimed at: their answers are too low
    residual, steps  the largest relative residual that was left, and the mean number of steps of a system
    """

    score: str
    sampled: int
    top: int
    spearman: float | None
    median_error: float
    error_95: float
    top_error: float
    top_kept: float
    top_share: float
    refined: int
    stable: bool | None
    unconverged: int
    residual: float
    steps: float

    def facts(self) -> dict[str, Any]:
        """For an audit's metadata."""
        return asdict(self)


@dataclass(frozen=True)
class Diagnostics:
    """What the scoring pass found out about the layer; None where no score needed the curvature."""

    curvature: str | None = None
    """How the Hessian was treated, a name from ``CURVATURES``."""
    chosen: str | None = None
    """Why it was that one."""
    exact: bool | None = None
    """Whether the scores are those of the exact Hessian."""
    accuracy: Accuracy | None = None
    """Of an approximation: how far it is from exact answers."""
    unconverged: int = 0
    """Of ``curvature="iterative"``: systems that fell short of the residual that was aimed at."""
    residual: float = 0.0
    """Of them: the largest relative residual that was left."""
    rank: int | None = None
    null_directions: int | None = None
    stationarity: float | None = None
    """‖G‖ in the Hessian's metric, in units of one record's gradient (root mean square): 0 for a converged head."""
    best_ridge: float | None = None
    """The ridge under which the head would come closest to a stationary point."""
    best_ridge_leaves: float | None = None
    """Share of the leftover gradient that is left under it: near 0 where the ridge is all that is wrong."""
    best_penalizes_bias: bool | None = None
    """Whether that ridge covers the bias."""
    halving: float | None = None
    """Change of the total loss at outputs of half the size, in standard errors: negative for the targets of others."""
    constant: float | None = None
    """The same if every output were the mean of the targets; None where that is not asked."""
    linearity: float | None = None
    """Relative distance of the outputs from a linear function of the features."""
    trace_agreement: float | None = None
    """Rank correlation of what the trace and the final outputs say of the records; None without a trace."""
    lone_epoch: Literal["last", "other"] | None = None
    """Of a trace of one epoch: whether that is the final model."""
    run_share: float | None = None
    """How much of the run exposure takes, as held-out records say (``noshadow.run``); None where none do."""
    run_lost_less: bool = False
    """Members lost clearly less over the run than at its end, and no held-out records say how much of it to take."""
    repeats: Repeats = field(default_factory=Repeats)
    """Records that are there more than once."""
    calibration: Calibration | None = None
    """What the predicted success rates rest on; None where there are none."""
    leverage_share: float | None = None
    """Of a network with predicted rates: the mean leverage in its maximum, the head's weights per record."""
    flagged: tuple[int, ...] = ()
    """Records with h = 1 by the curvature of the loss: their scores are floors."""
    certain: tuple[int, ...] = ()
    """Those of them without which the fit is undefined: alone in a direction of features that nobody trained."""


def _of_rates(found: Calibration | None) -> tuple[str, ...]:
    """What to know of the predicted rates."""
    if found is None:
        return ()
    if found.jackknife > _DECIDED_BY_FEW:
        return (
            f"a few records decide the fit (by leaving each out its variance is {found.jackknife:.2g} times what it is "
            "to first order: classes that are all but separated); predicted rates of the highest records are upper "
            "bounds. A larger ridge (a smaller C) makes both the fit and its rates steadier",
        )
    if not found.held_out:
        coin = found.scale == 0.0 and found.gap is not None
        return (
            ("gap: members fit no better than others, so that every predicted rate is that of a coin",) if coin else ()
        )
    notes = []
    by_chance = found.gap_errors is not None and abs(found.gap_errors) < TOLD_FROM_CHANCE
    better = found.gap_errors is not None and found.gap_errors > 0.0
    if found.scale == 0.0 and not better:
        undecided = ". It may be chance: pass more of them" if by_chance else ""
        notes.append(
            "held_out: its records fit as well as the members do, so that no shift was found and every predicted rate "
            f"is that of a coin; if the model was trained on them, pass others{undecided}"
        )
    if found.held_out < FEW_HELD_OUT:
        notes.append(
            f"held_out: {found.held_out} records leave the predicted rates rough; some hundreds make them steady"
        )
    if by_chance and better:
        coins = "every predicted rate may be that of a coin"
        if found.scale == 0.0:
            coins = "every predicted rate is that of a coin"
        notes.append(
            f"held_out: members fit better than its records by {found.gap_errors:.1f} standard errors, which chance "
            f"explains; {coins}. Pass more held-out records"
        )
    elif found.margin is not None and found.margin > LEFT_OPEN:
        notes.append(
            f"held_out: with so few records it is chance how much better members fit; other records could change "
            f"the mean predicted rate by {found.margin:.2f}, and the highest by more. Pass more held-out records"
        )
    return tuple(notes)


def concerns(layer: LastLayer, found: Diagnostics, fitted: bool = False) -> list[str]:
    """What a person should know before trusting the scores: one sentence each, with the remedy.

    fitted  the last layer is all that there is to the model (an estimator of scikit-learn): it should be at its optimum
    """
    messages = _approximation(found)
    if found.linearity is not None and found.linearity > _LINEAR:
        messages.append(
            f"outputs: {found.linearity:.1%} of their spread is not a linear function of the features; check that "
            "the features are the inputs of the last layer, that rows are aligned, and that bias= is right"
        )
    misused = _misuse(layer, found)
    messages += misused or (_unsettled(layer, found) if fitted else [])
    if found.trace_agreement is not None and found.trace_agreement < _AGREEMENT / math.sqrt(layer.n):
        messages.append(
            f"trace: records that it has ahead are not ahead in the final outputs (rank correlation "
            f"{found.trace_agreement:.2f}): it is of other records, in another order, or of another model; record it "
            "on the same data in the same order"
        )
    if found.lone_epoch is not None:
        adds = "and it is that of the final outputs: it adds nothing" if found.lone_epoch == "last" else "hardly a run"
        messages.append(
            f"trace: it holds one epoch, {adds}; call trace.update(model, data) after every epoch, or make it of "
            "several checkpoints"
        )
    if found.run_lost_less:
        messages.append(
            "trace: members lost less over the run than the final model loses on them, as where the weights of an "
            "earlier epoch were kept; record the trace up to that epoch only, or pass held_out=, which says how much "
            "of the run to take"
        )
    messages += _of_repeats(found.repeats, layer.kind.classifies)
    messages += _of_rates(found.calibration)
    if found.leverage_share is not None and found.leverage_share > _CROWDED:
        messages.append(
            f"the last layer has {found.leverage_share:.2f} weights per record and output: leverages near their "
            "maximum say little of single records, and the highest predicted rates are upper bounds. A narrower last "
            "layer, weight decay or more records would make them sharper"
        )
    if found.null_directions:
        messages.append(
            f"the loss has no curvature along {found.null_directions} directions that the features do span (saturated "
            "outputs: perfectly separated data without a ridge; or weights of 0); scores ignore those directions. Pass "
            "the ridge= that the model was trained with"
        )
    return messages + _of_leverage(layer, found)


def _of_repeats(found: Repeats, classifies: bool) -> list[str]:
    """Records that hide each other, and records of which a model can fit only one.

    Values measured twice are seldom the same: that two records of equal features have others is no sign of anything.
    """
    messages = []
    if found.same:
        messages.append(
            f"features: {len(found.same)} records are there more than once with the same target, or alike in all that "
            f"the last layer sees ({_first(found.same)}): leaving one out changes less beside its twin, so that both "
            "look safer than one would; where it is one record given twice, keep one to see how exposed it is"
        )
    if found.other and classifies:
        messages.append(
            f"features: {len(found.other)} records have the features of another record with another target "
            f"({_first(found.other)}): a model fits the one at the cost of the other, and leaving one out frees its "
            "twin; check the labels"
        )
    return messages


def _first(rows: Sequence[int]) -> str:
    return f"{name_rows(rows)}, counted from 0"


def _of_leverage(layer: LastLayer, found: Diagnostics) -> list[str]:
    """Records that decide their own fit: without which there is none, and those of which only the quadratic says so."""
    messages = []
    if found.certain:
        messages.append(
            f"{_which(layer, found.certain)}: leverage is 1, the fit without the record is undefined; newton and "
            "leave_one_out are finite floors there. Treat these records as fully exposed"
        )
    certain = set(found.certain)
    if others := [row for row in found.flagged if row not in certain]:
        rates = "the predicted rates rest on exposure alone"
        if found.calibration is None:
            rates = "for how exposed they are pass held_out= and rerun="
        messages.append(
            f"{_which(layer, others)}: leverage is 1 in the last layer by its present curvature alone: training "
            "without the record would move outputs and features, and with them the curvature; newton and leave_one_out "
            f"are finite floors there, {rates}"
        )
    return messages


def _which(layer: LastLayer, rows: Sequence[int]) -> str:
    return "all records" if len(rows) == layer.n else name_rows(rows)


def _approximation(found: Diagnostics) -> list[str]:
    """What stands in for the exact Hessian, why, and how far it is off."""
    if found.unconverged:
        return [
            f"curvature: {found.unconverged} systems of 'iterative' did not converge, residual {found.residual:.0e}: "
            "scores that rest on them are too low, and are not exact; pass curvature='dense' or 'auto'"
        ]
    if found.exact is not False:
        return []
    said = f"curvature: {found.curvature!r} stands in for the exact Hessian ({found.chosen})"
    if (off := found.accuracy) is None:  # no score of the curvature was asked for
        return [said]
    ranks = "" if off.spearman is None else f"rank correlation {off.spearman:.3f}, "
    error = f"{off.score} is off by {off.median_error:.0%} in the median, {off.error_95:.0%} at the 95 % quantile"
    top = f"{off.top_kept:.0%} of the top {off.top_share:.2%} is kept"
    if off.unconverged:
        top += f" ({off.unconverged} of the exact answers did not converge: residual {off.residual:.0e})"
    message = f"{said}. Against exact answers for {off.sampled} random records and the top: {ranks}{error}; {top}"
    if off.stable is None:
        return [f"{message}. refine=0.01 scores the top exactly"]
    stable = (
        "no other record is expected there" if off.stable else "others may still belong there: pass a larger refine="
    )
    return [f"{message} without refinement; {off.refined} records were scored exactly, {stable}"]


def _unsettled(layer: LastLayer, found: Diagnostics) -> list[str]:
    """A fit that is not where its objective has its optimum: of another objective, as a rule, than was told."""
    if found.stationarity is None or found.stationarity <= _STATIONARY:
        return []
    weighted = layer.source.weighted or layer.class_weight is not None
    remedy = "" if weighted else "pass the sample_weight= that it was fitted with, if any; or "
    return [
        f"model: it is not at the optimum of its objective on these records, the gradient left over is "
        f"{found.stationarity:.3g} times that of a typical record, and the scores depend on it; {remedy}fit it with a "
        "smaller tol= and more iterations"
    ]


def _misuse(layer: LastLayer, found: Diagnostics) -> list[str]:
    """Targets or a ridge that are not those of the training. A network that was merely stopped early is neither."""
    if found.stationarity is None or found.stationarity <= _STATIONARY:
        return []
    if found.halving is not None and found.halving < _UNRELATED:
        return [
            f"targets: the outputs fit them worse than outputs of half the size would, by {-found.halving:.0f} "
            "standard errors: the model was not trained on these targets, or its last steps overshot. Check that the "
            "rows of features, outputs and targets are the same training records in the same order, and that classes "
            "are numbered as the outputs are; if they are, train it on with smaller steps"
        ]
    if found.constant is not None and found.constant < _UNRELATED:
        return [
            f"targets: their mean alone fits them better than the outputs do, by {-found.constant:.0f} standard "
            "errors: the model was not trained on these targets. Pass them in the unit that it was trained on "
            "(standardised, in logarithms, …), and check that the rows are the same training records in the same order"
        ]
    if found.best_ridge is None or found.best_ridge_leaves is None:
        return []
    too_large = found.best_ridge < layer.ridge
    if found.best_ridge_leaves > (_TOO_LARGE if too_large else _TOO_SMALL):
        return []
    remedy = "pass the ridge= (or weight_decay=) that the model was trained with"
    bias = ""
    if found.best_penalizes_bias not in (None, layer.penalize_bias):
        bias = f" that {'covers' if found.best_penalizes_bias else 'leaves out'} the bias"
        remedy = f"pass the ridge= that the model was trained with and penalize_bias={found.best_penalizes_bias}"
    return [
        f"ridge: under {layer.ridge:.3g} the gradient left over is {found.stationarity:.3g} times that of a typical "
        f"record, under {found.best_ridge:.3g}{bias} only {found.best_ridge_leaves:.1%} of it would be left; {remedy}, "
        "the scores depend on it"
        + ("" if too_large else ". Only a head that was stopped after a few steps from zero looks the same")
    ]
