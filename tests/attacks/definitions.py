"""The attacks as their definitions read: plain loops, nothing shared with the library."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def counterpart(membership, k, i):
    """The model with k's place among those of record i's other side; past the last it begins again."""
    own = [j for j in range(len(membership)) if membership[j, i] == membership[k, i]]
    other = [j for j in range(len(membership)) if membership[j, i] != membership[k, i]]
    return other[own.index(k) % len(other)]


def references(values, membership, k, i, fair=False):
    """Signals of record i in the other models, with it and without it; fair: without k's counterpart too."""
    left_out = {k, counterpart(membership, k, i)} if fair else {k}
    others = [j for j in range(len(values)) if j not in left_out]
    inside = np.array([values[j, i] for j in others if membership[j, i]])
    outside = np.array([values[j, i] for j in others if not membership[j, i]])
    return inside, outside


def lira_loop(signal, membership, variant="online", variance="per_sample", center="mean", members="higher", fair=False):
    n_models, n_records = signal.shape
    scores = np.empty(signal.shape)
    locate = np.mean if center == "mean" else np.median
    for k in range(n_models):
        squares, freedom = [0.0, 0.0], [0, 0]
        for i in range(n_records):
            for side, values in enumerate(references(signal, membership, k, i, fair)):
                if len(values):
                    squares[side] += np.sum((values - values.mean()) ** 2)
                    freedom[side] += len(values) - 1
        for i in range(n_records):
            density = []
            for side, values in enumerate(references(signal, membership, k, i, fair)):
                if side == 0 and variant != "online":
                    continue
                spread = np.var(values) if variance == "per_sample" else squares[side] / freedom[side]
                density.append(stats.norm(locate(values), math.sqrt(spread)))
            value = signal[k, i]
            if variant == "online":
                scores[k, i] = density[0].logpdf(value) - density[1].logpdf(value)
            elif variant == "offline":
                scores[k, i] = density[0].logcdf(value) if members == "higher" else density[0].logsf(value)
            else:
                scores[k, i] = -density[0].logpdf(value)
    return scores


def rmia_loop(p, membership, p_z=None, variant="online", gamma=1.0, a=0.3, fair=False):
    """Probabilities p (K, N) of records and p_z (K, Z) of the population; None: the pool's other records."""
    n_models, n_records = p.shape

    def average(values, member, k, i):
        inside, outside = references(values, member, k, i, fair and member is membership)
        if variant == "offline":
            return 0.5 * ((1 + a) * outside.mean() + (1 - a))
        return outside.mean() if not len(inside) else 0.5 * (inside.mean() + outside.mean())

    scores = np.empty(p.shape)
    for k in range(n_models):
        own = [p[k, i] / average(p, membership, k, i) for i in range(n_records)]
        nowhere = np.zeros_like(p_z, dtype=bool) if p_z is not None else None
        for i in range(n_records):
            if p_z is None:
                ratios = [own[i] / own[j] for j in range(n_records) if j != i]
            else:
                ratios = [own[i] / (p_z[k, j] / average(p_z, nowhere, k, j)) for j in range(p_z.shape[1])]
            scores[k, i] = np.mean([ratio >= gamma for ratio in ratios])
    return scores


def balanced_rates(decided, membership):
    """½ (true positive rate + true negative rate) of each record; decided (K, N): 1 member, 0.5 undecided, 0 not."""
    rates = []
    for guess, truth in zip(np.asarray(decided, dtype=float).T, membership.T, strict=True):
        rates.append((guess[truth].mean() + (1.0 - guess[~truth]).mean()) / 2.0)
    return np.array(rates)


def half_splits(rng, n_models, n_records, fewest=3):
    """Fair coins, tossed again for a record until it has ``fewest`` models or more on both sides."""
    membership = np.zeros((n_models, n_records), dtype=bool)
    while True:
        counts = membership.sum(0)
        again = np.flatnonzero((counts < fewest) | (counts > n_models - fewest))
        if not len(again):
            return membership
        membership[:, again] = rng.random((n_models, len(again))) < 0.5
