"""The scores: each a function of what is known of a chunk of records, its formula in its docstring.

Notation, for record i with features x̃ (constant included), outputs z, target y: loss ℓ(z, y), output gradient
g = ∂ℓ/∂z, output curvature W = ∂²ℓ/∂z², leverage block A = X̃ᵀH⁻¹X̃ with H the Hessian of the training objective
Σ ℓ + Λ/2‖θ‖² over all records. Softmax quantities are taken in the complement of the all-classes-equal direction,
where H is regular. Squared error is not halved: g = 2(ŷ − y), W = 2I. Of several labels, each has its own H, g, W and
A, and the record's score is the sum over its labels.

Where records were weighted in training, its term of the objective is w ℓ: g' = w g and W' = w W take the place of g
and W in H, in the leverage and in the step d = A(I − W'A)⁻¹g' that leaves the record out. The loss whose gap is taken
is ℓ itself, without the weight: it is what an attacker sees. So are ``loss`` and the gradient norms.

Every score is oriented so that bigger means more exposed.

Scores ``of_run`` are evaluated where a training run was on the way, at z̄, the mean output over its epochs, with the
final features and H there; a memorised record has no error left at the end, but had one. Held-out records say how far
towards z̄ (``noshadow.run``). Without a trace they are those of the final outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from noshadow.curvature.protocol import Leverages, Removal
from noshadow.curvature.removal import LEVERAGE_FLOOR
from noshadow.errors import InputError
from noshadow.heads import Head, default_signal
from noshadow.records import Records, row_lengths
from noshadow.trace import Trace
from noshadow.trace.losses import Losses

__all__ = [
    "SCORES",
    "Known",
    "Need",
    "Present",
    "Score",
    "applicable",
    "entropy",
    "exposure",
    "first_of",
    "gradient_norm",
    "influence",
    "leave_one_out",
    "leverage",
    "loss",
    "mean_trace",
    "newton",
    "output_gradient_norm",
    "resolve",
    "signal_shift",
    "signal_variance",
    "trace_iqr",
]


class Present(NamedTuple):
    """The head that a record is part of: outputs (c, m), gradient g and pull g' (c, r)."""

    outputs: Tensor
    gradient: Tensor
    pull: Tensor


@dataclass(frozen=True, eq=False)
class Known:
    """All that a score may use of a chunk of records: what its ``needs`` name, and the records themselves."""

    records: Records
    curvature: Leverages | None = None
    trace: Trace | None = None
    full_step: bool = False
    of_run: bool = False
    """The records have the outputs of the run (``noshadow.run``), not the final ones."""
    run_loss: Tensor | None = None
    """(c,) the loss of the run, where losses were kept."""

    @property
    def leverages(self) -> Leverages:
        if self.curvature is None:
            raise RuntimeError("this score uses the curvature: register it with needs={'curvature'}")
        return self.curvature

    @property
    def losses(self) -> Losses:
        """Mean and quartiles over the epochs of the records' losses."""
        if self.trace is None or self.trace.losses is None:
            raise RuntimeError("this score uses the losses of every epoch: register it with needs={'losses'}")
        return self.trace.losses

    @cached_property
    def first_order_shift(self) -> Tensor:
        """A g': how the outputs move, to first order, when the record is taken out, (c, r)."""
        return self.leverages.first_order_shift(self.records.pull)

    @cached_property
    def present(self) -> Present:
        """The head that the record is part of: z, g and g' as they are. With the full step those of the head one Newton
        step on, with ℓ = x̃ᵀH⁻¹G: z − ℓ, g − Wℓ, g' − W'ℓ."""
        records = self.records
        if not self.full_step:
            return Present(records.outputs, records.gradient, records.pull)
        step = self.leverages.leftover
        return Present(
            records.outputs - records.head.expand(step),
            records.gradient - records.curved(step),
            records.pull - records.pull_curved(step),
        )

    @cached_property
    def present_shift(self) -> Tensor:
        """A g' of the present head, (c, r)."""
        return self.leverages.first_order_shift(self.present.pull) if self.full_step else self.first_order_shift

    @cached_property
    def removal(self) -> Removal:
        """d = A(I − W'A)⁻¹g', the output shift of a Newton step without the record.

        With the full step both heads take it, from the same parameters: with the record the outputs move by −ℓ,
        ℓ = x̃ᵀH⁻¹G, without it by (I − AW')⁻¹(Ag' − ℓ). The difference is (I − AW')⁻¹A(g' − W'ℓ).
        """
        return self.leverages.removal(self.present.pull)


def loss(known: Known) -> Tensor:
    """ℓ(z, y): how badly the record fits. Nats for classification, squared target units for regression.
    Smoothed labels are in it, sample and class weights are not."""
    records = known.records
    return records.head.loss(records.outputs, records.targets)


def gradient_norm(known: Known) -> Tensor:
    """‖∇_θ ℓ‖ = ‖g‖·‖x̃‖: length of the record's gradient in the last layer's parameters, without weights."""
    return output_gradient_norm(known) * known.records.lengths


