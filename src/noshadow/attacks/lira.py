"""LiRA, the likelihood-ratio attack (Carlini et al., 2022), leaving each model out in turn.

For target k and record i the references are the other K − 1 models: those with the record ("in") and those
without ("out"). With a normal law fitted to the signals of each side, the score of target k's signal φ is

    online              log N(φ; μ_in, σ²_in) − log N(φ; μ_out, σ²_out)
    offline             log P(out-signal ≤ φ) = log Φ((φ − μ_out)/σ_out): one-sided, members are higher
    offline_two_sided   −log N(φ; μ_out, σ²_out): unlike a non-member, in either direction

All K targets in one pass. A side of n models has mean μ and sum of squares S about it. For a model on that
side at d = φ − μ, leaving it out gives n − 1 models with
    φ − mean = d n/(n − 1),        sum of squares = S − d² n/(n − 1),
and for the models on the other side nothing changes. So each (model, record) pair needs its own side
downdated and the other side as it is: a dozen vectorised lines, and nothing is fitted K times. For the decisions,
which leave a counterpart out as well, the other side is the counterpart's own side without it: already there.

Everything is computed in units of the record's range (of the largest range, where records share a variance), so that
signals of any size can be squared.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.special import log_ndtr

from noshadow.attacks.arrays import (
    as_membership,
    as_models_by_records,
    attackable,
    column_chunks,
    one_thread,
    require_choice,
    require_same_cells,
)
from noshadow.attacks.counterpart import counterparts
from noshadow.attacks.result import AttackResult, conclude, undecided_elsewhere
from noshadow.attacks.separation import Side, centred, sides, units
from noshadow.attacks.signal import signal as attack_signal
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.heads import get_head
from noshadow.progress import Progress, progress_bar

__all__ = [
    "DOMINATED",
    "FLOOR",
    "MANY_MODELS",
    "Center",
    "Fit",
    "Members",
    "Variance",
    "Variant",
    "gaussian_nll",
    "leave_one_out_scatter",
    "lira",
    "lira_on_outputs",
    "lira_variance",
    "medians",
]

Variant = Literal["online", "offline", "offline_two_sided"]
Variance = Literal["per_sample", "fixed", "auto"]
Center = Literal["mean", "median"]
Members = Literal["higher", "lower", "either"]

MANY_MODELS = 24  # from here on "auto" trusts a variance per record: measured, on logits and on losses alike
DOMINATED = 1e-4  # a leave-one-out sum of squares below this fraction of the whole is summed anew
FLOOR = 1e-12  # smallest variance of a side, as a fraction of the spread of both sides' references


@one_thread()
def lira(
    signal: Any,
    membership: Any,
    variant: Variant = "online",
    variance: Variance = "auto",
    center: Center = "mean",
    *,
    members: Members = "higher",
    constant: Literal["raise", "tie"] = "raise",
    progress: Progress = None,
) -> AttackResult:
    r"""LiRA, the likelihood-ratio attack: each of K models attacked with the rest as references.

    .. math::

        \text{score} = \log \mathcal N(\varphi;\, \mu_{in}, \sigma^2_{in}) - \log \mathcal N(\varphi;\, \mu_{out},
        \sigma^2_{out})

    for "online"; the module's docstring has the other variants and how all targets are done in one pass. The attack is
    that of Carlini et al. (2022), https://arxiv.org/abs/2112.03570.

    Parameters
    ----------
    signal : array (K, N) or (K, N, A)
        What ``attacks.signal`` gives. The scores of A augmented queries per record are summed, the likelihood ratio of
        independent queries; where they are correlated it overstates the evidence.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    variant : "online", "offline" or "offline_two_sided"
        Whether references with the record are used, and whether a member may differ in either direction.
    variance : "auto", "per_sample" or "fixed"
        "per_sample": population variance of a record's references on a side (3 models per side or more); "fixed": one
        variance per side, pooled over the records, each about its own mean, Σᵢ Sᵢ / Σᵢ (nᵢ − 1) (2 models per side or
        more); "auto": per_sample from 24 models on, fixed below.
    center : "mean" or "median"
        What μ is; the variance is about the mean in both.
    members : "higher", "lower" or "either"
        Whether members' signals are higher (logits), lower (losses) or either (signed residuals). "offline" needs one
        of the first two; with "either" the tiebreak is the size of d̂′.
    constant : "raise" or "tie"
        Records whose signal never varies: an error, or scored on the threshold (0 online).
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.

    Returns
    -------
    AttackResult
        Online scores decide at 0; offline ones where the other models' balanced accuracy is best. ``separation`` is d̂′
        of the signal (averaged over queries) and keeps its sign: positive where members' signals are higher.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, constant signals, too few models.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((64, 100)) < 0.5
    >>> result = attacks.lira(rng.normal(size=(64, 100)) + 2 * membership, membership)
    >>> result.scores.shape, result.success_rate.shape
    ((64, 100), (100,))
    >>> round(result.auc, 1)
    0.9
    """
    require_choice("variant", variant, ("online", "offline", "offline_two_sided"))
    require_choice("variance", variance, ("per_sample", "fixed", "auto"))
    require_choice("center", center, ("mean", "median"))
    require_choice("members", members, ("higher", "lower", "either"))
    require_choice("constant", constant, ("raise", "tie"))
    if variant == "offline" and members == "either":
        raise InputError(
            "variant: 'offline' tests one direction; signals of members that move either way need "
            "'online' or 'offline_two_sided'"
        )
    require_same_cells(signal, membership)
    x = as_models_by_records(signal, "signal", extra=True)
    n_models, n_records = x.shape[:2]
    inside = as_membership(membership, n_models, n_records).to(x.device)
    rule = lira_variance(n_models) if variance == "auto" else variance
    known = _enough_references(inside, 3 if rule == "per_sample" else 2, online=variant == "online")
    queries = x.unbind(2) if x.ndim == 3 else (x,)
    known &= _varying(queries, constant)
    if not bool(known.all()):
        some: Any = {"variance": rule, "members": members, "constant": constant, "progress": progress}
        return undecided_elsewhere(lira(x[:, known], inside[:, known], variant, center=center, **some), known, inside)
    scores = torch.zeros((2, n_models, n_records), dtype=torch.float64, device=x.device)
    with progress_bar("LiRA", n_records * len(queries), progress) as advance:
        for query in queries:
            unit = units(query)
            unit = unit if rule == "per_sample" else unit.max().expand(n_records)
            pooled = None if rule == "per_sample" else _pooled_variances(query, unit, inside)
            for columns in column_chunks(n_records, n_models):
                part = centred(query, unit, columns)
                scores[:, :, columns] += _scores(part, inside[:, columns], variant, center, members, pooled)
                if variant == "offline_two_sided":
                    scores[:, :, columns] += unit[columns].log()  # a density is per unit
                advance(columns.stop - columns.start)
    statistic = x if x.ndim == 2 else (x.to(torch.float64) / x.shape[2]).sum(2)
    cut = scores.new_zeros(n_models) if variant == "online" else None
    attack = f"lira {variant}, variance {rule}"
    result = conclude(attack, inside, statistic, scores[0], scores[1], thresholds=cut, signed=members == "either")
    if variant == "offline":
        _warn_direction(result, members)
    return result


def lira_on_outputs(
    outputs: Any, membership: Any, targets: Any, head: str, *, signal: str | None = None, **options: Any
) -> AttackResult:
    """LiRA on outputs (K, N, m): by a form of the head's signal, None its first, in the direction of its members.

    Records whose signal never varies are undecided. ``options`` are those of ``lira``.
    """
    forms = get_head(head).signals
    if signal is not None:
        require_choice("signal", signal, tuple(forms), f"those of a {head} head")
    form = next(iter(forms)) if signal is None else signal
    phi = attack_signal(outputs, targets, head, form)
    return lira(phi, membership, members=forms[form].members, constant="tie", **options)


def lira_variance(n_models: int) -> Literal["per_sample", "fixed"]:
    """What ``variance="auto"`` of ``lira`` chooses with so many models.

    For a part of a study, pass on what it is for the whole.

    Parameters
    ----------
    n_models : int
        Number of models K.

    Returns
    -------
    "per_sample" or "fixed"

    Examples
    --------
    >>> from noshadow import attacks
    >>> attacks.lira_variance(16), attacks.lira_variance(64)
    ('fixed', 'per_sample')
    """
    return "per_sample" if n_models >= MANY_MODELS else "fixed"


class Fit(NamedTuple):
    """One side's normal law as each target sees it: its residual from the mean and the variance, (K, c)."""

    residual: Tensor
    variance: Tensor

    def nll(self) -> Tensor:
        """−log density."""
        return gaussian_nll(self.residual, self.variance)


