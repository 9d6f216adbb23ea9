"""Studies that could have been: signals of K models on N records, drawn anew from laws that are known.

An attack measures every record with noise, and the study does not say what is record and what is noise. A replica
does: its records have known laws, which differ from record to record as those of the study do, and an attack on it is
as noisy as on the study.

The law of a record is N(μ_in, σ²_in) over the models that have it and N(μ_out, σ²_out) over the others. Three numbers
describe it, apart from where it lies. With m, v the means and unbiased variances of n models per side, ν = n − 1:

    spread ratio   λ = log σ²_in/σ²_out:  log v_in/v_out − λ is the logarithm of an F variable on ν_in, ν_out
    scale          θ = log σ²_out:  e^{−θ} (ν_in v_in e^{−λ} + ν_out v_out) is χ² on ν_in + ν_out
    separation     d′ = (μ_in − μ_out)/s, s² = (σ²_in + σ²_out)/2:  t = (m_in − m_out)/(σ_out √(e^λ/n_in + 1/n_out)) is
                   noncentral t, which ``wallace`` turns into a normal variable

Estimates of the records' numbers spread too widely, being truth plus noise; shrunken to their posterior means they
spread too little. So the distribution of each number over the records is estimated first: the mixture on a grid with
the highest likelihood (Kiefer and Wolfowitz, 1956), by EM. It follows heavy tails, and finds no spread where there is
none. Then the number of each record is *drawn* from its posterior under that distribution. Such draws are spread over
the records as the truth is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

__all__ = [
    "CLEAR",
    "FLOOR",
    "GRID",
    "QUANTILES",
    "SAMPLE",
    "SPREADS",
    "STEPS",
    "Bools",
    "Floats",
    "Laws",
    "Likelihood",
    "Population",
    "Posteriors",
    "Sides",
    "population_of",
    "wallace",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Likelihood = Callable[[Floats], Floats]

GRID = 121  # values that a mixture may take
STEPS = 150  # of EM
SPREADS = np.geomspace(0.05, 20.0, 61)  # of normal distributions over the records, in errors of an estimate
CLEAR = 3.0  # gain in log-likelihood from which records do differ
SAMPLE = 20_000  # records, enough to estimate a distribution over them
QUANTILES = 128  # models per side of a study without noise
FLOOR = 1e-12  # smallest variance of a side, as a fraction of the variance over both


class Laws(NamedTuple):
    """The normal laws of N records, (N,) each."""

    mean_in: Floats
    mean_out: Floats
    sd_in: Floats
    sd_out: Floats

    def study(self, membership: Bools, rng: np.random.Generator) -> Floats:
        """Signals (K, N) of models with this membership (K, N)."""
        return self._signals(membership, rng.standard_normal(membership.shape))

    def study_without_noise(self, rng: np.random.Generator, width: int = 1) -> tuple[Floats, Bools]:
        """Signals (K, N) and membership (K, N/width) of models whose signals are the quantiles of each side's law.

        What an attack says of this study, it says of the laws. ``width`` columns belong to a record and share its
        membership. Every record goes through the same sequence of sides, from a place of its own on, and every column
        through the same quantiles on each side, in an order of its own: so each model has about half of the records,
        and quantiles of all kinds.
        """
        n_records = len(self.sd_in) // width
        places = np.arange(2 * QUANTILES, dtype=np.int16)  # small: these are arrays of all models by all records
        place = places[:, None] + rng.integers(0, 2 * QUANTILES, n_records, dtype=np.int16)
        pair = rng.permutation(places)[place % (2 * QUANTILES)]
        membership = pair < QUANTILES
        levels = ndtri((np.arange(QUANTILES) + 0.5) / QUANTILES)
        turn = np.repeat(pair, width, axis=1) + rng.integers(0, QUANTILES, len(self.sd_in), dtype=np.int16)
        quantiles = rng.permutation(levels / levels.std())[turn % QUANTILES]
        return self._signals(np.repeat(membership, width, axis=1), quantiles), membership

    def _signals(self, membership: Bools, standard: Floats) -> Floats:
        standard *= np.where(membership, self.sd_in, self.sd_out)
        standard += np.where(membership, self.mean_in, self.mean_out)
        return standard


class Posteriors(NamedTuple):
    """What is known of one number of N records: values it may take (G,), posteriors summed up over them (N, G)."""

    grid: Floats
    cumulative: Floats

    def mean(self, values: Floats) -> Floats:
        """Posterior means (N,) of what has these values (G,) on the grid."""
        means: Floats = np.diff(self.cumulative, axis=1, prepend=0.0) @ values
        return means

    def draw(self, rng: np.random.Generator) -> Floats:
        """A value for each record, (N,): a point of the grid from its posterior, then anywhere in that point's cell."""
        level = rng.random((len(self.cumulative), 1))
        point = np.minimum((self.cumulative < level).sum(1), len(self.grid) - 1)
        edges = np.concatenate([self.grid[:1], (self.grid[1:] + self.grid[:-1]) / 2.0, self.grid[-1:]])
        drawn: Floats = edges[point] + rng.random(len(point)) * (edges[point + 1] - edges[point])
        return drawn


