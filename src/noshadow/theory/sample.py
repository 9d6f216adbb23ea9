"""From a fitted model to the arguments of the laws: h̄, ε and σ for each of its training points."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.theory.arguments import finite
from noshadow.theory.numerics import Array

if TYPE_CHECKING:  # the laws need no torch; a layer brings it along
    import torch

    from noshadow.layer import LastLayer

__all__ = ["Sample", "from_sample", "population_leverage"]

_SMALLEST_REST = 1e-10  # 1 − h below this: the other records do not fix the fit in this record's direction


def population_leverage(x: Any, covariance: Any, mean: Any = None) -> Array | np.float64:
    r"""The population leverage of points, the squared Mahalanobis distance.

    .. math::

        \bar h = x^\top \Sigma^{-1} x, \qquad\text{with a mean}\quad
        \bar h = 1 + (x - \mu)^\top \Sigma^{-1} (x - \mu)

    for features x ~ N(0, Σ), or for a model with a bias and features N(μ, Σ): x̃ᵀ E[x̃x̃ᵀ]⁻¹ x̃ for x̃ = (x, 1); the p
    of the laws then counts the bias.

    Parameters
    ----------
    x : array (..., p)
        The points.
    covariance : array (p, p)
        Σ. A singular one is inverted on its range; a point off that range has infinite leverage.
    mean : array (p,), optional
        μ.

    Returns
    -------
    ndarray (...)

    Raises
    ------
    InputError
        Shapes that do not fit, a Σ that is not symmetric or not positive semi-definite.

    Examples
    --------
    >>> from noshadow import theory
    >>> theory.population_leverage([[2.0, 0.0], [0.0, 3.0]], [[4.0, 0.0], [0.0, 1.0]]).tolist()
    [1.0, 9.0]
    """
    points, sigma = finite(x, "x"), finite(covariance, "covariance")
    if sigma.ndim != 2 or sigma.shape[0] != sigma.shape[1]:
        raise InputError(f"covariance: expected Σ of shape (p, p), got {sigma.shape}")
    if points.ndim == 0 or points.shape[-1] != len(sigma):
        raise InputError(f"x: its last axis must hold the {len(sigma)} features, got shape {points.shape}")
    centre = np.zeros(len(sigma)) if mean is None else finite(mean, "mean")
    if centre.shape != (len(sigma),):
        raise InputError(f"mean: expected shape ({len(sigma)},), got {centre.shape}")
    if not np.allclose(sigma, sigma.T, rtol=1e-8, atol=1e-12 * float(np.abs(sigma).max(initial=0.0))):
        raise InputError("covariance: Σ must be symmetric")
    units = np.sqrt(np.maximum(np.diag(sigma), 0.0))
    units = np.where(units > 0, units, 1.0)  # correlations, so that the rank does not depend on the units
    values, vectors = np.linalg.eigh(sigma / units[:, None] / units)
    tolerance = len(sigma) * np.finfo(np.float64).eps * max(float(values.max(initial=0.0)), 1e-300)
    if float(values.min(initial=0.0)) < -1e3 * tolerance:
        raise InputError("covariance: Σ must be positive semi-definite")
    scores = (points - centre) / units @ vectors
    kept = values > tolerance
    inside = (scores[..., kept] ** 2 / values[kept]).sum(-1)
    size = np.sqrt((scores**2).sum(-1))
    outside = np.sqrt((scores[..., ~kept] ** 2).sum(-1)) > 1e-7 * size
    return np.asarray(np.where(outside, np.inf, inside + float(mean is not None)))[()]


@dataclass(frozen=True, eq=False)
class Sample:
    """Plug-in arguments of the laws for the n training points of a linear model with squared error.

    Attributes
    ----------
    leverage : ndarray (n,)
        h̄ = (n−p) h/(1−h), with which V = n−p gives back the observed leverage h.
    error : ndarray (n,) or (n, q)
        ε = e/(1−h), the left-out residual: unbiased for the structural error.
    sigma : ndarray (n,)
        Noise of the other records, √(RSS₋ᵢ/(n−1−p)), per response.
    covariance : ndarray (q, q) or None
        Σ_y of q responses: the residuals' covariance, n−p degrees of freedom.
    n, p : int
        Records, and rank of the design with its constant column.
    undefined : ndarray (n,) of booleans
        h = 1: without this record the fit is undefined; ε is set to 0 there.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import LastLayer, theory
    >>> x, y = np.array([[0.0], [1.0], [2.0], [10.0]]), np.array([0.0, 1.2, 1.8, 10.0])
    >>> slope, offset = np.polyfit(x[:, 0], y, 1)
    >>> sample = theory.from_sample(LastLayer(x, slope * x[:, 0] + offset, y, head="squared"))
    >>> sample.n, sample.p, sample.leverage.round(2).tolist()
    (4, 2, [1.44, 0.99, 0.76, 81.67])
    """

    leverage: Array
    error: Array
    sigma: Array
    covariance: Array | None
    n: int
    p: int
    undefined: np.ndarray[Any, np.dtype[np.bool_]]


def from_sample(layer: LastLayer) -> Sample:
    """h̄, ε and σ of every training point of a fitted squared-error layer, so that each gets its curve.

    Parameters
    ----------
    layer : LastLayer
        With ``head="squared"`` and without sample weights.

    Returns
    -------
    Sample

    Raises
    ------
    InputError
        Another head, sample weights, too few records.

    Warns
    -----
    NoshadowWarning
        With a ridge, or away from the least-squares fit, the laws hold only approximately.

    Notes
    -----
    The leverages come from a QR factorisation of the design (constant column included, √(Λ/2) rows below it for a ridge
    Λ) with the rank taken from the singular values of R: duplicate and dead columns are harmless.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import LastLayer, theory
    >>> x = np.random.default_rng(0).normal(size=(50, 2))
    >>> y = x[:, 0] + np.random.default_rng(1).normal(size=50)
    >>> design = np.c_[x, np.ones(50)]
    >>> fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    >>> s = theory.from_sample(LastLayer(x, fitted, y, head="squared"))
    >>> theory.tradeoff([0.01, 0.1], s.leverage[:, None], s.error[:, None], s.n, s.p, s.sigma[:, None]).shape
    (50, 2)
    """
    if layer.head != "squared":
        raise InputError(f"layer: the laws are those of squared error, but the head is {layer.head!r}")
    if layer.weights is not None:
        raise InputError("layer: the laws are those of records that count alike, but the layer has a sample_weight")
    design = layer.records(slice(None)).design
    residual = layer.targets - layer.outputs
    basis, rank = _orthonormal(design, layer.penalty())
    n = layer.n
    if n <= rank + 1:
        raise InputError(f"layer: {n} records for {rank} parameters; σ and h̄ need n > p + 1, so more records")
    h = basis.square().sum(1).clamp(max=1.0)
    _warn_off_theory(layer, residual, basis, float(h.sum()), rank)
    rest = 1.0 - h
    undefined = rest < _SMALLEST_REST
    if bool(undefined.any()):
        rows = undefined.nonzero().flatten().tolist()
        warnings.warn(
            f"layer: leverage 1 in {name_rows(rows)} (counted from 0): without such a record the fit is "
            "undefined. Its h̄ is capped and its ε set to 0; treat it as fully exposed",
            NoshadowWarning,
            stacklevel=2,
        )
    rest = rest.clamp(min=_SMALLEST_REST)
    error = residual / rest.unsqueeze(1)
    error[undefined] = 0.0
    q = residual.shape[1]
    total = residual.square().sum()
    others = (total - (residual * error).sum(1)).clamp(min=1e-30 * float(total) + 1e-300)
    sigma = (others / (q * (n - 1 - rank))).sqrt()
    covariance = None if q == 1 else (residual.T @ residual / (n - rank)).cpu().numpy()
    return Sample(
        leverage=((n - rank) * h / rest).cpu().numpy(),
        error=(error.squeeze(1) if q == 1 else error).cpu().numpy(),
        sigma=sigma.cpu().numpy(),
        covariance=covariance,
        n=n,
        p=rank,
        undefined=undefined.cpu().numpy(),
    )


def _orthonormal(design: torch.Tensor, penalty: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Rows U (n, rank) with U Uᵀ = X (XᵀX + diag(Λ)/2)⁻¹ Xᵀ, on the range of the design."""
    import torch

    units = design.square().sum(0).sqrt()
    units = torch.where(units > 0, units, torch.ones_like(units))
    scaled = design / units
    if bool((penalty > 0).any()):
        scaled = torch.cat([scaled, torch.diag((0.5 * penalty).sqrt() / units)])
    q, r = torch.linalg.qr(scaled)
    left, values, _ = torch.linalg.svd(r)
    tolerance = max(scaled.shape) * torch.finfo(torch.float64).eps * float(values.max())
    rank = int((values > tolerance).sum())
    return (q @ left[:, :rank])[: len(design)], rank


def _warn_off_theory(layer: LastLayer, residual: torch.Tensor, basis: torch.Tensor, freedom: float, rank: int) -> None:
    """The laws are those of ordinary least squares: say how far the layer is from it."""
    if freedom < 0.99 * rank:
        warnings.warn(
            f"layer: the ridge leaves {freedom:.1f} of {rank} degrees of freedom; the laws are those of no "
            "ridge, so take the curves as approximate",
            NoshadowWarning,
            stacklevel=3,
        )
    if layer.ridge == 0.0:
        size = float(residual.square().sum())
        left = float((basis.T @ residual).square().sum())
        share = math.sqrt(left / size) if size > 0 else 0.0
        if share > 0.01:
            warnings.warn(
                f"layer: {share:.1%} of the residual lies in the span of the features, where a least-squares "
                "fit leaves none; the laws describe the converged fit, so train the layer to its optimum",
                NoshadowWarning,
                stacklevel=3,
            )
