"""Whether the mean outputs of a run can be what they are said to be: by its losses, and by the digits they have."""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows, warn_caller
from noshadow.layer import LastLayer
from noshadow.trace.losses import AllLosses, Losses

__all__ = ["note_rounding", "require_convex", "require_losses"]

_CHUNK = 65_536  # records at a time
_BELOW, _BELOW_ALL = 0.1, 0.01  # of its own and of the mean of all losses: by less, half precision explains it
_FEW_BELOW = 0.01  # share of the records that is told of; a larger one is refused
_EPSILON = torch.finfo(torch.float32).eps
_ROUGH = 0.1  # rounding, as a share of the residuals: at 0.06 scores of the run are off by 0.4 %, at 0.6 by 9 %


def require_convex(losses: AllLosses, mean: Tensor, layer: LastLayer) -> None:
    """Refuse losses and mean outputs (n, m) that came separately and are not of the same records and epochs.

    ℓ is convex in the outputs, so that the mean loss of a record is at least the loss at its mean output (Jensen).
    """
    of_run, at_mean, rounding = [], [], []
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        outputs = mean[rows].to(records.outputs)
        of_run.append(losses.mean(rows).cpu())
        at_mean.append(layer.kind.loss(outputs, records.targets).cpu())
        step = _EPSILON * outputs.abs().amax(1)
        slope = layer.kind.gradient(outputs, records.targets).abs().sum(1)
        rounding.append((step * slope + step.square()).cpu())
    average = torch.cat(of_run)
    room = _BELOW * average + _BELOW_ALL * average.mean() + torch.cat(rounding)
    below = (torch.cat(at_mean) - average > room).nonzero().flatten().tolist()
    if not below:
        return
    message = (
        f"trace: the mean loss of {len(below)} of {layer.n} records ({name_rows(below)}, counted from 0) is below the "
        "loss at their mean output, which no run gives: losses and mean_outputs are of other records, in another "
        "order, of classes numbered otherwise, or the losses are weighted, smoothed otherwise or divided by n; pass "
        "both of the same records and epochs, and plain losses"
    )
    if len(below) > _FEW_BELOW * layer.n:
        raise InputError(message)
    warn_caller(message)


def require_losses(losses: Losses) -> None:
    """Refuse what can be no mean loss of a record: exposure goes in proportion to it, and would be negative."""
    average = losses.mean(slice(None))
    bad = (average < -_EPSILON * average.abs().max()).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"trace: the mean loss is below 0 in {name_rows(bad)} (counted from 0), which no −log p and no squared "
            "error is; pass losses and not their negatives, or the scores that take any: mean_trace, trace_iqr"
        )


def note_rounding(mean: Tensor, layer: LastLayer) -> None:
    """Warn of values so far from 0 that float32, which mean outputs (n, m) are kept in, leaves little of residuals."""
    if not layer.kind.quadratic:
        return
    rounded = residual = 0.0
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        outputs = mean[rows].to(records.outputs)
        rounded += float((0.5 * _EPSILON * outputs).square().sum())
        residual += float(layer.kind.loss(outputs, records.targets).sum())
    if residual == 0.0 or rounded <= _ROUGH**2 * residual:
        return
    share = (rounded / residual) ** 0.5
    warn_caller(
        f"trace: its mean outputs are kept in float32, whose rounding is {share:.2g} of the residuals: these values "
        "are far from 0, and scores of the run are of rounding in part; subtract a constant, such as their mean, from "
        "targets and outputs"
    )
