"""The joint law of a point's losses and leverage (Lemma 3.1, Proposition 3.2), to draw from and to evaluate.

With V ~ χ²_{n−p}, Z ~ N(0, 1) independent of V, and h̄, ε, σ as in ``Points``:

    h_ii = h̄/(V + h̄),    e_out = ε + σ √(h̄/V) Z,    e_in = (1 − h_ii) e_out,    ℓ = e²

Exactly, e_out = ε + τ T with Student's T of n−p degrees of freedom and τ = σ√(h̄/(n−p)): the law of ℓ_out is a
closed form. That of ℓ_in is one integral over V. In the large-sample form V = n−p, T becomes normal and
e_in = e_out/(1 + a), a = h̄/(n−p): both losses are scaled noncentral χ² with one degree of freedom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import special

from noshadow.errors import InputError
from noshadow.theory.arguments import (
    Points,
    check_broadcast,
    check_choice,
    check_levels,
    check_leverage,
    check_points,
    check_sizes,
    finite,
)
from noshadow.theory.gap import check_response
from noshadow.theory.numerics import (
    NORMAL,
    Array,
    Student,
    band,
    beyond,
    chi2_rule,
    folded_density,
    folded_quantile,
    in_blocks,
    solve,
)
from noshadow.theory.ratio import FAR

__all__ = [
    "InOrOut",
    "LeverageLaw",
    "Losses",
    "left_out_quantile",
    "leverage_law",
    "loss_cdf",
    "loss_probability",
    "loss_quantile",
    "sample_losses",
]

InOrOut = Literal["in", "out"]


class Losses(NamedTuple):
    """Joint draws of a point's losses and leverage, each (size, ...).

    The loss as a member, the loss left out, both in squared units of the response, and the empirical leverage h_ii.

    Examples
    --------
    >>> from noshadow import theory
    >>> draws = theory.sample_losses(10.0, 2.0, n=100, p=10, size=1000, seed=0)
    >>> draws.loss_in.shape, bool((draws.loss_in < draws.loss_out).mean() > 0.5)
    ((1000,), True)
    """

    loss_in: Array
    loss_out: Array
    leverage: Array


def sample_losses(
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    size: int = 1,
    seed: int | np.random.Generator | None = None,
    *,
    covariance: Any = None,
) -> Losses:
    r"""``size`` joint draws of (ℓ_in, ℓ_out, h_ii) for every point, as the module's docstring has their law.

    Parameters
    ----------
    leverage, error, sigma : array
        h̄, ε and σ of the points; they broadcast to a shape S.
    n, p : int
        Records and parameters.
    size : int
        Number of draws.
    seed : int or numpy.random.Generator, optional
        Of the draws.
    covariance : array (q, q), optional
        Σ_y of a q-dimensional response: the error is (..., q) and ℓ = ‖e‖², e_out = ε + √(h̄/V) Z with Z ~ N(0, Σ_y).

    Returns
    -------
    Losses
        Three arrays (size, \*S); losses in squared units of the response.

    Examples
    --------
    >>> from noshadow import theory
    >>> draws = theory.sample_losses(10.0, 2.0, n=100, p=10, size=20_000, seed=0)
    >>> gap = (draws[1] - draws[0]).mean()
    >>> bool(abs(gap - theory.expected_gap(10.0, 2.0, n=100, p=10)) < 0.02)
    True
    """
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
        raise InputError(f"size: expected a whole number ≥ 1, got {size!r}")
    generator = np.random.default_rng(seed)
    if covariance is None:
        points = check_points(leverage, error, n, p, sigma)
        h, eps = points.leverage, points.error[..., None]
        root = points.sigma[..., None, None]
        k = points.k
    else:
        eps, noise = check_response(error, covariance, sigma)
        h, k = check_leverage(leverage), check_sizes(n, p)
        values, vectors = np.linalg.eigh(noise)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
    shape = np.broadcast_shapes(h.shape, eps.shape[:-1], root.shape[:-2])
    v = generator.chisquare(k, (size, *shape))
    z = generator.standard_normal((size, *shape, eps.shape[-1]))
    residual = eps + np.sqrt(h / v)[..., None] * np.einsum("...ij,...j->...i", root, z)
    loss_out = (residual**2).sum(-1)
    return Losses((v / (v + h)) ** 2 * loss_out, loss_out, h / (v + h))


@dataclass(frozen=True)
class LeverageLaw:
    r"""The law of the empirical leverage of points with population leverage h̄.

    .. math::

        h_{ii} = \frac{\bar h}{V + \bar h}, \qquad V \sim \chi^2_k

    Attributes
    ----------
    population : ndarray
        h̄ of the points.
    k : int
        Degrees of freedom n − p.

    Examples
    --------
    >>> from noshadow import theory
    >>> law = theory.leverage_law([1.0, 10.0], n=100, p=10)
    >>> law.mean().round(3).tolist(), law.typical().round(3).tolist()
    ([0.011, 0.102], [0.011, 0.1])
    >>> law.quantile(0.9).round(3).tolist()
    [0.013, 0.12]
    >>> law.cdf(0.1).round(3).tolist()
    [1.0, 0.48]
    """

    population: Array
    k: int

    def cdf(self, h: Any) -> Array | np.float64:
        """P(h_ii ≤ h) = P(V ≥ h̄ (1 − h)/h)."""
        h, population = np.broadcast_arrays(finite(h, "h"), self.population)
        inside = (h > 0) & (h < 1)
        odds = (1.0 - h) / np.where(inside, h, 1.0)
        below = special.gammaincc(0.5 * self.k, 0.5 * population * np.where(inside, odds, 1.0))
        edge = np.where(h >= 1, 1.0, np.where((h == 0) & (population == 0), 1.0, 0.0))
        return np.asarray(np.where(inside, below, edge), dtype=np.float64)[()]

    def quantile(self, level: Any) -> Array | np.float64:
        """h with P(h_ii ≤ h) = level."""
        v = 2.0 * special.gammainccinv(0.5 * self.k, check_levels(level, "level"))
        total = v + self.population
        return np.where(self.population > 0, self.population / np.where(total > 0, total, 1.0), 0.0)[()]

    def mean(self) -> Array | np.float64:
        """E[h_ii] = E[h̄/(V + h̄)]."""
        v, weights = chi2_rule(self.k)
        h = self.population[..., None]
        return (h / (v + h) @ weights)[()]

    def typical(self) -> Array | np.float64:
        """h_ii at V = n−p: h̄/(n − p + h̄)."""
        return (self.population / (self.k + self.population))[()]


def leverage_law(leverage: Any, n: int, p: int) -> LeverageLaw:
    """The law of the empirical leverage h_ii of points whose population leverage is h̄.

    Parameters
    ----------
    leverage : array
        h̄ of the points.
    n, p : int
        Records and parameters.

    Returns
    -------
    LeverageLaw
        With ``cdf``, ``quantile``, ``mean`` and ``typical``.

    Examples
    --------
    >>> from noshadow import theory
    >>> law = theory.leverage_law(10.0, n=100, p=10)
    >>> float(law.typical()), float(law.quantile(law.cdf(0.1)).round(6))
    (0.1, 0.1)
    """
    return LeverageLaw(check_leverage(leverage), check_sizes(n, p))


def loss_cdf(
    loss: Any, leverage: Any, error: Any, n: int, p: int, sigma: Any = 1.0, *, side: InOrOut, exact: bool = False
) -> Array | np.float64:
    """P(ℓ ≤ loss) for a member or a record left out.

    Parameters
    ----------
    loss : array
        In squared units of the response.
    leverage, error, n, p, sigma
        As in ``sample_losses``; all array arguments broadcast.
    side : "in" or "out"
        A member, or a record left out.
    exact : bool
        V ~ χ²_{n−p}; otherwise the large-sample form V = n−p.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> from noshadow import theory
    >>> median = theory.loss_quantile(0.5, 10.0, 2.0, n=100, p=10, side="out")
    >>> float(theory.loss_cdf(median, 10.0, 2.0, n=100, p=10, side="out").round(6))
    0.5
    """
    check_choice(side, "side", ("in", "out"))
    points = check_points(leverage, error, n, p, sigma)
    losses = finite(loss, "loss")
    check_broadcast(points, loss=losses)
    below = loss_probability(np.sqrt(np.maximum(losses, 0.0)), points, side, exact)
    return np.where(losses >= 0, below, 0.0)[()]


def loss_quantile(
    level: Any,
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    side: InOrOut,
    exact: bool = False,
) -> Array | np.float64:
    """The loss that a record's loss stays below with probability ``level``: the inverse of ``loss_cdf``.

    Parameters
    ----------
    level : array
        Probabilities.
    leverage, error, n, p, sigma, side, exact
        As in ``loss_cdf``.

    Returns
    -------
    ndarray or float
        In squared units of the response.

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.loss_quantile([0.1, 0.9], 10.0, 2.0, n=100, p=10, side="in").round(2).tolist()
    [2.0, 4.77]
    """
    check_choice(side, "side", ("in", "out"))
    points = check_points(leverage, error, n, p, sigma)
    levels = check_levels(level, "level")
    check_broadcast(points, level=levels)
    if not exact:
        shrink = 1.0 / (1.0 + points.ratio) if side == "in" else 1.0
        return ((shrink * left_out_quantile(levels, points, exact=False)) ** 2)[()]
    edge = left_out_quantile(levels, points, exact=True)
    if side == "out":
        return (edge**2)[()]
    arrays = (levels, edge, points.leverage, np.abs(points.error), points.sigma)
    root = in_blocks(lambda *args: _member_quantile(*args, k=points.k), *arrays)
    return np.asarray(root**2)[()]


def left_out_quantile(levels: Array, points: Points, exact: bool) -> Array:
    """|e_out| below which a left-out record's residual stays with the given probability."""
    law = Student(points.k) if exact else NORMAL
    reach = np.inf if exact else FAR  # Student's tails are heavy: no distance is far
    fixed = points.scale == 0.0
    scale, error = np.where(fixed, 1.0, points.scale), np.abs(points.error)

    def spread(levels: Array, m: Array) -> Array:
        # far from 0 the reflected branch has no mass, and the quantile of the line keeps all its digits
        far = (m > reach) & (levels < 1.0)
        line = m + law.quantile(np.where(far, levels, 0.5))
        return np.where(far, line, folded_quantile(law, levels, np.where(far, 0.0, m)))

    quantile = in_blocks(spread, levels, np.where(fixed, 0.0, error / scale))
    return np.asarray(np.where(fixed, error, scale * quantile))


