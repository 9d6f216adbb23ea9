r"""What exposure takes of a training run: the outputs that its closed forms are evaluated at, and a loss per record.

Without held-out records they are the means over the epochs, z̄ and ℓ̄. A model that has memorised its members fits them
better than it would without them; how much better, held-out records say. Means over the whole run may go too far: where
little was memorised they are mostly the first epochs, in which every record was hard. So, with held-out records, only
as much of the run is taken as makes members lose what held-out records do on average:

.. math::

    z_\lambda = (1 - \lambda)\, z + \lambda\, \bar z, \qquad
    \ell_\lambda = (1 - \lambda)\, \ell + \lambda\, \bar\ell, \qquad
    \lambda = \frac{\bar\ell_{out} - \bar\ell_{in}}{\bar\ell_{run} - \bar\ell_{in}} \;\text{ within } 0 \dots 1

with the mean losses of held-out records, of members at the end, and of members over the run. Where more was memorised
than the run remembers, λ = 1; where nothing was, λ = 0, and the final model says all. A run that went on after the
weights that were kept, early stopping, has lost less than they do: towards it members lose less still, and λ = 0,
unless held-out records lose more by as much as the run lost less: then a bad epoch at the end is all the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.layer import LastLayer
from noshadow.trace import Trace

__all__ = ["Run", "run_of", "share_of_run"]

_CHUNK = 65_536  # records at a time
_CLEARLY = 0.9


@dataclass(frozen=True, eq=False)
class Run:
    """As much of a run as exposure takes.

    outputs    (n, m) z_λ; None where mean outputs were never known
    loss       (n,) ℓ_λ in float64; None where losses were never known
    share      λ; None where no held-out records say it, and all of the run is taken
    lost_less  members lost clearly less over the run than at its end: the weights that were kept are not its last ones
    """

    outputs: Tensor | None
    loss: Tensor | None
    share: float | None = None
    lost_less: bool = False


def share_of_run(final: float, of_run: float, held_out: float) -> float:
    """λ, from the mean losses of members at the end and over the run, and of held-out records.

    >>> share_of_run(0.25, 0.75, 0.5), share_of_run(0.25, 0.75, 1.5), share_of_run(0.25, 0.75, 0.125)
    (0.5, 1.0, 0.0)
    >>> share_of_run(0.5, 0.25, 0.625)  # early stopping
    0.0
    """
    apart, memorised = abs(of_run - final), max(held_out - final, 0.0)
    if memorised >= apart:
        return 1.0
    return memorised / apart if of_run > final else 0.0


def run_of(trace: Trace | None, layer: LastLayer, held_out: Tensor | None = None) -> Run:
    """What exposure takes of the run that is remembered of a layer's records.

    held_out  (k,) the losses of records that the model was not trained on, those of ``layer.kind``
    """
    if trace is None:
        return Run(None, None)
    outputs, loss = trace.mean_outputs, trace.mean_loss
    if loss is not None:
        remembered = loss
    elif outputs is not None:
        remembered = _losses(layer.at(outputs))
    else:
        return Run(None, None)
    final = _losses(layer)
    at_end, of_run = float(final.mean()), float(remembered.mean())
    lost_less = of_run < _CLEARLY * at_end
    if held_out is None:
        return Run(outputs, loss, None, lost_less)
    share = share_of_run(at_end, of_run, float(held_out.mean()))
    if share == 1.0:
        return Run(outputs, loss, share, lost_less)
    return Run(
        None if outputs is None else _toward(layer, outputs, share),
        None if loss is None else final.lerp(loss.to(final), share),
        share,
        lost_less,
    )


def _losses(layer: LastLayer) -> Tensor:
    """ℓ of all records, (n,), read by chunk."""
    found = []
    for rows in layer.chunks(_CHUNK):
        records = layer.records(rows)
        found.append(layer.kind.loss(records.outputs, records.targets).cpu())
    return torch.cat(found)


def _toward(layer: LastLayer, outputs: Tensor, share: float) -> Tensor:
    """(1 − λ) z + λ z̄ in float64, (n, m)."""
    parts = []
    for rows in layer.chunks(_CHUNK):
        final = layer.records(rows).outputs.cpu()
        parts.append(final.lerp(outputs[rows].to(final), share))
    return torch.cat(parts)
