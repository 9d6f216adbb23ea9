"""score(): a layer in, a row per record and a column per score out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from noshadow.candidates import refuse_what_members_have, score_candidates
from noshadow.curvature import DEFAULT_MEMORY, Curvature, build_curvature
from noshadow.diagnostics import Diagnostics, concerns
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.layer import LastLayer
from noshadow.progress import Progress, progress_bar
from noshadow.scores import SCORES, Known, Need, resolve
from noshadow.trace import Trace

__all__ = ["given", "score", "score_with_diagnostics"]

_PLAIN_CHUNK = 65_536  # records at a time where no curvature is needed


def score(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    candidates: LastLayer | None = None,
    curvature: str = "auto",
    full_step: bool = False,
    memory: float = DEFAULT_MEMORY,
    progress: Progress = None,
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
    candidates : LastLayer, optional
        Records that the model was not trained on, with its features and outputs for them: they are scored in place of
        the layer's own, as the members that they would be if each were added to the training set
        (``noshadow.candidates``).
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

    Returns
    -------
    pandas.DataFrame
        n rows in the order of the layer, or of the candidates; in every column, bigger means more exposed. Losses are
        in nats, or in squared units of the target for squared error.

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
    if candidates is not None:
        refuse_what_members_have(trace, full_step)
        frame = score_candidates(layer, candidates, scores, curvature=curvature, memory=memory, progress=progress)
        _require_finite(frame)
        return frame
    frame, diagnostics = score_with_diagnostics(
        layer, scores, trace, curvature=curvature, full_step=full_step, memory=memory, progress=progress
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
) -> tuple[pd.DataFrame, Diagnostics]:
    """The scores and what was found on the way, without warnings."""
    remembered = None if trace is None else Trace.of(trace, layer)
    names = resolve(layer.kind, scores, given(remembered))
    curved = any("curvature" in SCORES[name].needs for name in names)
    with progress_bar("Scoring", layer.n * (3 if curved else 1), progress) as advance:
        hessian = build_curvature(layer, curvature, memory, advance) if curved else None
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
    _require_finite(frame)
    return frame, Diagnostics() if hessian is None else _diagnostics(layer, hessian, influence_sum, flagged)


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
