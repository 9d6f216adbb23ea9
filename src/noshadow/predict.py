r"""From exposure to the success of an attack: predicted for every record, without training a shadow model.

An attacker who knows how a record's statistic φ is distributed over models trained with it and without it tells the two
apart with the optimal test between

.. math::

    \varphi_{out} \sim N(0, \sigma_{out}^2), \qquad
    \varphi_{in} \sim N(s_i, \sigma_i^2), \qquad \sigma_i = \sigma_{out} (1 + s_i)^{-\beta}

(φ of classes is a logit; the means are measured from the one without the record.) None of its parts is fitted to the
results of an attack:

shift    :math:`s_i = c \sqrt{E_i}` with the exposure E of the record, which is d′² to first order. Members without
         their shift and held-out records are drawn from one population: c is such that the mean loss at φᵢ − sᵢ over
         the members is that of held-out records. (The mean of the loss and not of φ: it does not depend on how sure
         a model is of records that nobody mistakes.) Where only the gap of the means of φ is known, it is that of the
         mean shift.
spread   σ_out of a model trained again with another seed is what the seed does. Other data does more: to first order
         what held-out records lose on members is what the variance V of φ over data costs,
         :math:`\bar\ell_{out} - \bar\ell_{in} = V\, \overline{(\partial\ell/\partial\varphi)^2}`, and models on random
         halves of a pool vary by half of it: :math:`\sigma_{out}^2 = \sigma_{seed}^2 + V/2`.
β        a record that moves a lot is held where the model puts it: its φ varies less when it is in. β is such that the
         mean of σᵢ² over the members is to σ_out² as the two spreads of the seed are to each other, but at most 1: in a
         linear model φ_in = φ_out + a (1 − p(φ_in)) for a record of that leverage, hence
         :math:`d\varphi_{in}/d\varphi_{out} = 1/(1 + s\, p(\varphi_{in})) \ge 1/(1 + s)`, and nothing holds it firmer.
gap      of how much more held-out records lose than members, as much is left out as chance explains: of z standard
         errors √(1 − 1/z²) is taken (``noshadow.rating.part_by_chance``).

A converged head on features that nobody trained (a linear or logistic regression, a probe) has no seed, and needs
neither a rerun nor held-out records: the shift is Δφ itself, and the spreads over random halves of a pool are those of
the estimator over data (``noshadow.sandwich``). There are two ways to have them: as the jackknife finds them, record by
record, or as the curvature expects them, times κ, what the jackknife finds on the whole in what the curvature expects,

.. math::

    \kappa = \frac{\sum_j IF_j / (1 - h_j)^2}{\sum_j tr(W'_j A_j)}, \qquad 1 - h_j = \frac{IF_j}{NS_j}

The first assumes nothing, but is too small where a few records decide most; the second is steady. Of classes the mean
of the two variances is taken, of squared error the first. An approximate Hessian has neither: there the variance is
taken to be that of a fit without a ridge,

.. math::

    \sigma_{out,i}^2 = \tfrac12\, \kappa\, \frac{\nabla\varphi^T A_i \nabla\varphi}{1 - h_i}, \qquad
    \sigma_{in,i} = (1 - h_i)\, \sigma_{out,i}

(To first order, without the 1 − h, records that a fit bends to look as if they did nothing to it: of classes that are
all but separated, where a few records decide everything, the spread would be ten times too small.)

Squared error has a law of its own (``noshadow.squared_law``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import optimize, special

from noshadow.attacks.gaussians import best_accuracy, best_tpr
from noshadow.errors import InputError
from noshadow.heads import Head, make_head
from noshadow.heads.targets import check_targets
from noshadow.pairing import require_same_order
from noshadow.spread_sources import SPREAD_SOURCES
from noshadow.tensors import as_floats, as_tensor

if TYPE_CHECKING:
    from noshadow.sandwich import Spreads

__all__ = [
    "FEWEST",
    "FPR",
    "STEEPEST",
    "Calibration",
    "Floats",
    "HeldOut",
    "Rates",
    "calibrate",
    "converged_rates",
    "match_scale",
    "plain_loss",
    "rms_difference",
    "spread",
    "spreads_of",
    "statistic",
]

FPR = 0.01
"""The false-positive rate of ``attack_tpr``."""
FEWEST = 20
"""Held-out records."""
STEEPEST = 1.0
"""The largest β: that of a linear model."""
_WIDEST = 60.0  # |log| of a mean shift
_ROUNDING = 1e-12  # of outputs, in the largest of them
_FIRMEST = 1e-8  # a member's spread in that of others, at the least

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Per record, (n,): d′ of the statistic, the success rate of the optimal test (½ … 1), its TPR at 1 % FPR."""

    power: Floats
    accuracy: Floats
    find_tpr: Callable[[], Floats]
    """It takes longer than the other two together, and is not always asked for."""

    @cached_property
    def tpr(self) -> Floats:
        return self.find_tpr()

    def with_certain(self, rows: Sequence[int]) -> Rates:
        """The same with records that are told for certain: their models with and without them do not overlap.

        Without such a record (leverage 1) the fit is undefined; with it the fit follows it alone, whatever the other
        data. Its statistic has no spread there, and no finite d′ stands for a success rate of 1.
        """
        where = np.asarray(rows, dtype=np.intp)

        def certain(values: Floats, value: float) -> Floats:
            found = values.copy()
            found[where] = value
            return found

        return Rates(certain(self.power, np.inf), certain(self.accuracy, 1.0), lambda: certain(self.tpr, 1.0))