def gaussian_nll(residual: Tensor, variance: Tensor) -> Tensor:
    """−log N(residual; 0, variance) = ½ (log 2π variance + residual²/variance)."""
    return (residual.square() / variance + torch.log(variance * (2.0 * math.pi))).mul_(0.5)


def _grown(inside: Side, outside: Side, weight: Tensor) -> Tensor:
    """n/(n − 1) of each pair's own side: what leaving a model out does to its distance from the mean."""
    of_out, of_in = (side.n / (side.n - 1.0).clamp_min(1.0) for side in (outside, inside))
    return torch.lerp(of_out, of_in, weight)


def leave_one_out_scatter(x: Tensor, weight: Tensor, deviation: Tensor, inside: Side, outside: Side) -> Tensor:
    """Sum of squares about the mean of each model's own side without that model, (K, c).

    Where one model makes up nearly all of its side's S, the difference is rounding error, and the rest is
    summed anew. Of three or more models at most one can do that, so it is a short pass over the few
    records concerned.
    """
    squares = deviation.square().mul_(_grown(inside, outside, weight))
    whole = torch.lerp(outside.scatter, inside.scatter, weight)
    rest = (whole - squares).clamp_min_(0.0)
    model, record = (rest < DOMINATED * whole).nonzero().unbind(1)
    if len(record):
        others = weight[:, record] == weight[model, record]
        others[model, torch.arange(len(record), device=x.device)] = False
        values = torch.where(others, x[:, record], 0.0)
        mean = values.sum(0) / others.sum(0).clamp_min(1)
        rest[model, record] = torch.where(others, values - mean, 0.0).square().sum(0)
    return rest


