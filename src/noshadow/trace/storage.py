"""A trace as arrays and facts: for a file, and for the checkpoints of a training run.

mean_outputs  (n, m)  float32          rest    (n, m)  the bits of bfloat16, as whole numbers
average       (n,)    float64          kept    (k, n)  float32, the losses of some epochs
losses        (epochs, n)  where all of them are kept
marks         (n,)    whole numbers made of the targets
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

import numpy as np
import torch

from noshadow.artefact import Arrays, UnusableArtefact, read_artefact, write_artefact
from noshadow.errors import FileError
from noshadow.heads import HEADS
from noshadow.trace.losses import AllLosses, Losses, RunningLosses
from noshadow.trace.means import RunningMean
from noshadow.trace.memory import Memory

__all__ = ["IDENTITY", "SCHEMA", "Parts", "digest_of", "memory_of", "parts_of", "read_memory", "write_memory"]

SCHEMA = 1
"""Raised when the same names mean something else."""
IDENTITY = {"noshadow": "trace", "schema": SCHEMA}

Parts = tuple[Arrays, dict[str, Any]]


def write_memory(path: str | os.PathLike[str], memory: Memory) -> None:
    """Keep it; when this returns it is on the disk, whole, for its owner alone to read."""
    arrays, facts = parts_of(memory)
    write_artefact(path, arrays, IDENTITY, facts)


def read_memory(path: str | os.PathLike[str]) -> Memory:
    """What was kept; a file that is damaged or of something else is refused."""
    try:
        found = read_artefact(path, IDENTITY)
    except UnusableArtefact as error:
        raise FileError(f"trace: {path} is not a trace that this version reads ({error})") from None
    except OSError as error:
        raise FileError(f"trace: {path} cannot be read ({error.strerror})") from None
    return memory_of(found.arrays, found.facts)


def parts_of(memory: Memory) -> Parts:
    """The arrays and facts that a memory consists of."""
    arrays: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] = {
        "epochs": memory.epochs,
        "head": memory.head,
        "label_smoothing": memory.label_smoothing,
    }
    if memory.outputs is not None:
        arrays |= {"mean_outputs": memory.outputs.mean, "rest": memory.outputs.rest.view(torch.int16)}
    if isinstance(memory.losses, RunningLosses):
        arrays |= {"average": memory.losses.average, "kept": torch.stack(memory.losses.kept)}
        facts |= {"stride": memory.losses.stride, "capacity": memory.losses.capacity}
    elif isinstance(memory.losses, AllLosses):
        losses = memory.losses.values
        arrays["losses"] = losses.float() if losses.dtype == torch.bfloat16 else losses  # NumPy has no such type
    if memory.marks is not None:
        arrays["marks"] = memory.marks
    return {name: np.ascontiguousarray(array.cpu().numpy()) for name, array in arrays.items()}, facts


def digest_of(memory: Memory) -> str:
    """SHA-256 of all that a memory holds: whatever a score may take of it is in there."""
    arrays, facts = parts_of(memory)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def memory_of(arrays: Arrays, facts: dict[str, Any]) -> Memory:
    """The inverse of ``parts_of``."""
    held = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    outputs = None
    losses: Losses | None = None
    try:
        epochs = int(facts["epochs"])
        if "mean_outputs" in held:
            outputs = RunningMean(epochs, held["mean_outputs"], held["rest"].view(torch.bfloat16))
        if "average" in held:
            kept = tuple(held["kept"].unbind(0))
            losses = RunningLosses(held["average"], epochs, int(facts["stride"]), kept, int(facts["capacity"]))
        elif "losses" in held:
            losses = AllLosses(held["losses"])
        found = Memory(epochs, outputs, losses, facts["head"], float(facts["label_smoothing"]), held.get("marks"))
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"trace: what it holds is not complete ({error}); the file is damaged") from None
    _require_consistent(found, held)
    _require_run(found, held)
    return found


def _require_consistent(memory: Memory, held: dict[str, torch.Tensor]) -> None:
    """All arrays are of the same records, in their types: a file may be anybody's, with a checksum that is right."""
    n = memory.n
    shapes: dict[str, tuple[torch.dtype, tuple[int | None, ...]]] = {
        "mean_outputs": (torch.float32, (n, None)),
        "rest": (torch.int16, (n, None)),
        "average": (torch.float64, (n,)),
        "kept": (torch.float32, (None, n)),
        "marks": (torch.int64, (n,)),
    }
    for name, (dtype, shape) in shapes.items():
        array = held.get(name)
        if array is None:
            continue
        fits = array.dtype == dtype and array.ndim == len(shape)
        if not fits or any(size not in (None, there) for size, there in zip(shape, array.shape, strict=True)):
            raise FileError(f"trace: {name} is not that of {n} records; the file is damaged")
    if memory.outputs is not None and memory.outputs.mean.shape != memory.outputs.rest.shape:
        raise FileError("trace: rest is not that of mean_outputs; the file is damaged")
    if memory.losses is not None and memory.losses.n != n:
        raise FileError(f"trace: its losses are not those of {n} records; the file is damaged")


def _require_run(memory: Memory, held: dict[str, torch.Tensor]) -> None:
    """As many epochs as its losses are of, and numbers in all of them."""
    losses, epochs = memory.losses, memory.epochs
    if memory.head not in (None, *HEADS) or not 0.0 <= memory.label_smoothing <= 1.0:
        raise FileError("trace: its head, or its label_smoothing, is none; the file is damaged")
    whole = epochs == 0 if memory.n is None else epochs > 0
    if isinstance(losses, RunningLosses):
        whole = whole and losses.stride > 0 and losses.capacity > 1
        whole = whole and len(losses.kept) == -(-epochs // losses.stride) <= losses.capacity
    elif isinstance(losses, AllLosses):
        whole = whole and len(losses.values) == epochs
    if not whole:
        raise FileError(f"trace: its losses are not those of {epochs} epochs; the file is damaged")
    for name in ("mean_outputs", "average", "kept"):
        if name in held and not bool(torch.isfinite(held[name]).all()):
            raise FileError(f"trace: {name} is not finite; the file is damaged")
