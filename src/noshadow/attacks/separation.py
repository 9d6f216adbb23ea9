"""Means and spreads of a statistic over the models with and without a record, and their separation.

Everything is a few passes over (K, c) arrays, K models by some of the records. Membership enters as weights
w ∈ {0, 1}: ``torch.lerp(out, in, w)`` picks a side's value exactly and several times faster than a ``where``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from noshadow.attacks.arrays import Floats, column_chunks, to_numpy

__all__ = ["Side", "centred", "separation", "separations", "sides", "units"]


class Side(NamedTuple):
    """The models on one side of each record, (c,) each."""

    n: Tensor
    mean: Tensor
    scatter: Tensor  # sum of squares about the mean

    @property
    def variance(self) -> Tensor:
        """Population variance."""
        return self.scatter / self.n


def units(values: Tensor) -> Tensor:
    """A power of two about as large as each record's range over the models, (N,): 1 for a constant.

    Deviations in these units can be squared whatever their size, and a power of two rounds nothing.
    """
    n_models, n_records = values.shape
    unit = torch.empty(n_records, dtype=torch.float64, device=values.device)
    for columns in column_chunks(n_records, n_models):
        part = values[:, columns].to(torch.float64)
        half = part.amax(0) / 2.0 - part.amin(0) / 2.0  # the range itself may overflow
        unit[columns] = torch.exp2(torch.frexp(half).exponent.clamp(-1000, 1000).to(torch.float64))
    return unit


def centred(values: Tensor, unit: Tensor, columns: slice) -> Tensor:
    """Some records' values in float64 and in their units (N,) less those of the first model, (K, c).

    A large common offset is gone before anything is summed, and a constant is exactly 0.
    """
    part = values[:, columns].to(torch.float64) / unit[columns]
    return part - part[0]


def sides(x: Tensor, weight: Tensor) -> tuple[Side, Side, Tensor]:
    """In-side, out-side and each model's deviation from its own side's mean; x, weight (K, c) in float64.

    Two passes: sums of squares are taken about the means, never as differences of raw sums.
    """
    member = x * weight
    n_in = weight.sum(0)
    n_out = x.shape[0] - n_in
    mean_in = member.sum(0) / n_in
    mean_out = (x - member).sum(0) / n_out  # x − w x is x or 0: each side is summed on its own
    deviation = x - torch.lerp(mean_out, mean_in, weight)
    squares = deviation.square()
    of_members = squares * weight
    scatter_in = of_members.sum(0)
    scatter_out = squares.sub_(of_members).sum(0)
    return Side(n_in, mean_in, scatter_in), Side(n_out, mean_out, scatter_out), deviation


def separation(inside: Side, outside: Side) -> tuple[Tensor, Tensor]:
    """d̂′ = (μ_in − μ_out)/s, s² = (σ²_in + σ²_out)/2 with population variances, and its standard error.

    By the delta method for Gaussian statistics, with n_in and n_out models on the sides,
        se² = (σ²_in/n_in + σ²_out/n_out)/s² + d̂′² (σ⁴_in/n_in + σ⁴_out/n_out) / (8 s⁴).
    A statistic that never varies has d̂′ = 0; one that is constant on both sides but differs has d̂′ = ±∞.
    """
    difference = inside.mean - outside.mean
    half = (inside.variance + outside.variance) / 2.0
    d = difference / half.sqrt()
    location = (inside.variance / inside.n + outside.variance / outside.n) / half
    spread = (inside.variance.square() / inside.n + outside.variance.square() / outside.n) / half.square()
    error = (location + d.square() * spread / 8.0).sqrt()
    return torch.where(difference == 0, 0.0, d), torch.where(half > 0, error, torch.inf)


def separations(statistic: Tensor, inside: Tensor) -> tuple[Floats, Floats]:
    """d̂′ and its standard error for every record, (N,) each; statistic (K, N), inside (K, N) booleans."""
    n_models, n_records = statistic.shape
    result = torch.empty((2, n_records), dtype=torch.float64, device=statistic.device)
    unit = units(statistic)
    for columns in column_chunks(n_records, n_models):
        of_members, of_others, _ = sides(centred(statistic, unit, columns), inside[:, columns].to(torch.float64))
        result[0, columns], result[1, columns] = separation(of_members, of_others)
    return to_numpy(result[0]), to_numpy(result[1])