def loss_probability(r: Array, points: Points, side: InOrOut, exact: bool, above: bool = False) -> Array:
    """P(|e| ≤ r), or with ``above`` P(|e| > r), for a member or a left-out record; r ≥ 0 may be infinite."""
    measure = beyond if above else band
    fixed = points.scale == 0.0
    if side == "in" and exact:
        arrays = (r, np.where(fixed, 1.0, points.leverage), np.abs(points.error), points.sigma)
        spread = in_blocks(lambda *args: _member_probability(*args, k=points.k, above=above), *arrays)
    else:
        scale = np.where(fixed, 1.0, points.scale)
        half = (r * (1.0 + points.ratio) if side == "in" else r) / scale
        spread = measure(Student(points.k) if exact else NORMAL, points.error / scale, half)
    certain = (r < np.abs(points.error)) if above else (r >= np.abs(points.error))
    return np.asarray(np.where(fixed, certain, spread), dtype=np.float64)


def _sharpness(error: Array, sigma: Array) -> np.ndarray[Any, Any]:
    """s with 2ˢ ≥ |ε|/(2σ): P(e_in < r | V) as a function of t = log V is no steeper than Φ(|ε|/(2σ) t)."""
    return np.ceil(np.log2(np.maximum(0.5 * error / sigma, 1.0))).astype(np.int64)