def medians(x: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """One side's median (c,), and (K, c) that of the side without each model on it (elsewhere meaningless).

    With a₀ ≤ … ≤ aₙ₋₁ and h = ⌊n/2⌋, leaving out the value v gives
        n even:  a_h if v ≤ a_{h−1}, else a_{h−1}
        n odd:   the mean of a_h and a_{h+1} if v < a_h, of a_{h−1} and a_{h+1} if v = a_h,
                 of a_{h−1} and a_h if v > a_h.
    Among equal values it does not matter which one is left out, so that values decide and ranks are not
    needed.
    """
    n = side.sum(0)
    ordered = torch.where(side, x, torch.inf).sort(0).values
    # the only model of a side leaves nothing behind: its own value stands in, as it does for the mean
    at = torch.stack([n // 2 - 1, n // 2, n // 2 + 1]).clamp_min(0).minimum((n - 1).clamp_min(0))
    below, middle, above = ordered.gather(0, at)
    odd = n % 2 == 1
    of_odd = (torch.where(x < middle, middle, below) + torch.where(x > middle, middle, above)) / 2.0
    of_even = torch.where(x <= below, middle, below)
    return torch.where(odd, middle, (below + middle) / 2.0), torch.where(odd, of_odd, of_even)


def _fits(x: Tensor, member: Tensor, center: str) -> tuple[Fit, Fit, Fit]:
    """Each pair's own side without the model, its other side, and that without the counterpart; x, member (K, c)."""
    weight = member.to(torch.float64)
    inside, outside, deviation = sides(x, weight)
    if center == "median":
        (median_in, without_in), (median_out, without_out) = medians(x, member), medians(x, ~member)
        own_residual = x - torch.where(member, without_in, without_out)
        other_residual = x - torch.lerp(median_in, median_out, weight)
    else:
        own_residual = deviation * _grown(inside, outside, weight)
        other_residual = x - torch.lerp(inside.mean, outside.mean, weight)
    left = torch.lerp(outside.n - 1.0, inside.n - 1.0, weight).clamp_min_(1.0)
    own_variance = leave_one_out_scatter(x, weight, deviation, inside, outside) / left
    other_variance = torch.lerp(inside.variance, outside.variance, weight)
    beside = counterparts(member)
    fair_residual = x - (x - own_residual).gather(0, beside)
    return (
        Fit(own_residual, own_variance),
        Fit(other_residual, other_variance),
        Fit(fair_residual, own_variance.gather(0, beside)),
    )


def _scores(x: Tensor, member: Tensor, variant: str, center: str, members: str, pooled: Tensor | None) -> Tensor:
    """Scores (2, K, c) of some records, with all the other models and without the counterparts; pooled (2, 2, K)."""
    own, *others = _fits(x, member, center)
    weight = member.to(torch.float64)
    found = []
    for way, other in enumerate(others):
        fits = own, other
        if pooled is not None:
            of_out, of_in = pooled[way].unsqueeze(2)
            fits = (
                Fit(own.residual, torch.lerp(of_out, of_in, weight)),
                Fit(other.residual, torch.lerp(of_in, of_out, weight)),
            )
        found.append(_score(*_floored(*fits), member, variant, members))
    return torch.stack(found)


def _floored(own: Fit, other: Fit) -> tuple[Fit, Fit]:
    """Variances of at least a fraction of the references' spread; where they never vary, a common one makes a tie."""
    spread = (other.residual - own.residual).square_().add_(own.variance).add_(other.variance)
    floor = spread.mul(FLOOR).add_(spread == 0)
    return (
        Fit(own.residual, torch.maximum(own.variance, floor)),
        Fit(other.residual, torch.maximum(other.variance, floor)),
    )


def _score(own: Fit, other: Fit, member: Tensor, variant: str, members: str) -> Tensor:
    if variant == "online":
        in_minus_out = other.nll().sub_(own.nll())  # for members the own side is "in"
        return in_minus_out.mul_(member.to(torch.float64).mul_(2.0).sub_(1.0))
    out = Fit(*(torch.where(member, of_other, of_own) for of_own, of_other in zip(own, other, strict=True)))
    if variant == "offline_two_sided":
        return out.nll()
    standard = out.residual / out.variance.sqrt()
    score: Tensor = log_ndtr(standard if members == "higher" else -standard)
    return score


def _pooled_variances(x: Tensor, unit: Tensor, inside: Tensor) -> Tensor:
    """Σᵢ Sᵢ / Σᵢ (nᵢ − 1) over the records without each target, out-models and in-models, (2, 2, K).

    First with all the other models, then without the counterparts.
    """
    n_models, n_records = x.shape
    scatter = torch.zeros((2, 2, n_models), dtype=torch.float64, device=x.device)
    freedom = torch.zeros_like(scatter)
    for columns in column_chunks(n_records, n_models):
        part, member = centred(x, unit, columns), inside[:, columns]
        weight = member.to(torch.float64)
        of_in, of_out, deviation = sides(part, weight)
        rest = leave_one_out_scatter(part, weight, deviation, of_in, of_out)
        rest_beside = rest.gather(0, counterparts(member))
        for side, (rows, on) in enumerate(((of_out, 1.0 - weight), (of_in, weight))):
            for way, other in enumerate((rows.scatter, rest_beside)):
                scatter[way, side] += torch.lerp(other.expand_as(rest), rest, on).sum(1)
                freedom[way, side] += (rows.n - 1.0 - (on if way == 0 else 1.0)).clamp_min(0.0).expand_as(on).sum(1)
    return scatter / freedom.clamp_min_(1.0)


def _enough_references(inside: Tensor, fewest: int, online: bool) -> Tensor:
    """Records of which one model or two remain on the out-side, or on both, when one is left out."""
    remedy = "train more models" + ("" if fewest == 2 else ", or use variance='fixed', which needs one less")
    return attackable(inside, fewest if online else 1, fewest, remedy)


def _varying(queries: tuple[Tensor, ...], constant: str) -> Tensor:
    """Which records' signals vary, (N,); constant ones are an error, unless they may tie and are not all there is."""
    still = torch.stack([query[0] == query[1] for query in queries]).all(0).nonzero().flatten()
    for query in queries:
        still = still[(query[:, still] == query[0, still]).all(0)]
    n_records = queries[0].shape[1]
    if len(still) and (constant == "raise" or len(still) == n_records):
        raise InputError(
            f"signal: constant over all models in {name_rows(still.tolist())} (counted from 0): "
            "nothing can be inferred there; leave those records out, or pass constant='tie' to count them "
            "as undecided"
        )
    return torch.ones(n_records, dtype=torch.bool, device=still.device).index_fill_(0, still, False)


def _warn_direction(result: AttackResult, members: str) -> None:
    """A one-sided test in the wrong direction gives plausible but wrong scores: say so."""
    toward = result.separation * (1.0 if members == "higher" else -1.0)
    mean, error = (
        float(toward.clip(-10.0, 10.0).mean()),
        float(toward.clip(-10.0, 10.0).std() / len(toward) ** 0.5),
    )
    if len(toward) > 1 and mean < -5.0 * error:
        other = "lower" if members == "higher" else "higher"
        warnings.warn(
            f"members: signals of members are not {members} but {other} on the whole; pass members={other!r}",
            NoshadowWarning,
            stacklevel=4,  # past the thread guard, to the caller
        )