class Sides(NamedTuple):
    """Models with and without each record: numbers, means, unbiased variances, (N,) each, and what they allow.

    A record that fewer than two models have or lack says nothing of its law, and is drawn as any record is; one whose
    signal never varies stays as it is.
    """

    n_in: Floats
    n_out: Floats
    mean_in: Floats
    mean_out: Floats
    variance_in: Floats
    variance_out: Floats
    known: Bools
    constant: Bools


class Population(NamedTuple):
    """The records of a study: ``draw`` gives laws that they could have."""

    sides: Sides
    spread_ratio: Posteriors
    scale: Posteriors
    separation: Posteriors

    def draw(self, rng: np.random.Generator) -> Laws:
        """Laws of all N records, from what the study says of each and of all."""
        side = self.sides
        ratio = np.exp(self.spread_ratio.draw(rng))
        sd_out = np.where(side.constant, 0.0, np.exp(self.scale.draw(rng) / 2.0))
        gap = self.separation.draw(rng) * sd_out * np.sqrt((ratio + 1.0) / 2.0)
        weight = side.n_in / ratio
        mean_out = (weight * (side.mean_in - gap) + side.n_out * side.mean_out) / (weight + side.n_out)
        return Laws(mean_out + gap, mean_out, sd_out * np.sqrt(ratio), sd_out)


def population_of(signal: Floats, membership: Bools) -> Population:
    """What a study, signals and membership (K, N), says of the laws of its records."""
    sides = _sides(signal, membership)
    spread_ratio = _spread_ratio(sides)
    ratio = np.exp(spread_ratio.mean(spread_ratio.grid))
    scale = _scale(sides, ratio)
    return Population(sides, spread_ratio, scale, _separation(sides, ratio, scale))


def wallace(t: Floats, freedom: Floats) -> tuple[Floats, Floats]:
    """Student's t as a normal variable: z = sign(t) c √(ν log(1 + t²/ν)), c = (8ν + 1)/(8ν + 3) (Wallace, 1959).

    Second, the standard deviation of z where t is noncentral about that value, by the delta method:
    dz/dt · √(1 + t²/2ν). It is 1 at 0 and falls with |t|.
    """
    shrink = (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0)
    squares = t * t / freedom
    root = np.sqrt(freedom * np.log1p(squares))
    slope = np.divide(np.abs(t), root, out=np.ones_like(root), where=root > 1e-8) / (1.0 + squares)
    return np.sign(t) * shrink * root, shrink * slope * np.sqrt(1.0 + squares / 2.0)


def _sides(signal: Floats, membership: Bools) -> Sides:
    weight = membership.astype(np.float64)
    n_in = weight.sum(0)
    n_out = len(signal) - n_in
    everyone = signal.mean(0)
    x = signal - everyone  # a large common offset is gone before anything is squared
    mean_in, mean_out = (
        np.divide((x * on).sum(0), n, out=np.zeros_like(n), where=n > 0)
        for n, on in ((n_in, weight), (n_out, 1.0 - weight))
    )
    squares = (x - np.where(membership, mean_in, mean_out)) ** 2
    known = (n_in >= 2) & (n_out >= 2)
    variances = [(squares * on).sum(0) / np.maximum(n - 1.0, 1.0) for n, on in ((n_in, weight), (n_out, 1.0 - weight))]
    total = (x * x).mean(0)
    variance_in, variance_out = (np.where(known & (total > 0), np.maximum(v, FLOOR * total), 1.0) for v in variances)
    return Sides(n_in, n_out, everyone + mean_in, everyone + mean_out, variance_in, variance_out, known, total == 0)