@dataclass(frozen=True)
class Calibration:
    """What the predicted rates rest on.

    spread_in, spread_out  of φ over models, in its own units; of the seed alone where their source says so
    resampled              factor for what other data adds to the spread; 1 where it is in it
    scale                  c of the shift; for squared error of the leverage's odds, None where it is not scaled
    error_scale            k of squared error: the residual without the record, in that of the run
    contraction            β
    gap                    mean φ of the members minus that of held-out records; None where it is not known
    held_out               how many records the model was not trained on there were
    source                 where the spreads are from, a name of ``noshadow.spread_sources.SPREAD_SOURCES``
    margin                 how far off the mean success rate would be, had held-out records lost two standard errors
                           more or less than they did: what the choice of the records leaves open
    gap_errors             by how many standard errors held-out records lose more than members
    jackknife              of a converged head of classes: variance over data by the jackknife, in that to first order
    """

    spread_in: float
    spread_out: float
    resampled: float = 1.0
    scale: float | None = None
    contraction: float = 0.0
    gap: float | None = None
    source: str = "rerun"
    held_out: int = 0
    error_scale: float | None = None
    jackknife: float = 1.0
    margin: float | None = None
    gap_errors: float | None = None

    def shift(self, exposure: Floats) -> Floats:
        """s = c √E, (n,)."""
        if self.scale is None:
            raise RuntimeError("the shift has no scale yet")
        return self.scale * np.sqrt(np.maximum(exposure, 0.0))

    def rates(self, exposure: Floats) -> Rates:
        """The predicted rates of records with these exposures."""
        shift = self.shift(exposure)
        outside = np.full_like(shift, self.spread_out * self.resampled)
        inside = outside * (1.0 + shift) ** -self.contraction
        power = shift / np.sqrt((inside**2 + outside**2) / 2.0)
        return Rates(power, best_accuracy(shift, inside, outside), partial(best_tpr, shift, inside, outside, FPR))


def statistic(head: Head, outputs: Any, targets: Any, name: str = "outputs") -> Floats:
    """What an attacker looks at, higher on members: φ (n,) of classes; of squared error the predictions (n, m)."""
    z = as_floats(outputs, name).to(torch.float64)
    z = z.unsqueeze(1) if z.ndim == 1 else z
    if z.ndim != 2:
        raise InputError(f"{name}: expected shape (n,) or (n, m), got {tuple(z.shape)}")
    if not bool(torch.isfinite(z).all()):
        row = int((~torch.isfinite(z)).any(1).nonzero()[0])
        raise InputError(f"{name}: NaN or infinite in row {row} (counted from 0)")
    head.check_width(z.shape[1])
    y = check_targets(head, as_tensor(targets, "targets"), len(z), z.shape[1], name)
    values = head.signal(z, y.to(z.device)) if head.classifies else z
    return np.asarray(values.cpu().numpy(), dtype=np.float64)


def spread(outputs: Any, rerun_outputs: Any, targets: Any, head: str) -> float:
    r"""How much the attack's statistic of a record varies from one training run to another.

    .. math::

        \hat\sigma = \sqrt{\tfrac{1}{2n} \sum_i (\varphi_i - \varphi_i')^2}

    for φ and φ′ of two models of one recipe; of squared error φ is the prediction. Take it on the members and on
    held-out records, and pass both to ``noshadow.score`` as ``spread=(σ_in, σ_out)``.

    Parameters
    ----------
    outputs, rerun_outputs : array (n, m)
        Logits or predictions of the two models for the same records, in the same order.
    targets : array (n,) or (n, m)
        Their targets.
    head : "softmax", "logistic" or "squared"
        The loss that both were trained with.

    Returns
    -------
    float
        In nats; in units of the target for squared error.

    Raises
    ------
    InputError
        Outputs of different shapes; two runs that are the same to the last digit.

    Examples
    --------
    >>> import noshadow
    >>> noshadow.spread([[2.0], [1.0]], [[2.2], [0.8]], [1, 1], "logistic").__round__(4)
    0.1414
    """
    require_same_order(outputs, rerun_outputs, "outputs", "rerun_outputs")
    require_same_order(outputs, targets, "outputs", "targets")
    first = as_floats(outputs, "outputs")
    second = as_floats(rerun_outputs, "rerun_outputs")
    if first.shape != second.shape:
        raise InputError(
            f"rerun_outputs: expected shape {tuple(first.shape)}, that of outputs, got {tuple(second.shape)}; both "
            "are of the same records in the same order"
        )
    if not first.numel():
        raise InputError("outputs: there are no rows")
    kind = make_head(head, 1 if first.ndim == 1 else first.shape[-1])
    if not kind.signals:
        raise InputError("head: a multi-label head has no single attack statistic; take one label at a time")
    return rms_difference(statistic(kind, first, targets), statistic(kind, second, targets, "rerun_outputs"))


