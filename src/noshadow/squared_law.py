r"""The success of an attack on squared error: the exact law of one residual, with and without the record.

The law is that of Section 3 of the paper: the residual e of the model without the record is
N(ε, σ_out²), with it (1 − H) e, and the statistic is the squared residual. Of a converged head all three are known: H
is the leverage, ε = e/(1 − h), and σ_out is that of the sandwich (``noshadow.sandwich``); of an approximate Hessian
σ_out² = ½ κ A/(1 − h), κ from the residuals and the degrees of freedom that are left. In a network a record decides
more of its fit than the last layer shows, and residuals over the run are not those without the record; but which
records are ahead of others in both, the last layer and the run do say. So

.. math::

    a_i = \frac{h_i}{1 - h_i}, \qquad \frac{H_i}{1 - H_i} = c\, a_i, \qquad
    \varepsilon_i^2 = k^2\, \overline{e_i^2}, \qquad
    \sigma_{out,i}^2 = \sigma_{seed}^2 + \frac{V}{2}\, \frac{a_i}{\bar a}

with the mean square of the residual over the epochs; what other data does to a prediction goes with its leverage, what
another seed does has been seen not to. c and k are those for which the law gives the two mean sizes of residuals that
are seen, of held-out records and of members:

.. math::

    \overline{F(\varepsilon_i, \sigma_{out,i})} = \overline{|e|}_{out}, \qquad
    \overline{(1 - H_i)\, F(\varepsilon_i, \sigma_{out,i})} = \overline{|e|}_{in}, \qquad
    F(\varepsilon, \sigma) = \sigma \sqrt{2/\pi}\, e^{-\varepsilon^2/2\sigma^2}
        + \varepsilon\, \mathrm{erf}(\varepsilon/\sigma\sqrt 2)

the mean size of N(ε, σ²). (Sizes and not squares, of which a few records that are far off decide the mean.) V is half
of the gap of the losses, since their curvature is 2, with π/2 times the square of the mean size for a loss. Without
held-out records nothing is scaled: c = 1, and ε = ē/(1 − h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize, special

from noshadow.heads import Head
from noshadow.predict import FPR, Calibration, Floats, HeldOut, Rates, spreads_of
from noshadow.spread_sources import SPREAD_SOURCES

if TYPE_CHECKING:
    from noshadow.sandwich import Spreads

__all__ = ["calibrate_law", "converged_law", "mean_size", "rates_of_law"]

_LEAST_LEVERAGE, _MOST_LEVERAGE = 1e-12, 1.0 - 1e-8
_LEAST_ERROR = 0.05  # share of the held-out loss that is error and not spread
_LEAST_SPREAD = float(np.sqrt(np.finfo(np.float64).tiny))
_WIDEST = 25.0  # |log c|
_FAR = 38.0  # standard deviations


def calibrate_law(
    head: Head,
    leverage: Floats,
    error: Floats,
    size_in: Floats,
    held_out: HeldOut | None,
    spreads: tuple[float, float] | None,
    source: str = "rerun",
) -> tuple[Calibration, Rates]:
    """What the rates of these members rest on, and the rates by the law.

    leverage, error, size_in  (n,) of the members: h, the root mean square of the residual over the run, the size of the
                              final residual
    """
    found = spreads_of(head, size_in, held_out, spreads, source)
    tau = found.spread_out * found.resampled
    if held_out is None:
        return found, rates_of_law(leverage, error, tau)
    h = np.clip(leverage, _LEAST_LEVERAGE, _MOST_LEVERAGE)
    odds = h / (1.0 - h)
    seed = found.spread_out if SPREAD_SOURCES[found.source].of_seed else 0.0
    usual = np.minimum(odds, 10.0 * np.quantile(odds, 0.99))  # one that decides its own fit shall not decide this
    spread = np.sqrt(seed**2 + (tau**2 - seed**2) * usual / usual.mean())
    inside, outside = float(size_in.mean()), float(held_out.loss.mean())
    size = _scale_of_error(error, spread, outside)
    without = mean_size(size * error, spread)
    scale = _scale_of_odds(odds, without, inside / outside * float(without.mean()) if inside < outside else np.inf)
    own = scale * odds / (1.0 + scale * odds)
    rates = rates_of_law(own, (1.0 - own) * size * error, spread)
    return replace(found, scale=scale, error_scale=size, gap=outside - inside), rates


def mean_size(middle: Floats, spread: Floats) -> Floats:
    """F(ε, σ), the mean of |e| where e is N(ε, σ²): ε for σ = 0."""
    z = middle / np.maximum(spread, _LEAST_SPREAD)
    normal = np.sqrt(2.0 / np.pi) * np.exp(-0.5 * np.minimum(z, _FAR) ** 2)
    found: Floats = spread * normal + middle * special.erf(z / np.sqrt(2.0))
    return found


def _scale_of_error(error: Floats, spread: Floats, outside: float) -> float:
    """k with mean F(k·error, spread) = outside; at the least, that error is some part of the loss.

    Two runs that are not of one recipe may have more spread than there is loss.
    """
    mean = float(error.mean())
    if mean == 0.0 or outside == 0.0:
        return 0.0
    most = outside / mean  # F(ε, σ) ≥ ε
    least = float(np.sqrt(_LEAST_ERROR * np.pi / 2.0 / np.mean((error / mean) ** 2))) * most

    def excess(scale: float) -> float:
        return float(mean_size(scale * error, spread).mean()) - outside

    if least >= most or excess(least) >= 0.0:
        return least
    return float(optimize.brentq(excess, least, most)) if excess(most) > 0.0 else most


def _scale_of_odds(odds: Floats, without: Floats, size_in: float) -> float:
    """c with mean without/(1 + c·odds) = size_in; 0 where members fit no better than the law has them without."""

    def excess(log_scale: float) -> float:
        return float(np.mean(without / (1.0 + np.exp(log_scale) * odds))) - size_in

    if excess(-_WIDEST) <= 0.0:
        return 0.0
    return float(np.exp(_WIDEST if excess(_WIDEST) > 0.0 else optimize.brentq(excess, -_WIDEST, _WIDEST)))


def converged_law(
    influence_sum: float, known: Mapping[str, Floats], spreads: Spreads | None = None
) -> tuple[Calibration, Rates]:
    """Of a converged head, from the scores (n,) of its records and Σ g'ᵀAg'.

    spreads  over data, of every record, by the sandwich; None: it is not known
    """
    leverage = known["leverage"]
    h = np.clip(leverage, 0.0, _MOST_LEVERAGE)
    if spreads is None:
        information = influence_sum / max(float(leverage.sum()), np.finfo(np.float64).tiny)
        left = max(len(leverage) - float(leverage.sum()), 1.0)
        tau = np.sqrt(0.5 * information * len(leverage) / left * known["signal_variance"] / (1.0 - h))
    else:
        tau = spreads.outside
    found = Calibration(float(np.mean((1.0 - h) * tau)), float(tau.mean()), source="converged")
    return found, rates_of_law(leverage, np.sqrt(known["loss"]), tau)


def rates_of_law(leverage: Floats, error: Floats, tau: Floats | float) -> Rates:
    """Rates of squared error by the exact law: e_out ~ N(ε, τ²), e_in = (1 − h) e_out, statistic e².

    leverage  (n,) h
    error     (n,) the size of the residual with the record in the fit; ε = error/(1 − h)
    tau       τ, of all records or of each

    A record of no leverage moves nothing, its own fit included, and hardly varies itself: it is a coin, whatever is
    left of τ by rounding. (d′ goes with √h: at the least leverage that counts it is a millionth.)
    """
    from noshadow import theory  # here: it is for this head alone

    h = np.clip(leverage, _LEAST_LEVERAGE, _MOST_LEVERAGE)
    a, epsilon = h / (1.0 - h), error / (1.0 - h)
    tau = np.where(leverage < _LEAST_LEVERAGE, np.maximum(epsilon, 1.0), np.maximum(tau, _LEAST_SPREAD))
    place = {"n": 3, "p": 1}  # any n and p: what counts is a = h̄/(n − p) and τ = σ √a
    freedom = place["n"] - place["p"]
    law: dict[str, Any] = {"leverage": a * freedom, "error": epsilon, **place, "sigma": tau / np.sqrt(a)}
    accuracy = np.asarray(theory.success_rate(**law), dtype=np.float64)

    def tpr() -> Floats:
        return np.asarray(theory.tpr_at_fpr(FPR, **law, test="optimal"), dtype=np.float64)

    power = epsilon * h / (tau * np.sqrt((1.0 + (1.0 - h) ** 2) / 2.0))
    return Rates(power, accuracy, tpr)
