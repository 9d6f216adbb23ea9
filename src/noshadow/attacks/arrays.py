"""What every attack checks before it computes, and how it walks over the records.

K models by N records is the shape of everything here: ``values[k, i]`` is what model k says about record i
and ``membership[k, i]`` whether it was trained on it. Messages call a record a row, as in the training table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows, warn_caller
from noshadow.pairing import is_pandas, require_same_order
from noshadow.tensors import as_floats, as_tensor

__all__ = [
    "CHUNK_BYTES",
    "MIN_MODELS",
    "Bools",
    "Floats",
    "as_membership",
    "as_models_by_records",
    "attackable",
    "column_chunks",
    "models_in",
    "one_thread",
    "require_choice",
    "require_finite",
    "require_same_cells",
    "require_variety",
    "to_numpy",
]

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MIN_MODELS = 4
CHUNK_BYTES = 240_000  # one float64 work array of a chunk: a handful stay in cache, and none is worth a second thread


def as_models_by_records(values: Any, name: str, extra: bool = False) -> Tensor:
    """Finite values of shape (K, N), or (K, N, A) where ``extra`` queries per record are allowed."""
    tensor = as_floats(values, name)
    if tensor.ndim != 2 and not (extra and tensor.ndim == 3):
        shapes = "(K, N) or (K, N, A)" if extra else "(K, N)"
        raise InputError(f"{name}: expected shape {shapes}, models by records, got {tuple(tensor.shape)}")
    if 0 in tensor.shape[1:]:
        raise InputError(f"{name}: there are no records in shape {tuple(tensor.shape)}")
    require_finite(tensor, name)
    return tensor


def require_finite(values: Tensor, name: str) -> None:
    """NaN or infinity anywhere names its records (dimension 1) and the first model that shows it."""
    if all(bool(torch.isfinite(block).all()) for block in torch.split(values.flatten(), CHUNK_BYTES // 8)):
        return
    bad = ~torch.isfinite(values.flatten(2) if values.ndim > 2 else values.unsqueeze(2)).all(2)
    rows = bad.any(0).nonzero().flatten().tolist()
    model = int(bad[:, rows[0]].nonzero()[0])
    raise InputError(
        f"{name}: NaN or infinite in {name_rows(rows)} (counted from 0), first in model {model}; "
        "leave out the models that diverged or the records they fail on"
    )


def as_membership(membership: Any, n_models: int, n_records: int, fewest: int = MIN_MODELS) -> Tensor:
    """The 0/1 matrix (K, N) as booleans, of ``fewest`` models or more."""
    raw = as_tensor(membership, "membership")
    if tuple(raw.shape) != (n_models, n_records):
        raise InputError(
            f"membership: expected shape ({n_models}, {n_records}), models by records, got {tuple(raw.shape)}"
        )
    if raw.dtype != torch.bool and not bool(((raw == 0) | (raw == 1)).all()):
        raise InputError("membership: expected booleans or 0 and 1")
    if n_models < fewest:
        raise InputError(f"membership: {n_models} models; an attack needs at least {fewest}, better 64 or more")
    return raw.to(torch.bool, copy=True)  # the result keeps it, whatever becomes of the caller's array


def require_same_cells(signal: Any, membership: Any) -> None:
    """Refuse frames of the same models and records in another order: cells pair by position, not by their labels."""
    if not (is_pandas(signal) and is_pandas(membership)) or signal.shape != membership.shape or signal.ndim != 2:
        return
    require_same_order(signal, membership, "signal", "membership")
    first, second = signal.columns, membership.columns
    differ = (first != second).nonzero()[0]
    if len(differ) and not len(first.symmetric_difference(second, sort=False)):
        raise InputError(
            f"membership: its columns have the labels of signal in another order, first in column {int(differ[0])} "
            "(counted from 0); pass membership[signal.columns], or membership.to_numpy() where the columns do pair by "
            "position"
        )


def attackable(inside: Tensor, fewest_in: int = 1, fewest_out: int = 1, remedy: str = "train more models") -> Tensor:
    """Which records enough models have and enough have not, (N,); the others are named in a warning.

    An attack knows nothing of a record that too few models have or lack. It leaves such records undecided (see
    ``result.undecided_elsewhere``) instead of refusing all the others. Where none is left it raises.
    """
    n_models, counts = inside.shape[0], models_in(inside)
    known = (counts >= fewest_in) & (counts <= n_models - fewest_out)
    rows = (~known).nonzero().flatten().tolist()
    if rows:
        n_in = int(counts[rows[0]])
        number = {0: "no model", n_models: "all models"}.get(n_in, f"{n_in} of {n_models} models")
        message = (
            f"membership: member of {number} in {name_rows(rows)} (counted from 0); the attack needs at least "
            f"{fewest_in} models with a record and {fewest_out} without; {remedy}"
        )
        if len(rows) == len(counts):
            raise InputError(message)
        one = "it is" if len(rows) == 1 else "they are"
        warn_caller(f"{message}; {one} counted as undecided, success rate 0.5")
    return known


def require_variety(values: Tensor, name: str, what: str) -> None:
    """An error where a statistic is one and the same number for all models and records: nothing is told apart by it."""
    if bool((values == values.flatten()[0]).all()):
        raise InputError(
            f"{name}: {what} is the same for all models and records, {float(values.flatten()[0]):g}; "
            "they are constant, or too small or too large for it to differ in floating point"
        )


def models_in(inside: Tensor) -> Tensor:
    """How many of the models have each record, (N,); by NumPy, which counts booleans ten times faster."""
    return torch.from_numpy(to_numpy(inside).sum(0)).to(inside.device)


def require_choice(name: str, value: str, choices: tuple[str, ...], which: str = "") -> None:
    """A named option, or an error that lists the names and says ``which`` they are."""
    if value not in choices:
        names = ", ".join(map(repr, choices))
        raise InputError(f"{name}: {value!r} is not one of {names}" + (f", {which}" if which else ""))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to the calling thread, then give back what it had.

    Chunks are small enough for the cache, so that a second thread has little to do, and on a machine with
    other work its waiting multiplies the time (measured: LiRA five times slower on two busy cores).
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def column_chunks(n_records: int, values_per_record: int) -> Iterator[slice]:
    """Slices of records whose float64 work array stays within CHUNK_BYTES."""
    size = max(1, CHUNK_BYTES // (8 * max(1, values_per_record)))
    for start in range(0, n_records, size):
        yield slice(start, min(start + size, n_records))


def to_numpy(values: Tensor) -> npt.NDArray[Any]:
    """A NumPy array on the CPU."""
    array: npt.NDArray[Any] = values.cpu().numpy()
    return array
