"""The likelihood ratio of member to left-out with V = n−p, and the tests it makes optimal.

In units of τ the left-out residual is m + Z and the member's (m + Z)/(1 + a); the attacker sees r =
|residual|:

    L(r) = log f_in/f_out = log(1+a) − a(2+a) r²/2 + log cosh((1+a) m r) − log cosh(m r)

L'(r)/r has the sign of a chord slope of the concave function w ↦ √w tanh √w minus 1/m², hence it changes
sign once if m > 1 and never otherwise. So L falls from log(1+a) when m ≤ 1 (|ε| ≤ τ), and the
Neyman-Pearson test accepts r < r₂: the paper's threshold. When m > 1, L first rises to a peak: the test
accepts r₁ < r < r₂ with L(r₁) = L(r₂), until r₂ passes the level ``full`` where L is back at L(0) and r₁
= 0. In both cases L exceeds 0 on an interval [0, r₂] (for L(0) = log(1+a) > 0), so both tests have the
same success rate.

For m > FAR the reflected branch of |m + Z| has no mass that a float could hold: normal laws on the line
remain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noshadow.theory.numerics import NORMAL, Array, band, beyond, folded_density, folded_start, solve

__all__ = ["FAR", "Peak", "even_point", "even_point_far", "find_peak", "log_ratio", "log_ratio_slope"]

FAR = 40.0
_TERMS = 10


def log_ratio(r: Array, a: Array, m: Array) -> Array:
    """L(r)/a, shape of the broadcast arguments; the division keeps its digits as a → 0."""
    u = m * r
    # log cosh(u + ua) − log cosh(u) = ua + log1p(expm1(−2ua)/(1 + e^{2u}))
    with np.errstate(over="ignore"):
        fold = np.log1p(np.expm1(-2.0 * u * a) / (1.0 + np.exp(2.0 * u))) / a
    return np.log1p(a) / a - 0.5 * (2.0 + a) * r * r + u + fold


def log_ratio_slope(r: Array, a: Array, m: Array) -> Array:
    """L'(r)/a."""
    u = m * r
    here, there = np.tanh(u), np.tanh(u * (1.0 + a))
    return -(2.0 + a) * r + m * (there + np.tanh(u * a) / a * (1.0 - here * there))


def _log_ratio_bend(r: Array, a: Array, m: Array) -> Array:
    """L''(r)/a."""
    u = m * r
    here, there = np.tanh(u) ** 2, np.tanh(u * (1.0 + a)) ** 2
    return -(2.0 + a) + m * m * ((1.0 + a) ** 2 * (1.0 - there) - (1.0 - here)) / a


def even_point(a: Array, m: Array) -> Array:
    """r with L(r) = 0, beyond which a left-out record is the likelier; m finite.

    Without the fold the root is that of a quadratic, an upper bound; without the cosh terms a lower one.
    """
    rate = 2.0 * np.log1p(a) / a
    high = (m + np.sqrt(m * m + (2.0 + a) * rate)) / (2.0 + a)
    low = np.sqrt(rate / (2.0 + a))

    def deficit(r: Array) -> tuple[Array, Array]:
        return -log_ratio(r, a, m), -log_ratio_slope(r, a, m)

    return solve(deficit, low * (1.0 - 1e-12), high * (1.0 + 1e-12), high)


def even_point_far(a: Array, drift: Array, m: Array) -> Array:
    """x = r − m with L(r) = 0 on the line (m > FAR, possibly infinite); drift = a m."""
    rate = np.where(a > 0, 2.0 * np.log1p(a) / np.where(a > 0, a, 1.0), 2.0)
    extra = (2.0 + a) * rate
    return (extra / (np.sqrt(m * m + extra) + m) - drift) / (2.0 + a)


