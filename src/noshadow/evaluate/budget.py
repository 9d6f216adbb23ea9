"""What each number of shadow models finds: by an attack alone, and together with a prediction made without them.

The protocol. Of K shadow models some are set aside as the few, in random order; the rest are the reference, and the
attack on the reference is the truth. Few and reference are disjoint, so that nothing is held against itself, and the
truth is the same for every number of the few, so that a curve is of one piece: the first 2 of them, the first 4, …
Rankings are over the members of each target model, none of which is a shadow model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from noshadow.errors import InputError
from noshadow.evaluate.arrays import as_booleans
from noshadow.evaluate.ceilings import Bools, Floats, Measured, quietly
from noshadow.evaluate.ranking import ordering, recall
from noshadow.evaluate.targets import Metric
from noshadow.progress import Progress, progress_bar

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Budget", "Together", "budget"]

_FEWEST = 4  # models that an attack can be run on


class Together(Protocol):
    """What the curve needs of models and prediction together: ``attacks.with_prior`` gives it."""

    @property
    def shift(self) -> Floats: ...
    @property
    def measured(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class Budget:
    """A metric for each number of models, draw of the few and target; arrays (numbers, draws, T).

    Attributes
    ----------
    models : tuple of int
        How many shadow models were used.
    together : ndarray
        The models with the prediction as their prior; for 0 models the prediction alone.
    measured : ndarray
        The models alone, by the difference of the means with and without the record; NaN for 0 models.
    attack : ndarray
        The models alone, by the attack's own order: success rate, then its tiebreak; NaN for fewer than 4 models.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> shift = rng.exponential(size=400)
    >>> membership = rng.random((40, 400)) < 0.5
    >>> signal = rng.normal(size=(40, 400)) + shift * membership
    >>> predicted = shift * np.exp(0.5 * rng.normal(size=(1, 400)))
    >>> everyone = np.ones((1, 400), dtype=bool)
    >>> found = evaluate.budget(attacks.lira, attacks.with_prior, signal, membership, predicted, everyone,
    ...                         models=(0, 4, 8), top=0.1, keep=0.2)
    >>> found.models, found.together.shape
    ((0, 4, 8), (3, 3, 1))
    >>> found.table.round(1)
            together  measured  attack
    models
    0            0.8       NaN     NaN
    4            0.8       0.7     0.3
    8            0.9       0.8     0.6
    """

    models: tuple[int, ...]
    together: Floats
    measured: Floats
    attack: Floats

    @property
    def table(self) -> pd.DataFrame:
        """A row per number of models: the means over draws and targets."""
        import pandas as pd  # here: evaluation itself needs none of it

        columns = {name: getattr(self, name).mean((1, 2)) for name in ("together", "measured", "attack")}
        frame: pd.DataFrame = pd.DataFrame(columns, index=pd.Index(self.models, name="models"))
        return frame


def budget(
    attack: Callable[[Floats, Bools], Measured],
    with_prior: Callable[[Floats, Bools, Floats], Together],
    signal: Any,
    membership: Any,
    predicted: Any,
    members: Any,
    metric: Metric = recall,
    *,
    models: Sequence[int] = (0, 2, 4, 8, 16),
    draws: int = 3,
    seed: int = 0,
    progress: Progress = None,
    **options: Any,
) -> Budget:
    """What each number of shadow models finds of what an attack with many finds, with a prediction and without.

    Parameters
    ----------
    attack : callable
        Called with signals and membership of some models, returns its result:
        ``lambda signal, membership: attacks.lira(signal, membership, constant="tie")``.
    with_prior : callable
        Called with signals and membership of the few and a prediction, of the members of a target:
        ``attacks.with_prior``.
    signal, membership : array (K, N)
        Of all shadow models. The last of ``models`` are the few, the rest the reference: it should be by far the larger
        part.
    predicted : array (T, N)
        A predicted shift of each target's members; what it is elsewhere does not matter.
    members : array (T, N) of booleans
        Which records each target model was trained on.
    metric : callable
        ``metric(score, truth, **options)``, such as ``recall``.
    models : sequence of int
        Numbers of models, ascending: 0, or 2 and more.
    draws : int
        How often the few are drawn.
    seed : int
        Of the draws.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal.
    **options
        For the metric.

    Returns
    -------
    Budget

    Raises
    ------
    InputError
        Shapes that do not fit, numbers of models that are none, a reference too small to attack.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks, evaluate
    >>> rng = np.random.default_rng(0)
    >>> shift = rng.exponential(size=400)
    >>> membership = rng.random((40, 400)) < 0.5
    >>> signal = rng.normal(size=(40, 400)) + shift * membership
    >>> predicted = shift * np.exp(0.5 * rng.normal(size=(1, 400)))
    >>> everyone = np.ones((1, 400), dtype=bool)
    >>> found = evaluate.budget(attacks.lira, attacks.with_prior, signal, membership, predicted, everyone,
    ...                         models=(0, 4), top=0.1, keep=0.2)
    >>> mean = found.table
    >>> bool(mean.together[4] > mean.measured[4])
    True
    """
    x, inside, guess, masks = _arrays(signal, membership, predicted, members)
    counts = _counts(models, len(x))
    if isinstance(draws, bool) or not isinstance(draws, (int, np.integer)) or draws < 1:
        raise InputError(f"draws: expected a whole number, 1 or more, got {draws!r}")
    found = np.full((3, len(counts), draws, len(masks)), np.nan)
    rng = np.random.default_rng(seed)
    with progress_bar("Budget of models", draws * len(counts), progress) as advance, quietly():
        for draw in range(draws):
            order = rng.permutation(len(x))
            reference = np.sort(order[counts[-1] :])
            truth = _ranked(attack(x[reference], inside[reference]))
            for row, count in enumerate(counts):
                few = order[:count]
                alone = _ranked(attack(x[few], inside[few])) if count >= _FEWEST else None
                for target, mask in enumerate(masks):

                    def value(score: Floats, mask: Bools = mask, truth: Floats = truth) -> float:
                        return metric(score, truth[mask], **options)

                    if not count:
                        found[0, row, draw, target] = value(guess[target, mask])
                        continue
                    both = with_prior(x[few][:, mask], inside[few][:, mask], guess[target, mask])
                    found[0, row, draw, target] = value(both.shift)
                    # of a record on one side the models alone show no shift
                    found[1, row, draw, target] = value(np.nan_to_num(both.measured, nan=0.0))
                    if alone is not None:
                        found[2, row, draw, target] = value(alone[mask])
                advance()
    return Budget(counts, *found)


def _ranked(result: Measured) -> Floats:
    return ordering(result.success_rate, result.tiebreak)


def _arrays(signal: Any, membership: Any, predicted: Any, members: Any) -> tuple[Floats, Bools, Floats, Bools]:
    x, inside = np.asarray(signal, dtype=np.float64), as_booleans(membership, "membership")
    if x.ndim != 2 or x.shape != inside.shape:
        raise InputError(f"signal, membership: expected shape (K, N), models by records, got {x.shape}, {inside.shape}")
    guess, masks = np.asarray(predicted, dtype=np.float64), as_booleans(members, "members")
    if masks.ndim != 2 or guess.shape != masks.shape or masks.shape[1] != x.shape[1]:
        raise InputError(
            f"predicted, members: expected shape (T, {x.shape[1]}), targets by records, got {guess.shape}, "
            f"{masks.shape}"
        )
    empty: npt.NDArray[np.intp] = np.flatnonzero(~masks.any(1))
    if len(empty):
        raise InputError(f"members: target {empty[0]} has none")
    if not np.isfinite(guess[masks]).all():
        target, row = np.argwhere(masks & ~np.isfinite(guess))[0]
        raise InputError(f"predicted: NaN or infinite for target {target}, row {row} (counted from 0), a member")
    return x, inside, guess, masks


def _counts(models: Sequence[int], n_models: int) -> tuple[int, ...]:
    try:
        given = list(models)
        counts = tuple(int(count) for count in given)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"models: expected a list of whole numbers, got {models!r}") from None
    if any(count != one for count, one in zip(counts, given, strict=True)):
        raise InputError(f"models: expected whole numbers, got {given}")
    if not counts or list(counts) != sorted(set(counts)) or counts[0] < 0 or 1 in counts:
        raise InputError(f"models: expected ascending numbers, 0 or 2 and more, got {list(models)}")
    if n_models - counts[-1] < _FEWEST:
        raise InputError(
            f"models: {counts[-1]} of {n_models} models leave {n_models - counts[-1]} for the reference, an attack "
            f"needs at least {_FEWEST}, better most of them"
        )
    return counts