def output_gradient_norm(known: Known) -> Tensor:
    """‖g‖: length of the record's gradient in the outputs, without weights."""
    records = known.records
    return row_lengths(records.head.gradient(records.outputs, records.targets))


def entropy(known: Known) -> Tensor:
    """−Σ pₖ log pₖ of the predicted class probabilities, in nats."""
    return known.records.head.entropy(known.records.outputs)


def leverage(known: Known) -> Tensor:
    """h = W'A (squared error: x̃ᵀ(X̃ᵀX̃ + Λ/2)⁻¹x̃, which all outputs share; logistic: σ(z)σ(−z) x̃ᵀH⁻¹x̃), tr(W'A) for
    softmax, the sum over labels: how much of its own fit the record decides. 0 … 1, of squared error for any number of
    outputs; 0 … m−1 for softmax; 0 … m for m labels."""
    return known.leverages.leverage


def influence(known: Known) -> Tensor:
    """IF = gᵀAg': the loss gap without the record, to first order (squared error: 2e²h; logistic: (y−p)²h/w)."""
    gap = (known.records.gradient * known.first_order_shift).sum(1)
    return gap.clamp(min=0.0) if known.records.pulls_along else gap  # A is semi-definite up to rounding


def newton(known: Known) -> Tensor:
    """NS = gᵀA(I − W'A)⁻¹g': the loss, linearised, after a Newton step without the record (squared error: 2e²h/(1−h)).
    With the full step g and g' are those after a Newton step with the record."""
    gap = (known.present.gradient * known.removal.shift).sum(1)
    if not known.records.pulls_along:
        return gap
    # both are semi-definite forms: rounding must not make them negative, or the second smaller
    first_order = (known.present.gradient * known.present_shift).sum(1)
    return torch.maximum(gap, first_order.clamp(min=0.0))


def leave_one_out(known: Known) -> Tensor:
    """ℓ(z + d, y) − ℓ(z, y), d = A(I − W'A)⁻¹g': the loss at the leave-one-out outputs minus the training loss.
    Exact for squared error, e²/(1−h)² − e²; one Newton step otherwise. With the full step z and g' are those after a
    Newton step with the record: for squared error the gap between two converged heads, wherever this one stopped."""
    head = known.records.head
    return head.loss_change(known.present.outputs, known.records.targets, head.expand(known.removal.shift))


def signal_shift(known: Known) -> Tensor:
    """Δφ = φ(z) − φ(z + d), d = A(I − W'A)⁻¹g': how much the attack's statistic owes to the record being there. For
    squared error, where φ is the loss, φ(z + d) − φ(z): the same as ``leave_one_out``. Of the run, at z̄."""
    records = known.records
    change = records.head.signal_change(records.outputs, records.targets, records.head.expand(known.removal.shift))
    return -default_signal(records.head).toward_members(change)


def signal_variance(known: Known) -> Tensor:
    """∇φᵀA∇φ: the variance of the attack's statistic over data, in units of that of one record's pull; for squared
    error, where φ is the prediction, A of an output."""
    records = known.records
    if not records.head.classifies:
        return known.leverages.first_order_shift(torch.ones_like(records.pull))[:, 0].clamp(min=0.0)
    slope = records.head.reduce(records.head.signal_gradient(records.outputs, records.targets))
    return (slope * known.leverages.first_order_shift(slope)).sum(1).clamp(min=0.0)


def exposure(known: Known) -> Tensor:
    """E = NS · ℓ̄/ℓ(z̄): the Newton score of the run, at z̄, in proportion to the mean loss ℓ̄ over the epochs.
    For squared error 2 h/(1 − h) times the mean squared error over the epochs, which losses alone give too. With
    held-out records, z̄ and ℓ̄ are taken as far as members then lose what those do (``noshadow.run``). Without
    losses of the run, NS at z̄; without a trace, the Newton score. To first order it is d′² of the strongest attack.
    The one to rank by."""
    if known.run_loss is None:
        return newton(known)
    average = known.run_loss.to(known.records.outputs)
    if known.records.head.quadratic:  # also where the mean error happens to be 0
        h = known.leverages.leverage
        return 2.0 * average * h / (1.0 - h).clamp(min=LEVERAGE_FLOOR)
    if not known.of_run:
        return newton(known)
    gap, at_mean = newton(known), loss(known)
    # ℓ is convex, so that ℓ̄ ≥ ℓ(z̄) but for rounding; where no loss is left at z̄ there is no gradient either
    return gap * torch.where(at_mean > 0, average / at_mean.clamp(min=_TINY), 1.0).clamp(1.0, _HUGE)


def mean_trace(known: Known) -> Tensor:
    """Mean over the epochs of ℓₜ, the record's loss after epoch t: how hard it was to fit, in the units of ``loss``."""
    return known.losses.mean(known.records.rows)


def trace_iqr(known: Known) -> Tensor:
    """LT-IQR = Q₃ − Q₁ of ℓ₁ … ℓ_T: how far training moved the record's loss, whatever its first and last epochs.
    Quantiles interpolate linearly between order statistics, as NumPy's do."""
    lower, upper = known.losses.quartiles(known.records.rows)
    return (upper - lower).clamp(min=0.0)  # rounding must not turn it negative