def rms_difference(first: Floats, second: Floats) -> float:
    """√(mean (φ − φ′)² / 2); two runs that are the same are refused."""
    found = float(np.sqrt(np.mean((first - second) ** 2) / 2.0))
    if found <= _ROUNDING * float(np.abs(first).max(initial=0.0)):
        raise InputError(
            "rerun: it gives the same outputs as the model, but for rounding; pass a second model, trained on the "
            "same records with another seed, or leave it out where training has no seed"
        )
    return found


def match_scale(exposure: Floats, members: Floats, held_out: Floats) -> float:
    """c ≥ 0 for which members − c·√exposure have the mean loss of held-out records; 0 where they have it as they are.

    exposure, members  (n,), (n,): E and φ of the members
    held_out           (k,): the loss of records that the model was not trained on
    """
    root, goal = _usual_root(exposure), float(held_out.mean())
    mean = float(root.mean())

    def excess(log_shift: float) -> float:
        return float(plain_loss(members - np.exp(log_shift) * (root / mean)).mean()) - goal

    if mean == 0.0 or excess(-_WIDEST) >= 0.0:
        return 0.0
    # a mean shift of this much costs the members more than that, whatever their statistics
    enough = max(_WIDEST, np.log(max(goal + abs(float(members.mean())), 1.0)) + 1.0)
    return float(np.exp(optimize.brentq(excess, -_WIDEST, enough))) / mean


def _usual_root(exposure: Floats) -> Floats:
    """√E, (n,); one record that explodes shall not decide the scale of all.

    Records of no exposure at all, which saturated outputs have, say nothing of what is usual.
    """
    root: Floats = np.sqrt(np.maximum(exposure, 0.0))
    some = root[root > 0]
    return np.minimum(root, 10.0 * float(np.quantile(some, 0.99))) if len(some) else root


def _contraction(shift: Floats, ratio: float) -> float:
    """β with mean (1 + s)^−2β = ratio, from 0 for a ratio of 1 or more to 1."""

    def excess(beta: float) -> float:
        return float(np.mean((1.0 + shift) ** (-2.0 * beta))) - ratio

    if ratio >= 1.0 or excess(0.0) <= 0.0:
        return 0.0
    return STEEPEST if excess(STEEPEST) > 0 else float(optimize.brentq(excess, 0.0, STEEPEST))


def plain_loss(phi: Floats) -> Floats:
    """log(1 + exp(−φ)), (n,): the cross-entropy of classes, whatever labels were smoothed."""
    return np.logaddexp(0.0, -phi)


@dataclass(frozen=True)
class HeldOut:
    """Records that the model was not trained on: its statistic and loss (k,) of them, of squared error the size |e| of
    the residual, and what a unit of variance of the statistic costs, (∂ℓ/∂φ)² of classes and W of values (k,)."""

    statistic: Floats
    loss: Floats
    cost: Floats

    @classmethod
    def of(cls, head: Head, outputs: Any, targets: Any) -> HeldOut:
        z = as_floats(outputs, "held_out")
        if len(z) < FEWEST:
            raise InputError(f"held_out: {len(z)} records say too little; pass {FEWEST} or more, better some hundreds")
        phi = statistic(head, outputs, targets, "held_out")
        if head.classifies:
            if concern := head.concern(z.reshape(len(z), -1).to(torch.float64), as_tensor(targets, "targets")):
                raise InputError(f"held_out, {concern}")
            return cls(phi, plain_loss(phi), special.expit(-phi) ** 2)
        z = (z.unsqueeze(1) if z.ndim == 1 else z).to(torch.float64)
        y = check_targets(head, as_tensor(targets, "targets"), len(z), z.shape[1], "held_out").to(z.device)
        loss = head.loss(z, y).cpu().numpy()
        return cls(phi, np.sqrt(loss) if head.quadratic else loss, head.packed_curvature(z).mean(-1).cpu().numpy())

    def losing(self, more: float) -> HeldOut:
        """The same, had they lost so much more on average, each in proportion; or less, but not less than nothing."""
        mean = float(self.loss.mean())
        return replace(self, loss=self.loss * max(1.0 + more / mean, 0.0)) if mean > 0 else self