@dataclass(frozen=True)
class Peak:
    """Where L rises before it falls, for 1 < m ≤ FAR; all arrays have the shape of the points.

    top    r at which L is largest
    full   r > top with L(r) = L(0)
    level  P(r < full) for a left-out record: from this false-positive rate on the test is the threshold

    The intervals of equal L are [μ − w, μ + w], 0 ≤ w ≤ full/2, with μ an analytic function of w², kept as a
    polynomial in (w / w_max)² that is exact at both ends and good to 1e-4 between: the start of a few joint
    Newton steps in μ and w.
    """

    a: Array
    m: Array
    top: Array
    full: Array
    level: Array
    coefficients: tuple[Array, ...]

    def pick(self, mask: NDArray[np.bool_]) -> Peak:
        """The peaks under a mask that the points broadcast to, one for each of its elements."""
        flat = [np.broadcast_to(x, mask.shape)[mask] for x in (self.a, self.m, self.top, self.full, self.level)]
        a, m, top, full, level = flat
        return Peak(a, m, top, full, level, tuple(np.broadcast_to(x, mask.shape)[mask] for x in self.coefficients))

    def middle(self, w: Array) -> tuple[Array, Array]:
        """μ(w) and dμ/dw."""
        widest = 0.5 * self.full
        u = (w / widest) ** 2
        value, slope = self.coefficients[-1] + 0.0 * u, np.zeros_like(u)
        for coefficient in reversed(self.coefficients[:-1]):
            slope = slope * u + value
            value = value * u + coefficient
        return np.maximum(value, w), slope * 2.0 * w / widest**2

    def rates(self, alpha: Array) -> tuple[Array, Array]:
        """True-positive and false-negative rate of the interval with false-positive rate alpha ≤ level."""
        middle, w = self.interval(alpha)
        grow = 1.0 + self.a
        found = _mass(grow * middle, grow * w, self.m)
        missed = band(NORMAL, self.m, grow * (middle - w)) + beyond(NORMAL, self.m, grow * (middle + w))
        return found, missed

    def interval(self, alpha: Array) -> tuple[Array, Array]:
        """μ and w at which the false-positive rate is alpha ≤ level."""
        a, m, widest = self.a, self.m, 0.5 * self.full

        def excess(w: Array) -> tuple[Array, Array]:
            middle, slope = self.middle(w)
            rise = (1.0 + slope) * folded_density(NORMAL, middle + w, m)
            fall = (1.0 - slope) * folded_density(NORMAL, middle - w, m)
            return _mass(middle, w, m) - alpha, rise + fall

        # around the top alone and without the fold, the width is that of a band at distance m − top
        start = np.minimum(folded_start(NORMAL, alpha, m - self.top), widest)
        w = solve(excess, np.zeros_like(start), widest + np.zeros_like(start), start, tolerance=1e-4)
        middle, _ = self.middle(w)
        narrow = w <= 1e-3 * widest  # there μ is the top, and L(right) − L(left) mere rounding
        for _ in range(2):
            left, right = middle - w, middle + w
            surplus = _mass(middle, w, m) - alpha
            tilt = np.where(narrow, 0.0, log_ratio(right, a, m) - log_ratio(left, a, m))
            f_left, f_right = folded_density(NORMAL, left, m), folded_density(NORMAL, right, m)
            s_left, s_right = log_ratio_slope(left, a, m), log_ratio_slope(right, a, m)
            # d(mass) = (f_right − f_left) dμ + (f_right + f_left) dw,
            # d(tilt) = (s_right − s_left) dμ + (s_right + s_left) dw
            gain = np.maximum(f_right + f_left, 1e-300)
            lean = (f_right - f_left) / gain
            turn = (s_right - s_left) - (s_right + s_left) * lean
            settled = narrow | (np.abs(turn) < 1e-9 * np.abs(s_right))  # at left = 0 the polynomial is exact
            turn = np.where(settled, np.inf, turn)
            shift = ((s_right + s_left) * surplus / gain - tilt) / turn
            middle = middle + shift
            w = np.clip(w - surplus / gain - lean * shift, 0.0, middle)
        return middle, w


def find_peak(a: Array, m: Array) -> Peak:
    """The peak of L for points with 1 < m ≤ FAR and a > 0."""
    a, m = np.broadcast_arrays(a, m)

    def descent(r: Array) -> tuple[Array, Array]:
        return -log_ratio_slope(r, a, m), -_log_ratio_bend(r, a, m)

    # L' < 0 beyond 1.2 m/(2+a), for u tanh u grows at most 1.2 times as fast as u
    highest = 1.25 * m / (2.0 + a)
    top = solve(descent, np.zeros_like(m), highest, np.minimum(np.sqrt(m * m - 1.0), m / (2.0 + a)))

    base = np.log1p(a) / a

    def deficit(r: Array) -> tuple[Array, Array]:
        return base - log_ratio(r, a, m), -log_ratio_slope(r, a, m)

    full = solve(deficit, top, 2.0 * highest, np.minimum(1.45 * top, 2.0 * m / (2.0 + a)))
    level = band(NORMAL, m, full)

    # Chebyshev points in u = (w/w_max)²: at u = 0 the interval is the top alone, at u = 1 it starts at 0
    nodes = 0.5 - 0.5 * np.cos(np.pi * np.arange(_TERMS) / (_TERMS - 1))
    values = [top]
    for node in nodes[1:-1]:
        w = 0.5 * full * np.sqrt(node)

        def imbalance(middle: Array, w: Array = w) -> tuple[Array, Array]:
            left, right = middle - w, middle + w
            value = log_ratio(left, a, m) - log_ratio(right, a, m)
            return value, log_ratio_slope(left, a, m) - log_ratio_slope(right, a, m)

        low, high = np.maximum(w, top - w), top + w
        values.append(solve(imbalance, low, high, np.clip(top, low, high)))
    values.append(0.5 * full)
    inverse = np.linalg.inv(np.vander(nodes, increasing=True))
    return Peak(a, m, top, full, level, tuple(np.tensordot(inverse, np.stack(values), axes=1)))


def _mass(middle: Array, w: Array, m: Array) -> Array:
    """P(middle − w < |m + Z| < middle + w)."""
    return band(NORMAL, middle - m, w) + band(NORMAL, middle + m, w)
