"""The best test between two normal laws: the success rate of an attack that knows them."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from noshadow.attacks.arrays import Floats

__all__ = ["best_accuracy", "expected_accuracy"]

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)


def best_accuracy(shift: Any, spread_in: Any, spread_out: Any) -> Floats:
    """Success rate ½ (true positive rate + true negative rate) of the likelihood-ratio test between N(0, σ_out²) and
    N(s, σ_in²); arrays that broadcast. ½ + ½ the laws' distance in total variation.

    In units of σ_out, with r = σ_in/σ_out, "member" is decided where the log ratio Ax² + Bx + C is positive,

        A = ½ (1 − 1/r²),    B = s/r²,    C = −½ s²/r² − log r:

    between its two roots, or outside them. Equal spreads send one root to infinity and leave Φ(|s|/2σ).
    """
    s, inside, outside = np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (shift, spread_in, spread_out)))
    s, r = np.abs(s) / outside, inside / outside
    a, b = 0.5 * (1.0 - r**-2.0), s / r**2
    c = -0.5 * (s / r) ** 2 - np.log(r)
    q = -0.5 * (b + np.sqrt(np.maximum(b * b - 4.0 * a * c, 0.0)))
    with np.errstate(divide="ignore", invalid="ignore"):  # the roots q/a and c/q, without cancellation
        first, second = np.where(q == 0.0, 0.0, q / a), np.where(q == 0.0, 0.0, c / q)
    between = [
        special.ndtr((first - mean) / spread) - special.ndtr((second - mean) / spread)
        for mean, spread in ((s, r), (0.0, 1.0))
    ]
    rate: Floats = 0.5 + 0.5 * np.abs(between[0] - between[1])
    return rate


def expected_accuracy(shift: Floats, uncertainty: Floats, spread_in: Floats, spread_out: Floats) -> Floats:
    """The mean of ``best_accuracy`` over s ~ N(shift, uncertainty²), (N,), by Gauss and Hermite's quadrature."""
    rates = best_accuracy(shift + np.multiply.outer(_NODES, uncertainty), spread_in, spread_out)
    mean: Floats = (_WEIGHTS / _WEIGHTS.sum()) @ rates
    return mean
