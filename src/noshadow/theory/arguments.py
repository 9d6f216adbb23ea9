"""The arguments that every law shares, checked once: leverage, structural error, n, p and the noise."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from noshadow.errors import InputError, name_rows
from noshadow.theory.numerics import Array

__all__ = [
    "Points",
    "check_broadcast",
    "check_choice",
    "check_levels",
    "check_leverage",
    "check_points",
    "check_sizes",
    "finite",
]


@dataclass(frozen=True)
class Points:
    """Target points of one Gaussian linear model; the arrays broadcast against each other.

    leverage  h̄ = xᵀΣ⁻¹x ≥ 0        error  ε = y − xᵀθ        sigma  σ > 0        k = n − p ≥ 1
    """

    leverage: Array
    error: Array
    sigma: Array
    k: int

    @property
    def ratio(self) -> Array:
        """a = h̄/(n−p); with V = n−p the training residual is the left-out one divided by 1 + a."""
        return self.leverage / self.k

    @property
    def scale(self) -> Array:
        """τ = σ √(h̄/(n−p)), the spread of the left-out residual."""
        return self.sigma * np.sqrt(self.ratio)

    @property
    def drift(self) -> Array:
        """|ε| √a / σ: how far, in units of τ, training pulls the residual."""
        return np.abs(self.error) * np.sqrt(self.ratio) / self.sigma

    @property
    def offset(self) -> Array:
        """m = |ε| / τ; infinite where h̄ = 0, for then nothing spreads."""
        scale = self.scale
        fixed = scale == 0.0
        with np.errstate(over="ignore"):  # a vanishing τ: m = ∞ is the limit
            return np.where(fixed, np.inf, np.abs(self.error) / np.where(fixed, 1.0, scale))


def check_points(leverage: Any, error: Any, n: Any, p: Any, sigma: Any) -> Points:
    """``Points`` from what the caller passed, or an error that names the argument."""
    k = check_sizes(n, p)
    h = check_leverage(leverage)
    eps = finite(error, "error")
    spread = finite(sigma, "sigma")
    _refuse(spread <= 0, spread, "sigma", "the noise's standard deviation must be > 0")
    _broadcast(leverage=h, error=eps, sigma=spread)
    return Points(h, eps, spread, k)


def check_leverage(leverage: Any) -> Array:
    """h̄ as finite float64 numbers ≥ 0."""
    h = finite(leverage, "leverage")
    _refuse(h < 0, h, "leverage", "the population leverage xᵀΣ⁻¹x is ≥ 0 (it may exceed 1)")
    return h


def check_sizes(n: Any, p: Any) -> int:
    """n − p for whole numbers n > p ≥ 1."""
    sizes = {"n": n, "p": p}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise InputError(f"{name}: expected a whole number, got {value!r}")
    if p < 1:
        raise InputError(f"p: expected at least one parameter, got {p}")
    if n <= p:
        raise InputError(f"n: {n} records cannot fix p = {p} parameters; the laws need n > p, so more records")
    return int(n) - int(p)


def check_levels(levels: Any, name: str) -> Array:
    """Probabilities in [0, 1]."""
    values = finite(levels, name)
    _refuse((values < 0) | (values > 1), values, name, "probabilities lie in [0, 1]")
    return values


def check_choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name}: {value!r} is not known; use one of {', '.join(map(repr, choices))}")


def check_broadcast(points: Points, **others: Array) -> None:
    """The other arguments broadcast against the points."""
    _broadcast(leverage=points.leverage, error=points.error, sigma=points.sigma, **others)


def finite(values: Any, name: str) -> Array:
    """Finite float64 numbers."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, got {type(values).__name__} ({error})") from None
    _refuse(~np.isfinite(array), array, name, "pass finite numbers")
    return array


def _refuse(bad: np.ndarray[Any, Any], values: Array, name: str, remedy: str) -> None:
    where = np.flatnonzero(bad)
    if len(where):
        place = f" in {name_rows(where.tolist())} (counted from 0)" if np.ndim(values) else ""
        raise InputError(f"{name}: got {np.ravel(values)[where[0]]:g}{place}; {remedy}")


def _broadcast(**arrays: Array) -> None:
    try:
        np.broadcast_shapes(*(array.shape for array in arrays.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f"shapes: {shapes} do not broadcast; a curve for each of N points takes leverage[:, None]"
        ) from None
