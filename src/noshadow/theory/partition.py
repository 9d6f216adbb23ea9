"""The attacks on the exact laws (V ~ χ²_{n−p}), through a fine partition of the losses.

The residual's range is cut into cells and the attacker told only the cell. The masses of the cells are exact
(``loss_probability``), so each operating point is one that a real attack reaches: the curves bound the true
ones from below, and miss them by the square of the cells' width. Taking the
cells in order of their likelihood ratio makes the test optimal whatever the ratio's shape, which with V ~ χ²
has no closed form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from noshadow.theory.arguments import Points
from noshadow.theory.laws import InOrOut, loss_probability
from noshadow.theory.numerics import Array, Student

__all__ = ["CELLS", "Curve", "curve_of_masses", "exact_curve"]

CELLS = 1024


class Curve(NamedTuple):
    """The corners of one point's ROC polygon, from (0, 0) to (1, 1), each (corners,).

    The complements are summed from their own end: near 1 a rate has no digits left to subtract.
    """

    fpr: Array
    tpr: Array
    tnr: Array
    fnr: Array

    def at(self, alpha: Array) -> tuple[Array, Array]:
        """True-positive and false-negative rate; between corners the attacker flips a coin."""
        return np.interp(alpha, self.fpr, self.tpr), np.interp(alpha, self.fpr, self.fnr)

    def area(self) -> float:
        """Area under the curve."""
        return float(np.sum(np.diff(self.fpr) * 0.5 * (self.tpr[1:] + self.tpr[:-1])))

    def success(self) -> float:
        """Best balanced accuracy."""
        return 0.5 + 0.5 * float(np.max(self.tpr - self.fpr))

    def epsilon(self, delta: float) -> float:
        """Largest ε that the corners prove for this δ: TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ."""
        proofs = [
            np.log(hit[real] - delta) - np.log(false[real])
            for hit, false in ((self.tpr, self.fpr), (self.tnr, self.fnr))
            for real in [(hit - delta > 1e-12 * hit) & (false > 0)]
        ]
        return max(0.0, float(np.max(np.concatenate(proofs), initial=0.0)))


def exact_curve(points: Points, test: str, cells: int = CELLS) -> Curve:
    """The curve of a single point with h̄ > 0 (all its arrays hold one number)."""
    edges = _edges(points, cells)
    return curve_of_masses(_masses(edges, points, "in"), _masses(edges, points, "out"), test)


def curve_of_masses(member: Array, outsider: Array, test: str) -> Curve:
    """The curve from the cells' probabilities, given in the order of the losses."""
    if test == "optimal":
        ratio = np.divide(member, outsider, out=np.zeros_like(member), where=outsider > 0)
        order = np.argsort(-ratio, kind="stable")
        member, outsider = member[order], outsider[order]
    zero = np.zeros(1)
    tpr, fpr = (np.concatenate([zero, np.cumsum(m)]) / m.sum() for m in (member, outsider))
    fnr, tnr = (np.concatenate([np.cumsum(m[::-1])[::-1], zero]) / m.sum() for m in (member, outsider))
    return Curve(fpr, tpr, tnr, fnr)


def _edges(points: Points, cells: int) -> Array:
    """Cell borders 0 < … < ∞ that are dense where either law has mass: quantiles with log-spaced tails."""
    error, scale, ratio = (float(x) for x in (np.abs(points.error), points.scale, points.ratio))
    levels = special.expit(np.linspace(-36.0, 36.0, cells))
    left_out = np.abs(error + scale * Student(points.k).quantile(levels))
    pulled = error / (1.0 + float(points.leverage) / (2.0 * special.gammaincinv(0.5 * points.k, levels) + 1e-300))
    small = np.geomspace(1e-16, 1.0, cells) * scale  # small V sends members' losses to 0
    edges = np.unique(np.concatenate([left_out, left_out / (1.0 + ratio), pulled, small]))
    kept = [0.0]
    for edge in edges.tolist():  # a sliver's mass would be rounding, and a lucky one come first in the order
        if edge - kept[-1] > 1e-6 * min(edge, scale / (1.0 + ratio)):
            kept.append(edge)
    return np.array([*kept, np.inf])


def _masses(edges: Array, points: Points, side: InOrOut) -> Array:
    """Probability of each cell, from whichever tail keeps the digits."""
    below = loss_probability(edges, points, side, exact=True)
    above = loss_probability(edges, points, side, exact=True, above=True)
    mass = np.where(below[1:] < 0.5, np.diff(below), -np.diff(above))
    return np.maximum(mass, 0.0)
