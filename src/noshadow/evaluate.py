"""How well a score finds the records that an attack exposes, and how well anything could.

A ``score`` ranks records by predicted risk, ``truth`` is what an attack measured (its success rate a record).
Rankings are over the members of a target model: pass arrays of its members, or use ``over_targets``.

Ties. A success rate from K models takes few values, so that many records tie. ``tiebreak`` (the parametric
separation, ``AttackResult.tiebreak``) orders records of equal truth. What is still equal, in truth or in
score, is averaged over all its orders in closed form: no result depends on the order of the rows or on a
seed.

Two ceilings tell what a number means. ``ceiling``: what the attack finds of its own truth when it is run again, from
other models. It is no bound: a score of one model has not the noise of an attack with half of the models.
``oracle_ceiling``: what the best score there can be would find, one that knows how exposed each record is. Nothing but
luck is above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy import stats

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.replica import population_of

Floats = npt.NDArray[np.float64]
Models = npt.NDArray[np.intp]
Metric = Callable[..., float]


class Measured(Protocol):
    """What the ceilings need of an attack's result."""

    @property
    def success_rate(self) -> Floats: ...
    @property
    def tiebreak(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Summary:
    """A metric over targets or splits: values, mean and sample standard deviation (NaN for one)."""

    values: Floats

    @property
    def mean(self) -> float:
        return float(self.values.mean())

    @property
    def std(self) -> float:
        return float(self.values.std(ddof=1)) if len(self.values) > 1 else float("nan")

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.std:.4f}"


class Prediction(NamedTuple):
    """A score and the truth that it is held against, both as ``ordering`` gives them, (N,)."""

    score: Floats
    truth: Floats


@dataclass(frozen=True)
class Comparison:
    """metric(first) − metric(second) with a bootstrap interval; p_value is two-sided for "no difference"."""

    difference: float
    low: float
    high: float
    p_value: float


def recall(score: Any, truth: Any, top: float = 0.01, keep: float = 0.05, tiebreak: Any = None) -> float:
    """Fraction of the ``top`` share of records by truth that lies in the ``keep`` share by score; (n,) each.

    Shares are rounded down to whole records, at least one: 1 % of 307 records is 3.
    """
    values, target = _pair(score, truth, tiebreak)
    wanted = _top(target, _size(top, len(target), "top"))
    kept = _top(values, _size(keep, len(values), "keep"))
    return float(wanted @ kept / wanted.sum())


def precision_at_k(score: Any, truth: Any, k: int | float, top: float = 0.01, tiebreak: Any = None) -> float:
    """Fraction of the k highest scores (number or share) that lie in the ``top`` share by truth."""
    values, target = _pair(score, truth, tiebreak)
    n = len(values)
    if isinstance(k, (int, np.integer)) and not 1 <= k <= n:
        raise InputError(f"k: expected 1 … {n}, the number of records, got {k}")
    first = _top(values, int(k) if isinstance(k, (int, np.integer)) else _size(k, n, "k"))
    return float(first @ _top(target, _size(top, n, "top")) / first.sum())