def _spread_ratio(side: Sides) -> Posteriors:
    nu_in, nu_out = np.maximum(side.n_in - 1.0, 1.0), np.maximum(side.n_out - 1.0, 1.0)
    found = np.log(side.variance_in / side.variance_out)

    def likelihood(grid: Floats) -> Floats:
        x = found[:, None] - grid
        both = (nu_in + nu_out)[:, None] * np.logaddexp(x, np.log(nu_out / nu_in)[:, None])
        density: Floats = 0.5 * (nu_in[:, None] * x - both)
        return density

    return _posteriors(found, np.sqrt(2.0 / nu_in + 2.0 / nu_out), likelihood, side)


def _scale(side: Sides, ratio: Floats) -> Posteriors:
    nu_in, nu_out = np.maximum(side.n_in - 1.0, 1.0), np.maximum(side.n_out - 1.0, 1.0)
    nu = nu_in + nu_out
    found = np.log((nu_in * side.variance_in / ratio + nu_out * side.variance_out) / nu)

    def likelihood(grid: Floats) -> Floats:
        x = found[:, None] - grid
        density: Floats = 0.5 * nu[:, None] * (x - np.exp(x))
        return density

    return _posteriors(found, np.sqrt(2.0 / nu), likelihood, side)


def _separation(side: Sides, ratio: Floats, scale: Posteriors) -> Posteriors:
    """The scale has a posterior as wide as that of a variance on ``freedom`` degrees of freedom: t has so many."""
    width = scale.mean(scale.grid**2) - scale.mean(scale.grid) ** 2
    freedom = 2.0 / np.maximum(width, 1e-6) + 1.0
    error = np.sqrt(ratio / np.maximum(side.n_in, 1.0) + 1.0 / np.maximum(side.n_out, 1.0))
    errors = np.sqrt((ratio + 1.0) / 2.0) / error  # standard errors in a separation of 1
    t = (side.mean_in - side.mean_out) * np.sqrt(scale.mean(np.exp(-scale.grid))) / error
    z, _ = wallace(t, freedom)

    def likelihood(grid: Floats) -> Floats:
        expected, deviation = wallace(errors[:, None] * grid, freedom[:, None])
        return -0.5 * ((z[:, None] - expected) / deviation) ** 2 - np.log(deviation)

    return _posteriors(t / errors, 1.0 / errors, likelihood, side)


def _posteriors(found: Floats, error: Floats, likelihood: Likelihood, side: Sides) -> Posteriors:
    """From estimates (N,), their errors and the log-likelihood on a grid, (N, G): distribution, then posteriors.

    The grid is dense where the estimates and their errors are, and sparse in the tails.
    """
    varies = side.known & ~side.constant
    if not varies.any():
        return Posteriors(np.zeros(2), np.ones((len(found), 2)))
    middle, unit = float(np.median(found[varies])), float(np.median(error[varies]))
    low, high = (np.arcsinh((end - middle) / unit) for end in (found[varies].min(), found[varies].max()))
    grid = middle + unit * np.sinh(np.linspace(low - 0.1, high + 0.1, GRID))
    weights = np.where(varies[:, None], likelihood(grid), 0.0)
    weights = np.exp(weights - weights.max(1, keepdims=True))
    sample = weights[varies][:: 1 + int(varies.sum()) // SAMPLE]
    cumulative = np.cumsum(weights * _distribution(sample, grid, middle, unit), axis=1)
    return Posteriors(grid, cumulative / cumulative[:, -1:])


def _distribution(likelihood: Floats, grid: Floats, middle: float, unit: float) -> Floats:
    """Shares (G,) of the grid's values among the records, from their likelihoods (n, G).

    The best mixture fits any sample a little better than the truth does, by giving the few records at its ends values
    of their own. Where that is no clear gain over records that are all alike, a normal distribution is taken instead,
    the narrowest of which is all but that.
    """
    normals = np.gradient(grid) * np.exp(-0.5 * ((grid - middle) / (unit * SPREADS[:, None])) ** 2)
    normals /= normals.sum(1, keepdims=True)
    evidence = np.log(np.maximum(likelihood @ normals.T, np.finfo(float).tiny)).sum(0)
    mixture = np.full(len(grid), 1.0 / len(grid))
    for _ in range(STEPS):
        mixture *= (1.0 / (likelihood @ mixture)) @ likelihood / len(likelihood)
    differ = np.log(likelihood @ mixture).sum() - evidence[0] > CLEAR
    shares: Floats = mixture if differ else normals[evidence.argmax()]
    return shares
