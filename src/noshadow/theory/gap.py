"""The expected generalization gap E[ℓ₋ᵢ − ℓᵢ] of a point, and what the two one-model scores make of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from noshadow.errors import InputError
from noshadow.theory.arguments import check_leverage, check_points, check_sizes, finite
from noshadow.theory.numerics import Array, chi2_rule, in_blocks

__all__ = ["check_response", "expected_gap", "gap_expansion", "influence_ratio", "newton_ratio"]


def expected_gap(
    leverage: Any, error: Any, n: int, p: int, sigma: Any = 1.0, *, covariance: Any = None
) -> Array | np.float64:
    r"""The expected gap E[ℓ_out − ℓ_in] of a point, exactly (the paper's Propositions 3.4 and A.1).

    .. math::

        \mathbb E[\Delta] = \mathbb E_V\!\left[ \left( \lVert \varepsilon \rVert^2 + \operatorname{tr}(\Sigma_y)
        \frac{\bar h}{V} \right) \frac{\bar h (2V + \bar h)}{(V + \bar h)^2} \right], \qquad V \sim \chi^2_{n-p}

    Parameters
    ----------
    leverage : array
        h̄, any shape.
    error : array
        ε, broadcasts with the leverage; with a covariance its last axis holds the q responses.
    n, p : int
        Records and parameters, n − p > 2.
    sigma : array
        σ of a scalar response.
    covariance : array (q, q), optional
        Σ_y of a q-dimensional response, in the place of sigma.

    Returns
    -------
    ndarray or float
        In squared units of the response. The expectation is a sum of positive terms over an exponentially convergent
        rule (``chi2_rule``): the relative error stays below 1e-12 for every h̄, however large or small.

    Raises
    ------
    InputError
        n − p ≤ 2, points that are not finite, a Σ_y that is no covariance.

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.expected_gap([0.0, 1.0, 10.0], error=2.0, n=100, p=10).round(3).tolist()
    [0.0, 0.09, 0.795]
    """
    h, square, variance, k = _moments(leverage, error, n, p, sigma, covariance)
    if k <= 2:
        raise InputError(f"n: n − p = {k}, but the expected gap is finite only for n − p > 2; use more records")
    v, weights = chi2_rule(k)

    def share(h: Array) -> tuple[Array, Array]:
        h = h[..., None]
        loss = h / (v + h) * ((2.0 * v + h) / (v + h))  # 1 − (1 − h_ii)²: the part of the left-out loss that goes
        return (loss * weights).sum(-1), (loss * (h / v) * weights).sum(-1)

    kept, spread = in_blocks(share, h, size=max(1, (1 << 20) // len(v)))
    return np.asarray(square * kept + variance * spread)[()]


def gap_expansion(
    leverage: Any, error: Any, n: int, p: int, sigma: Any = 1.0, *, covariance: Any = None, order: int = 2
) -> Array | np.float64:
    r"""E[ℓ_out − ℓ_in] to first or second order in 1/k, k = n − p (the paper's Propositions 3.4 and A.1).

    .. math::

        \frac{2 \lVert \varepsilon \rVert^2 \bar h}{k} + \frac{4 \lVert \varepsilon \rVert^2 \bar h + \bar h^2
        (2 \operatorname{tr} \Sigma_y - 3 \lVert \varepsilon \rVert^2)}{k^2} + O(k^{-3})

    Parameters
    ----------
    leverage, error, n, p, sigma, covariance
        As in ``expected_gap``. Needs k > 4, where the inverse moments it rests on exist, and h̄ well below k: at h̄ ≈ k
        it is poor, and ``expected_gap`` is the one to use.
    order : 1 or 2
        Of the expansion.

    Returns
    -------
    ndarray or float
        In squared units of the response.

    Examples
    --------
    >>> from noshadow import theory
    >>> float(theory.gap_expansion(1.0, error=2.0, n=100, p=10, order=1).round(4))
    0.0889
    """
    if order not in (1, 2):
        raise InputError(f"order: expected 1 or 2, got {order!r}")
    h, square, variance, k = _moments(leverage, error, n, p, sigma, covariance)
    if k <= 4:
        raise InputError(f"n: n − p = {k}, but the expansion needs n − p > 4; use expected_gap")
    gap = 2.0 * square * h / k
    if order == 2:
        gap = gap + (4.0 * square * h + h * h * (2.0 * variance - 3.0 * square)) / k**2
    return (gap + np.zeros_like(variance))[()]


def influence_ratio(h: Any) -> Array | np.float64:
    r"""IF/Δ of the paper's Section 4.3 for squared error: how much of the leave-one-out change influence functions see.

    .. math::

        \frac{IF}{\Delta} = \frac{2 (1 - h)^2}{2 - h}, \qquad IF = 2 e^2 h, \quad \Delta = e^2 \frac{2h - h^2}{(1 -
        h)^2}

    which is ~ 2(1−h)² as h → 1.

    Parameters
    ----------
    h : array
        Leverages, from 0 to 1.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.influence_ratio([0.0, 0.5]).round(3).tolist()
    [1.0, 0.333]
    """
    rest = 1.0 - _empirical(h)
    return np.asarray(2.0 * rest**2 / (1.0 + rest))[()]


def newton_ratio(h: Any) -> Array | np.float64:
    r"""NS/Δ of the paper's Section 4.3 for squared error: how much of the leave-one-out change the Newton step sees.

    .. math::

        \frac{NS}{\Delta} = \frac{2 (1 - h)}{2 - h}, \qquad NS = \frac{2 e^2 h}{1 - h}

    which is ~ 2(1−h) as h → 1.

    Parameters
    ----------
    h : array
        Leverages, from 0 to 1.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.newton_ratio([0.0, 0.5]).round(3).tolist()
    [1.0, 0.667]
    """
    rest = 1.0 - _empirical(h)
    return np.asarray(2.0 * rest / (1.0 + rest))[()]


def _empirical(h: Any) -> Array:
    values = finite(h, "h")
    if ((values < 0) | (values > 1)).any():
        raise InputError("h: the empirical leverage h_ii lies in [0, 1]; for h̄ use h̄/(n − p + h̄)")
    return values


def _moments(leverage: Any, error: Any, n: int, p: int, sigma: Any, covariance: Any) -> tuple[Array, Array, Array, int]:
    """h̄, ‖ε‖², tr Σ_y and n − p for a scalar or a q-dimensional response."""
    if covariance is None:
        points = check_points(leverage, error, n, p, sigma)
        return points.leverage, points.error**2, points.sigma**2, points.k
    eps, noise = check_response(error, covariance, sigma)
    h = check_leverage(leverage)
    return h, (eps**2).sum(-1), np.asarray(np.trace(noise)), check_sizes(n, p)


def check_response(error: Any, covariance: Any, sigma: Any) -> tuple[Array, Array]:
    """ε (..., q) and Σ_y (q, q), symmetric positive semi-definite."""
    if np.ndim(sigma) or sigma != 1.0:
        raise InputError("sigma: covariance takes its place for a q-dimensional response; pass only one of them")
    noise = finite(covariance, "covariance")
    eps = finite(error, "error")
    if noise.ndim != 2 or noise.shape[0] != noise.shape[1]:
        raise InputError(f"covariance: expected Σ_y of shape (q, q), got {noise.shape}")
    if eps.ndim == 0 or eps.shape[-1] != len(noise):
        raise InputError(f"error: its last axis must hold the {len(noise)} responses, got shape {eps.shape}")
    if not np.allclose(noise, noise.T, rtol=1e-8, atol=1e-12 * float(np.abs(noise).max(initial=0.0))):
        raise InputError("covariance: Σ_y must be symmetric")
    if float(np.linalg.eigvalsh(noise).min()) < -1e-10 * float(np.trace(noise)):
        raise InputError("covariance: Σ_y must be positive semi-definite")
    return eps, noise
