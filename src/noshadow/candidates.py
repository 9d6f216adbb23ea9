r"""Records that the model was not trained on: the scores they would have if they were.

The objective is Σ w ℓ + Λ/2‖θ‖² over the training records, H its Hessian, θ where it was left. Let a candidate with
features x̃, outputs z and target y join it with its own term w ℓ(·, y). To second order in all the other terms, and
exactly in its own, its outputs then minimise

    ½ dᵀA⁻¹d + w ℓ(z + d, y),        A = (x̃ᵀ ⊗ I) H⁻¹ (x̃ ⊗ I),        so that   d = −A g'(z + d),

g' = w ∂ℓ/∂z. It is the proximal point of its own loss in the metric of A. Newton's step for it, from d = 0, is

    d = −A(I + W'A)⁻¹g',        W' = w ∂²ℓ/∂z²,

the step that adds the record to H: (H + x̃x̃ᵀ ⊗ W')⁻¹ read through x̃ is A⁺ = A(I + W'A)⁻¹ (Woodbury). For squared
error it is the refit: the residual e becomes e/(1 + h), h = W'A. Other heads take a few more steps, each exact for the
record's own loss: a candidate with a label that the model finds absurd has no curvature where it starts and much of it
where it ends, and the first step alone would overshoot.

As a member the candidate thus has outputs z⁺ = z + d and, with W' and g' taken there,

    A⁺ = A(I + W'A)⁻¹,      leverage h⁺ = tr(W'A⁺)  (squared error: h/(1 + h)),      A⁺(I − W'A⁺)⁻¹ = A:

taking it out again moves its outputs by Ag' = −d, back to where they are. These are the quantities that scores are
functions of, so every score that needs no more than records and curvature applies to candidates as it is: what it
gives is what ``score`` would give for the record, had the model been trained with it. Exactly so for squared error.

Adding a record is removing one of weight −w, and that is how a curvature is asked: A⁺v is the removal of −W'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import pandas as pd
import torch
from torch import Tensor

from noshadow.curvature import CURVATURES, Curvature, Leverages, Removal, Size, choose
from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.memory import working_memory
from noshadow.progress import Advance, Progress, progress_bar
from noshadow.records import Records
from noshadow.scores import SCORES, Known, applicable, resolve

__all__ = [
    "Added",
    "Sees",
    "added",
    "candidate_chunks",
    "refuse_what_members_have",
    "require_alike",
    "require_exact",
    "score_candidates",
]

_STEPS = 50  # of Newton's method; a handful is the rule
_HALVINGS = 30
_CONVERGED = 1e-12  # of the outputs, beside their size
_CHUNK_NUMBERS = 2**22  # numbers in the largest array of a chunk


@runtime_checkable
class Sees(Protocol):
    """Anything that knows the blocks A of records, the layer's or not: an exact curvature, or blocks at hand."""

    def leverages(self, records: Records) -> Leverages:
        """A is theirs, H does not contain them. Weights may be negative: to remove a record of weight −w is to add one
        of weight w."""
        ...


@dataclass(frozen=True, eq=False)
class Added:
    """Candidates as members: records at z⁺, and what a curvature would know of them. It is a ``Leverages``.

    records  the candidates with the outputs z⁺ they would have
    shift    d = z⁺ − z (c, r)
    bare     A, seen through the training records' Hessian, with the records' weights negative
    """

    records: Records
    shift: Tensor
    bare: Leverages

    @property
    def leftover(self) -> Tensor:
        return self.bare.leftover

    def first_order_shift(self, pull: Tensor) -> Tensor:
        """A⁺v."""
        return self.bare.removal(pull).shift

    def removal(self, pull: Tensor) -> Removal:
        """A⁺(I − W'A⁺)⁻¹v = Av."""
        shift = self.bare.first_order_shift(pull)
        return Removal(shift, torch.zeros(len(shift), dtype=torch.bool, device=shift.device))

    @cached_property
    def leverage(self) -> Tensor:
        """tr(W'A⁺), (c,)."""
        records = self.records
        m = records.outputs.shape[1]
        if records.head.width(m) == 1:  # a number for all outputs, or one per label
            own = records.packed_curvature
            block = self.first_order_shift(torch.ones_like(self.shift))
            return (own * block[:, : own.shape[1]]).sum(1)
        total = torch.zeros_like(self.shift[:, 0])
        for k in range(self.shift.shape[1]):
            unit = torch.zeros_like(self.shift)
            unit[:, k] = 1.0
            total += self.first_order_shift(records.pull_curved(unit))[:, k]
        return total


def added(hessian: Sees, records: Records) -> Added:
    """Candidates as the members that they would become, each on its own.

    Newton's method for d + Ag'(z + d) = 0, in d = Aq. With v = q + g' a step is t = A(I + W'A)⁻¹v: d falls by t and q
    becomes W't − g'. The slope of the objective along the step is −vᵀt; a step is halved until its slope at the end
    is at most half as steep the other way, which for a convex function means that it falls.
    """
    d = torch.zeros_like(records.pull)
    q = torch.zeros_like(d)
    own, bare = _at(hessian, records, d)
    for _ in range(_STEPS):
        v = q + own.pull
        step = bare.removal(v).shift
        towards = own.pull_curved(step) - own.pull - q
        slope = (v * step).sum(1)
        size = torch.ones_like(slope)
        for _ in range(_HALVINGS):
            end, q_end = d - size.unsqueeze(1) * step, q + size.unsqueeze(1) * towards
            ahead = ((q_end + _moved(records, end).pull) * step).sum(1)
            over = ahead < -0.5 * slope
            if not bool(over.any()):
                break
            size = torch.where(over, 0.5 * size, size)
        moved = (end - d).abs().amax(1)
        d, q = end, q_end
        own, bare = _at(hessian, records, d)
        if bool((moved <= _CONVERGED * (1.0 + records.outputs.abs().amax(1) + d.abs().amax(1))).all()):
            break
    return Added(own, d, bare)


