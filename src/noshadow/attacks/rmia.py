"""RMIA, robust membership inference (Zarifzadeh, Liu and Shokri, 2024), leaving each model out in turn.

A record x is compared with many others z: with the likelihood ratio
    LR(x, z) = [p(x|θ)/p(x)] / [p(z|θ)/p(z)]
the score of target θ is the fraction of the population z with LR(x, z) ≥ γ. Here p(·|θ) is the target's
probability of the true label and p(·) its average over the references, the other K − 1 models:
    online    p(x) = ½ (mean over in-references + mean over out-references)
    offline   p(x) = ½ ((1 + a) · mean over out-references + (1 − a)), and the same for z.

LR ≥ γ says that the log-ratio of z plus log γ is at most that of x, so that one sort of the records and
one binary search a z give all scores of a target: O((N + Z) log N), never N × Z.

Decisions leave a counterpart out as well (see ``counterpart``): the mean over the target's other side is then the
counterpart's own side without it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from noshadow.attacks.arrays import (
    Floats,
    as_membership,
    as_models_by_records,
    attackable,
    column_chunks,
    one_thread,
    require_choice,
    require_same_cells,
    require_variety,
    to_numpy,
)
from noshadow.attacks.counterpart import counterparts
from noshadow.attacks.result import AttackResult, conclude, undecided_elsewhere
from noshadow.attacks.signal import signal as attack_signal
from noshadow.errors import InputError
from noshadow.heads import get_head
from noshadow.progress import Progress, progress_bar
from noshadow.tensors import as_tensor

__all__ = ["CANCELS", "TINY", "log_average", "rmia", "rmia_on_outputs"]

CANCELS = 1e-6  # a leave-one-out sum below this fraction of the whole is summed in logarithms instead
TINY = float(np.finfo(np.float64).tiny)


@one_thread()
def rmia(
    signal: Any,
    membership: Any,
    population: Any = None,
    variant: Literal["online", "offline"] = "online",
    *,
    gamma: float = 1.0,
    a: float = 0.3,
    temperature: float = 1.0,
    scale: Literal["logit", "log_probability"] = "logit",
    progress: Progress = None,
) -> AttackResult:
    r"""RMIA, the relative attack: each of K models attacked with the rest as references.

    The score of a record x is the share of other records z that it dominates,

    .. math::

        P_z\left( \frac{p(x \mid \theta) / p(x)}{p(z \mid \theta) / p(z)} \ge \gamma \right),

    p(x) being the mean over the references. The attack is that of Zarifzadeh et al. (2024),
    https://arxiv.org/abs/2312.03262; the module's docstring has the details.

    Parameters
    ----------
    signal : array (K, N)
        Of the records: the logit signal φ, or log-probabilities by ``scale``.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    population : array (K, Z), optional
        The same of the records z, which no model was trained on; None: the other N − 1 records of the pool, averaged as
        x is.
    variant : "online" or "offline"
        Whether references with the record are used.
    gamma : float
        γ > 0.
    a : float
        0 ≤ a ≤ 1, offline only: how much higher a probability is on members; 1 says no higher.
    temperature : float
        T > 0: p = σ(φ/T) for "logit" (for softmax heads signals of ``logits / T`` are the exact temperature), p^(1/T)
        for "log_probability".
    scale : "logit" or "log_probability"
        "logit": log p = −log(1 + exp(−φ/T)); "log_probability": any log p ≤ 0, for squared error −loss (a Gaussian
        likelihood with T = 2σ²).
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.

    Returns
    -------
    AttackResult
        Decisions are cut where the other models' balanced accuracy is best; ``separation`` is d̂′ of the log-ratio
        log p(x|θ) − log p(x). The attack compares probabilities: records that every model is sure of to the last digit
        (φ/T > 36) have ratio 1 and tie, and a higher temperature tells them apart.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, options out of range, too few models.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((32, 50)) < 0.5
    >>> result = attacks.rmia(rng.normal(size=(32, 50)) + 2 * membership, membership)
    >>> bool((result.scores >= 0).all() and (result.scores <= 1).all()), result.auc > 0.8
    (True, True)
    """
    require_choice("variant", variant, ("online", "offline"))
    _require_options(gamma, a, temperature)
    require_choice("scale", scale, ("logit", "log_probability"))
    require_same_cells(signal, membership)
    x = as_models_by_records(signal, "signal")
    n_models, n_records = x.shape
    inside = as_membership(membership, n_models, n_records).to(x.device)
    online = variant == "online"
    logit = scale == "logit"
    if not logit:
        _require_log_probability(x, "signal")
    z = None if population is None else as_models_by_records(population, "population").to(x.device)
    if z is not None:
        if z.shape[0] != n_models:
            raise InputError(f"population: {z.shape[0]} models, but signal has {n_models}; they must be the same")
        if not logit:
            _require_log_probability(z, "population")
    known = attackable(inside, 2 if online else 1, 2)
    if not bool(known.all()):
        options: Any = {"variant": variant, "gamma": gamma, "a": a, "temperature": temperature, "scale": scale}
        options["progress"] = progress
        return undecided_elsewhere(rmia(x[:, known], inside[:, known], z, **options), known, inside)
    with progress_bar("RMIA", n_records + 2 * n_models, progress) as advance:
        ratios = _log_ratios(x, inside, online, a, logit, temperature)
        advance(n_records)
        require_variety(ratios[0], "signal", f"the likelihood ratio at temperature {temperature:g}")
        # the population is out of every model: online, its average is over all references as they are
        of_population = None if z is None else _log_ratios(z, None, False, 1.0 if online else a, logit, temperature)[0]
        scores = []
        for ratio in ratios:
            if of_population is None:
                scores.append(_dominated_in_pool(ratio, math.log(gamma)))
            else:
                scores.append(_dominated(ratio, of_population, math.log(gamma)))
            advance(n_models)
    return conclude(f"rmia {variant}", inside, ratios[0], scores[0], scores[1])


def rmia_on_outputs(outputs: Any, membership: Any, targets: Any, head: str, **options: Any) -> AttackResult:
    """RMIA on outputs (K, N, m): by the logits that the head's signal is, or, where it is a loss, by a Gaussian
    likelihood as wide as the models err on what they did not see. ``options`` are those of ``rmia``."""
    phi = attack_signal(outputs, targets, head)
    if get_head(head).signal_scale == "logit":
        return rmia(phi, membership, **options)
    temperature = 2.0 * _mean_of_others(phi, membership)
    return rmia(-phi, membership, scale="log_probability", temperature=temperature, **options)


def _mean_of_others(loss: Floats, membership: Any) -> float:
    """Mean loss of the records that the models were not trained on."""
    outside = ~as_tensor(membership, "membership").cpu().numpy().astype(bool)
    largest = float(loss.max()) or 1.0
    return float((loss / largest).mean(where=outside)) * largest


def _log_probability(values: Tensor, logit: bool, temperature: float) -> Tensor:
    """log σ(φ/T) = min(φ/T, 0) − log(1 + exp(−|φ/T|)), or log p / T."""
    scaled = values.to(torch.float64).contiguous() / temperature
    if not bool(torch.isfinite(scaled).all()):
        raise InputError(
            f"temperature: signals as large as {float(values.abs().max()):g} overflow at {temperature:g}; raise it"
        )
    return scaled.clamp_max(0.0) - torch.log1p(torch.exp(-scaled.abs())) if logit else scaled


def _log_ratios(x: Tensor, inside: Tensor | None, online: bool, a: float, logit: bool, temperature: float) -> Tensor:
    """log p(x|θ_k) − log p(x) with model k left out of the average, and with its counterpart left out too, (2, K, N).

    inside None: no model was trained on these records, which have no counterparts either.
    """
    ratio = torch.empty((1 if inside is None else 2, *x.shape), dtype=torch.float64, device=x.device)
    for columns in column_chunks(x.shape[1], x.shape[0]):
        log_p = _log_probability(x[:, columns], logit, temperature)
        member = torch.zeros_like(log_p, dtype=torch.bool) if inside is None else inside[:, columns]
        ratio[0, :, columns] = log_p - log_average(log_p, member, online, a)
        if inside is not None:
            ratio[1, :, columns] = log_p - log_average(log_p, member, online, a, counterparts(member))
    return ratio


def log_average(log_p: Tensor, member: Tensor, online: bool, a: float, beside: Tensor | None = None) -> Tensor:
    """log p(x) from the references of each target, (K, c), without the models ``beside`` (K, c) of its other side.

    Probabilities are summed a side in units of the record's largest, and a target's own is taken off its
    side's sum. Where that leaves next to nothing, as when one probability dwarfs the rest together, the
    difference is rounding error and the record is summed in logarithms.
    """
    weight = member.to(torch.float64)
    top = log_p.amax(0)
    p = torch.exp(log_p - top)
    sum_in = (p * weight).sum(0)
    sum_out = (p - p * weight).sum(0)
    own_sum = torch.lerp(sum_out, sum_in, weight)
    own_rest = own_sum - p
    n_in = weight.sum(0)
    n_out = len(p) - n_in
    own = own_rest / torch.lerp(n_out - 1.0, n_in - 1.0, weight).clamp_min_(1.0)
    whole = torch.lerp(sum_in / n_in.clamp_min(1.0), sum_out / n_out, weight)
    other = whole if beside is None else own.gather(0, beside)
    average = torch.log(((own + other) / 2.0 if online else torch.lerp(own, other, weight)).clamp_min_(TINY)) + top
    lost = ((own_rest < CANCELS * own_sum) | (own_sum < math.sqrt(TINY))).any(0).nonzero().flatten()
    if len(lost):
        of_lost = None if beside is None else beside[:, lost]
        average[:, lost] = _log_average_in_logs(log_p[:, lost], member[:, lost], online, of_lost)
    if online or a == 1.0:
        return average
    return torch.log(torch.exp(average) * ((1.0 + a) / 2.0) + (1.0 - a) / 2.0)


def _log_average_in_logs(log_p: Tensor, member: Tensor, online: bool, beside: Tensor | None) -> Tensor:
    """log of ½ (mean over in-references + mean over out-references), or of the latter, by logsumexp."""

    def log_mean(side: Tensor) -> Tensor:
        count = side.sum(0) - side.to(log_p.dtype)
        mean = _leave_one_out_logsumexp(torch.where(side, log_p, -torch.inf)) - torch.log(count)
        return mean if beside is None else torch.where(side, mean, mean.gather(0, beside))

    out = log_mean(~member)
    return torch.logaddexp(out, log_mean(member)) - math.log(2.0) if online else out


def _leave_one_out_logsumexp(values: Tensor) -> Tensor:
    """logsumexp over all rows but k, for every k: what comes before k and what comes after."""
    edge = torch.full_like(values[:1], -torch.inf)
    before = torch.cat([edge, torch.logcumsumexp(values, 0)[:-1]])
    after = torch.cat([edge, torch.logcumsumexp(values.flip(0), 0)[:-1]]).flip(0)
    return torch.logaddexp(before, after)


def _dominated(ratio: Tensor, population: Tensor, log_gamma: float) -> Tensor:
    """Fraction of a model's population with log-ratio + log γ at most that of the record, (K, N).

    With a model's records in order, each z is looked up among them: it counts for that record and all above.
    NumPy sorts, since its vectorised sort is several times faster than torch's on a processor.
    """
    x, z = to_numpy(ratio), to_numpy(population) + log_gamma
    n_records, size = x.shape[1], z.shape[1]
    scores = np.empty_like(x)
    for row, values, others in zip(scores, x, z, strict=True):
        order = np.argsort(values)
        first = np.searchsorted(values[order], np.sort(others), side="left")
        row[order] = np.cumsum(np.bincount(first, minlength=n_records + 1))[:-1] / size
    return torch.from_numpy(scores).to(ratio.device)


def _dominated_in_pool(ratio: Tensor, log_gamma: float) -> Tensor:
    """The same with the other records of the pool as population: a record is not compared with itself."""
    n_records = ratio.shape[1]
    if n_records < 2:
        raise InputError("population: none was given and the pool holds no other record")
    itself = 1.0 if log_gamma <= 0.0 else 0.0
    return _dominated(ratio, ratio, log_gamma).mul_(n_records).sub_(itself).div_(n_records - 1)


def _require_options(gamma: float, a: float, temperature: float) -> None:
    if not 0.0 < gamma < math.inf:
        raise InputError(f"gamma: expected a number > 0, got {gamma!r}")
    if not 0.0 <= a <= 1.0:
        raise InputError(f"a: expected a number between 0 and 1, got {a!r}")
    if not 0.0 < temperature < math.inf:
        raise InputError(f"temperature: expected a number > 0, got {temperature!r}")


def _require_log_probability(values: Tensor, name: str) -> None:
    if float(values.max()) > 0.0:
        raise InputError(f"{name}: log-probabilities are at most 0, got {float(values.max()):g}; or use scale='logit'")
