"""A lower bound on the ε of differential privacy that holds its level.

The unit that is taken as independent is the membership bit of a record in one target model. Given that model
and all other models, a target's scores are fixed numbers: the attacks leave the target's own membership
row out of everything that scores it. If training is (ε, δ)-private and the bits are independent fair
coins, then of r guesses made from the scores the number that is right is stochastically at most
Binomial(r, e^ε/(1+e^ε)), up to δ, however the records depend on one another inside the model (Steinke,
Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023). Nothing is assumed about records
or scores being independent.

* Guesses: "member" for the r₊ highest scores, "non-member" for the r₋ lowest, silence between. The pairs
  (r₊, r₋) come from a fixed grid (``FRACTIONS`` of N, with and without r₋), and each is tested at its
  share of the error (Bonferroni). Equal scores are ordered by a coin, never by position, which may
  correlate with membership.
* Several targets: their bounds depend on each other (each is a reference for the rest), so they are combined
  by a rule that holds under any dependence: if each fails with probability at most α/2, at least half of them
  fail together with probability at most α. The median over targets at level α/2 is a bound at level α.

Splits that fix the number of members make the bits slightly negatively dependent, which thins the tails.
Splits that also fix in how many models a record is let the other rows determine the target's: the argument above does
not cover them. Those of ``noshadow.shadow`` are drawn independently of each other.
Where a target has a share π ≠ ½ of the records, always guessing the larger side is right more often than not:
the odds max(π, 1−π)/min(π, 1−π) are divided out of the odds of a right guess before ε is claimed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import special, stats

from noshadow.attacks.arrays import Bools, Floats, to_numpy
from noshadow.errors import InputError
from noshadow.tensors import as_floats, as_tensor

__all__ = ["FRACTIONS", "epsilon_lower_bound"]

FRACTIONS = (0.5, 0.1, 0.01, 0.001)


def epsilon_lower_bound(
    scores: Any, membership: Any, confidence: float = 0.95, delta: float = 0.0, seed: int = 0
) -> float:
    """Lower confidence bound on the ε of (ε, δ)-differential privacy that an attack disproves.

    The bound is that of Steinke, Nasr and Jagielski (2023), https://arxiv.org/abs/2305.08846; the module's docstring
    says what it rests on.

    Parameters
    ----------
    scores : array (N,) or (K, N)
        Of one target, or of several; higher: more likely a member.
    membership : array of booleans, of the same shape
        The truth.
    confidence : float
        Of the bound, between 0 and 1.
    delta : float
        δ.
    seed : int
        Orders equal scores.

    Returns
    -------
    float
        In nats; 0 where nothing can be claimed. It is that of one target, of several the median: more records raise it,
        more targets do not. Of 20 records that are all told right it is about ½ at most, of 100 about 2.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, probabilities that are none.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> membership = np.arange(1000) % 2 == 0
    >>> attacks.epsilon_lower_bound(membership + 0.0, membership) > 4
    True
    >>> attacks.epsilon_lower_bound(np.zeros(1000), membership)
    0.0
    """
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence: expected a probability between 0 and 1, got {confidence!r}")
    if not 0.0 <= delta < 1.0:
        raise InputError(f"delta: expected 0 ≤ δ < 1, got {delta!r}")
    score = np.atleast_2d(to_numpy(as_floats(scores, "scores").to(torch.float64)))
    inside = np.atleast_2d(to_numpy(as_tensor(membership, "membership"))).astype(bool)
    if score.shape != inside.shape or score.ndim != 2 or score.size == 0:
        raise InputError(
            f"scores: expected shape (N,) or (K, N), that of membership, got {score.shape}, {inside.shape}"
        )
    if np.isnan(score).any():
        raise InputError("scores: NaN cannot be ranked")
    n_targets, n = score.shape
    if n < 2:
        raise InputError("scores: one record; the bound counts right guesses over the records of a target")
    right, guesses = _right_guesses(score, inside, np.random.default_rng(seed))
    error = (1.0 - confidence) / (1 if n_targets == 1 else 2) / len(guesses)
    bound = _private_bound(right, guesses, n, error, delta) if delta else _pure_bound(right, guesses, error)
    n_in = inside.sum(1)
    with np.errstate(divide="ignore"):
        prior = np.abs(np.log(n_in) - np.log(n - n_in))
    per_target = np.sort(bound.max(1) - prior)
    return float(max(per_target[n_targets // 2], 0.0))  # if this one fails, so does at least half of them


def _right_guesses(score: Floats, inside: Bools, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Right guesses (K, G) and guesses made (G,) for each entry of the grid."""
    n = score.shape[1]
    sizes = sorted({max(1, int(fraction * n)) for fraction in FRACTIONS})
    right = np.empty((len(score), 2 * len(sizes)))
    for k, (row, bits) in enumerate(zip(score, inside, strict=True)):
        shuffled = rng.permutation(n)
        order = shuffled[np.argsort(row[shuffled], kind="stable")]
        members = np.r_[0, np.cumsum(bits[order])]
        for g, r in enumerate(sizes):
            top = members[n] - members[n - r]
            right[k, g] = top
            right[k, len(sizes) + g] = top + r - members[r]
    one_sided = np.asarray(sizes, dtype=np.float64)
    return right, np.r_[one_sided, 2.0 * one_sided]


def _pure_bound(right: Floats, guesses: Floats, error: float) -> Floats:
    """δ = 0: Clopper–Pearson's lower bound q on the success rate, ε = log(q/(1−q))."""
    rate = np.where(right > 0, special.betaincinv(np.maximum(right, 1), guesses - right + 1, error), 0.0)
    with np.errstate(divide="ignore"):
        bound: Floats = np.log(rate) - np.log1p(-rate)
    return bound


def _private_bound(right: Floats, guesses: Floats, n: int, error: float, delta: float) -> Floats:
    """δ > 0: the largest ε that the p-value rejects, by bisection; −∞ where not even ε = 0 is rejected."""
    bound = np.full(right.shape, -np.inf)
    for index in np.ndindex(*right.shape):
        v, r = int(right[index]), int(guesses[index[1]])
        low, high = 0.0, math.log(max(r, 2)) + 50.0
        if _p_value(v, r, n, low, delta) > error:
            continue
        for _ in range(60):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _p_value(v, r, n, middle, delta) <= error else (low, middle)
        bound[index] = low
    return bound


def _p_value(v: int, r: int, n: int, epsilon: float, delta: float) -> float:
    """P(B ≥ v) + 2nδ · max_i P(v−i ≤ B < v)/i for B ~ Binomial(r, e^ε/(1+e^ε)): bounds P(≥ v right of r)."""
    q = special.expit(epsilon)
    tail = float(stats.binom.sf(v - 1, r, q))
    below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q))
    steepest = float((below / np.arange(1, v + 1)).max()) if v else 0.0
    return min(1.0, tail + 2.0 * n * delta * steepest)
