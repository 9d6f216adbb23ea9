"""The scores: each a function of what is known of a chunk of records, its formula in its docstring.

Notation, for record i with features x̃ (constant included), outputs z, target y: loss ℓ(z, y), output gradient
g = ∂ℓ/∂z, output curvature W = ∂²ℓ/∂z², leverage block A = X̃ᵀH⁻¹X̃ with H the Hessian of the training objective
Σ ℓ + Λ/2‖θ‖² over all records. Softmax quantities are taken in the complement of the all-classes-equal direction,
where H is regular. Squared error is not halved: g = 2(ŷ − y), W = 2I. Of several labels, each has its own H, g, W and
A, and the record's score is the sum over its labels.

Where records were weighted in training, its term of the objective is w ℓ: g' = w g and W' = w W take the place of g
and W in H, in the leverage and in the step d = A(I − W'A)⁻¹g' that leaves the record out. The loss whose gap is taken
is ℓ itself, without the weight: it is what an attacker sees. So are ``loss`` and the gradient norms.

Every score is oriented so that bigger means more exposed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noshadow.curvature import DenseCurvature, dense_curvature
from noshadow.curvature.dense import DEFAULT_MEMORY
from noshadow.diagnostics import Diagnostics, concerns
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.heads import Head
from noshadow.layer import LastLayer, as_floats
from noshadow.packing import unpack
from noshadow.progress import progress_bar

LEVERAGE_FLOOR = 1e-8
"""1 − h is not taken below this: at h = 1 the fit without the record is undefined, the scores stay finite."""
_SAFE_LEVERAGE = 0.99  # below this bound on the eigenvalues of AW, I − AW is far from singular: a plain solve will do
_PLAIN_CHUNK = 65_536  # records at a time where no curvature is needed
_TRACE_PART = 4_194_304  # losses of a trace that are worked on at a time: 32 MiB


class Present(NamedTuple):
    """The head that a record is part of: outputs (c, m), reduced gradient g and pull g' (c, r or q)."""

    outputs: Tensor
    gradient: Tensor
    pull: Tensor


