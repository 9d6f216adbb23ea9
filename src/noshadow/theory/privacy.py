"""ε(δ) of the large-sample curves: where the line of slope e^ε through (0, δ) touches them.

A test accepts r < r₂. Write F, S for its rates below and above r₂ under "in" and "out", and L for the log
ratio. The supremum of log((F_in − δ)/F_out) lies where the ratio at the border equals the slope, so that
F_in − e^L F_out = δ, left of the point where L = 0; that of log((S_out − δ)/S_in) lies where S_out −
e^{−L} S_in = δ, right of it. Both left sides are monotone in r₂ there, and a border slightly off lowers
the bound only, by the square of the error. e^{−L} S_in is the left-out density at r₂ times a Mills ratio:
no large logarithms cancel.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from noshadow.theory.numerics import NORMAL, Array, band, folded_density, solve
from noshadow.theory.ratio import (
    FAR,
    even_point,
    even_point_far,
    find_peak,
    log_ratio,
    log_ratio_slope,
)

__all__ = ["epsilon"]


def epsilon(delta: Array, a: Array, m: Array, drift: Array, *, test: str) -> Array:
    """ε(δ) in units of τ; the arguments broadcast."""
    delta, a, m, drift = np.broadcast_arrays(delta, a, m, drift)
    trivial = (delta == 0.0) | (delta == 1.0) | (a == 0.0)
    safe = np.where(trivial, 0.5, delta)
    far = (m > FAR) | trivial
    near = _near(safe, np.where(far, 1.0, a), np.where(far, 0.0, m), test)
    on_line = far & ~trivial
    a_, m_, drift_ = (np.where(on_line, given, harmless) for given, harmless in ((a, 1.0), (m, 80.0), (drift, 80.0)))
    line = _far(safe, a_, drift_, m_)
    limit = np.where((delta == 0.0) & (a > 0.0), np.inf, 0.0)
    return np.where(trivial, limit, np.where(far, line, near))


def _near(delta: Array, a: Array, m: Array, test: str) -> Array:
    even = even_point(a, m)
    grow = 1.0 + a
    curved = m > 1.0 + 1e-6
    peak = find_peak(a, np.where(curved, m, 2.0))

    def log_above(r: Array) -> Array:
        return np.logaddexp(special.log_ndtr(m - r), special.log_ndtr(-m - r))

    def accept(r: Array) -> tuple[Array, Array]:
        weight = _exp(a * log_ratio(r, a, m)) * band(NORMAL, m, r)
        return band(NORMAL, m, grow * r) - weight - delta, -a * log_ratio_slope(r, a, m) * weight

    def reject(r: Array) -> tuple[Array, Array]:
        edge = grow * r
        folded = special.expit(2.0 * edge * m)  # share of the branch around +m in the density at the edge
        mills = folded * _mills(edge - m) + (1.0 - folded) * _mills(edge + m)
        weight = folded_density(NORMAL, r, m) / grow * mills
        return delta - np.exp(log_above(r)) + weight, -a * log_ratio_slope(r, a, m) * weight

    top = np.where(curved, peak.top, 0.0)
    inner = solve(accept, top, even, 0.5 * (top + even))
    outermost = np.maximum(m - special.ndtri(0.5 * delta), even)
    outer = solve(reject, even, outermost, 0.5 * (even + outermost))
    member = _log_excess(band(NORMAL, m, grow * inner), delta, np.log(band(NORMAL, m, inner)))
    outsider = _log_excess(np.exp(log_above(outer)), delta, log_above(grow * outer))

    if test == "optimal":

        def masses(w: Array) -> tuple[Array, Array, Array, Array]:
            middle, slope = peak.middle(w)
            left_out = band(NORMAL, middle - peak.m, w) + band(NORMAL, middle + peak.m, w)
            kept = band(NORMAL, grow * middle - peak.m, grow * w) + band(NORMAL, grow * middle + peak.m, grow * w)
            return left_out, kept, middle + w, slope

        def accept_interval(w: Array) -> tuple[Array, Array]:
            left_out, kept, edge, slope = masses(w)
            weight = _exp(a * log_ratio(edge, a, peak.m)) * left_out
            return kept - weight - delta, -a * log_ratio_slope(edge, a, peak.m) * (1.0 + slope) * weight

        widest = 0.5 * peak.full
        w = solve(accept_interval, np.zeros_like(widest), widest, 0.5 * widest)
        left_out, kept, _, _ = masses(w)
        interval = _log_excess(kept, delta, np.log(np.maximum(left_out, 1e-300)))
        member = np.where(curved, np.maximum(member, interval), member)
    return np.maximum(0.0, np.maximum(member, outsider))


def _far(delta: Array, a: Array, drift: Array, m: Array) -> Array:
    even = even_point_far(a, drift, m)

    def member_of(x: Array) -> Array:
        return x * (1.0 + a) + drift

    def ratio(x: Array) -> Array:
        return np.log1p(a) - 0.5 * (a * x + drift) * (x + member_of(x))

    def slope(x: Array) -> Array:
        return -(a * (2.0 + a) * x + (1.0 + a) * drift)

    def accept(x: Array) -> tuple[Array, Array]:
        weight = _exp(ratio(x) + special.log_ndtr(x))
        return NORMAL.cdf(member_of(x)) - weight - delta, -slope(x) * weight

    def reject(x: Array) -> tuple[Array, Array]:
        weight = NORMAL.pdf(x) / (1.0 + a) * _mills(member_of(x))
        return delta - NORMAL.cdf(-x) + weight, -slope(x) * weight

    quantile = special.ndtri(delta)
    top = -(m * (1.0 + a)) / (2.0 + a)
    lowest = np.minimum(np.maximum((quantile - drift) / (1.0 + a), top), even)
    highest = np.maximum(-quantile, even)
    inner = solve(accept, lowest, even, 0.5 * (lowest + even))
    outer = solve(reject, even, highest, 0.5 * (even + highest))
    member = _log_excess(NORMAL.cdf(member_of(inner)), delta, special.log_ndtr(inner))
    outsider = _log_excess(NORMAL.cdf(-outer), delta, special.log_ndtr(-member_of(outer)))
    return np.maximum(0.0, np.maximum(member, outsider))


def _mills(x: Array) -> Array:
    """Φ(−x)/φ(x)."""
    return np.asarray(np.sqrt(0.5 * np.pi) * special.erfcx(x / np.sqrt(2.0)))


def _exp(x: Array) -> Array:
    """exp, kept finite: only the sign of what it enters matters out there."""
    return np.exp(np.minimum(x, 650.0))


def _log_excess(found: Array, delta: Array, log_false: Array) -> Array:
    """log((found − δ)/false), or 0 where the difference is nothing but rounding."""
    excess = found - delta
    real = excess > 1e-15 * found
    return np.where(real, np.log(np.where(real, excess, 1.0)) - log_false, 0.0)
