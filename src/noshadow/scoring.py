"""score(): a layer in, a row per record and a column per score out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from noshadow.accuracy import check
from noshadow.curvature import Choice, Curvature, Size, build_chosen, choose, exact_solver
from noshadow.diagnostics import Accuracy, Diagnostics, concerns
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.layer import LastLayer
from noshadow.memory import working_memory
from noshadow.progress import progress_bar
from noshadow.scores import SCORES, Known, Need, resolve
from noshadow.trace import Trace

_PLAIN_CHUNK = 65_536  # records at a time where no curvature is needed


def score(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    curvature: str = "auto",
    refine: float | None = None,
    full_step: bool = False,
    memory: float | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Score every record of a layer: a row per record, a column per score.

    scores     names from ``noshadow.scores.SCORES``; None: all the default ones that apply to the head
    trace      a ``Trace``, or (epochs, n): the loss of the same records, in the same order, after each epoch of
               training; adds ``mean_trace`` and ``trace_iqr``
    curvature  how the Hessian is treated: "dense", exact; "blocks", one block per class and their mean coupling;
               "kronecker", a Kronecker product with exact eigenvalues; "iterative", exact and slow, systems per record;
               "auto": exact while that fits into memory, then the best that does; it then says how far off it is
    refine     of an approximation: exact ``influence``, ``newton`` and ``leave_one_out`` for this share of the records,
               the highest ones (0.01: one in a hundred), until no other record can belong to them
    full_step  ``newton`` and ``leave_one_out`` of the heads that one more Newton step would give, with the record and
               without it: their size at convergence, for a head that stopped short of it. An attack sees the head as
               it is: to rank records, leave it out
    memory     working memory in GiB; None: half of what is free
    progress   show a bar; None: where stderr is a terminal
    """
    frame, diagnostics = score_with_diagnostics(
        layer, scores, trace, curvature=curvature, refine=refine, full_step=full_step, memory=memory, progress=progress
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
    refine: float | None = None,
    full_step: bool = False,
    memory: float | None = None,
    progress: bool | None = None,
) -> tuple[pd.DataFrame, Diagnostics]:
    """The scores and what was found on the way, without warnings."""
    remembered = None if trace is None else Trace.of(trace, layer.n)
    names = resolve(layer.kind, scores, given(remembered))
    if refine is not None and not 0 < refine <= 1:
        raise InputError(f"refine: expected a share of the records between 0 and 1, got {refine!r}")
    curved = any("curvature" in SCORES[name].needs for name in names)
    with progress_bar("Scoring", layer.n * (3 if curved else 1), progress) as advance:
        choice = choose(curvature, Size.of(layer), memory)
        hessian = build_chosen(layer, choice, memory, advance) if curved else None
        columns = {name: torch.empty(layer.n, dtype=torch.float64) for name in names}
        influence_sum, flagged = 0.0, []
        for known in _chunks(layer, hessian, remembered, full_step):
            rows = known.records.rows
            for name, column in columns.items():
                column[rows] = SCORES[name].compute(known)
            if hessian is not None:
                influence_sum += float((known.records.pull * known.first_order_shift).sum())
                flagged += (known.removal.undefined.nonzero().flatten() + rows.start).tolist()
            advance(len(known.records))
    frame = pd.DataFrame({name: column.numpy() for name, column in columns.items()})
    if hessian is None:
        _require_finite(frame)
        return frame, Diagnostics()
    solver = exact_solver(hessian, working_memory(memory))
    accuracy = None if solver is None else check(layer, solver, frame, refine, full_step)
    _require_finite(frame)
    return frame, _diagnostics(layer, hessian, influence_sum, flagged, choice, accuracy)


def given(trace: Any) -> frozenset[Need]:
    """What scores may need and there is: a Hessian can always be had, the rest is what was passed."""
    return frozenset({"curvature"} if trace is None else {"curvature", "trace"})


def _chunks(layer: LastLayer, hessian: Curvature | None, trace: Trace | None, full_step: bool) -> Iterator[Known]:
    """All records in order, a chunk at a time, with what is known of them."""
    if hessian is None:
        for rows in layer.chunks(_PLAIN_CHUNK):
            yield Known(layer.records(rows), None, trace)
    else:
        for leverages in hessian.chunks():
            yield Known(leverages.records, leverages, trace, full_step)


def _diagnostics(
    layer: LastLayer,
    hessian: Curvature,
    influence_sum: float,
    flagged: list[int],
    choice: Choice,
    accuracy: Accuracy | None,
) -> Diagnostics:
    found = hessian.stationarity
    return Diagnostics(
        curvature=choice.name,
        chosen=choice.why,
        exact=hessian.exact,
        accuracy=accuracy,
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
            traced = "trace" in SCORES[str(name)].needs
            source, cause = ("trace", "losses") if traced else ("features, outputs", "features")
            raise InputError(
                f"{source}: {name} overflows in {name_rows(bad)} (counted from 0); values this large cannot "
                f"be scored, rescale the {cause} or drop those records"
            )