def spearman(score: Any, truth: Any, tiebreak: Any = None) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank."""
    values, target = _pair(score, truth, tiebreak)
    a, b = (stats.rankdata(v) - (len(v) + 1) / 2.0 for v in (values, target))
    norm = float(np.sqrt((a @ a) * (b @ b)))
    if norm == 0.0:
        raise InputError(f"{'score' if not a.any() else 'truth'}: constant, so that no rank correlation is defined")
    return float(a @ b / norm)


def ndcg(score: Any, truth: Any, k: int | None = None, baseline: float = 0.0) -> float:
    """Σ_{r ≤ k} gain of the r-th record by score / log₂(1 + r), over its largest possible value.

    gain = max(truth − baseline, 0): with success rates ``baseline=0.5`` counts what is above guessing.
    Records of equal score share their mean gain.
    """
    values, target = _pair(score, truth, None)
    gain = np.maximum(target - baseline, 0.0)
    n = len(gain)
    depth = n if k is None else k
    if not 1 <= depth <= n:
        raise InputError(f"k: expected 1 … {n}, the number of records, got {k}")
    if not gain.any():
        raise InputError(f"truth: nothing is above the baseline {baseline:g}, so that no gain can be discounted")
    discount = np.where(np.arange(n) < depth, 1.0 / np.log2(np.arange(n) + 2.0), 0.0)
    order = np.argsort(-values, kind="stable")
    _, group, size = np.unique(-values[order], return_inverse=True, return_counts=True)
    shared = (np.bincount(group, gain[order]) / size)[group]
    return float(shared @ discount / (np.sort(gain)[::-1] @ discount))


def ordering(value: Any, tiebreak: Any = None) -> Floats:
    """One number a record, (n,): its order by value, then by tiebreak; equal in both stays equal."""
    first = _vector(value, "value")
    if tiebreak is None:
        return first
    second = _vector(tiebreak, "tiebreak", infinite=True)
    if first.shape != second.shape:
        raise InputError(f"tiebreak: {len(second)} records, but there are {len(first)}")
    order = np.lexsort((second, first))
    a, b = first[order], second[order]
    rank = np.empty(len(order))
    rank[order] = np.r_[0.0, np.cumsum((a[1:] != a[:-1]) | (b[1:] != b[:-1]))]
    return rank


def over_targets(
    metric: Metric, scores: Any, truth: Any, members: Any, *, tiebreak: Any = None, **options: Any
) -> Summary:
    """``metric`` over the members of each target: scores and members (T, N), truth and tiebreak (N,) or (T, N)."""
    score, inside, target, breaks = _targets(scores, members, truth, tiebreak)
    values = [
        metric(
            score[row, mask],
            target[row, mask],
            **({} if breaks is None else {"tiebreak": breaks[row, mask]}),
            **options,
        )
        for row, mask in enumerate(inside)
    ]
    return Summary(np.array(values))


def ceiling(
    attack: Callable[[Models], Measured],
    n_models: int,
    metric: Metric = recall,
    *,
    members: Any = None,
    splits: int = 10,
    seed: int = 0,
    **options: Any,
) -> Summary:
    """The attack again: what it scores as a predictor of itself, from disjoint halves of the models.

    attack    called with the indices of some of the models, runs on them alone and returns its result:
              ``lambda models: attacks.lira(signal[models], membership[models], variance=rule)``
              with ``rule = attacks.lira_variance(n_models)``, that of all the models, for the halves too
    members   (T, N) booleans: averaged over the members of each target; None: over all records
    splits    random halvings; each half predicts the other, and the two are averaged

    A predictor that reaches it is as good as running the attack again. Both halves are noisy and hold half the models:
    a predictor without noise, or a truth from all the models, can do better; see ``oracle_ceiling``.

    A record that too few models of a half have, or lack, is undecided there, as the attack leaves it: success rate
    ½, separation 0. So few models say nothing of it, and the number should say so.
    """
    _require_same_attack(attack, n_models)
    return over_predictions(metric, halves(attack, n_models, splits, seed), members, **options)


def halves(
    attack: Callable[[Models], Measured], n_models: int, splits: int = 10, seed: int = 0
) -> list[tuple[Prediction, Prediction]]:
    """For each random halving of the models: the first half's result predicting the second's, and the reverse."""
    if n_models < 8:
        raise InputError(f"n_models: {n_models}; two halves of at least 4 models are needed")
    if splits < 1:
        raise InputError(f"splits: expected 1 or more, got {splits}")
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(splits):
        models = rng.permutation(n_models)
        first, second = (_ranked(attack, np.sort(half)) for half in (models[: n_models // 2], models[n_models // 2 :]))
        found.append((Prediction(first, second), Prediction(second, first)))
    return found


def oracle_ceiling(
    attack: Callable[[Floats, npt.NDArray[np.bool_]], Measured],
    signal: Any,
    membership: Any,
    metric: Metric = recall,
    *,
    members: Any = None,
    draws: int = 10,
    seed: int = 0,
    **options: Any,
) -> Summary:
    """A perfect score: what one that knows how exposed each record is would reach against so noisy a truth.

    attack      called with signals (K, N) and membership (K, N), returns its result:
                ``lambda signal, membership: attacks.lira(signal, membership, variance=rule)``
    signal      (K, N), or (K, N, q): what the models say of each record, about normal on both sides. For squared error
                that is the prediction, not its loss; then ``attack`` computes the loss
    membership  (K, N) booleans
    members     (T, N) booleans: averaged over the members of each target; None: over all records
    draws       how many studies are simulated

    A parametric bootstrap. How exposed the records truly are is not known, but how much they differ is: records are
    drawn with laws that differ as those of the study do (``noshadow.replica``), and a study of as many models is
    simulated from them and attacked. The perfect score is the attack's verdict on the laws themselves. No score of the
    records does better than it, up to noise, as far as signals are normal and independent from model to model.
    """
    return over_predictions(metric, oracle(attack, signal, membership, draws, seed), members, **options)


def oracle(
    attack: Callable[[Floats, npt.NDArray[np.bool_]], Measured],
    signal: Any,
    membership: Any,
    draws: int = 10,
    seed: int = 0,
) -> list[tuple[Prediction]]:
    """For each simulated study: the attack on the records' laws predicting the attack on the study."""
    x, inside = np.asarray(signal, dtype=np.float64), np.asarray(membership).astype(bool)
    if inside.ndim != 2 or x.shape[:2] != inside.shape or x.ndim > 3 or 0 in x.shape:
        raise InputError(
            f"signal, membership: expected shapes (K, N) or (K, N, q), and (K, N), got {x.shape}, {inside.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError("signal: NaN or infinite values; leave out the models that diverged")
    if draws < 1:
        raise InputError(f"draws: expected 1 or more, got {draws}")
    n_models, n_records = inside.shape
    width = x.size // inside.size
    population = population_of(x.reshape(n_models, -1), np.repeat(inside, width, axis=1))
    found = []
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        laws = population.draw(rng)
        # which models have a record is no part of its exposure, and no score knows it: dealt anew
        dealt = inside[:, rng.permutation(n_records)]
        noisy = laws.study(np.repeat(dealt, width, axis=1), rng).reshape(x.shape)
        without_noise, everywhere = laws.study_without_noise(rng, width)
        exact = without_noise.reshape(-1, *x.shape[1:])
        found.append((Prediction(_ranked(attack, exact, everywhere), _ranked(attack, noisy, dealt)),))
    return found


def over_predictions(
    metric: Metric, predictions: Sequence[Sequence[Prediction]], members: Any = None, **options: Any
) -> Summary:
    """``metric`` of the predictions of each halving or draw, averaged over them and over the members of each target."""
    values = []
    for together in predictions:
        n_records = len(together[0].truth)
        masks = np.ones((1, n_records), dtype=bool) if members is None else np.asarray(members, dtype=bool)
        if masks.ndim != 2 or masks.shape[1] != n_records:
            raise InputError(f"members: expected shape (T, {n_records}), targets by records, got {masks.shape}")
        values.append(
            np.mean([metric(score[mask], truth[mask], **options) for score, truth in together for mask in masks])
        )
    return Summary(np.array(values))


def paired_bootstrap(
    metric: Metric,
    first: Any,
    second: Any,
    truth: Any,
    members: Any = None,
    *,
    unit: Literal["records", "targets"] = "records",
    tiebreak: Any = None,
    draws: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    **options: Any,
) -> Comparison:
    """Whether two scores differ: metric(first) − metric(second), both on the same resamples.

    first, second  (n,) of one target, or (T, N) with ``members`` (T, N), the mean over targets being compared
    truth, tiebreak  (N,), or (T, N) where each target has its own
    unit           "records": resample records, the same for both scores and all targets
                   "targets": resample targets, whose metrics are computed once
    """
    if unit not in ("records", "targets"):
        raise InputError(f"unit: {unit!r} is not one of 'records', 'targets'")
    if draws < 1 or not 0.0 < confidence < 1.0:
        raise InputError(f"draws, confidence: expected 1 or more and a probability, got {draws!r}, {confidence!r}")
    a = np.atleast_2d(np.asarray(first, dtype=np.float64))
    mask = np.ones(a.shape, dtype=bool) if members is None else members
    a, inside, target, breaks = _targets(a, mask, truth, tiebreak)
    b = np.atleast_2d(np.asarray(second, dtype=np.float64))
    if a.shape != b.shape:
        raise InputError(f"second: shape {b.shape}, but first has {a.shape}")

    def differences(rows: npt.NDArray[np.intp]) -> Floats:
        found = []
        for row, mask in enumerate(inside):
            chosen = rows[mask[rows]]
            more = {} if breaks is None else {"tiebreak": breaks[row, chosen]}
            values = [metric(score[row, chosen], target[row, chosen], **more, **options) for score in (a, b)]
            found.append(values[0] - values[1])
        return np.array(found)

    n_targets, n = a.shape
    observed = differences(np.arange(n))
    if unit == "targets" and n_targets < 2:
        raise InputError("unit: 'targets' needs two targets or more; use unit='records'")
    rng = np.random.default_rng(seed)
    if unit == "targets":
        drawn = observed[rng.integers(0, n_targets, (draws, n_targets))].mean(1)
    else:
        drawn = np.array([differences(rng.integers(0, n, (n,))).mean() for _ in range(draws)])
    low, high = np.quantile(drawn, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p_value = min(1.0, 2.0 * (tail + 1) / (draws + 1))
    return Comparison(float(observed.mean()), float(low), float(high), float(p_value))


def _size(share: float, n: int, name: str) -> int:
    if not 0.0 < share <= 1.0:
        raise InputError(f"{name}: expected a share of the records between 0 and 1, got {share!r}")
    return max(1, int(share * n * (1.0 + 1e-12)))


def _top(values: Floats, size: int) -> Floats:
    """P(record is among the ``size`` highest) with equal values in random order, (n,)."""
    edge = np.partition(values, len(values) - size)[len(values) - size]
    above = values > edge
    level = values == edge
    share: Floats = above + level * ((size - above.sum()) / level.sum())
    return share


def _pair(score: Any, truth: Any, tiebreak: Any) -> tuple[Floats, Floats]:
    values, target = _vector(score, "score"), _vector(truth, "truth")
    if values.shape != target.shape:
        raise InputError(f"score: {len(values)} records, but truth has {len(target)}; they must be the same records")
    return values, ordering(target, tiebreak)


def _vector(values: Any, name: str, infinite: bool = False) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, got {type(values).__name__} ({error})") from None
    if array.ndim != 1 or not len(array):
        raise InputError(f"{name}: expected shape (n,) with a record or more, got {array.shape}")
    bad = np.flatnonzero(np.isnan(array) if infinite else ~np.isfinite(array))
    if len(bad):
        raise InputError(f"{name}: cannot rank NaN or infinite values, in {name_rows(bad.tolist())} (counted from 0)")
    return array


def _targets(
    scores: Any, members: Any, truth: Any, tiebreak: Any
) -> tuple[Floats, npt.NDArray[np.bool_], Floats, Floats | None]:
    """Scores, members, truth and tiebreak, all (T, N)."""
    score, inside = np.asarray(scores, dtype=np.float64), np.asarray(members)
    if score.ndim != 2 or inside.shape != score.shape:
        raise InputError(
            f"scores: expected shape (T, N), targets by records, that of members, got {score.shape}, {inside.shape}"
        )
    inside = inside.astype(bool)
    empty = np.flatnonzero(~inside.any(1))
    if len(empty):
        raise InputError(f"members: target {empty[0]} has none")

    def of_each_target(values: Any, name: str) -> Floats:
        found = np.asarray(values, dtype=np.float64)
        if found.shape not in (score.shape, score.shape[1:]):
            raise InputError(f"{name}: expected shape {score.shape[1:]} or {score.shape}, got {found.shape}")
        return np.broadcast_to(found, score.shape)

    breaks = None if tiebreak is None else of_each_target(tiebreak, "tiebreak")
    return score, inside, of_each_target(truth, "truth"), breaks


def _ranked(attack: Callable[..., Measured], *arguments: Any) -> Floats:
    """The records as an attack orders them; that it leaves some undecided is part of what is measured."""
    with _quietly():
        found = attack(*arguments)
    return ordering(found.success_rate, found.tiebreak)


def _require_same_attack(attack: Callable[[Models], Measured], n_models: int) -> None:
    """Where the number of models chooses how they are attacked, it must not choose anew for the halves."""
    if n_models < 8:
        return
    with _quietly():
        names = [getattr(attack(np.arange(n)), "attack", None) for n in (n_models, n_models // 2)]
    if names[0] != names[1]:
        raise InputError(
            f"attack: {names[0]!r} with all {n_models} models, but {names[1]!r} with half of them; "
            f"state the choice, e.g. variance=attacks.lira_variance({n_models})"
        )


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        yield