def calibrate(
    head: Head,
    exposure: Floats,
    statistic_in: Floats,
    loss_in: Floats,
    held_out: HeldOut | None,
    spreads: tuple[float, float] | None,
    gap: float | None = None,
    source: str = "rerun",
) -> Calibration:
    """What the rates of these members of classes rest on: from held-out records, spreads of a rerun, or both.

    exposure, statistic_in, loss_in  (n,) of the members
    spreads                          σ_in and σ_out of ``spread``; None: derived from the gap of the losses
    gap                              in place of held-out records: mean φ of members minus that of others
    source                           where the spreads are from
    """
    found = spreads_of(head, loss_in, held_out, spreads, source)
    if held_out is not None:
        scale = match_scale(exposure, statistic_in, held_out.loss)
        gap = float(statistic_in.mean() - held_out.statistic.mean())
    else:
        mean = float(_usual_root(exposure).mean())
        scale = 1.0 if gap is None else max(gap, 0.0) / mean if mean > 0 else 0.0
    found = replace(found, scale=scale, gap=gap)
    ratio = (found.spread_in / found.spread_out) ** 2
    return replace(found, contraction=_contraction(found.shift(exposure), ratio))


def spreads_of(
    head: Head, loss_in: Floats, held_out: HeldOut | None, spreads: tuple[float, float] | None, source: str
) -> Calibration:
    """The two spreads and what other data adds to those of the seed; the losses of squared error are the sizes of
    residuals."""
    variance = 0.0
    if held_out is not None:
        lost = max(_mean_loss(head, held_out.loss) - _mean_loss(head, loss_in), 0.0)
        cost = float(held_out.cost.mean())
        variance = lost / cost if cost > 0 else 0.0
    if spreads is None:
        # records that fit as well as the members do tell of no spread; beside no shift any small one is as good
        some = 1.0 if head.classifies or held_out is None else 1e-3 * float(held_out.loss.mean()) or 1e-3
        spreads, factor, source = (float(np.sqrt(variance / 2.0)) or some,) * 2, 1.0, "gap"
    else:
        more = variance / 2.0 if SPREAD_SOURCES[source].of_seed else 0.0
        factor = float(np.sqrt(1.0 + more / spreads[1] ** 2))
    count = 0 if held_out is None else len(held_out.loss)
    return Calibration(*spreads, factor, source=source, held_out=count)


def _mean_loss(head: Head, losses: Floats) -> float:
    """Of squared error that of normal residuals of this mean size: a few that are far off shall not decide it."""
    mean = float(losses.mean())
    return np.pi / 2.0 * mean**2 if head.quadratic else mean


def converged_rates(
    influence_sum: float, known: Mapping[str, Floats], spreads: Spreads | None = None
) -> tuple[Calibration, Rates]:
    """Of a converged head of classes, from the scores (n,) of its records and Σ g'ᵀAg'.

    spreads  over data, of every record, by the sandwich; None: it is not known
    """
    influence, newton, shift = known["influence"], known["newton"], known["signal_shift"]
    first, whole = np.abs(influence), np.abs(newton)  # of smoothed labels both may be below 0
    room = np.clip(np.divide(first, whole, out=np.ones_like(first), where=whole > 0), 1e-8, 1.0)
    jackknife = float(np.sum(first / room**2)) / max(float(first.sum()), np.finfo(np.float64).tiny)
    information = jackknife * influence_sum / max(float(known["leverage"].sum()), np.finfo(np.float64).tiny)
    outside = np.sqrt(0.5 * information * known["signal_variance"] / room)
    inside = room * outside
    if spreads is not None:
        both = zip(spreads[:2], spreads[2:], strict=True)
        inside, outside = (np.sqrt((seen**2 + information * expected**2) / 2.0) for seen, expected in both)
    still = outside <= 0  # a record that nothing moves is not moved by its own absence either
    inside, outside = np.where(still, 1.0, inside), np.where(still, 1.0, outside)
    inside = np.maximum(inside, _FIRMEST * outside)
    power = np.abs(shift) / np.sqrt((inside**2 + outside**2) / 2.0)  # smoothed labels pull φ back: that tells, too
    rates = Rates(power, best_accuracy(shift, inside, outside), partial(best_tpr, shift, inside, outside, FPR))
    found = Calibration(float(inside.mean()), float(outside.mean()), source="converged", jackknife=jackknife)
    return found, rates
