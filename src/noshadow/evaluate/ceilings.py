"""What a number means: the attack as a score of itself, and a score that knows the truth behind the noise.

``ceiling``: what the attack finds of its own truth when it is run again, from other models. It is no bound: a score of
one model has not the noise of an attack with half of the models. ``oracle_ceiling``: what a perfect score would find,
one that knows how exposed each record is. Nothing but luck is above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError, NoshadowWarning
from noshadow.evaluate.arrays import Bools, as_booleans
from noshadow.evaluate.ranking import ordering, recall
from noshadow.evaluate.replica import population_of
from noshadow.evaluate.targets import Metric, Summary
from noshadow.progress import Progress, progress_bar

__all__ = [
    "Bools",
    "Floats",
    "Measured",
    "Models",
    "Prediction",
    "ceiling",
    "enough_draws",
    "halves",
    "oracle",
    "oracle_ceiling",
    "over_predictions",
    "quietly",
]

Floats = npt.NDArray[np.float64]
Models = npt.NDArray[np.intp]


class Measured(Protocol):
    """What the ceilings need of an attack's result.

    Examples
    --------
    >>> import numpy as np
    >>> from types import SimpleNamespace
    >>> from noshadow import evaluate
    >>> def coin(models):  # an attack that finds nothing: any object with the two arrays will do
    ...     rng = np.random.default_rng(models)
    ...     return SimpleNamespace(success_rate=np.full(1000, 0.5), tiebreak=rng.normal(size=1000))
    >>> round(evaluate.ceiling(coin, 16, splits=50, top=0.1, keep=0.1).mean, 1)
    0.1
    """

    @property
    def success_rate(self) -> Floats: ...
    @property
    def tiebreak(self) -> Floats: ...


class Prediction(NamedTuple):
    """A score and the truth that it is held against, both as ``ordering`` gives them, (N,).

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> made = evaluate.Prediction(score=np.array([3.0, 1.0, 2.0]), truth=np.array([0.9, 0.5, 0.6]))
    >>> evaluate.recall(made.score, made.truth, top=0.3, keep=0.3)
    1.0
    """

    score: Floats
    truth: Floats


def ceiling(
    attack: Callable[[Models], Measured],
    n_models: int,
    metric: Metric = recall,
    *,
    members: Any = None,
    splits: int = 10,
    seed: int = 0,
    progress: Progress = None,
    **options: Any,
) -> Summary:
    """The attack again: what it scores as a predictor of itself, from disjoint halves of the models.

    Parameters
    ----------
    attack : callable
        Called with the indices of some of the models, runs on them alone and returns its result:
        ``lambda models: attacks.lira(signal[models], membership[models], variance=rule)`` with
        ``rule = attacks.lira_variance(n_models)``, that of all the models, for the halves too.
    n_models : int
        Number of models K, 8 or more.
    metric : callable
        ``metric(score, truth, **options)``, such as ``recall``.
    members : array (T, N) of booleans, optional
        Averaged over the members of each target; None: over all records.
    splits : int
        Random halvings; each half predicts the other, and the two are averaged.
    seed : int
        Of the halvings.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.
    **options
        For the metric.

    Returns
    -------
    Summary
        A value per halving.

    Notes
    -----
    A predictor that reaches it is as good as running the attack again. Both halves are noisy and hold half the models:
    a predictor without noise, or a truth from all the models, can do better; see ``oracle_ceiling``.

    A record that too few models of a half have, or lack, is undecided there, as the attack leaves it: success rate ½,
    separation 0. So few models say nothing of it, and the number should say so.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((32, 200)) < 0.5
    >>> signal = rng.normal(size=(32, 200)) + np.linspace(0, 3, 200) * membership
    >>> run = lambda models: attacks.lira(signal[models], membership[models], variance="fixed")
    >>> again = evaluate.ceiling(run, 32, splits=2, top=0.1, keep=0.2)
    >>> len(again.values), 0 <= again.mean <= 1
    (2, True)
    """
    _require_same_attack(attack, n_models)
    return over_predictions(metric, halves(attack, n_models, splits, seed, progress), members, **options)


def halves(
    attack: Callable[[Models], Measured], n_models: int, splits: int = 10, seed: int = 0, progress: Progress = None
) -> list[tuple[Prediction, Prediction]]:
    """For each random halving of the models: the first half's result predicting the second's, and the reverse.

    Parameters
    ----------
    attack, n_models, splits, seed, progress
        As in ``ceiling``.

    Returns
    -------
    list of pairs of Prediction
        A pair per halving; ``over_predictions`` makes a metric of them.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((32, 200)) < 0.5
    >>> signal = rng.normal(size=(32, 200)) + np.linspace(0, 3, 200) * membership
    >>> run = lambda models: attacks.lira(signal[models], membership[models], variance="fixed")
    >>> found = evaluate.halves(run, 32, splits=3)
    >>> len(found), [len(pair) for pair in found], found[0][0].score.shape
    (3, [2, 2, 2], (200,))
    >>> again = evaluate.over_predictions(evaluate.spearman, found)  # another metric, without attacking again
    >>> again.mean > 0.5
    True
    """
    if n_models < 8:
        raise InputError(f"n_models: {n_models}; two halves of at least 4 models are needed")
    if splits < 1:
        raise InputError(f"splits: expected 1 or more, got {splits}")
    rng = np.random.default_rng(seed)
    found = []
    with progress_bar("Halving the models", splits, progress) as advance:
        for _ in range(splits):
            models = rng.permutation(n_models)
            split = models[: n_models // 2], models[n_models // 2 :]
            first, second = (_ranked(attack, np.sort(half)) for half in split)
            found.append((Prediction(first, second), Prediction(second, first)))
            advance()
    return found


def oracle_ceiling(
    attack: Callable[[Floats, Bools], Measured],
    signal: Any,
    membership: Any,
    metric: Metric = recall,
    *,
    members: Any = None,
    draws: int | None = None,
    seed: int = 0,
    progress: Progress = None,
    **options: Any,
) -> Summary:
    """A perfect score: what one that knows how exposed each record is would reach against so noisy a truth.

    Parameters
    ----------
    attack : callable
        Called with signals (K, N) and membership (K, N), returns its result:
        ``lambda signal, membership: attacks.lira(signal, membership, variance=rule)``.
    signal : array (K, N) or (K, N, q)
        What the models say of each record, about normal on both sides. For squared error that is the prediction, not
        its loss; then ``attack`` computes the loss.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    metric : callable
        ``metric(score, truth, **options)``, such as ``recall``.
    members : array (T, N) of booleans, optional
        Averaged over the members of each target; None: over all records.
    draws : int, optional
        How many studies are simulated; None: 100,000 records in all, in 3 studies at least and 20 at most.
    seed : int
        Of the simulations.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.
    **options
        For the metric.

    Returns
    -------
    Summary
        A value per simulated study.

    Notes
    -----
    A parametric bootstrap. How exposed each record truly is remains unknown, but not how much records differ: laws are
    drawn for them that differ as those of the study do (``noshadow.evaluate.replica``), and a study of as many models
    is simulated from them and attacked. The perfect score is the attack's verdict on the laws themselves. No score of
    the records does better, up to noise, as far as signals are normal and independent from model to model.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((32, 200)) < 0.5
    >>> signal = rng.normal(size=(32, 200)) + np.linspace(0, 3, 200) * membership
    >>> run = lambda signal, membership: attacks.lira(signal, membership, variance="fixed")
    >>> perfect = evaluate.oracle_ceiling(run, signal, membership, draws=2, top=0.1, keep=0.2)
    >>> 0.5 < perfect.mean <= 1
    True
    """
    return over_predictions(metric, oracle(attack, signal, membership, draws, seed, progress), members, **options)


def oracle(
    attack: Callable[[Floats, Bools], Measured],
    signal: Any,
    membership: Any,
    draws: int | None = None,
    seed: int = 0,
    progress: Progress = None,
) -> list[tuple[Prediction]]:
    """For each simulated study: the attack on the records' laws predicting the attack on the study.

    Parameters
    ----------
    attack, signal, membership, draws, seed, progress
        As in ``oracle_ceiling``.

    Returns
    -------
    list of one-tuples of Prediction
        One per simulated study; ``over_predictions`` makes a metric of them.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((32, 200)) < 0.5
    >>> signal = rng.normal(size=(32, 200)) + np.linspace(0, 3, 200) * membership
    >>> run = lambda signal, membership: attacks.lira(signal, membership, variance="fixed")
    >>> found = evaluate.oracle(run, signal, membership, draws=2)
    >>> perfect = evaluate.over_predictions(evaluate.spearman, found)
    >>> perfect.mean > 0.7
    True
    """
    x, inside = np.asarray(signal, dtype=np.float64), as_booleans(membership, "membership")
    if inside.ndim != 2 or x.shape[:2] != inside.shape or x.ndim > 3 or 0 in x.shape:
        raise InputError(
            f"signal, membership: expected shapes (K, N) or (K, N, q), and (K, N), got {x.shape}, {inside.shape}"
        )
    if not np.isfinite(x).all():
        raise InputError("signal: NaN or infinite values; leave out the models that diverged")
    n_models, n_records = inside.shape
    times = enough_draws(n_records) if draws is None else draws
    if times < 1:
        raise InputError(f"draws: expected 1 or more, got {draws}")
    width = x.size // inside.size
    population = population_of(x.reshape(n_models, -1), np.repeat(inside, width, axis=1))
    found = []
    with progress_bar("Simulating studies", times, progress) as advance:
        for draw in range(times):
            rng = np.random.default_rng([seed, draw])
            laws = population.draw(rng)
            # which models have a record is no part of its exposure, and no score knows it: dealt anew
            dealt = inside[:, rng.permutation(n_records)]
            noisy = laws.study(np.repeat(dealt, width, axis=1), rng).reshape(x.shape)
            without_noise, everywhere = laws.study_without_noise(rng, width)
            exact = without_noise.reshape(-1, *x.shape[1:])
            found.append((Prediction(_ranked(attack, exact, everywhere), _ranked(attack, noisy, dealt)),))
            advance()
    return found


def enough_draws(n_records: int) -> int:
    """Studies of so many records to simulate: where records are few, so are those that a recall is about."""
    return min(max(100_000 // n_records, 3), 20)


def over_predictions(
    metric: Metric, predictions: Sequence[Sequence[Prediction]], members: Any = None, **options: Any
) -> Summary:
    """``metric`` of the predictions of each halving or draw, averaged over them and over the members of each target.

    Parameters
    ----------
    metric : callable
        ``metric(score, truth, **options)``.
    predictions : sequence of sequences of Prediction
        What ``halves`` and ``oracle`` give.
    members : array (T, N) of booleans, optional
        Averaged over the members of each target; None: over all records.
    **options
        For the metric.

    Returns
    -------
    Summary
        A value per halving or draw.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import evaluate
    >>> truth = np.arange(5.0)
    >>> halvings = [[evaluate.Prediction(truth, truth)], [evaluate.Prediction(-truth, truth)]]
    >>> evaluate.over_predictions(evaluate.spearman, halvings).values.round(6).tolist()
    [1.0, -1.0]
    """
    values = []
    for together in predictions:
        n_records = len(together[0].truth)
        masks = np.ones((1, n_records), dtype=bool) if members is None else as_booleans(members, "members")
        if masks.ndim != 2 or masks.shape[1] != n_records:
            raise InputError(f"members: expected shape (T, {n_records}), targets by records, got {masks.shape}")
        values.append(
            np.mean([metric(score[mask], truth[mask], **options) for score, truth in together for mask in masks])
        )
    return Summary(np.array(values))


def _ranked(attack: Callable[..., Measured], *arguments: Any) -> Floats:
    """The records as an attack orders them; that it leaves some undecided is part of what is measured."""
    with quietly():
        found = attack(*arguments)
    return ordering(found.success_rate, found.tiebreak)


def _require_same_attack(attack: Callable[[Models], Measured], n_models: int) -> None:
    """Where the number of models chooses how they are attacked, it must not choose anew for the halves."""
    if n_models < 8:
        return
    with quietly():
        names = [getattr(attack(np.arange(n)), "attack", None) for n in (n_models, n_models // 2)]
    if names[0] != names[1]:
        raise InputError(
            f"attack: {names[0]!r} with all {n_models} models, but {names[1]!r} with half of them; "
            f"state the choice, e.g. variance=attacks.lira_variance({n_models})"
        )


@contextmanager
def quietly() -> Iterator[None]:
    """An attack as a part of other work: no warnings, and no bar of its own."""
    with warnings.catch_warnings(), progress_bar("", None, False):
        warnings.simplefilter("ignore", NoshadowWarning)
        yield
