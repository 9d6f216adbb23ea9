"""Records that are there more than once: the same features to the last bit, by a number made of each row.

A record hides its twin. With the other still there, leaving one of the two out changes the fit less, the more so the
higher its leverage, so that both look safer than they are: an attacker who asks whether the record was trained on sees
it all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.layer import LastLayer
from noshadow.records import Records
from noshadow.trace.memory import marks_of

__all__ = ["Marks", "Repeats", "find_repeats"]

_ENTRIES = 2**20  # numbers that are worked on at a time
_HALF = 32  # bits

Marks = NDArray[np.int64]


@dataclass(frozen=True)
class Repeats:
    """Rows of records that have a twin.

    same   those whose features and target another record has too
    other  those whose features another record has with another target
    """

    same: tuple[int, ...] = ()
    other: tuple[int, ...] = ()


def find_repeats(layer: LastLayer) -> Repeats:
    """One pass over the features, some records at a time; then numbers are sorted, one per record."""
    random = np.random.default_rng(0).integers(-(2**62), 2**62, size=layer.n_columns, dtype=np.int64)
    odd = 2 * random + 1
    size = max(1, _ENTRIES // layer.n_columns)
    features = np.empty(layer.n, dtype=np.int64)
    for part in layer.chunks(size):
        features[part] = _marks(layer.records(part), odd)
    ordered = np.sort(features)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return Repeats()
    rows = np.flatnonzero(np.isin(features, twice))
    pairs = np.stack([features[rows], marks_of(layer.targets).numpy()[rows]], 1)
    (with_features, with_both) = (_copies(marks) for marks in (pairs[:, :1], pairs))
    return Repeats(tuple(rows[with_both > 1].tolist()), tuple(rows[with_features > with_both].tolist()))


def _copies(marks: Marks) -> Marks:
    """How often each row is there, (c,)."""
    _, place, copies = np.unique(marks, axis=0, return_inverse=True, return_counts=True)
    return np.asarray(copies[place.reshape(-1)])


def _marks(records: Records, odd: Marks) -> Marks:
    """Σ over the columns of a mixture of an entry's bits, (c,), modulo 2⁶⁴; an entry of 0 adds nothing."""
    if isinstance(records.source, Tensor):
        bits = (records.source.cpu().to(torch.float64) + 0.0).contiguous().numpy().view(np.int64)  # −0 is 0
        return np.asarray(_mixed(bits, odd).sum(1, dtype=np.int64))
    table = records.source.table
    entries = _mixed((table.data + 0.0).view(np.int64), odd[table.indices])
    sums = np.concatenate([[0], np.cumsum(entries, dtype=np.int64)])
    return np.asarray(sums[table.indptr[1:]] - sums[table.indptr[:-1]])


def _mixed(bits: Marks, odd: Marks) -> Marks:
    with np.errstate(over="ignore"):  # it wraps around
        once = (bits ^ (bits >> _HALF)) * odd
        return np.asarray((once ^ (once >> _HALF)) * odd)
