"""Whether what a trace holds is of the records of a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from noshadow.errors import InputError, warn_caller
from noshadow.layer import LastLayer
from noshadow.tensors import as_floats
from noshadow.trace.consistency import note_rounding, require_convex
from noshadow.trace.losses import AllLosses
from noshadow.trace.memory import Memory, marks_of, require_same

if TYPE_CHECKING:
    from noshadow.trace.trace import Trace

__all__ = ["lone_epoch", "losses_for", "rank_agreement", "require_bound"]

_CHUNK = 65_536  # records at a time
_FEWEST = 50  # records for a rank correlation that says something


def require_bound(memory: Memory, outputs: Tensor | None, layer: LastLayer) -> None:
    """Refuse what is of other records, another head, other outputs; ``outputs`` (epochs, n, m) where they are held."""
    if not memory.epochs:
        raise InputError("trace: it holds no epoch; call trace.update(model, data) after each epoch of training")
    if isinstance(memory.losses, AllLosses):
        losses_for(memory.losses.values, layer)
    if memory.outputs is not None:
        _require_shape(outputs, memory.outputs.mean, layer)
        _require_logits(memory.outputs.mean, layer)
    if memory.outputs is not None:
        if isinstance(memory.losses, AllLosses) and memory.head is None:  # they came separately
            require_convex(memory.losses, memory.outputs.mean, layer)
        note_rounding(memory.outputs.mean, layer)
    if memory.head is not None and memory.head != layer.head:
        raise InputError(
            f"trace: its losses are those of a {memory.head} head, the layer has a {layer.head} one; make it with "
            f"Trace(head={layer.head!r})"
        )
    if memory.marks is not None:
        require_same(memory.marks, marks_of(layer.targets), "trace", "the layer's")
    if memory.head is not None and memory.label_smoothing != layer.label_smoothing:
        warn_caller(
            f"trace: its losses were taken with label_smoothing={memory.label_smoothing:g}, the layer has "
            f"{layer.label_smoothing:g}; exposure, mean_trace and trace_iqr take the former. Make the trace with "
            f"Trace(label_smoothing={layer.label_smoothing:g})"
        )


def rank_agreement(trace: Trace, layer: LastLayer) -> float | None:
    """Rank correlation of what the run and the end say of the records; None of few records, or where all are alike.

    Records that were hard for a run, by their mean loss or the loss at the mean output, are hard for its model, and for
    another of the same recipe. Of squared error that need not be: a network that has fitted all values leaves residuals
    that nobody could foresee. Its mean outputs are then ordered as the final ones; or, where there are losses alone,
    values far from the mean have had the larger ones. The highest of these is taken: of other records all are near 0.
    """
    if layer.n < _FEWEST:
        return None
    sides: dict[str, list[Tensor]] = {"end": [], "run": [], "outputs": [], "mean": [], "targets": []}
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        sides["end"].append(layer.kind.loss(records.outputs, records.targets).cpu())
        sides["outputs"].append(records.outputs.cpu())
        sides["targets"].append(records.targets.reshape(len(records.outputs), -1).cpu())
        if trace.mean_outputs is not None:
            sides["mean"].append(trace.mean_outputs[rows].cpu())
        if trace.losses is not None:
            sides["run"].append(trace.losses.mean(rows).cpu())
        elif trace.mean_outputs is not None:
            sides["run"].append(layer.kind.loss(trace.mean_outputs[rows].to(records.outputs), records.targets).cpu())
    if not sides["run"]:
        return None
    whole = {name: torch.cat(parts) for name, parts in sides.items() if parts}
    found = [_rank_correlation(whole["end"], whole["run"])]
    if not layer.kind.classifies and "mean" in whole:
        found += [_rank_correlation(*pair) for pair in zip(whole["outputs"].T, whole["mean"].T, strict=True)]
    elif not layer.kind.classifies:
        spread = (whole["targets"] - whole["targets"].mean(0)).square().sum(1)
        found.append(_rank_correlation(spread, whole["run"]))
    return max((one for one in found if one is not None), default=None)


def _rank_correlation(one: Tensor, other: Tensor) -> float | None:
    from scipy import stats  # here: a trace that is being recorded does without

    first, second = one.numpy(), other.numpy()
    if first.min() == first.max() or second.min() == second.max():
        return None
    return float(stats.spearmanr(first, second).statistic)


def lone_epoch(trace: Trace, layer: LastLayer) -> Literal["last", "other"] | None:
    """Of a trace of one epoch: whether its outputs are the final ones, to the rounding of float32; else None."""
    mean = trace.mean_outputs
    if trace.epochs != 1 or mean is None:
        return None
    for rows in layer.chunks(_CHUNK):
        final = layer.records(rows).outputs.cpu()
        if not torch.allclose(mean[rows].to(final), final, rtol=1e-4, atol=1e-5 * float(final.abs().max())):
            return "other"
    return "last"


def losses_for(value: Any, layer: LastLayer) -> Tensor:
    """Losses (epochs, n) of the layer's records; a transposed array is named."""
    if isinstance(value, Mapping) or (isinstance(value, (list, tuple)) and any(isinstance(v, Mapping) for v in value)):
        raise InputError("trace: state dicts are passed as noshadow.Trace.from_checkpoints(model, state_dicts, data)")
    losses, n = as_floats(value, "trace"), layer.n
    if losses.ndim == 3:
        raise InputError(
            f"trace: expected shape (epochs, n), a row per epoch, got {tuple(losses.shape)}; outputs (epochs, n, m) "
            "are passed as noshadow.Trace.from_outputs(outputs)"
        )
    if losses.ndim == 2 and losses.shape[1] != n:
        transposed = losses.shape[0] == n
        remedy = "it looks transposed: pass trace.T" if transposed else "pass the same records in the same order"
        raise InputError(f"trace: expected shape (epochs, {n}), a row per epoch, got {tuple(losses.shape)}; {remedy}")
    return losses


def _require_shape(outputs: Tensor | None, mean: Tensor, layer: LastLayer) -> None:
    """Mean outputs (n, m) of the layer's records; outputs (epochs, n, m) with other axes are named."""
    n, m = layer.n, layer.n_outputs
    if tuple(mean.shape) == (n, m):
        return
    if outputs is not None:
        turns = {(0, 2, 1): "outputs.transpose(0, 2, 1)", (1, 0, 2): "outputs.transpose(1, 0, 2)"}
        for order, turn in turns.items():
            if tuple(outputs.shape[axis] for axis in order)[1:] == (n, m):
                raise InputError(
                    f"trace: expected outputs of shape (epochs, {n}, {m}), got {tuple(outputs.shape)}; they look "
                    f"transposed: pass {turn}"
                )
    remedy = "pass the same records in the same order" if mean.shape[1] == m else "it is of another model or output"
    raise InputError(
        f"trace: it is of {mean.shape[0]} records with {mean.shape[1]} outputs, the layer has {n} with {m}; {remedy}"
    )


def _require_logits(mean: Tensor, layer: LastLayer) -> None:
    """Refuse mean probabilities where the layer's outputs are logits."""
    kind = layer.kind
    outputs = mean.to(device=layer.device, dtype=torch.float64)
    if layer.notes or kind.concern(outputs, layer.targets) is None:  # the layer's own were looked at when it was made
        return
    raise InputError(
        "trace: its outputs look like probabilities (all within [0, 1]), those of the layer are logits; record the "
        "outputs of the last linear layer, before softmax or sigmoid"
    )