def _curvature(layer: LastLayer, name: str, memory: float | None, advance: Advance) -> Curvature:
    """Of all columns, whatever the number of records: the n-sided form has no place for what a candidate is beside
    their span."""
    choice = choose(name, Size.of(layer), memory)
    if choice.name != "dense" or CURVATURES["dense"].memory(Size.of(layer)) <= working_memory(memory):
        return CURVATURES[choice.name].build(layer, working_memory(memory), advance)
    raise _too_large()


def require_exact(hessian: Any) -> Sees:
    """A curvature that can look at other records than the layer's."""
    if not isinstance(hessian, Sees):
        raise _too_large()
    return hessian


def _too_large() -> InputError:
    return InputError(
        "candidates: they are seen through the exact Hessian of the layer, which does not fit into memory; pass a "
        "larger memory=, or reduce the features (e.g. PCA) or the number of classes"
    )


def _moved(records: Records, shift: Tensor) -> Records:
    """The records with outputs z + d."""
    return replace(records, outputs=records.outputs + records.head.expand(shift))


def _at(hessian: Sees, records: Records, shift: Tensor) -> tuple[Records, Leverages]:
    """The records with outputs z + d, and A seen with the weights of records that are added."""
    moved = _moved(records, shift)
    weights = torch.ones_like(moved.outputs[:, :1]) if moved.weights is None else moved.weights
    return moved, hessian.leverages(replace(moved, weights=-weights))


def candidate_chunks(candidates: LastLayer) -> Iterator[Records]:
    """Candidates in order, as many at a time as their blocks allow."""
    width = candidates.kind.width(candidates.n_outputs)
    for rows in candidates.chunks(max(1, _CHUNK_NUMBERS // (candidates.n_columns + width**2))):
        yield candidates.records(rows)


def score_candidates(
    layer: LastLayer,
    candidates: LastLayer,
    scores: Sequence[str] | None = None,
    *,
    curvature: str = "auto",
    memory: float | None = None,
    progress: Progress = None,
) -> pd.DataFrame:
    """The scores that each candidate would have as a member, a row per candidate; see ``noshadow.score``.

    Each candidate on its own is added to the layer's training records, the others are not there.
    """
    require_alike(layer, candidates)
    names = _resolve(layer, scores)
    with progress_bar("Scoring candidates", 2 * layer.n + candidates.n, progress) as advance:
        hessian = require_exact(_curvature(layer, curvature, memory, advance))
        columns = {name: torch.empty(candidates.n, dtype=torch.float64) for name in names}
        for records in candidate_chunks(candidates):
            member = added(hessian, records)
            known = Known(member.records, member)
            for name, column in columns.items():
                column[records.rows] = SCORES[name](known)
            advance(len(records))
    frame: pd.DataFrame = pd.DataFrame({name: column.numpy() for name, column in columns.items()})
    return frame


def _resolve(layer: LastLayer, scores: Sequence[str] | None) -> list[str]:
    """The scores asked for, of those that need nothing but the record and the curvature."""
    possible = set(applicable(layer.kind, frozenset({"curvature"}), every=True))
    names = [] if scores is None else [scores] if isinstance(scores, str) else list(scores)
    for name in names:
        if name in SCORES and SCORES[name].obstacle(layer.kind) is None and name not in possible:
            raise InputError(
                f"scores: {name!r} needs what training remembers of a record, and candidates took no part in it; use "
                f"one of {', '.join(sorted(possible))}"
            )
    return resolve(layer.kind, scores, frozenset({"curvature"}))


def refuse_what_members_have(trace: Any, full_step: bool) -> None:
    """What ``score`` knows of training records alone."""
    if trace is not None:
        raise InputError("trace: what training remembers is of its own records; candidates= took no part in it")
    if full_step:
        raise InputError("full_step: both heads of a candidate, with it and without, are told from the head as it is")


def require_alike(layer: LastLayer, candidates: Any) -> None:
    """Candidates as the layer sees its own records, or an error that names the difference."""
    if not hasattr(candidates, "records"):
        raise InputError(
            f"candidates: expected a LastLayer of the candidates' features, outputs and targets, got "
            f"{type(candidates).__name__}"
        )
    for name in ("head", "n_outputs", "n_features", "bias", "label_smoothing"):
        own, other = getattr(layer, name), getattr(candidates, name)
        if own != other:
            raise InputError(f"candidates: {name} is {other!r}, but {own!r} for the training records")
    own, other = layer.class_weight, candidates.class_weight
    if (own is None) != (other is None) or (own is not None and not torch.equal(own, other)):
        raise InputError("candidates: class_weight differs from that of the training records")
