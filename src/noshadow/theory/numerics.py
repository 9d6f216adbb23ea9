"""The few numerical tools behind the laws: symmetric laws, a χ² quadrature, safeguarded Newton, blocks."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

__all__ = [
    "BLOCK",
    "NORMAL",
    "Array",
    "Law",
    "Normal",
    "Student",
    "band",
    "beyond",
    "chi2_rule",
    "folded_density",
    "folded_quantile",
    "folded_start",
    "in_blocks",
    "solve",
]

Array = NDArray[np.float64]

BLOCK = 1 << 16  # elements worked on at a time: a block's temporaries stay in the cache

_LEGENDRE_NODES, _LEGENDRE_WEIGHTS = np.polynomial.legendre.leggauss(8)


class Law(Protocol):
    """A continuous law on the line, symmetric about 0."""

    def cdf(self, x: Array) -> Array: ...
    def pdf(self, x: Array) -> Array: ...
    def quantile(self, level: Array) -> Array: ...
    def central_quantile(self, level: Array) -> Array: ...


class Normal:
    """N(0, 1)."""

    def cdf(self, x: Array) -> Array:
        return np.asarray(special.ndtr(x), dtype=np.float64)

    def pdf(self, x: Array) -> Array:
        return np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)

    def quantile(self, level: Array) -> Array:
        return np.asarray(special.ndtri(level), dtype=np.float64)

    def central_quantile(self, level: Array) -> Array:
        """r with P(|X| < r) = level, accurate for tiny levels too."""
        return math.sqrt(2.0) * np.asarray(special.erfinv(level), dtype=np.float64)


@dataclass(frozen=True)
class Student:
    """Student's t with k degrees of freedom: what N(0, 1) becomes when V ~ χ²_k takes the place of V = k."""

    k: int

    def cdf(self, x: Array) -> Array:
        return np.asarray(special.stdtr(self.k, x), dtype=np.float64)

    def pdf(self, x: Array) -> Array:
        k = self.k
        constant = math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2)) / math.sqrt(k * math.pi)
        return constant * np.exp(-0.5 * (k + 1) * np.log1p(x * x / k))

    def quantile(self, level: Array) -> Array:
        below = np.minimum(level, 1.0 - level)
        tail = special.betaincinv(0.5 * self.k, 0.5, 2.0 * below)  # k / (k + x²)
        size = np.sqrt(self.k * (1.0 - tail) / np.maximum(tail, 1e-300))
        return np.asarray(np.where(level < 0.5, -size, size), dtype=np.float64)

    def central_quantile(self, level: Array) -> Array:
        """r with P(|X| < r) = level, accurate for tiny levels too."""
        inner = special.betaincinv(0.5, 0.5 * self.k, level)  # r² / (k + r²)
        outer = special.betaincinv(0.5 * self.k, 0.5, 1.0 - level)
        return np.asarray(np.sqrt(self.k * inner / np.maximum(outer, 1e-300)), dtype=np.float64)


NORMAL = Normal()


def band(law: Law, centre: Array, half: Array) -> Array:
    """P(|X − centre| < half), to full relative accuracy also for narrow bands, where CDFs would cancel."""
    centre, half = np.broadcast_arrays(-np.abs(centre), half)
    mass = np.asarray(law.cdf(centre + half) - law.cdf(centre - half))
    narrow = half * np.maximum(1.0, half - centre) < 0.25
    if narrow.any():
        c, r = centre[narrow], half[narrow]
        density = law.pdf(c[:, None] + r[:, None] * _LEGENDRE_NODES)
        mass[narrow] = r * (density @ _LEGENDRE_WEIGHTS)
    return mass


def beyond(law: Law, centre: Array, half: Array) -> Array:
    """P(|X − centre| > half), the complement of ``band`` without subtracting from one."""
    centre = np.abs(centre)
    return law.cdf(centre - half) + law.cdf(-centre - half)


def folded_density(law: Law, r: Array, m: Array) -> Array:
    """Density of |m + X| at r."""
    return law.pdf(r - m) + law.pdf(r + m)


def folded_start(law: Law, level: Array, m: Array) -> Array:
    """A lower bound, tight at both ends, of the r with P(|m + X| < r) = level < 1, for normal X.

    Dropping the reflected branch, moving the centre to 0, or dropping e^{−x²/2} around 0 each makes the band
    more likely, hence r is at least the quantile of the line, that of |X|, and arcsinh(level m / 2φ(m)) / m.
    """
    small = np.maximum(m, 1e-8)
    near = np.arcsinh(np.minimum(level * small / (2.0 * law.pdf(m) + 1e-300), 1e300)) / small
    return np.maximum(np.maximum(near, law.central_quantile(level)), m + law.quantile(level))


