"""What a membership attack on a point's loss achieves: the trade-off curve and the figures read off it.

Two tests: ``"threshold"`` is the paper's Corollary 3.3 (call the record a member when its loss is small);
``"optimal"`` is the Neyman-Pearson test, which does better at small false-positive rates when |ε| > τ with
τ = σ√(h̄/(n−p)), and is the same test otherwise. Two laws: ``exact=False`` puts V = n−p, closed forms for any
number of points; ``exact=True`` averages over V ~ χ²_{n−p}, some tens of milliseconds per point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from noshadow.errors import InputError
from noshadow.theory.arguments import Points, check_broadcast, check_choice, check_levels, check_points
from noshadow.theory.laws import left_out_quantile, loss_probability
from noshadow.theory.numerics import NORMAL, Array, band, beyond, folded_density, folded_quantile, in_blocks
from noshadow.theory.partition import Curve, exact_curve
from noshadow.theory.privacy import epsilon
from noshadow.theory.ratio import FAR, even_point, even_point_far, find_peak

__all__ = [
    "Test",
    "auc",
    "epsilon_lower_bound",
    "optimal_rates",
    "success_rate",
    "threshold_rates",
    "tpr_at_fpr",
    "tradeoff",
]

Test = Literal["threshold", "optimal"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(96)


def tradeoff(
    alpha: Any,
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    test: Test = "threshold",
    exact: bool = False,
) -> Array | np.float64:
    r"""The trade-off curve β(α): the false-negative rate of an attack on the loss at false-positive rate α.

    .. math::

        \beta(\alpha) = 1 - F_{out}\!\left( F_{out}^{-1}(\alpha) / c^2 \right), \qquad c = \frac{n - p}{n - p + \bar h}

    for the threshold test (the paper's Corollary 3.3); the optimal one is the Neyman-Pearson test of the two loss laws,
    see ``noshadow.theory.ratio``.

    Parameters
    ----------
    alpha : array
        False-positive rates, from 0 to 1.
    leverage, error : array
        h̄ and ε of the points.
    n, p : int
        Records and parameters.
    sigma : array
        Noise σ of the other records, in the units of the error.
    test : "threshold" or "optimal"
        Which test.
    exact : bool
        Average over V ~ χ²_{n−p}, some tens of milliseconds per point; else V = n−p.

    Returns
    -------
    ndarray or float
        All array arguments broadcast: a curve for each of N points takes alpha (A,) and leverage[:, None], and has
        shape (N, A).

    Raises
    ------
    InputError
        Levels that are none, points that are not finite, n ≤ p.

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.tradeoff([0.01, 0.1], leverage=10, error=2, n=100, p=10).round(3).tolist()
    [0.972, 0.776]
    """
    _, missed = _rates(alpha, "alpha", check_points(leverage, error, n, p, sigma), test, exact)
    return missed[()]


def tpr_at_fpr(
    fpr: Any,
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    test: Test = "threshold",
    exact: bool = False,
) -> Array | np.float64:
    """The true-positive rate 1 − β at a false-positive rate, to full relative accuracy also where it is tiny.

    Parameters
    ----------
    fpr : array
        False-positive rates, from 0 to 1.
    leverage, error, n, p, sigma, test, exact
        As in ``tradeoff``.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> from noshadow import theory
    >>> float(theory.tpr_at_fpr(0.1, leverage=10, error=2, n=100, p=10).round(3))
    0.224
    """
    found, _ = _rates(fpr, "fpr", check_points(leverage, error, n, p, sigma), test, exact)
    return found[()]


def auc(
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    test: Test = "threshold",
    exact: bool = False,
) -> Array | np.float64:
    r"""Area under the ROC curve, ∫₀¹ (1 − β(α)) dα.

    For the threshold and V = n−p, P(\|e_in\| < \|e_out\|) is the probability that two correlated normals agree in sign,
    with Owen's T and a = h̄/(n−p), m = \|ε\|/τ, s = √((1+a)² + 1):

    .. math::

        \mathrm{AUC} = 1 - 2\, T\!\left(\tfrac{a m}{s}, \tfrac{2 + a}{a}\right)
        + 2\, T\!\left(\tfrac{(2 + a) m}{s}, \tfrac{a}{2 + a}\right)

    The optimal test adds the integral of its gain over the threshold.

    Parameters
    ----------
    leverage, error, n, p, sigma, test, exact
        As in ``tradeoff``.

    Returns
    -------
    ndarray or float
        From 0.5 (no leverage) to 1.

    Examples
    --------
    >>> from noshadow import theory
    >>> float(theory.auc(leverage=0, error=2, n=100, p=10))
    0.5
    """
    points = check_points(leverage, error, n, p, sigma)
    check_choice(test, "test", ("threshold", "optimal"))
    if exact:
        return _each(points, lambda curve: curve.area(), 0.5, test)

    def area(a: Array, m: Array, drift: Array) -> Array:
        spread = np.hypot(1.0 + a, 1.0)
        with np.errstate(divide="ignore"):
            slope = np.where(a > 0, (2.0 + a) / np.where(a > 0, a, 1.0), np.inf)
        total = 1.0 - 2.0 * special.owens_t(drift / spread, slope)
        total = total + 2.0 * special.owens_t((2.0 + a) * m / spread, a / (2.0 + a))
        return total + _area_gain(a, m) if test == "optimal" else total

    return np.asarray(in_blocks(area, *_units(points), size=1 << 12))[()]


def success_rate(
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    test: Test = "threshold",
    exact: bool = False,
) -> Array | np.float64:
    """The best share of right guesses when half the trained models hold the record: max of ½(1 + TPR − α).

    With V = n−p both tests reach the same one, ½(1 + total variation): the ratio exceeds 1 at a loss of 0.

    Parameters
    ----------
    leverage, error, n, p, sigma, test, exact
        As in ``tradeoff``.

    Returns
    -------
    ndarray or float
        From 0.5 (no leverage) to 1.

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.success_rate([0.0, 10.0, 100.0], error=2, n=100, p=10).round(2).tolist()
    [0.5, 0.63, 0.78]
    """
    points = check_points(leverage, error, n, p, sigma)
    check_choice(test, "test", ("threshold", "optimal"))
    if exact:
        return _each(points, lambda curve: curve.success(), 0.5, test)

    def success(a: Array, m: Array, drift: Array) -> Array:
        far, near = _split(a, m)
        r = even_point(*near)
        gain = band(NORMAL, near[1], r * (1.0 + near[0])) - band(NORMAL, near[1], r)
        x = even_point_far(a, drift, np.where(far, m, 2 * FAR))
        gain_far = band(NORMAL, 0.5 * (x * (2.0 + a) + drift), 0.5 * (x * a + drift))
        return np.asarray(0.5 + 0.5 * np.where(far, gain_far, gain))

    return np.asarray(in_blocks(success, *_units(points)))[()]


def epsilon_lower_bound(
    delta: Any,
    leverage: Any,
    error: Any,
    n: int,
    p: int,
    sigma: Any = 1.0,
    *,
    test: Test = "threshold",
    exact: bool = False,
) -> Array | np.float64:
    r"""The ε that the curve disproves: training is not (ε′, δ)-differentially private here for any ε′ < ε.

    (ε, δ) privacy bounds every attack by TPR ≤ e^ε FPR + δ and TNR ≤ e^ε FNR + δ; so, along the curve,

    .. math::

        \varepsilon(\delta) = \max\left( 0,\; \sup \log \frac{TPR - \delta}{FPR},\; \sup \log \frac{TNR - \delta}{FNR}
        \right)

    Parameters
    ----------
    delta : array
        δ, from 0 to 1.
    leverage, error, n, p, sigma, test, exact
        As in ``tradeoff``.

    Returns
    -------
    ndarray or float
        In nats. It is infinite for δ = 0 and h̄ > 0: large losses betray a record left out with any certainty wanted.

    Examples
    --------
    >>> from noshadow import theory
    >>> float(theory.epsilon_lower_bound(0.0, leverage=10, error=2, n=100, p=10))
    inf
    """
    points = check_points(leverage, error, n, p, sigma)
    check_choice(test, "test", ("threshold", "optimal"))
    deltas = check_levels(delta, "delta")
    check_broadcast(points, delta=deltas)
    if exact:
        if deltas.ndim:
            raise InputError("delta: with exact=True pass one number at a time")
        limit = np.where(points.leverage > 0, np.inf, 0.0)
        bound = _each(points, lambda curve: curve.epsilon(float(deltas)), 0.0, test)
        return np.where(deltas > 0, bound, limit)[()]
    a, m, drift = _units(points)
    return np.asarray(in_blocks(lambda *args: epsilon(*args, test=test), deltas, a, m, drift))[()]


def _rates(levels: Any, name: str, points: Points, test: str, exact: bool) -> tuple[Array, Array]:
    """True-positive and false-negative rates at the given false-positive rates."""
    check_choice(test, "test", ("threshold", "optimal"))
    alpha = check_levels(levels, name)
    check_broadcast(points, **{name: alpha})
    if not exact:
        attack = threshold_rates if test == "threshold" else optimal_rates
        rates: tuple[Array, Array] = in_blocks(attack, alpha, *_units(points))
        return rates
    edge = left_out_quantile(alpha, points, exact=True)
    found = loss_probability(edge, points, "in", exact=True)
    missed = loss_probability(edge, points, "in", exact=True, above=True)
    if test == "optimal":  # the threshold is one of the tests it is best among, and has no cells
        better, worse = _each_level(alpha, points)
        found, missed = np.maximum(found, better), np.minimum(missed, worse)
    spread = points.leverage > 0
    return np.where(spread, found, alpha), np.where(spread, missed, 1.0 - alpha)


def threshold_rates(
    alpha: Array, a: Array, m: Array, drift: Array, skip: NDArray[np.bool_] | None = None
) -> tuple[Array, Array]:
    """Corollary 3.3 in units of τ: r = F_out⁻¹(α), then P(|m + Z| < r (1+a)) and its complement.

    On the line, without the fold, r = m + Φ⁻¹(α). The branch that the fold reflects into |m + Z| < r has
    a share of about exp(−2 m r) of α: only where it counts is r searched for, and not where the caller
    will ``skip`` it.
    """
    z = NORMAL.quantile(alpha)
    x = z * (1.0 + a) + drift
    found, missed = NORMAL.cdf(x), NORMAL.cdf(-x)
    near = np.minimum(m, 2.0 * FAR)  # m may be infinite
    folded = (a > 0.0) & (m <= FAR) & (near + z < 20.0 / np.maximum(near, 1e-300))
    if skip is not None:
        folded &= ~skip
    if folded.any():
        level, a_, m_ = _pick(folded, alpha, a, m)
        edge = (1.0 + a_) * folded_quantile(NORMAL, level, m_)
        found[folded], missed[folded] = band(NORMAL, m_, edge), beyond(NORMAL, m_, edge)
    return found, missed


def optimal_rates(alpha: Array, a: Array, m: Array, drift: Array) -> tuple[Array, Array]:
    """The Neyman-Pearson test: an interval of losses where the ratio has a peak, the threshold elsewhere.

    The interval starts at r₁ ≈ −Φ⁻¹(α) − a m/(2+a), and its gain over the threshold is at most a share
    P(|m + Z| < r₁)/α of the rate: where that is below rounding the threshold does.
    """
    peaked = _peaked(a, m)
    if not peaked.any():
        return threshold_rates(alpha, a, m, drift)
    peak = find_peak(np.where(peaked, a, 1.0), np.where(peaked, m, 2.0))
    z = NORMAL.quantile(alpha)
    with np.errstate(invalid="ignore"):  # h̄ = 0 has m = ∞
        start = np.maximum(-z - drift / (2.0 + a), 0.0)
        gains = ~((m - start > 0.0) & ((m - start) ** 2 - z * z > 90.0))
    inside = peaked & (alpha < peak.level) & gains
    found, missed = threshold_rates(alpha, a, m, drift, skip=inside)
    if inside.any():
        (level,) = _pick(inside, alpha)
        found[inside], missed[inside] = peak.pick(inside).rates(level)
    return found, missed


def _pick(mask: NDArray[np.bool_], *arrays: Array) -> list[Array]:
    """The arrays' elements under a mask of their common shape."""
    return [np.broadcast_to(array, mask.shape)[mask] for array in arrays]


def _area_gain(a: Array, m: Array) -> Array:
    """∫ (TPR_optimal − TPR_threshold) dα over the false-positive rates at which the two tests differ."""
    peaked = _peaked(a, m)
    if not peaked.any():
        return np.zeros(np.broadcast_shapes(a.shape, m.shape))
    peak = find_peak(np.where(peaked, a, 1.0)[..., None], np.where(peaked, m, 2.0)[..., None])
    grow, m_ = 1.0 + peak.a, peak.m
    share = 0.5 + 0.5 * _NODES
    r = peak.full * share
    plain = peak.full * band(NORMAL, m_, grow * r) * folded_density(NORMAL, r, m_)
    w = 0.5 * peak.full * share
    middle, slope = peak.middle(w)
    rise = (1.0 + slope) * folded_density(NORMAL, middle + w, m_)
    fall = (1.0 - slope) * folded_density(NORMAL, middle - w, m_)
    mass = band(NORMAL, grow * middle - m_, grow * w) + band(NORMAL, grow * middle + m_, grow * w)
    best = 0.5 * peak.full * mass * (rise + fall)
    return np.where(peaked, np.maximum((best - plain) @ (0.5 * _WEIGHTS), 0.0), 0.0)


def _units(points: Points) -> tuple[Array, Array, Array]:
    """a, m and a·m: all that the large-sample curves depend on."""
    return points.ratio, points.offset, points.drift


def _split(a: Array, m: Array) -> tuple[Array, tuple[Array, Array]]:
    """Which points are far from the fold (or have h̄ = 0), and a, m with harmless values in their place."""
    far = (m > FAR) | (a == 0.0)
    return np.asarray(far), (np.where(far, 1.0, a), np.where(far, 0.0, m))


def _peaked(a: Array, m: Array) -> NDArray[np.bool_]:
    """Where the likelihood ratio is not monotone; within 1e-6 of m = 1 the peak is lower than rounding."""
    return np.asarray((a > 0) & (m > 1.0 + 1e-6) & (m <= FAR))


def _each(points: Points, figure: Callable[[Curve], float], degenerate: float, test: str) -> Array | np.float64:
    """A figure of the exact curve for every point; h̄ = 0 has no curve and the given value."""
    h, error, sigma = np.broadcast_arrays(points.leverage, points.error, points.sigma)
    out = np.full(h.shape, degenerate)
    for index in np.ndindex(h.shape):
        if h[index] > 0:
            point = Points(h[index], error[index], sigma[index], points.k)
            out[index] = figure(exact_curve(point, test))
    return out[()]


def _each_level(alpha: Array, points: Points) -> tuple[Array, Array]:
    """The exact optimal rates: one curve per point, read at all its levels."""
    arrays = np.broadcast_arrays(points.leverage, points.error, points.sigma)
    shape = np.broadcast_shapes(alpha.shape, arrays[0].shape)
    h, error, sigma = (a.reshape((1,) * (len(shape) - a.ndim) + a.shape) for a in arrays)
    levels = np.broadcast_to(alpha, shape)
    found, missed = np.array(levels), np.array(1.0 - levels)
    for index in np.ndindex(h.shape):
        if h[index] > 0:
            where = tuple(slice(None) if h.shape[axis] == 1 else i for axis, i in enumerate(index))
            point = Points(h[index], error[index], sigma[index], points.k)
            found[where], missed[where] = exact_curve(point, "optimal").at(levels[where])
    return found, missed
