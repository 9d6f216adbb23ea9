"""The pass over the records that gives their scores, at the one or two points of a run where scores are evaluated.

A point is a layer with its outputs: the final ones or, for the scores of the run, those of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from noshadow.curvature import Curvature
from noshadow.curvature.protocol import Leverages
from noshadow.layer import LastLayer
from noshadow.progress import Advance
from noshadow.records import Records
from noshadow.run import Run
from noshadow.scores import SCORES, Known, Need, first_of
from noshadow.trace import Trace

__all__ = ["Point", "Scored", "curved", "given", "points", "without_layer"]

_PLAIN_CHUNK = 65_536  # records at a time where no curvature is needed


class Scored(NamedTuple):
    """Values (scores, records), the sum of the records' influences, and the rows that are flagged."""

    values: Tensor
    influence_sum: float
    flagged: list[int]


def given(trace: Trace | None, calibrated: bool = False) -> frozenset[Need]:
    """What scores may need and there is: a Hessian can always be had, the rest is what trace and caller have."""
    found: set[Need] = {"curvature"}
    if trace is not None and trace.losses is not None and trace.epochs > 1:
        found.add("losses")
    if trace is not None and trace.mean_outputs is not None:
        found.add("mean_outputs")
    if calibrated:
        found.add("calibration")
    return frozenset(found)


def curved(names: Sequence[str]) -> bool:
    """Whether one of the scores needs the Hessian."""
    return any("curvature" in SCORES[name].needs for name in names)


@dataclass(frozen=True, eq=False)
class Point:
    """Scores that are evaluated at the same outputs.

    layer      with those outputs
    names      of the scores
    trace      what training remembers of the records
    full_step  whether scores are those after one more Newton step: never of the run
    of_run     the outputs are those of the run
    run_loss   (n,) the loss of the run, where losses were kept
    """

    layer: LastLayer
    names: list[str]
    trace: Trace | None
    full_step: bool
    of_run: bool
    run_loss: Tensor | None = None

    @property
    def curved(self) -> bool:
        return curved(self.names)

    @property
    def precedence(self) -> int:
        """That of its score to rank by."""
        return SCORES[first_of(self.names)].precedence

    def scored(self, hessian: Curvature | None, advance: Advance) -> Scored:
        """The scores of all records, as the layer says: in one go or in blocks."""
        layer = self.layer if hessian is None else hessian.layer  # which may be the n-sided form
        if layer.blocks is None:
            return self.of_window(layer, hessian, advance)
        values = torch.empty((len(self.names), layer.n), dtype=torch.float64)
        influence_sum, flagged = 0.0, []
        job = partial(_of_block, point=without_layer(self), hessian=without_layer(hessian))
        for rows, parts in layer.blocks.mapped(layer, "scores", job, getattr(hessian, "chunk", _PLAIN_CHUNK)):
            values[:, rows] = parts["values"]
            influence_sum += float(parts["influence_sum"])
            flagged += parts["flagged"].tolist()
            advance(rows.stop - rows.start)
        return Scored(values, influence_sum, flagged)

    def of_window(self, layer: LastLayer, hessian: Curvature | None, advance: Advance) -> Scored:
        """The scores of the records that the layer covers."""
        first = layer.covered.start
        values = torch.empty((len(self.names), layer.covered.stop - first), dtype=torch.float64)
        influence_sum, flagged = 0.0, []
        for known in self._chunks(layer, hessian):
            rows = known.records.span
            for name, column in zip(self.names, values, strict=True):
                column[rows.start - first : rows.stop - first] = SCORES[name](known)
            if hessian is not None:
                influence_sum += float((known.records.pull * known.first_order_shift).sum())
                flagged += (known.removal.undefined.nonzero().flatten() + rows.start).tolist()
            advance(len(known.records))
        return Scored(values, influence_sum, flagged)

    def _chunks(self, layer: LastLayer, hessian: Curvature | None) -> Iterator[Known]:
        """All records in order, a chunk at a time, with what is known of them."""
        if hessian is None:
            for rows in layer.chunks(_PLAIN_CHUNK):
                yield self.known(layer.records(rows), None, rows)
        else:
            for leverages in hessian.chunks():
                yield self.known(leverages.records, leverages, leverages.records.rows)

    def known(self, records: Records, leverages: Leverages | None, rows: slice | Tensor) -> Known:
        """What scores may use of some records, which are those rows of the layer."""
        run_loss = None if self.run_loss is None else self.run_loss[rows]
        return Known(records, leverages, self.trace, self.full_step, self.of_run, run_loss)


def points(layer: LastLayer, names: list[str], trace: Trace | None, full_step: bool, run: Run) -> list[Point]:
    """Where each score is evaluated: at the final outputs or, those of the run, at its own."""
    if run.outputs is None:
        return [Point(layer, names, trace, full_step, False, run.loss)]
    of_run = [name for name in names if SCORES[name].of_run]
    final = [name for name in names if name not in of_run]
    found = [Point(layer, final, trace, full_step, False)] if final else []
    return [*found, Point(layer.at(run.outputs), of_run, trace, False, True, run.loss)] if of_run else found


def without_layer(one: Any) -> Any:
    """A point or a Hessian for another process: the layer is sent once, and each block has its window of it."""
    return one if one is None else replace(one, layer=None)


def _of_block(layer: LastLayer, point: Point, hessian: Curvature | None) -> dict[str, Tensor]:
    """The scores of a window, here or on another machine."""
    here: Any = hessian if hessian is None else replace(cast(Any, hessian), layer=layer)
    values, influence_sum, flagged = point.of_window(layer, here, _untold)
    return {
        "values": values,
        "influence_sum": torch.tensor(influence_sum, dtype=torch.float64),
        "flagged": torch.tensor(flagged, dtype=torch.int64),
    }


def _untold(steps: float = 1) -> None:
    """Blocks are counted where they come in."""