@dataclass(frozen=True)
class Records:
    """What is known of a chunk of c records: all that a score may use."""

    head: Head
    design: Tensor  # (c, P), features and constant
    outputs: Tensor  # (c, m)
    targets: Tensor  # (c,) or (c, q)
    block: Tensor | None = None  # A: (c, k), k = 1 or one per label, or (c, r, r)
    leftover: Tensor | None = None  # x̃ᵀH⁻¹G, (c, r or q), for the full step; None: the head is taken as stationary
    trace: Tensor | None = None  # loss after each epoch, (c, epochs), in the precision and on the device it came in
    trained: Head | None = None  # the loss that the weights multiply; None: that of the head
    weights: Tensor | None = None  # (c, 1), or (c, k) for k labels; None: all 1

    @cached_property
    def gradient(self) -> Tensor:
        """g in reduced coordinates, (c, r or q)."""
        return self.head.reduce(self.head.gradient(self.outputs, self.targets))

    @cached_property
    def pull(self) -> Tensor:
        """g', the gradient of the record's term of the objective, in reduced coordinates, (c, r or q)."""
        g = self.gradient
        if self.trained is not None:
            g = self.head.reduce(self.trained.gradient(self.outputs, self.targets))
        return g if self.weights is None else self.weights * g

    @cached_property
    def leverage_block(self) -> Tensor:
        """A, which only scores that ask for the curvature may use."""
        if self.block is None:
            raise RuntimeError("this score needs the curvature: register it with needs_curvature=True")
        return self.block

    @cached_property
    def plain_curvature(self) -> Tensor:
        """W in reduced coordinates, (c, k) or (c, r, r)."""
        packed = self.head.packed_curvature(self.outputs)
        width = self.head.width(self.outputs.shape[1])
        return packed if width == 1 else unpack(packed, width)

    @cached_property
    def curvature(self) -> Tensor:
        """W' of the record's term of the objective, likewise."""
        plain = self.plain_curvature
        if self.weights is None:
            return plain
        return self.weights * plain if plain.ndim == 2 else self.weights.unsqueeze(2) * plain

    @cached_property
    def first_order_shift(self) -> Tensor:
        """A g': how the outputs move, to first order, when the record is taken out, (c, r or q)."""
        return _times(self.leverage_block, self.pull)

    @cached_property
    def own_fit(self) -> Tensor:
        """W'A of each label or of the one number that all outputs share, (c, k): rounding must not carry it past 1."""
        return (self.curvature * self.leverage_block).clamp(max=1.0)

    @cached_property
    def present(self) -> Present:
        """The head that the record is part of: z, g and g' as they are. With the full step those of the head one Newton
        step on: z − x̃ᵀH⁻¹G, g − W x̃ᵀH⁻¹G, g' − W' x̃ᵀH⁻¹G."""
        if self.leftover is None:
            return Present(self.outputs, self.gradient, self.pull)
        return Present(
            self.outputs - self.head.expand(self.leftover),
            self.gradient - _times(self.plain_curvature, self.leftover),
            self.pull - _times(self.curvature, self.leftover),
        )

    @cached_property
    def leverage(self) -> Tensor:
        """tr(W'A), or the one number W'A for width 1, (c,); rounding must not carry it out of its range."""
        a, w = self.leverage_block, self.curvature
        if a.ndim == 2:
            return self.own_fit.sum(1)
        trace: Tensor = torch.linalg.vecdot(w.flatten(1), a.flatten(1))
        return trace.clamp(min=0.0, max=float(a.shape[-1]))

    def traces(self) -> Iterator[Tensor]:
        """The loss traces in float64, some records at a time, (·, epochs), for scores that ask for the trace."""
        if self.trace is None:
            raise RuntimeError("this score needs a trace: register it with needs_trace=True")
        for part in torch.split(self.trace, max(1, _TRACE_PART // self.trace.shape[1])):
            yield part.to(torch.float64).contiguous()

    @cached_property
    def removal(self) -> tuple[Tensor, Tensor]:
        """d = (I − AW')⁻¹Ag', the output shift of a Newton step without the record, and a flag for h ≈ 1.

        With the full step both heads take it, from the same parameters: with the record the outputs move by −ℓ,
        ℓ = x̃ᵀH⁻¹G, without it by (I − AW')⁻¹(Ag' − ℓ). The difference is (I − AW')⁻¹A(g' − W'ℓ).
        """
        start = self.first_order_shift if self.leftover is None else _times(self.leverage_block, self.present.pull)
        if self.leverage_block.ndim == 2:
            room = 1.0 - self.own_fit
            return start / room.clamp(min=LEVERAGE_FLOOR), (room < LEVERAGE_FLOOR).any(1)
        return _matrix_removal(self.leverage_block, self.curvature, start)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Products of blocks, (c, k) or (c, r, r), and vectors, (c, r or q)."""
    return matrix * vector if matrix.ndim == 2 else (matrix @ vector.unsqueeze(2)).squeeze(2)


def _matrix_removal(a: Tensor, w: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """(I − AW)⁻¹ start for r × r blocks; near h = 1 through the eigenvalues of W^½AW^½, kept away from 1."""
    product = torch.bmm(a, w)
    # the eigenvalues of AW lie in [0, 1], and their squares add up to tr(AWAW) ≤ ‖AW‖²
    close = (torch.linalg.vector_norm(product, dim=(1, 2)) >= _SAFE_LEVERAGE).nonzero().flatten()
    if len(close):
        suspect = product[close]
        squares = (suspect * suspect.transpose(1, 2)).sum((1, 2))
        close = close[squares >= _SAFE_LEVERAGE**2]
    product[close] = 0.0
    system = product.neg_()
    system.diagonal(dim1=1, dim2=2).add_(1.0)
    shift = torch.linalg.solve(system, start)
    flagged = torch.zeros(len(a), dtype=torch.bool, device=a.device)
    if len(close):
        values, vectors = torch.linalg.eigh(w[close])
        root = (vectors * values.clamp(min=0.0).sqrt().unsqueeze(1)) @ vectors.transpose(1, 2)
        sizes, basis = torch.linalg.eigh(root @ a[close] @ root)
        room = 1.0 - sizes
        inner = basis.transpose(1, 2) @ (root @ start[close].unsqueeze(2))
        inner = basis @ (inner / room.clamp(min=LEVERAGE_FLOOR).unsqueeze(2))
        shift[close] = start[close] + (a[close] @ (root @ inner)).squeeze(2)
        flagged[close] = room.amin(1) < LEVERAGE_FLOOR
    return shift, flagged


def loss(records: Records) -> Tensor:
    """ℓ(z, y): how badly the record fits. Nats for classification, squared target units for regression.
    Smoothed labels are in it, sample and class weights are not."""
    return records.head.loss(records.outputs, records.targets)


def gradient_norm(records: Records) -> Tensor:
    """‖∇_θ ℓ‖ = ‖g‖·‖x̃‖: length of the record's gradient in the last layer's parameters, without weights."""
    return output_gradient_norm(records) * _lengths(records.design)


def output_gradient_norm(records: Records) -> Tensor:
    """‖g‖: length of the record's gradient in the outputs, without weights."""
    return _lengths(records.head.gradient(records.outputs, records.targets))


def _lengths(rows: Tensor) -> Tensor:
    """‖row‖, (c,), whatever its size: squares are taken in units of the largest entry."""
    unit = rows.abs().amax(1, keepdim=True)
    unit = torch.where(unit > 0, unit, 1.0)
    return (rows / unit).square().sum(1).sqrt() * unit.squeeze(1)


def entropy(records: Records) -> Tensor:
    """−Σ pₖ log pₖ of the predicted class probabilities, in nats."""
    return records.head.entropy(records.outputs)


def leverage(records: Records) -> Tensor:
    """h = W'A (squared error: x̃ᵀ(X̃ᵀX̃ + Λ/2)⁻¹x̃; logistic: σ(z)σ(−z) x̃ᵀH⁻¹x̃), tr(W'A) for softmax, the sum over
    labels: how much of its own fit the record decides. 0 … 1; 0 … m−1 for softmax; 0 … m for m labels."""
    return records.leverage


def influence(records: Records) -> Tensor:
    """IF = gᵀAg': the loss gap without the record, to first order (squared error: 2e²h; logistic: (y−p)²h/w)."""
    gap = (records.gradient * records.first_order_shift).sum(1)
    return gap.clamp(min=0.0) if records.trained is None else gap  # A is semi-definite up to rounding, and g' ∝ g


def newton(records: Records) -> Tensor:
    """NS = gᵀA(I − W'A)⁻¹g': the loss, linearised, after a Newton step without the record (squared error: 2e²h/(1−h)).
    With the full step g and g' are those after a Newton step with the record."""
    gap = (records.present.gradient * records.removal[0]).sum(1)
    if records.trained is not None:
        return gap
    # for g' ∝ g both are semi-definite forms: rounding must not make them negative, or the second smaller
    first_order = (records.present.gradient * _times(records.leverage_block, records.present.pull)).sum(1)
    return torch.maximum(gap, first_order.clamp(min=0.0))


def leave_one_out(records: Records) -> Tensor:
    """ℓ(z + d, y) − ℓ(z, y), d = A(I − W'A)⁻¹g': the loss at the leave-one-out outputs minus the training loss.
    Exact for squared error, e²/(1−h)² − e²; one Newton step otherwise. With the full step z and g' are those after a
    Newton step with the record: for squared error the gap between two converged heads, wherever this one stopped."""
    return records.head.loss_change(records.present.outputs, records.targets, records.head.expand(records.removal[0]))


def mean_trace(records: Records) -> Tensor:
    """Mean over the epochs of ℓₜ, the record's loss after epoch t: how hard it was to fit, in the units of ``loss``."""
    return torch.cat([trace.mean(1) for trace in records.traces()])


def trace_iqr(records: Records) -> Tensor:
    """LT-IQR = Q₃ − Q₁ of ℓ₁ … ℓ_T: how far training moved the record's loss, whatever its first and last epochs.
    Quantiles interpolate linearly between order statistics, as NumPy's do."""
    return torch.cat([_interquartile_range(trace) for trace in records.traces()])


def _interquartile_range(trace: Tensor) -> Tensor:
    """Q₃ − Q₁ of each row."""
    ordered = trace.sort(dim=1).values  # torch.quantile takes no more than 16 million values

    def quantile(share: float) -> Tensor:
        place = share * (ordered.shape[1] - 1)
        below, above = math.floor(place), math.ceil(place)
        return ordered[:, below].lerp(ordered[:, above], place - below)

    return (quantile(0.75) - quantile(0.25)).clamp(min=0.0)  # rounding must not turn it negative


@dataclass(frozen=True)
class Score:
    """A registered score."""

    compute: Callable[[Records], Tensor]
    needs_curvature: bool = True
    needs_trace: bool = False
    only_classifiers: bool = False
    default: bool = True

    def applies(self, head: Head) -> bool:
        return head.classifies or not self.only_classifiers


SCORES: dict[str, Score] = {
    "loss": Score(loss, needs_curvature=False),
    "gradient_norm": Score(gradient_norm, needs_curvature=False),
    "output_gradient_norm": Score(output_gradient_norm, needs_curvature=False, default=False),
    "entropy": Score(entropy, needs_curvature=False, only_classifiers=True),
    "leverage": Score(leverage),
    "influence": Score(influence),
    "newton": Score(newton),
    "leave_one_out": Score(leave_one_out),
    "mean_trace": Score(mean_trace, needs_curvature=False, needs_trace=True),
    "trace_iqr": Score(trace_iqr, needs_curvature=False, needs_trace=True),
}


def score(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    full_step: bool = False,
    memory: float = DEFAULT_MEMORY,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Score every record of a layer: a row a record, a column a score.

    scores     names from ``noshadow.scores.SCORES``; None: all the default ones that apply to the head
    trace      (epochs, n): the loss of the same records, in the same order, after each epoch of training; adds
               ``mean_trace`` and ``trace_iqr``
    full_step  ``newton`` and ``leave_one_out`` of the heads that one more Newton step would give, with the record and
               without it: their size at convergence, for a head that stopped short of it. An attack sees the head as
               it is: to rank records, leave it out
    memory     working memory in GiB
    progress   show a bar; None: where stderr is a terminal
    """
    frame, diagnostics = score_with_diagnostics(
        layer, scores, trace, full_step=full_step, memory=memory, progress=progress
    )
    for message in concerns(layer, diagnostics):
        warnings.warn(message, NoshadowWarning, stacklevel=2)
    return frame


def score_with_diagnostics(
    layer: LastLayer,
    scores: Sequence[str] | None = None,
    trace: Any = None,
    *,
    full_step: bool = False,
    memory: float = DEFAULT_MEMORY,
    progress: bool | None = None,
) -> tuple[pd.DataFrame, Diagnostics]:
    """The scores and what was found on the way, without warnings."""
    losses = None if trace is None else _as_trace(trace, layer.n)
    names = _resolve(layer.kind, scores, losses is not None)
    needs_curvature = any(SCORES[name].needs_curvature for name in names)
    with progress_bar("Scoring", layer.n * (3 if needs_curvature else 1), progress) as advance:
        curvature = dense_curvature(layer, memory, advance) if needs_curvature else None
        columns = {name: torch.empty(layer.n, dtype=torch.float64) for name in names}
        influence_sum, flagged = 0.0, []
        for rows, records in _chunks(layer, curvature, losses, full_step):
            for name, column in columns.items():
                column[rows] = SCORES[name].compute(records)
            if curvature:
                influence_sum += float((records.pull * records.first_order_shift).sum())
                flagged += (records.removal[1].nonzero().flatten() + rows.start).tolist()
            advance(rows.stop - rows.start)
    frame = pd.DataFrame({name: column.numpy() for name, column in columns.items()})
    _require_finite(frame)
    if curvature is None:
        return frame, Diagnostics()
    diagnostics = Diagnostics(
        rank=curvature.rank,
        null_directions=curvature.null_directions,
        stationarity=_stationarity(layer, curvature, influence_sum),
        best_ridge=curvature.stationarity.best_ridge,
        best_ridge_leaves=curvature.stationarity.share,
        halving=curvature.stationarity.halving,
        linearity=curvature.linearity,
        flagged=tuple(flagged),
    )
    return frame, diagnostics


def _as_trace(trace: Any, n: int) -> Tensor:
    """Finite losses of shape (epochs, n), two epochs or more, in the precision that they came in."""
    losses = as_floats(trace, "trace")
    if losses.ndim != 2:
        raise InputError(f"trace: expected shape (epochs, n), a row an epoch, got {tuple(losses.shape)}")
    epochs, records = losses.shape
    if records != n:
        remedy = "it looks transposed: pass trace.T" if epochs == n else "pass the same records in the same order"
        raise InputError(f"trace: expected shape (epochs, {n}), a row an epoch, got {tuple(losses.shape)}; {remedy}")
    if epochs < 2:
        raise InputError(f"trace: a spread needs at least 2 epochs, got shape {tuple(losses.shape)}; a row an epoch")
    finite = torch.isfinite(losses)
    bad = (~finite.all(0)).nonzero().flatten().tolist()
    if bad:
        epoch = int((~finite[:, bad[0]]).nonzero()[0])
        raise InputError(
            f"trace: NaN or infinite for {name_rows(bad)} of the layer (counted from 0), first in epoch {epoch}; "
            "leave out the epochs in which training diverged, or drop those records"
        )
    return losses


def _resolve(head: Head, scores: Sequence[str] | None, has_trace: bool) -> list[str]:
    if scores is None:
        return [
            name
            for name, entry in SCORES.items()
            if entry.default and entry.applies(head) and (has_trace or not entry.needs_trace)
        ]
    names = [scores] if isinstance(scores, str) else list(scores)
    if not names:
        raise InputError("scores: the list is empty; pass None for all that apply")
    for name in names:
        if name not in SCORES:
            raise InputError(f"scores: {name!r} is not a score; use one of {', '.join(SCORES)}")
        if not SCORES[name].applies(head):
            raise InputError(f"scores: {name!r} needs class probabilities, a {head.name} head has none")
        if SCORES[name].needs_trace and not has_trace:
            raise InputError(
                f"scores: {name!r} needs the loss of every record after every epoch; pass it as trace=, (epochs, n)"
            )
    return list(dict.fromkeys(names))


def _require_finite(frame: pd.DataFrame) -> None:
    """The last line of defence: numbers near the end of the floating-point range can still overflow."""
    for name, column in frame.items():
        bad = np.flatnonzero(~np.isfinite(column.to_numpy())).tolist()
        if bad:
            source, cause = ("trace", "losses") if SCORES[str(name)].needs_trace else ("features, outputs", "features")
            raise InputError(
                f"{source}: {name} overflows in {name_rows(bad)} (counted from 0); values this large cannot "
                f"be scored, rescale the {cause} or drop those records"
            )


def _chunks(
    layer: LastLayer, curvature: DenseCurvature | None, losses: Tensor | None, full_step: bool
) -> Iterator[tuple[slice, Records]]:
    """All records in order, a chunk at a time, with their leverage blocks where there is a curvature."""

    def records(rows: slice, design: Tensor, block: Tensor | None = None, leftover: Tensor | None = None) -> Records:
        return Records(
            head=layer.kind,
            design=design,
            outputs=layer.outputs[rows],
            targets=layer.targets[rows],
            block=block,
            leftover=leftover,
            trace=None if losses is None else losses[:, rows].T,
            trained=None if layer.trained is layer.kind else layer.trained,
            weights=None if layer.weights is None else layer.weights[rows],
        )

    if curvature is None:
        for rows in layer.chunks(_PLAIN_CHUNK):
            yield rows, records(rows, layer.design(rows))
    else:
        for rows, block, leftover, design in curvature.blocks():
            yield rows, records(rows, design, block, leftover if full_step else None)


def _stationarity(layer: LastLayer, curvature: DenseCurvature, influence_sum: float) -> float:
    scale = 1.0 if layer.kind.classifies else float(layer.targets.square().sum().sqrt())
    if curvature.stationarity.decrement <= 1e-10 * scale:
        return 0.0
    typical = math.sqrt(max(0.0, influence_sum) / layer.n)
    return curvature.stationarity.decrement / typical if typical > 0 else math.inf
