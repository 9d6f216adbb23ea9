"""A few shadow models, used well: what they show of each record, with a prediction made without them as the prior.

For record i let p be any predicted shift of the attack's signal φ (of unknown scale, but growing with the true one),
s the true mean shift between models with and without the record, and d the difference of the means over the n_in
models with it and the n_out without. Empirical Bayes, all constants estimated from the models over all records:

    prior        s ~ N(f, τ²),      f = c·p^γ,    τ² = τ₀² + (τ₁f)²
    measurement  d ~ N(s, v),       v = u_in σ²_in/n_in + u_out σ²_out/n_out,    u ~ ν/χ²_ν
    spreads      σ² = (d₀σ₀²(p) + S)/(d₀ + n − 1) on each side, ν = d₀ + n − 1

* c, γ, τ₀, τ₁ maximise the marginal likelihood of all d. A prediction that says nothing gets γ = 0 and a prior that is
  the same for all records; one that is right gets a small τ. τ₁ is there because errors grow with the shift.
* S is a side's sum of squares about its mean, σ₀² = exp(a + bq + eq²) a trend along the normal score q of p's rank:
  records that are learned by heart vary less over the models with them. d₀ and the trend maximise the likelihood of
  all S: S/(n − 1) is σ₀² times F(n − 1, d₀) (moderated variances: Smyth, 2004,
  https://doi.org/10.2202/1544-6115.1027).
* u is what so few models leave unknown of a record's variance. It makes the noise of d a sum of Student's t, so that
  a record which merely varies much does not pass for an exposed one, nor widen τ for all.

Given d and v, s is normal about f + w(d − f), w = τ²/(τ² + v), with variance wv; both are averaged over what d leaves
of v. Many models send v to 0 and w to 1: LiRA's own means and variances. A record that all models have, or none, has
no d: its prior is all there is.

The largest p are held to ten times their 99 % quantile: leverages near 1 make some predictions explode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import optimize, special, stats

from noshadow.attacks.arrays import (
    Bools,
    Floats,
    as_membership,
    as_models_by_records,
    require_choice,
    require_same_cells,
    to_numpy,
)
from noshadow.attacks.gaussians import expected_accuracy
from noshadow.errors import InputError, name_rows
from noshadow.pairing import is_pandas, require_same_order
from noshadow.tensors import as_floats

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FEWEST_RECORDS", "Posterior", "with_prior"]

FEWEST_RECORDS = 10  # that the constants can be estimated from: with a measured shift, and with freedom on each side
_CAP = 0.99, 10.0  # p is held to so many times its quantile
_LEAST_P = 1e-12  # smallest p, as a fraction of the median of the positive ones: its logarithm is taken
_FREEDOM = 3.0, 1e3  # d₀: below, the noise of d has no variance; above, all records of equal p have one σ
_LATTICE = 34, 21  # values of v per record, neighbours among Fibonacci's numbers
_LEAST_VARIANCE = 1e-6  # of a side, as a fraction of the mean: its logarithm is taken


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    """What a few models and a prediction together say of each record; arrays (N,), in units of the signal.

    Attributes
    ----------
    shift : ndarray
        Posterior mean of the shift of φ, positive the way members move: the number to rank by.
    spread : ndarray
        Its posterior standard deviation.
    success_rate : ndarray
        Expected success rate of the best attack on the record, 0.5 … 1: the test between N(0, σ_out²) and N(s, σ_in²),
        averaged over s. An attack that has to estimate these laws stays below it.
    prior, prior_spread : ndarray
        What is expected of s from the prediction alone, and its standard deviation.
    measured, measured_error : ndarray
        Difference of the means of the models with and without the record, and its standard error; NaN and ∞ where one
        side is empty.
    weight : ndarray
        w, the share of the measurement in ``shift``: 0 the prediction alone, 1 the models alone.
    spread_in, spread_out : ndarray
        σ of φ over models with the record and without.
    exponent : float
        γ of the prior c·p^γ.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> shift = rng.exponential(size=500)
    >>> membership = rng.random((8, 500)) < 0.5
    >>> signal = rng.normal(size=(8, 500)) + shift * membership
    >>> found = attacks.with_prior(signal, membership, predicted=shift * np.exp(0.5 * rng.normal(size=500)))
    >>> found
    Posterior(records=500, mean success rate 0.6906, mean weight 0.25)
    >>> found.table.iloc[:2].round(1)
       shift  spread  success_rate  prior  measured  weight
    0    0.9     0.3           0.7    0.7       2.0     0.1
    1    0.8     0.3           0.7    0.8       0.9     0.1
    """

    shift: Floats
    spread: Floats
    success_rate: Floats
    prior: Floats
    prior_spread: Floats
    measured: Floats
    measured_error: Floats
    weight: Floats
    spread_in: Floats
    spread_out: Floats
    exponent: float

    @property
    def table(self) -> pd.DataFrame:
        """A row per record."""
        import pandas as pd  # here: the attacks themselves need none of it

        names = ("shift", "spread", "success_rate", "prior", "measured", "weight")
        frame: pd.DataFrame = pd.DataFrame({name: getattr(self, name) for name in names})
        return frame

    def __repr__(self) -> str:
        rate, weight = self.success_rate.mean(), self.weight.mean()
        return f"Posterior(records={len(self.shift)}, mean success rate {rate:.4f}, mean weight {weight:.2f})"


def with_prior(
    signal: Any, membership: Any, predicted: Any, *, members: Literal["higher", "lower"] = "higher"
) -> Posterior:
    r"""A few shadow models and a prediction together: the shift of the attack's signal for each record.

    .. math::

        s \mid d \;\approx\; f + w\,(d - f), \qquad f = c\,p^\gamma, \qquad w = \frac{\tau^2}{\tau^2 + v}

    d being the difference of means over the models with and without the record and v its variance; c, γ, τ and the
    spreads are estimated from the models over all records (empirical Bayes; the module's docstring has the model).

    Parameters
    ----------
    signal : array (K, N)
        What ``attacks.signal`` gives, K ≥ 2 models.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    predicted : array (N,)
        p, a predicted shift of each record, such as ``signal_shift``, ``newton`` or ``exposure`` of ``noshadow.score``.
        Larger means a larger shift; its scale does not matter. Negative values count as 0.
    members : "higher" or "lower"
        Whether members' signals are higher (logits) or lower (losses).

    Returns
    -------
    Posterior
        Rank by ``shift``. Records that all models have, or none, have the prediction alone, on the scale of the rest.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, a prediction without a positive value, too few records with
        models on both sides, or with two models on a side, to tell noise from exposure.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> shift = rng.exponential(size=500)
    >>> membership = rng.random((4, 500)) < 0.5
    >>> signal = rng.normal(size=(4, 500)) + shift * membership
    >>> predicted = shift * np.exp(0.5 * rng.normal(size=500))
    >>> found = attacks.with_prior(signal, membership, predicted)
    >>> both = membership.any(0) & ~membership.all(0)
    >>> errors = [np.std((guess - shift)[both]) for guess in (found.shift, found.measured, found.prior)]
    >>> bool(errors[0] < min(errors[1:]))
    True
    """
    require_choice("members", members, ("higher", "lower"), "the way that a predicted shift points")
    require_same_cells(signal, membership)
    x = as_models_by_records(signal, "signal")
    inside = to_numpy(as_membership(membership, x.shape[0], x.shape[1], fewest=2))
    if is_pandas(signal):
        require_same_order(signal.T, predicted, "signal.T", "predicted")
    p = _predicted(predicted, x.shape[1])
    values = to_numpy(x.to(torch.float64))
    unit = _unit(values)
    found = _means(values / unit, inside, 1.0 if members == "higher" else -1.0)
    _require_records(found)
    rank = special.ndtri((stats.rankdata(p) - 0.5) / len(p))
    trend = np.stack([np.ones_like(rank), rank, rank**2], 1)
    of_in, of_out = (_moderated(side, trend) for side in (found.inside, found.outside))
    both = found.two_sided
    noises = _noises(of_in, found.n_in, of_out, found.n_out)
    prior = _fit_prior(np.log(p), found.difference, noises, both)
    weight, variance = _update(prior, found.difference, noises)
    weight = np.where(both, weight, 0.0)
    shift = prior.mean + weight * (found.difference - prior.mean)
    prior_spread = np.sqrt(prior.variance)
    spread = np.where(both, np.sqrt(variance), prior_spread)
    sigma_in, sigma_out = np.sqrt(of_in.variance), np.sqrt(of_out.variance)
    return Posterior(
        shift=unit * shift,
        spread=unit * spread,
        success_rate=expected_accuracy(shift, spread, sigma_in, sigma_out),
        prior=unit * prior.mean,
        prior_spread=unit * prior_spread,
        measured=np.where(both, unit * found.difference, np.nan),
        measured_error=np.where(both, unit * np.sqrt(noises.mean(0)), np.inf),
        weight=weight,
        spread_in=unit * sigma_in,
        spread_out=unit * sigma_out,
        exponent=prior.exponent,
    )


class _Scatter(NamedTuple):
    """Of one side, (N,) each: the sum of squares about its mean, and its freedom n − 1 (0 for none)."""

    squares: Floats
    freedom: Floats


class _Means(NamedTuple):
    """difference of the means (0 where one side is empty), models on each side, their scatter."""

    difference: Floats
    n_in: Floats
    n_out: Floats
    inside: _Scatter
    outside: _Scatter

    @property
    def two_sided(self) -> Bools:
        both: Bools = (self.n_in > 0) & (self.n_out > 0)
        return both


class _Variance(NamedTuple):
    """σ² of a side and the degrees of freedom it rests on, (N,) each."""

    variance: Floats
    freedom: Floats


class _Prior(NamedTuple):
    """f and τ² (N,), γ."""

    mean: Floats
    variance: Floats
    exponent: float


def _predicted(predicted: Any, n_records: int) -> Floats:
    """p > 0, (N,), in units of the median of the positive ones, without the explosions."""
    p = to_numpy(as_floats(predicted, "predicted").to(torch.float64))
    if p.shape != (n_records,):
        raise InputError(f"predicted: expected shape ({n_records},), a number per record of signal, got {p.shape}")
    bad = np.flatnonzero(~np.isfinite(p)).tolist()
    if bad:
        raise InputError(
            f"predicted: NaN or infinite in {name_rows(bad)} (counted from 0); pass the records that have a "
            "prediction, and their columns of signal and membership"
        )
    if not (p > 0).any():
        raise InputError(
            "predicted: no value is positive, but a predicted shift is, for exposed records; pass the score itself and "
            "not its logarithm, with the sign that grows with the exposure"
        )
    unit = np.median(p[p > 0])
    quantile, times = _CAP
    largest = times * max(float(np.quantile(p, quantile)) / unit, 1.0)
    held: Floats = np.clip(p / unit, _LEAST_P, largest)
    return held


def _unit(values: Floats) -> float:
    """A power of two about as large as the largest range of a record over the models: its square is harmless."""
    half = float((values.max(0) / 2.0 - values.min(0) / 2.0).max())
    return float(2.0 ** np.frexp(half)[1])


def _means(x: Floats, inside: Bools, sign: float) -> _Means:
    x = sign * (x - x[0])
    sides, means = [], []
    for side in (inside, ~inside):
        n = side.sum(0)
        mean = np.where(side, x, 0.0).sum(0) / np.maximum(n, 1)
        sides.append(_Scatter(np.where(side, (x - mean) ** 2, 0.0).sum(0), np.maximum(n - 1.0, 0.0)))
        means.append(mean)
    n_in = inside.sum(0).astype(np.float64)
    n_out = len(x) - n_in
    return _Means(np.where((n_in > 0) & (n_out > 0), means[0] - means[1], 0.0), n_in, n_out, *sides)


def _require_records(found: _Means) -> None:
    """Enough to estimate the constants from, and a signal that varies."""
    n_two = int(found.two_sided.sum())
    if n_two < FEWEST_RECORDS:
        raise InputError(
            f"membership: {n_two} records have models on both sides, at least {FEWEST_RECORDS} are needed to put the "
            "prediction on the scale of the signal; train more models, or pass more records"
        )
    for name, side in (("with", found.inside), ("without", found.outside)):
        free = int((side.freedom > 0).sum())
        if free < FEWEST_RECORDS:
            raise InputError(
                f"membership: {free} records have two models or more {name} them, at least {FEWEST_RECORDS} are needed "
                "to tell the noise of the models from exposure; train one more model, or draw their splits "
                "independently of each other"
            )
        if not side.squares.any():
            raise InputError(
                f"signal: the models {name} a record all say the same of it, for all records; shadow models differ, by "
                "their seeds and their other records"
            )


def _moderated(side: _Scatter, trend: Floats) -> _Variance:
    """σ² between each record's own and the trend, (d₀σ₀² + S)/(d₀ + n − 1), d₀ and the trend by maximum likelihood."""
    free = side.freedom > 0
    d, rows = side.freedom[free], trend[free]
    own = side.squares[free] / d
    logs = np.log(np.maximum(own, _LEAST_VARIANCE * own.mean()))
    unbiased = logs - special.digamma(d / 2.0) + np.log(d / 2.0)  # the mean of log χ²_d/d taken off
    start, *_ = np.linalg.lstsq(rows * np.sqrt(d)[:, None], unbiased * np.sqrt(d), rcond=None)

    def cost(constants: Floats) -> tuple[float, Floats]:
        """−mean log density of F(d, d₀) in log σ̂²/σ₀², and its gradient."""
        e, d0 = logs - rows @ constants[:-1], np.exp(constants[-1])
        ratio = d / d0 * np.exp(np.clip(e, -60.0, 60.0))
        share, more, half = ratio / (1.0 + ratio), np.log1p(ratio), (d + d0) / 2.0
        constant = special.gammaln(half) - special.gammaln(d0 / 2.0) - special.gammaln(d / 2.0)
        density = constant + d / 2.0 * (np.log(d / d0) + e) - half * more
        by_freedom = 0.5 * (special.digamma(half) - special.digamma(d0 / 2.0) - d / d0 - more) + half * share / d0
        by_trend = rows.T @ (d / 2.0 - half * share) / len(d)
        return -float(density.mean()), np.append(by_trend, -d0 * by_freedom.mean())

    limits = [(None, None)] * len(start) + [tuple(np.log(_FREEDOM))]
    best = optimize.minimize(cost, np.append(start, np.log(5.0)), jac=True, method="L-BFGS-B", bounds=limits).x
    d0, expected = float(np.exp(best[-1])), np.exp(trend @ best[:-1])
    return _Variance((d0 * expected + side.squares) / (d0 + side.freedom), d0 + side.freedom)


def _noises(of_in: _Variance, n_in: Floats, of_out: _Variance, n_out: Floats) -> Floats:
    """Equally likely values (J, N) of v = u_in σ²_in/n_in + u_out σ²_out/n_out.

    The quantiles of the two u are paired as the points of Fibonacci's lattice in the square: evenly, in few.
    """
    j = np.arange(_LATTICE[0])
    total = np.zeros((len(j), len(n_in)))
    for side, n, place in ((of_in, n_in, j), (of_out, n_out, j * _LATTICE[1] % len(j))):
        half, level = side.freedom / 2.0, (place + 0.5) / len(j)
        total += side.variance / np.maximum(n, 1.0) * (half / special.gammaincinv(half, level[:, None]))
    return total


def _fit_prior(logs: Floats, difference: Floats, noises: Floats, both: Bools) -> _Prior:
    """c, γ, τ₀, τ₁ by maximum marginal likelihood of the differences; logs log p (N,), noises (J, N)."""
    d, v, own = difference[both], noises[:, both], logs[both]
    unit = float(np.sqrt(np.mean(d**2 + np.median(v, axis=0))))

    def prior(constants: Floats, at: Floats) -> tuple[Floats, float, Floats]:
        """f, τ₀² and (τ₁f)²."""
        mean = unit * np.exp(np.clip(constants[0] + constants[1] * at, -40.0, 40.0))
        return mean, (unit * np.exp(constants[2])) ** 2, (np.exp(constants[3]) * mean) ** 2

    def cost(constants: Floats) -> tuple[float, Floats]:
        """−mean log likelihood and its gradient."""
        mean, level, relative = prior(constants, own)
        off, total = d - mean, v + (level + relative)
        log_likelihood, share = _likelihoods(off, total)
        by_mean = off * (share / total).sum(0)
        by_variance = 0.5 * (share * (off**2 / total - 1.0) / total).sum(0)
        by_size = by_mean * mean + by_variance * 2.0 * relative  # f enters τ² too
        gradient = [by_size.mean(), (by_size * own).mean()]
        gradient += [(by_variance * 2.0 * level).mean(), (by_variance * 2.0 * relative).mean()]
        return -float(log_likelihood.mean()), -np.array(gradient)

    limits = [(-30.0, 30.0), (0.0, 3.0), (-15.0, 5.0), (-8.0, 2.0)]
    found = []
    for exponent in (0.3, 1.0):  # slow growth and steep growth: each may have a hill of its own
        size = max(float(d.mean()) / unit, 1e-3) / float(np.exp(exponent * own).mean())
        start = [float(np.log(size)), exponent, np.log(0.3), np.log(0.3)]
        found.append(optimize.minimize(cost, start, jac=True, method="L-BFGS-B", bounds=limits))
    best = min(found, key=lambda result: float(result.fun)).x
    mean, level, relative = prior(best, logs)
    return _Prior(mean, level + relative, float(best[1]))


def _update(prior: _Prior, difference: Floats, noises: Floats) -> tuple[Floats, Floats]:
    """The mean of w and the variance of s given d, over the values of v, (N,) each."""
    off, total = difference - prior.mean, prior.variance + noises
    _, share = _likelihoods(off, total)
    weights = prior.variance / total
    weight = (share * weights).sum(0)
    return weight, (share * (weights * noises + (weights - weight) ** 2 * off**2)).sum(0)


def _likelihoods(off: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Of ``off`` (N,) under equally likely variances (J, N): the log likelihood but for a constant, (N,), and what each
    variance has of it, (J, N)."""
    logs = -0.5 * (np.log(variance) + off**2 / variance)
    top = logs.max(0)
    share = np.exp(logs - top)
    total = share.sum(0)
    return top + np.log(total), share / total
