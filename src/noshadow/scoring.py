"""score(): a layer in, a row per record and a column per score out."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from noshadow._version import __version__
from noshadow.accuracy import check
from noshadow.candidates import refuse_what_members_have, score_candidates
from noshadow.comparison import check_held_out
from noshadow.curvature import CURVATURES, Choice, Curvature, Size, build_chosen, choose, exact_solver
from noshadow.curvature.alone import stand_alone
from noshadow.curvature.iterative import IterativeCurvature
from noshadow.diagnostics import Accuracy, Diagnostics, concerns
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.layer import LastLayer
from noshadow.memory import is_number, working_memory
from noshadow.passes import in_blocks
from noshadow.points import Point, Scored, curved, given, points
from noshadow.progress import Progress, progress_bar
from noshadow.rating import (
    WHAT_RATES_NEED,
    basis_of,
    has_converged,
    has_law,
    learned_features,
    losses_of_others,
    predicted_rates,
    rates_of_converged,
    read_spreads,
    require_members,
    require_ratable,
)
from noshadow.repeats import find_repeats
from noshadow.run import run_of
from noshadow.sandwich import Spreads, spreads_over_data
from noshadow.scores import SCORES, resolve
from noshadow.trace import Trace
from noshadow.trace.binding import lone_epoch, rank_agreement
from noshadow.trace.consistency import require_losses
from noshadow.trace.storage import digest_of

if TYPE_CHECKING:
    from noshadow.passes.ray_tasks import RayTasks

__all__ = ["score", "score_with_diagnostics"]


def score(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    candidates: LastLayer | None = None,
    curvature: str = "auto",
    refine: float | None = None,
    spread: tuple[float, float] | None = None,
    gap: float | None = None,
    held_out: Any = None,
    full_step: bool = False,
    memory: float | None = None,
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
        adds ``mean_trace`` and ``trace_iqr``. With the mean outputs that a ``Trace`` holds, ``signal_shift`` and
        ``exposure`` are those of the run.
    candidates : LastLayer, optional
        Records that the model was not trained on, with its features and outputs for them: they are scored in place of
        the layer's own, as the members that they would be if each were added to the training set
        (``noshadow.candidates``).
    curvature : str
        How the Hessian is treated: "dense", exact; "blocks", one block per class and their mean coupling; "kronecker",
        a Kronecker product with exact eigenvalues; "iterative", exact and slow, systems per record; "auto": exact while
        that fits into memory, then the best that does; it then says how far off it is.
    refine : float, optional
        Of an approximation: exact scores for this share of the records, the highest ones (0.01: one in a hundred),
        until no other record is expected among them. Exact are the scores of the curvature but for ``leverage`` of
        three classes or more, which takes a system per class; with the mean outputs of a run, those that are of the
        run (``exposure``, ``signal_shift``). ``attack_*`` of these records are made of the exact scores and of sums
        over all records, which stay approximate.
    spread : (float, float), optional
        σ_in and σ_out of the attack's statistic over retrainings, by ``noshadow.spread`` on members and on held-out
        records; adds the predicted rates ``attack_power`` (d′), ``attack_accuracy`` and ``attack_tpr`` (at 1 % FPR).
    gap : float, optional
        Mean statistic of members minus that of held-out records: scales the predicted rates, in place of held_out.
    held_out : (outputs, targets) or LastLayer, optional
        Of the same model for records that it was not trained on. They scale the predicted rates; without spread they
        also give one, uncalibrated.
    full_step : bool
        ``newton`` and ``leave_one_out`` of the heads that one more Newton step would give, with the record and without
        it: their size at convergence, for a head that stopped short of it. An attack sees the head as it is: to rank
        records, leave it out.
    memory : float, optional
        Working memory in GiB; None: half of what is free.
    progress : Progress, optional
        A bar or none, or a function that is told; None: a bar where stderr is a terminal (``noshadow.progress``).
    store : str or Path, optional
        A folder that keeps what is done, block by block, so that a run that was interrupted goes on from there; one of
        other records or options is refused. With the exact Hessian only.
    engine : "local" or "ray", optional
        Who does the work: this process, or tasks of Ray. With the exact Hessian they do the passes over blocks of
        records; of an approximation, the exact answers for single records that it is checked against and refined with.
    address : str, optional
        Of a Ray cluster; None: one is started on this machine.

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
        for name, value in (("refine", refine), ("spread", spread), ("gap", gap), ("held_out", held_out)):
            if value is not None:
                raise InputError(f"{name}: it is for members; leave it out with candidates=")
        for name, value in (("store", store), ("engine", engine), ("address", address)):
            if value not in (None, "local"):
                raise InputError(f"{name}: candidates= are scored in one go, in this process; leave it out")
        frame = score_candidates(layer, candidates, scores, curvature=curvature, memory=memory, progress=progress)
        _require_finite({str(name): column.to_numpy() for name, column in frame.items()})
        return frame
    if held_out is not None:
        require_ratable(layer, spread, gap, held_out)
        check_held_out(held_out, layer)
    frame, diagnostics = score_with_diagnostics(
        layer,
        scores,
        trace,
        curvature=curvature,
        refine=refine,
        spread=spread,
        gap=gap,
        held_out=held_out,
        fixed_features=layer.origin is None or layer.origin.features != "trained",
        full_step=full_step,
        memory=memory,
        progress=progress,
        store=store,
        engine=engine,
        address=address,
    )
    for message in concerns(layer, diagnostics, layer.origin is not None and layer.origin.features == "fixed"):
        warnings.warn(message, NoshadowWarning, stacklevel=2)
    return frame


def score_with_diagnostics(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    curvature: str = "auto",
    refine: float | None = None,
    spread: tuple[float, float] | None = None,
    gap: float | None = None,
    held_out: Any = None,
    fixed_features: bool = True,
    source: str = "stated",
    full_step: bool = False,
    memory: float | None = None,
    progress: Progress = None,
    store: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    address: str | None = None,
) -> tuple[pd.DataFrame, Diagnostics]:
    """The scores and what was found on the way, without warnings.

    fixed_features  nobody trained them on these records: a converged head then has the law of its own parameters
    """
    remembered = None if trace is None else Trace.of(trace, layer)
    spreads = read_spreads(spread, gap, held_out)
    # without a rerun and without a run to look at, the head may be known to have converged once its Hessian is
    settled = fixed_features and spreads is None and (remembered is None or remembered.mean_outputs is None)
    stated = spreads is not None or held_out is not None
    require_ratable(layer, spreads, gap, held_out)
    if stated:
        require_members(layer)
    names = resolve(layer.kind, scores, given(remembered, (stated or settled) and has_law(layer)))
    if refine is not None and not (is_number(refine) and 0 < refine <= 1):
        raise InputError(f"refine: expected a share of the records between 0 and 1, got {refine!r}")
    rated = [name for name in names if SCORES[name].compute is None]
    basis = basis_of(layer, settled, stated) if rated else []
    computed = list(dict.fromkeys([name for name in names if name not in rated] + basis))
    if remembered is not None and remembered.losses is not None and "exposure" in computed:
        require_losses(remembered.losses)
    choice = choose(curvature, Size.of(layer), memory)
    here = curved(computed) and not CURVATURES[choice.name].blocks
    if here:
        _require_blocks(choice, store, engine)
    run = run_of(remembered, layer, losses_of_others(layer, held_out))
    options = partial(_options, computed, remembered, run.share, choice, full_step)
    steps = sum(3 if point.curved else 1 for point in points(layer, computed, remembered, full_step, run))
    values: dict[str, Any] = {}
    pulled = 0.0
    diagnostics = Diagnostics()
    over_data: Spreads | None = None
    with (
        in_blocks(layer, engine, address, store, options) as (held, tasks),
        progress_bar("Scoring", layer.n * steps, progress) as advance,
    ):
        place = layer if here else held  # of one without blocks Ray gives the exact answers that it is checked by
        each = points(place, computed, remembered, full_step, run)
        ranking = max((one for one in each if one.curved), key=lambda one: one.precedence, default=None)
        for point in each:
            hessian = build_chosen(point.layer, choice, memory, advance) if point.curved else None
            found = point.scored(hessian, advance)
            values |= dict(zip(point.names, found.values.numpy(), strict=True))
            pulled = found.influence_sum
            if hessian is None:
                continue
            if diagnostics.rank is None:  # of the final outputs, where scores of both are asked for
                diagnostics = _diagnostics(point, hessian, found, choice)
            if isinstance(hessian, IterativeCurvature):
                short, left = hessian.solver.effort.unconverged, hessian.solver.effort.residual
                short, left = diagnostics.unconverged + short, max(diagnostics.residual, left)
                diagnostics = replace(diagnostics, unconverged=short, residual=left)
            if settled and rated and has_converged(diagnostics):
                over_data = spreads_over_data(hessian, working_memory(memory))
            if point is ranking:
                accuracy, alone = _accuracy(point, hessian, values, memory, refine, tasks)
                flagged = tuple(sorted(alone.union(diagnostics.flagged)))
                diagnostics = replace(diagnostics, accuracy=accuracy, flagged=flagged)
    _require_finite(values)
    if remembered is not None:
        agreement, lone = rank_agreement(remembered, layer), lone_epoch(remembered, layer)
        less = run.lost_less and run.share is None
        diagnostics = replace(
            diagnostics, trace_agreement=agreement, lone_epoch=lone, run_share=run.share, run_lost_less=less
        )
    if curved(computed):  # else nobody has read the features
        diagnostics = replace(diagnostics, repeats=find_repeats(layer))
    settled = settled and not (basis and learned_features(layer, values, held_out))
    if settled:  # of trained features leverage 1 says little: training again makes others
        diagnostics = replace(diagnostics, certain=stand_alone(layer, diagnostics.flagged, working_memory(memory)))
    settled = settled and has_converged(diagnostics)
    if rated and not (settled or stated):
        if scores is not None:
            raise InputError(f"scores: {rated[0]!r} needs {WHAT_RATES_NEED}")
        names = [name for name in names if name not in rated]
    elif rated:
        if settled:
            calibration, rates = rates_of_converged(layer, pulled, values, over_data)
            rates = rates.with_certain(diagnostics.certain)
        else:
            calibration, rates = predicted_rates(layer, values, run, spreads, gap, held_out, source)
            share = float(values["leverage"].mean()) / layer.kind.width(layer.n_outputs)
            diagnostics = replace(diagnostics, leverage_share=share)
        diagnostics = replace(diagnostics, calibration=calibration)
        values |= {name: getattr(rates, name.removeprefix("attack_")) for name in rated}
    # a copy would be as large as all else that there is of many records
    return pd.DataFrame({name: values[name] for name in names}, copy=False), diagnostics


def _require_blocks(choice: Choice, store: Any, engine: str | None) -> None:
    """Blocks of records are for a Hessian whose sums over them are all that it needs: of ours, the dense one.

    Of an approximation Ray gives the exact answers for single records that it is checked against and refined with.
    """
    idle = engine == "ray" and not CURVATURES[choice.name].checked
    asked = "store" if store is not None else "engine" if idle else None
    if asked is not None:
        raise InputError(
            f"{asked}: it is for the exact Hessian, curvature='dense', and this layer has curvature={choice.name!r} "
            f"({choice.why}); pass a larger memory=, or leave {asked} out"
        )


def _options(
    names: list[str],
    trace: Trace | None,
    share: float | None,
    choice: Choice,
    full_step: bool,
) -> dict[str, Any]:
    """What the scores depend on beside the layer. Memory is none of it: passes are kept by the size of their chunks."""
    return {
        "scores": [_told(name) for name in names],
        "trace": None if trace is None else digest_of(trace.memory),
        "share of the run": share,
        "curvature": choice.name if curved(names) else None,
        "full_step": full_step,
        "noshadow version": __version__,
    }


def _told(name: str) -> str:
    """What a score is known by: its name, and for a registered one what its function does, which may change."""
    function = SCORES[name].compute
    if function is None or function.__module__ == SCORES[name].__class__.__module__:
        return name
    from noshadow.shadow.content import Content  # where a store is kept of one's own scores

    return f"{name} {Content().digest(function)[:16]}"


def _accuracy(
    point: Point,
    hessian: Curvature,
    values: dict[str, Any],
    memory: float | None,
    refine: float | None,
    tasks: RayTasks | None,
) -> tuple[Accuracy | None, set[int]]:
    """How far an approximate curvature is off; with ``refine`` exact scores take the place of the highest ones. And the
    records whose leverage the exact answers have at 1."""
    solver = exact_solver(hessian, working_memory(memory))
    if solver is None:
        return None, set()
    frame = pd.DataFrame({name: values[name] for name in point.names})
    found = check(point, solver, frame, refine, tasks=tasks)
    values |= {str(name): column.to_numpy() for name, column in frame.items()}
    return found


def _diagnostics(point: Point, hessian: Curvature, scored: Scored, choice: Choice) -> Diagnostics:
    if point.of_run:  # nobody says that the mean outputs are stationary
        return Diagnostics(
            curvature=choice.name,
            chosen=choice.why,
            exact=hessian.exact,
            rank=hessian.rank,
            null_directions=hessian.null_directions,
            flagged=tuple(scored.flagged),
        )
    found = hessian.stationarity
    return Diagnostics(
        curvature=choice.name,
        chosen=choice.why,
        exact=hessian.exact,
        rank=hessian.rank,
        null_directions=hessian.null_directions,
        stationarity=found.in_records(math.sqrt(max(0.0, scored.influence_sum) / point.layer.n)),
        best_ridge=found.best_ridge,
        best_ridge_leaves=found.share,
        best_penalizes_bias=found.best_penalizes_bias,
        halving=found.halving,
        constant=found.constant,
        linearity=hessian.linearity,
        flagged=tuple(scored.flagged),
    )


def _require_finite(columns: dict[str, Any]) -> None:
    """The last line of defence: numbers near the end of the floating-point range can still overflow."""
    for name, column in columns.items():
        bad = np.flatnonzero(~np.isfinite(column)).tolist()
        if bad:
            traced = "losses" in SCORES[str(name)].needs
            source, cause = ("trace", "losses") if traced else ("features, outputs", "features")
            raise InputError(
                f"{source}: {name} overflows in {name_rows(bad)} (counted from 0); values this large cannot "
                f"be scored, rescale the {cause} or drop those records"
            )
