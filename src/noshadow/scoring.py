"""score(): a layer in, a row per record and a column per score out."""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noshadow._version import __version__
from noshadow.curvature import DEFAULT_MEMORY, Curvature, build_curvature
from noshadow.diagnostics import Diagnostics, concerns
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.layer import LastLayer
from noshadow.passes import in_blocks
from noshadow.progress import Progress, progress_bar
from noshadow.scores import SCORES, Known, Need, resolve
from noshadow.trace import Trace

__all__ = ["Scored", "given", "score", "score_with_diagnostics"]

_PLAIN_CHUNK = 65_536  # records at a time where no curvature is needed


def score(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    curvature: str = "auto",
    full_step: bool = False,
    memory: float = DEFAULT_MEMORY,
    progress: Progress = None,
    store: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> pd.DataFrame:
    """Score every record of a layer: a row per record, a column per score.

    Parameters
    ----------
    layer : LastLayer
        The last layer of a model, seen through its n training records.
    scores : sequence of str, optional
        Names from ``noshadow.scores.SCORES``, each with its formula there; None: all the default ones that apply to the
        head.
    trace : Trace or array (epochs, n), optional
        What training remembers of the same records, in the same order: a ``Trace``, or their losses after each epoch;
        adds ``mean_trace`` and ``trace_iqr``.
    curvature : str
        How the Hessian is treated, a name from ``noshadow.curvature.CURVATURES``; "auto": the first that fits into
        memory.
    full_step : bool
        ``newton`` and ``leave_one_out`` of the heads that one more Newton step would give, with the record and without
        it: their size at convergence, for a head that stopped short of it. An attack sees the head as it is: to rank
        records, leave it out.
    memory : float
        Working memory in GiB.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal (``noshadow.progress``).
    store : str or Path, optional
        A folder that keeps what is done, block by block, so that a run that was interrupted goes on from there; one of
        other records or options is refused.
    engine : "local" or "ray", optional
        Who does the passes over the records: this process, or tasks of Ray, to which blocks of records are given.
    address : str, optional
        Of a Ray cluster; None: one is started on this machine.

    Returns
    -------
    pandas.DataFrame
        n rows in the order of the layer; in every column, bigger means more exposed. Losses are in nats, or in squared
        units of the target for squared error.

    Raises
    ------
    InputError
        Scores that do not apply, a trace of other records, a Hessian that does not fit into memory.

    Warns
    -----
    NoshadowWarning
        What to know before trusting the numbers: a ridge or targets that do not look like those of the training.

    Examples
    --------
    >>> import numpy as np
    >>> import noshadow
    >>> x = np.array([[0.0], [1.0], [2.0], [10.0]])
    >>> y = np.array([0.0, 1.2, 1.8, 10.0])
    >>> slope, offset = np.polyfit(x[:, 0], y, 1)
    >>> layer = noshadow.LastLayer(x, slope * x + offset, y, head="squared")
    >>> noshadow.score(layer, ["leverage", "leave_one_out"]).round(3)
       leverage  leave_one_out
    0     0.418          0.000
    1     0.331          0.046
    2     0.275          0.038
    3     0.976          0.810
    """
    frame, diagnostics = score_with_diagnostics(
        layer,
        scores,
        trace,
        curvature=curvature,
        full_step=full_step,
        memory=memory,
        progress=progress,
        store=store,
        engine=engine,
        address=address,
    )
    for message in concerns(layer, diagnostics):
        warnings.warn(message, NoshadowWarning, stacklevel=2)
    return frame


def score_with_diagnostics(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    curvature: str = "auto",
    full_step: bool = False,
    memory: float = DEFAULT_MEMORY,
    progress: Progress = None,
    store: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> tuple[pd.DataFrame, Diagnostics]:
    """The scores and what was found on the way, without warnings."""
    remembered = None if trace is None else Trace.of(trace, layer)
    names = resolve(layer.kind, scores, given(remembered))
    curved = any("curvature" in SCORES[name].needs for name in names)
    options = partial(_options, names, remembered, curvature, full_step, memory)
    with (
        in_blocks(layer, engine, address, store, options) as place,
        progress_bar("Scoring", layer.n * (3 if curved else 1), progress) as advance,
    ):
        hessian = build_curvature(place, curvature, memory, advance) if curved else None
        values, influence_sum, flagged = _pass(place, names, hessian, remembered, full_step, advance)
    frame = pd.DataFrame(values.T.numpy(), columns=pd.Index(names), copy=False)  # a column lies in one piece
    _require_finite(frame)
    return frame, Diagnostics() if hessian is None else _diagnostics(layer, hessian, influence_sum, flagged)


Scored = tuple[Tensor, float, list[int]]
"""Values (scores, records), the sum of the records' influences, and the rows that are flagged."""


def _pass(
    layer: LastLayer,
    names: list[str],
    hessian: Curvature | None,
    trace: Trace | None,
    full_step: bool,
    advance: Callable[[int], None],
) -> Scored:
    """The scores of all records, as the layer says: in one go or in blocks."""
    if layer.blocks is None:
        return _of_window(layer, names, hessian, trace, full_step, advance)
    values = torch.empty((len(names), layer.n), dtype=torch.float64)
    influence_sum, flagged = 0.0, []
    job = partial(_of_block, names=names, hessian=hessian, trace=trace, full_step=full_step)
    for rows, parts in layer.blocks.mapped(layer, "scores", job, getattr(hessian, "chunk", _PLAIN_CHUNK)):
        values[:, rows] = parts["values"]
        influence_sum += float(parts["influence_sum"])
        flagged += parts["flagged"].tolist()
        advance(rows.stop - rows.start)
    return values, influence_sum, flagged


def _of_block(
    layer: LastLayer, names: list[str], hessian: Curvature | None, trace: Trace | None, full_step: bool
) -> dict[str, Tensor]:
    """The scores of a window, here or on another machine."""
    here: Any = hessian if hessian is None else replace(cast(Any, hessian), layer=layer)
    values, influence_sum, flagged = _of_window(layer, names, here, trace, full_step, lambda _: None)
    return {
        "values": values,
        "influence_sum": torch.tensor(influence_sum, dtype=torch.float64),
        "flagged": torch.tensor(flagged, dtype=torch.int64),
    }


def _of_window(
    layer: LastLayer,
    names: list[str],
    hessian: Curvature | None,
    trace: Trace | None,
    full_step: bool,
    advance: Callable[[int], None],
) -> Scored:
    """The scores of the records that the layer covers."""
    first = layer.covered.start
    values = torch.empty((len(names), layer.covered.stop - first), dtype=torch.float64)
    influence_sum, flagged = 0.0, []
    for known in _chunks(layer, hessian, trace, full_step):
        rows = known.records.rows
        for name, column in zip(names, values, strict=True):
            column[rows.start - first : rows.stop - first] = SCORES[name].compute(known)
        if hessian is not None:
            influence_sum += float((known.records.pull * known.first_order_shift).sum())
            flagged += (known.removal.undefined.nonzero().flatten() + rows.start).tolist()
        advance(len(known.records))
    return values, influence_sum, flagged


def _options(names: list[str], trace: Trace | None, curvature: str, full_step: bool, memory: float) -> dict[str, Any]:
    """What the scores depend on beside the layer."""
    remembered = None
    if trace is not None:
        digest = hashlib.sha256()
        for held in (trace.mean_outputs, trace.mean_loss, trace.lower_quartile, trace.upper_quartile):
            digest.update(b"none" if held is None else held.cpu().contiguous().numpy().tobytes())
        remembered = digest.hexdigest()
    return {
        "scores": names,
        "trace": remembered,
        "curvature": curvature,
        "full_step": full_step,
        "memory": memory,
        "noshadow version": __version__,
    }


def given(trace: Trace | None) -> frozenset[Need]:
    """What scores may need and there is: a Hessian can always be had, the rest is what the trace holds."""
    found: set[Need] = {"curvature"}
    if trace is not None and trace.losses is not None and trace.epochs > 1:
        found.add("losses")
    if trace is not None and trace.mean_outputs is not None:
        found.add("mean_outputs")
    return frozenset(found)


def _chunks(layer: LastLayer, hessian: Curvature | None, trace: Trace | None, full_step: bool) -> Iterator[Known]:
    """All records in order, a chunk at a time, with what is known of them."""
    if hessian is None:
        for rows in layer.chunks(_PLAIN_CHUNK):
            yield Known(layer.records(rows), None, trace)
    else:
        for leverages in hessian.chunks():
            yield Known(leverages.records, leverages, trace, full_step)


def _diagnostics(layer: LastLayer, hessian: Curvature, influence_sum: float, flagged: list[int]) -> Diagnostics:
    found = hessian.stationarity
    return Diagnostics(
        rank=hessian.rank,
        null_directions=hessian.null_directions,
        stationarity=found.in_records(math.sqrt(max(0.0, influence_sum) / layer.n)),
        best_ridge=found.best_ridge,
        best_ridge_leaves=found.share,
        best_penalizes_bias=found.best_penalizes_bias,
        halving=found.halving,
        constant=found.constant,
        linearity=hessian.linearity,
        flagged=tuple(flagged),
    )


def _require_finite(frame: pd.DataFrame) -> None:
    """The last line of defence: numbers near the end of the floating-point range can still overflow."""
    for name, column in frame.items():
        bad = np.flatnonzero(~np.isfinite(column.to_numpy())).tolist()
        if bad:
            traced = "losses" in SCORES[str(name)].needs
            source, cause = ("trace", "losses") if traced else ("features, outputs", "features")
            raise InputError(
                f"{source}: {name} overflows in {name_rows(bad)} (counted from 0); values this large cannot "
                f"be scored, rescale the {cause} or drop those records"
            )