_TINY, _HUGE = torch.finfo(torch.float64).tiny, torch.finfo(torch.float64).max

Need = Literal["curvature", "losses", "mean_outputs", "calibration"]
_WHAT_IS_NEEDED: dict[Need, str] = {
    "curvature": "the Hessian of the layer",
    "losses": "the loss of every record after each of two epochs or more; pass it as trace=, (epochs, n), or a Trace "
    "that was recorded with targets",
    "mean_outputs": "the mean outputs over the epochs of training; pass a noshadow.Trace as trace=",
    "calibration": "records that the model was not trained on, as held_out=, or the spread of the attack's statistic "
    "over retrainings, as spread=",
}


@dataclass(frozen=True)
class Score:
    """A registered score.

    needs             what ``compute`` uses beside the records
    only_classifiers  it speaks of class probabilities
    of_attack         it speaks of the attack's statistic, which independent labels have one each of
    of_run            it is evaluated at the mean outputs of the training run, where there is a trace of them
    default           it is computed where no scores are named
    per_output        its exact answer takes a system per coupled output: others are checked by first
    precedence        the score with the highest is the one to rank by, and to check an approximation by
    compute           None: it is made of the others for all records at once (``noshadow.predict``)
    """

    compute: Callable[[Known], Tensor] | None
    needs: frozenset[Need] = frozenset()
    only_classifiers: bool = False
    of_attack: bool = False
    of_run: bool = False
    default: bool = True
    per_output: bool = False
    precedence: int = 0

    def __call__(self, known: Known) -> Tensor:
        """The score of a chunk of records, (c,)."""
        if self.compute is None:
            raise RuntimeError("this score is made of others for all records at once")
        return self.compute(known)

    def obstacle(self, head: Head) -> str | None:
        """Why the score is not for that head."""
        if self.only_classifiers and not head.classifies:
            return f"needs class probabilities, a {head.name} head has none"
        if self.of_attack and not head.signals:
            return "needs one attack statistic per record, independent labels have one each; audit a label at a time"
        return None


_CURVATURE: frozenset[Need] = frozenset({"curvature"})
_LOSSES: frozenset[Need] = frozenset({"losses"})
_CALIBRATION: frozenset[Need] = frozenset({"curvature", "calibration"})

SCORES: dict[str, Score] = {
    "loss": Score(loss, precedence=1),
    "gradient_norm": Score(gradient_norm),
    "output_gradient_norm": Score(output_gradient_norm, default=False),
    "entropy": Score(entropy, only_classifiers=True),
    "leverage": Score(leverage, _CURVATURE, per_output=True),
    "influence": Score(influence, _CURVATURE, precedence=2),
    "newton": Score(newton, _CURVATURE, precedence=3),
    "leave_one_out": Score(leave_one_out, _CURVATURE, precedence=4),
    "signal_shift": Score(signal_shift, _CURVATURE, of_attack=True, of_run=True),
    "signal_variance": Score(signal_variance, _CURVATURE, of_attack=True, default=False),
    "attack_power": Score(None, _CALIBRATION, of_attack=True, of_run=True),
    "attack_accuracy": Score(None, _CALIBRATION, of_attack=True, of_run=True),
    "attack_tpr": Score(None, _CALIBRATION, of_attack=True, of_run=True),
    "mean_trace": Score(mean_trace, _LOSSES),
    "trace_iqr": Score(trace_iqr, _LOSSES),
    "exposure": Score(exposure, _CURVATURE, of_run=True, precedence=5),
}


def applicable(head: Head, given: frozenset[Need], every: bool = False) -> list[str]:
    """The names of the default scores, or of ``every`` one, that the head has and for which there is what they need."""
    return [
        name
        for name, entry in SCORES.items()
        if (entry.default or every) and entry.obstacle(head) is None and entry.needs <= given
    ]


def first_of(names: Iterable[str]) -> str:
    """Of some scores the one to rank by: that of the highest precedence, of several the first."""
    return max(names, key=lambda name: SCORES[name].precedence)


def resolve(head: Head, scores: Sequence[str] | None, given: frozenset[Need]) -> list[str]:
    """The names asked for, each once, or all the default ones that apply; one that cannot be had is refused."""
    if scores is None:
        return applicable(head, given)
    names = [scores] if isinstance(scores, str) else list(scores)
    if not names:
        raise InputError("scores: the list is empty; pass None for all that apply")
    for name in names:
        if name not in SCORES:
            raise InputError(f"scores: {name!r} is not a score; use one of {', '.join(SCORES)}")
        if obstacle := SCORES[name].obstacle(head):
            raise InputError(f"scores: {name!r} {obstacle}")
        for need in sorted(SCORES[name].needs - given):
            raise InputError(f"scores: {name!r} needs {_WHAT_IS_NEEDED[need]}")
    return list(dict.fromkeys(names))