def folded_quantile(law: Law, level: Array, m: Array) -> Array:
    """r with P(|m + X| < r) = level, for m ≥ 0 and level in [0, 1]."""
    level, m = np.broadcast_arrays(level, m)
    inner = np.where(level < 1.0, level, 0.5)
    central = law.central_quantile(inner)
    low = np.maximum(np.maximum(central, m + law.quantile(inner)) * (1.0 - 1e-6), 0.0)
    high = (m + central) * (1.0 + 1e-6)  # the band of |X| around the centre lies within
    upper = inner > 0.5

    def excess(r: Array) -> tuple[Array, Array]:
        value = band(law, m, r) - inner
        if upper.any():
            value = np.where(upper, (1.0 - inner) - beyond(law, m, r), value)
        return value, folded_density(law, r, m)

    root = solve(excess, low, high, np.clip(folded_start(law, inner, m), low, high))
    return np.where(level < 1.0, root, np.inf)


def solve(
    function: Callable[[Array], tuple[Array, Array]],
    low: Array,
    high: Array,
    start: Array,
    tolerance: float = 1e-9,
    rounds: int = 200,
) -> Array:
    """Roots of increasing functions, element by element: Newton's steps inside a bracket that only shrinks.

    ``function(x)`` gives values and slopes. A step that leaves the bracket is replaced by a bisection,
    and so is every other step after the first dozen: the worst case is that of bisection. Newton's error
    after a step is about the square of the step, so steps below ``tolerance`` · x end the search.
    """
    x = start
    for count in range(rounds):
        value, slope = function(x)
        low = np.where(value < 0.0, x, low)
        high = np.where(value > 0.0, x, high)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            new = np.where(value == 0.0, x, x - value / slope)
        halve = ~((new >= low) & (new <= high))
        if count > 12 and count % 2:
            halve |= np.abs(new - x) > tolerance * np.abs(new)
        new = np.where(halve, 0.5 * (low + high), new)
        step = np.abs(new - x)
        x = new
        if np.all((step <= tolerance * np.abs(x)) | (high - low <= 4e-16 * np.abs(x))):
            break
    return x


@functools.lru_cache(maxsize=64)
def chi2_rule(k: int, sharpness: int = 0) -> tuple[Array, Array]:
    """Nodes v and weights w with Σ w g(v) ≈ E[g(V)], V ~ χ²_k: the trapezoid rule in t = log(v / k).

    In t the density is proportional to exp(k/2 (t − (eᵗ − 1))), analytic and quickly decaying, so that the
    rule converges exponentially: some 40 nodes for large k and 470 for k = 3, both at the rounding level. The
    range reaches where density / V has fallen by e⁻⁵⁰. ``sharpness`` s is for g as steep as Φ(2ˢ t).
    """
    spread = max(k - 2, 1)
    start = -(100.0 / spread + math.sqrt(200.0 / spread))
    stop = math.log1p(100.0 / k + math.sqrt(200.0 / k))
    step = min(0.25, 0.5 * math.sqrt(2.0 / k), 0.8 * 2.0**-sharpness)
    t = np.arange(start, stop + step, step)
    weights = np.exp(0.5 * k * (t - np.expm1(t)))
    weights /= weights.sum()
    nodes = k * np.exp(t)
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights


def in_blocks(function: Callable[..., Any], *arrays: Array, size: int = BLOCK) -> Any:
    """``function(*arrays)`` block by block along the first axis of the arrays' common shape.

    The arrays broadcast against each other and so do the results; a result is an array or a tuple of arrays.
    """
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    count = math.prod(shape)
    if not shape or count <= size:
        return function(*arrays)
    arrays = tuple(array.reshape((1,) * (len(shape) - array.ndim) + array.shape) for array in arrays)
    rows = max(1, size * shape[0] // count)

    def piece(start: int) -> Any:
        return function(*(array if array.shape[0] == 1 else array[start : start + rows] for array in arrays))

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the array functions release the interpreter's lock
        pieces = list(pool.map(piece, range(0, shape[0], rows)))
    if isinstance(pieces[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*pieces, strict=True))
    return np.concatenate(pieces)
