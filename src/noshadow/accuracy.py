"""How far an approximate curvature is from the exact one, and exact scores where they matter.

Conjugate gradients on the exact Hessian (``noshadow.curvature.iterative``) answer for any record. They are asked about
a random sample and about the records that the approximation puts on top, and what they say is stated with every
approximate score. ``refine`` goes on with the top until no other record is expected there.

Every score of the curvature that one system per record gives, or two, is refined (``Score.per_output``); one of them is
compared and ranked by, as ``Score.precedence`` says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from noshadow.curvature import Size
from noshadow.curvature.iterative import Effort, Solver, system_work
from noshadow.diagnostics import Accuracy
from noshadow.layer import LastLayer
from noshadow.passes.blocks import Parts
from noshadow.points import Point, without_layer
from noshadow.scores import SCORES

if TYPE_CHECKING:
    from noshadow.passes.ray_tasks import RayTasks

__all__ = ["Floats", "check", "records_to_check"]

Floats = NDArray[np.float64]

_PATIENCE = 4e12  # operations that the check may take: a minute or two
_STEPS = 20  # of a system, typically
_MOST, _LEAST = 100, 3  # records of the sample, and of the top
_ENOUGH = 10  # sampled records for a rank correlation; with fewer, those at the top count too
_MOST_REFINED = 10  # times the top share
_EFFORT, _ALONE = "effort", "alone"  # beside the scores: what they took, and whether no fit is left without the record
_PROBES = 50  # records from the top down to the last that may be refined: how much too low can they be?


def check(
    point: Point,
    solver: Solver,
    frame: pd.DataFrame,
    refine: float | None,
    seed: int = 0,
    tasks: RayTasks | None = None,
) -> tuple[Accuracy | None, set[int]]:
    """Compare, and with ``refine`` put exact scores into the frame for that share of the records, the highest ones.

    The frame has the scores of that point. The exact answers are found here or, batch by batch, by ``tasks``. With what
    was found come the records of leverage 1 among those that were asked about. None and none where the frame has no
    score of the curvature.
    """
    layer = point.layer
    systems = _systems(layer, [str(name) for name in frame])
    if not systems:
        return None, set()
    ranked = next(iter(systems))
    exact = _Exact(solver, frame, point, tasks)
    approximate = frame[ranked].to_numpy().copy()
    count = records_to_check(Size.of(layer), systems[ranked])
    highest = np.argsort(-approximate, kind="stable")
    sample = np.random.default_rng(seed).choice(layer.n, size=min(count, layer.n), replace=False)
    at_top = highest[: min(2 * math.ceil(count / 2), layer.n)]
    exact(sample, [ranked])
    stable, refined = None, 0
    if refine:
        size = max(1, math.ceil(refine * layer.n - 1e-9))
        together = [name for name in systems if systems[name] == systems[ranked]]
        stable, refined = _refine(exact, frame, ranked, together, approximate, size)
        at_top = exact.rows[: max(refined, 1)]
        kept_of = size
    else:
        exact(at_top, [ranked])
        kept_of = max(1, len(at_top) // 2)
    truth = exact.known(ranked)
    on_sample = _errors(approximate[sample], np.array([truth[int(row)] for row in sample]))
    on_top = _errors(approximate[at_top], np.array([truth[int(row)] for row in at_top]))
    ranks = sample if len(sample) >= _ENOUGH else np.union1d(sample, at_top)
    order = sorted((int(row) for row in at_top), key=lambda row: -truth[row])[:kept_of]
    kept = len(set(order) & {int(row) for row in highest[:kept_of]}) / len(order)
    effort = solver.effort
    found = Accuracy(
        score=ranked,
        sampled=len(sample),
        top=len(at_top),
        spearman=_rank_correlation(approximate[ranks], np.array([truth[int(row)] for row in ranks])),
        median_error=float(np.median(on_sample)),
        error_95=float(np.quantile(on_sample, 0.95)),
        top_error=float(np.median(on_top)),
        top_kept=kept,
        top_share=kept_of / layer.n,
        refined=refined,
        stable=stable,
        unconverged=effort.unconverged,
        residual=effort.residual,
        steps=effort.steps / max(1, effort.systems),
    )
    return found, exact.alone


def records_to_check(size: Size, systems: int = 1) -> int:
    """Random records, and as many at the top, each of so many systems, so that the check takes a minute or two."""
    return int(min(_MOST, max(_LEAST, _PATIENCE // (2 * _STEPS * systems * system_work(size)))))


def _systems(layer: LastLayer, names: Sequence[str]) -> dict[str, int]:
    """Of the scores of the curvature: how many systems each takes for a record, the one to rank by first."""
    outputs = layer.kind.width(layer.n_outputs)
    curved = [name for name in names if "curvature" in SCORES[name].needs and SCORES[name].compute is not None]
    found = {name: outputs if SCORES[name].per_output else 1 for name in curved}
    places = {name: place for place, name in enumerate(SCORES)}
    return dict(sorted(found.items(), key=lambda one: (one[1], -SCORES[one[0]].precedence, places[one[0]])))


class _Exact:
    """Exact scores of single records, remembered: a batch of systems at a time, here or as tasks of Ray."""

    def __init__(self, solver: Solver, frame: pd.DataFrame, point: Point, tasks: RayTasks | None) -> None:
        self._solver, self._point, self._tasks = solver, without_layer(point), tasks
        self._sent: tuple[Any, ...] | None = None
        self._known: dict[str, dict[int, float]] = {str(name): {} for name in frame}
        self.rows: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.alone: set[int] = set()

    def known(self, name: str) -> dict[int, float]:
        return dict(self._known[name])

    def __call__(self, rows: NDArray[np.int64], names: Sequence[str]) -> dict[str, Floats]:
        missing = np.array(
            [row for row in rows.tolist() if any(row not in self._known[name] for name in names)], dtype=np.int64
        )
        batches = torch.split(torch.from_numpy(missing), self._solver.batch) if len(missing) else ()
        for some, answers in zip(batches, self._answers(batches, list(names)), strict=True):
            self._solver.effort.join(answers.pop(_EFFORT))
            self.alone.update(some[answers.pop(_ALONE)].tolist())
            for name, values in answers.items():
                self._known[name].update(zip(some.tolist(), values.tolist(), strict=True))
        return {name: np.array([self._known[name][row] for row in rows.tolist()]) for name in names}

    def _answers(self, batches: Sequence[Tensor], names: list[str]) -> Iterator[Parts]:
        if self._tasks is None or not batches:
            return (_answers((rows, names), self._solver, self._point) for rows in batches)
        if self._sent is None:
            if self._point.full_step:
                self._solver.beside.prepare_leftover()  # once, not in every task
            remedy = "save the layer, and score what LastLayer.load gives"
            self._sent = tuple(
                self._tasks.shared(one, "engine: the layer", remedy) for one in (self._solver, self._point)
            )
        return self._tasks.each(_answers, [(rows, names) for rows in batches], *self._sent)


def _answers(asked: tuple[Tensor, list[str]], solver: Solver, point: Point) -> Parts:
    """Exact scores of a batch of records, by their rows, and what that took."""
    rows, names = asked
    own = replace(solver, effort=Effort())
    records = own.gather(rows)
    known = point.known(records, own.leverages(records), rows)
    scores = {name: SCORES[name](known) for name in names}
    moved = "removal" in vars(known)  # else it would take systems of its own
    alone = known.removal.undefined.cpu() if moved else torch.zeros(len(rows), dtype=torch.bool)
    return {**scores, _ALONE: alone, _EFFORT: own.effort.sums()}


def _refine(
    exact: _Exact, frame: pd.DataFrame, ranked: str, names: list[str], approximate: Floats, size: int
) -> tuple[bool, int]:
    """Exact scores for the top, until the exact scores of ``size`` records are above what any other should have.

    What another should have at most is its approximate score times the largest ratio of exact to approximate among
    those that are known: the random sample, the top, what came to be refined, and some records on the way down, ever
    fewer, where those would be that the approximation puts far too low. Nobody has solved for the others: one of a
    larger ratio than all of these is missed.
    """
    seen = np.full(len(approximate), np.nan)
    for row, value in exact.known(ranked).items():
        seen[row] = value
    done = np.zeros(len(approximate), dtype=bool)
    limit = min(len(approximate), _MOST_REFINED * size)
    order = np.argsort(-approximate, kind="stable")
    probes = np.unique(np.geomspace(size, limit, _PROBES).astype(np.int64)) if size < limit else np.empty(0, np.int64)
    new = np.concatenate([order[:size], order[probes[probes < limit]]])
    while True:
        values = exact(new, names)
        done[new] = True
        exact.rows = np.concatenate([exact.rows, new])
        for name in names:
            frame.loc[frame.index[new], name] = values[name]
        seen[new] = values[ranked]
        edge = np.partition(seen[done], int(done.sum()) - size)[int(done.sum()) - size]
        known = ~np.isnan(seen)
        ratio = seen[known] / np.where(approximate[known] > 0, approximate[known], np.inf)
        highest = np.where(known, seen, approximate * max(1.0, float(ratio.max())))
        open_ = (~done & (highest >= edge) & (known | (approximate > 0))).nonzero()[0]
        room = limit - int(done.sum())
        if not len(open_) or room <= 0:
            return not len(open_), int(done.sum())
        open_ = open_[np.lexsort((-highest[open_], ~known[open_]))]  # of the sample: known to belong there
        new = open_[: min(room, max(size // 2, 1), len(open_))]


def _errors(approximate: Floats, exact: Floats) -> Floats:
    """|approximate − exact| / |exact|; 0 where both vanish."""
    apart = np.abs(approximate - exact)
    return np.where(apart > 0, apart / np.maximum(np.abs(exact), np.finfo(float).tiny), 0.0)


def _rank_correlation(a: Floats, b: Floats) -> float | None:
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(stats.spearmanr(a, b).statistic)
