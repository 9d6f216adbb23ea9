"""Real least-squares refits around a fixed target point: the truth that the laws are held against."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

P = 3
COVARIANCE = np.array([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]])
THETA = np.array([1.5, -2.0, 0.7])


class Refits(NamedTuple):
    loss_in: np.ndarray
    loss_out: np.ndarray
    leverage: np.ndarray


def target(leverage: float) -> np.ndarray:
    """A point x with xᵀΣ⁻¹x = leverage."""
    x = np.array([1.0, -0.5, 2.0])
    return x * np.sqrt(leverage / (x @ np.linalg.inv(COVARIANCE) @ x))


def refit(k: int, leverage: float, error: float, sigma: float, count: int, seed: int) -> Refits:
    """Fit n = k + P records with and without the target, ``count`` times on fresh data; scalar response."""
    noise = np.array([[sigma**2]])
    return refit_many(k, leverage, np.array([error]), noise, count, seed)


def refit_many(k: int, leverage: float, error: np.ndarray, noise: np.ndarray, count: int, seed: int) -> Refits:
    """The same with q responses of noise covariance ``noise``."""
    rng = np.random.default_rng(seed)
    x = target(leverage)
    q = len(error)
    theta = np.stack([THETA * (1 + j) for j in range(q)], axis=1)
    y = x @ theta + error
    others = rng.standard_normal((count, k + P - 1, P)) @ np.linalg.cholesky(COVARIANCE).T
    responses = others @ theta + rng.standard_normal((count, k + P - 1, q)) @ np.linalg.cholesky(noise).T
    gram = np.swapaxes(others, 1, 2) @ others
    moment = np.swapaxes(others, 1, 2) @ responses
    without = np.linalg.solve(gram, moment)
    full = gram + np.outer(x, x)
    with_target = np.linalg.solve(full, moment + np.outer(x, y))
    h = np.linalg.solve(full, np.broadcast_to(x[:, None], (count, P, 1)))[:, :, 0] @ x
    loss_in = ((y - np.einsum("p,cpq->cq", x, with_target)) ** 2).sum(1)
    loss_out = ((y - np.einsum("p,cpq->cq", x, without)) ** 2).sum(1)
    return Refits(loss_in, loss_out, h)