def _member_probability(r: Array, h: Array, error: Array, sigma: Array, *, k: int, above: bool) -> Array:
    """E_V[P(|e_in| ≤ r | V)] with e_in | V ~ N(ε V/(V+h̄), σ² h̄ V/(V+h̄)²); ``above``: the complement."""
    measure = beyond if above else band

    def given(v: Array, r: Array, h: Array, error: Array, sigma: Array) -> Array:
        spread = sigma * np.sqrt(h / v)
        return measure(NORMAL, error / spread, r * (1.0 + h / v) / spread)

    return _average(given, k, r, h, error, sigma)


def _member_density(r: Array, h: Array, error: Array, sigma: Array, *, k: int) -> Array:
    """Density of |e_in| at r."""

    def given(v: Array, r: Array, h: Array, error: Array, sigma: Array) -> Array:
        spread = sigma * np.sqrt(h / v)
        stretch = (1.0 + h / v) / spread
        return stretch * folded_density(NORMAL, r * stretch, error / spread)

    return _average(given, k, r, h, error, sigma)


def _average(given: Any, k: int, r: Array, h: Array, error: Array, sigma: Array) -> Array:
    """E_V[given(V, ...)] with, for every point, as many nodes as its own sharpness asks for."""
    r, h, error, sigma = (np.array(a) for a in np.broadcast_arrays(r, h, error, sigma))
    out = np.empty(r.shape)
    needed = _sharpness(error, sigma)
    for level in np.unique(needed):
        v, weights = chi2_rule(k, int(level))
        chosen = needed == level
        columns = [a[chosen] for a in (r, h, error, sigma)]
        step = max(1, (1 << 19) // len(v))
        means = [
            (given(v, *(a[start : start + step, None] for a in columns)) * weights).sum(-1)
            for start in range(0, len(columns[0]), step)
        ]
        out[chosen] = np.concatenate(means)
    return out


def _member_quantile(level: Array, edge: Array, h: Array, error: Array, sigma: Array, *, k: int) -> Array:
    """|e_in| below which a member's residual stays; at most the left-out quantile, for |e_in| ≤ |e_out|."""
    level, edge, h, error, sigma = np.broadcast_arrays(level, edge, h, error, sigma)
    free = (h > 0) & (level > 0) & (level < 1)
    target, width = np.where(free, level, 0.5), np.where(free, edge, 1.0)
    h_, error_, sigma_ = (np.where(free, a, 1.0) for a in (h, error, sigma))
    low, high = np.zeros_like(width), width * (1.0 + 1e-6)

    def excess(u: Array) -> tuple[Array, Array]:
        below = _member_probability(u, h_, error_, sigma_, k=k, above=False)
        over = _member_probability(u, h_, error_, sigma_, k=k, above=True)
        value = np.where(target < 0.5, below - target, (1.0 - target) - over)
        return value, _member_density(u, h_, error_, sigma_, k=k)

    root = solve(excess, low, high, width * k / (k + h_))
    return np.where(free, root, edge)
