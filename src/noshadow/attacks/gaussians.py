"""The best test between two normal laws: what an attack gets that knows them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from noshadow.attacks.arrays import Floats

__all__ = ["best_accuracy", "best_tpr", "expected_accuracy"]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_SAME = 1e-6  # spreads that differ by less than this share are one
_HALVINGS = 100


def best_accuracy(shift: Any, spread_in: Any, spread_out: Any) -> Floats:
    """Success rate ½ (true positive rate + true negative rate) of the likelihood-ratio test between N(0, σ_out²) and
    N(s, σ_in²); arrays that broadcast. ½ + ½ the laws' distance in total variation.

    In units of σ_out, with r = σ_in/σ_out, "member" is decided where the log ratio Ax² + Bx + C is positive,

        A = ½ (1 − 1/r²),    B = s/r²,    C = −½ s²/r² − log r:

    between its two roots, or outside them. Equal spreads send one root to infinity and leave Φ(|s|/2σ).
    """
    s, r = _in_units(shift, spread_in, spread_out)
    a, b = 0.5 * (1.0 - r**-2.0), s / r**2
    c = -0.5 * (s / r) ** 2 - np.log(r)
    q = -0.5 * (b + np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0)))
    with np.errstate(divide="ignore", invalid="ignore"):  # the roots q/a and c/q, without cancellation
        first, second = np.where(q == 0.0, 0.0, q / a), np.where(q == 0.0, 0.0, c / q)
    between = [
        special.ndtr((first - mean) / spread) - special.ndtr((second - mean) / spread)
        for mean, spread in ((s, r), (0.0, 1.0))
    ]
    rate: Floats = np.minimum(0.5 + 0.5 * np.abs(between[0] - between[1]), 1.0)
    return rate


def best_tpr(shift: Any, spread_in: Any, spread_out: Any, fpr: float) -> Floats:
    """True-positive rate of the most powerful test between the two at a false-positive rate; arrays that broadcast.

    The ratio of the densities depends on the distance from s/(1 − r²) alone (in units of σ_out): members are taken
    nearer to it than some distance, or farther for r > 1, and that is found by halving.
    """
    s, r = _in_units(shift, spread_in, spread_out)
    alike = np.abs(r - 1.0) <= _SAME
    equal = special.ndtr(special.ndtri(fpr) + s)
    r = np.where(alike, 0.5, r)
    centre, narrow = s / (1.0 - r**2), r < 1.0
    low, high = np.zeros_like(s), np.abs(centre) + 40.0 * (1.0 + r)
    for _ in range(_HALVINGS):
        half = 0.5 * (low + high)
        taken = _within(centre, half, 0.0, 1.0)
        shrink = (np.where(narrow, taken, 1.0 - taken) > fpr) == narrow
        low, high = np.where(shrink, low, half), np.where(shrink, half, high)
    found = _within(centre, 0.5 * (low + high), s, r)
    rate: Floats = np.where(alike, equal, np.clip(np.where(narrow, found, 1.0 - found), 0.0, 1.0))
    return rate


def _in_units(shift: Any, spread_in: Any, spread_out: Any) -> tuple[Floats, Floats]:
    """|s| and σ_in in units of σ_out, so that squares neither overflow nor vanish."""
    s, inside, outside = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (shift, spread_in, spread_out)))
    return np.minimum(np.abs(s) / outside, 1e6), np.clip(inside / outside, 1e-6, 1e6)


def _within(middle: Floats, half: Floats, mean: Any, spread: Any) -> Floats:
    """P(|x − middle| < half) for x ~ N(mean, spread²)."""
    return np.asarray(special.ndtr((middle + half - mean) / spread) - special.ndtr((middle - half - mean) / spread))


def expected_accuracy(shift: Floats, uncertainty: Floats, spread_in: Floats, spread_out: Floats) -> Floats:
    """The mean of ``best_accuracy`` over s ~ N(shift, uncertainty²), (N,), by Gauss and Hermite's quadrature."""
    rates = best_accuracy(shift + np.multiply.outer(_NODES, uncertainty), spread_in, spread_out)
    mean: Floats = (_WEIGHTS / _WEIGHTS.sum()) @ rates
    return mean
