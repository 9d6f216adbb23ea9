"""log(1 + eᵘ) and its changes, to full relative accuracy at both ends."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["HARMLESS", "floored_log", "softplus", "softplus_change"]

HARMLESS = 30.0  # exp of this is far from overflow


def softplus(u: Tensor) -> Tensor:
    """log(1 + exp(u)) to full relative accuracy at both ends (torch's softplus switches to u at 20)."""
    return torch.logaddexp(u, torch.zeros((), dtype=u.dtype, device=u.device))


def softplus_change(u: Tensor, d: Tensor) -> Tensor:
    """softplus(u + d) − softplus(u) to full relative accuracy.

    Left of zero it is log(1 + σ(u)(eᵈ − 1)), where log1p is never near −1. Right of zero softplus(u) is
    u + softplus(−u), which leads back there, but for a large step down across zero, where the plain difference loses
    nothing.
    """
    right = u > 0
    step = torch.where(right, -d, d)
    small = torch.log1p(torch.sigmoid(-u.abs()) * torch.expm1(step.clamp(max=HARMLESS)))
    large = softplus(step - u.abs()) - softplus(-u.abs())  # the first term outweighs the second
    left = torch.where(step < HARMLESS, small, large)
    across = softplus(u + d) - softplus(u)
    return torch.where(right, torch.where((d < -1.0) & (u + d < 0), across, d + left), left)


def floored_log(loss: Tensor) -> Tensor:
    """log of a loss; a residual of exactly zero has the smallest loss that has a logarithm."""
    return loss.clamp_min(torch.finfo(loss.dtype).tiny).log()
