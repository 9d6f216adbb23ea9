"""Which curvature a layer gets: the registry, and the choice by memory and work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from noshadow.curvature.blocks import blocks_curvature, blocks_memory, blocks_refusal, blocks_work
from noshadow.curvature.dense import dense_curvature, dense_memory, dense_refusal
from noshadow.curvature.iterative import iterative_curvature, iterative_memory, iterative_refusal
from noshadow.curvature.kronecker import KRONECKER_SPARES, kronecker_curvature, kronecker_memory, kronecker_refusal
from noshadow.curvature.protocol import Advance, Curvature, Size
from noshadow.curvature.sided import n_sided
from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.memory import working_memory

__all__ = ["CURVATURES", "PATIENCE", "Choice", "Method", "build_chosen", "build_curvature", "choose"]

PATIENCE = 5e13
"""Floating-point operations beyond which ``auto`` passes on to the next: a quarter of an hour on two cores."""


@dataclass(frozen=True)
class Method:
    """A registered curvature.

    build    makes it for a layer within so many GiB; ``advance`` is told of every record, twice
    memory   GiB that it needs at the least for a layer of that size
    refusal  what is so large about it, for the sentence that refuses it
    work     floating-point operations, where it may take too many; None: never
    auto     whether "auto" may take it
    spares   what it leaves out where even its own memory is not there: the end of a sentence; None: it cannot
    blocks   whether its passes may be done in blocks of records, kept in a store or by tasks of Ray
    checked  of others, whether it may be an approximation: tasks of Ray then give the exact answers that it is held to
    """

    build: Callable[[LastLayer, float, Advance], Curvature]
    memory: Callable[[Size], float]
    refusal: Callable[[Size], str]
    work: Callable[[Size], float] | None = None
    auto: bool = True
    spares: str | None = None
    blocks: bool = False
    checked: bool = True


CURVATURES: dict[str, Method] = {
    "dense": Method(dense_curvature, dense_memory, dense_refusal, blocks=True),
    "blocks": Method(blocks_curvature, blocks_memory, blocks_refusal, blocks_work),
    "kronecker": Method(kronecker_curvature, kronecker_memory, kronecker_refusal, spares=KRONECKER_SPARES),
    "iterative": Method(iterative_curvature, iterative_memory, iterative_refusal, auto=False, checked=False),
}
"""In the order of preference: ``auto`` takes the first that fits, or the last that can do with less than it needs."""


class Choice(NamedTuple):
    """The name of a curvature, and why it is that one: a part of a sentence."""

    name: str
    why: str


def choose(name: str, size: Size, memory: float | None = None) -> Choice:
    """The curvature of that name, or for "auto" the first that fits into ``memory`` GiB (None: half of what is free).

    "auto" never refuses: the last resort needs little more than the records.
    """
    if name not in ("auto", *CURVATURES):
        raise InputError(f"curvature: {name!r} is not one of {', '.join(map(repr, ('auto', *CURVATURES)))}")
    budget, size = working_memory(memory), size.sided
    if name != "auto":
        method = CURVATURES[name]
        if method.memory(size) > budget:
            raise InputError(
                f"memory: {method.refusal(size)} and needs about {_gib(method.memory(size))} GiB, the budget is "
                f"{budget:.3g} GiB; pass a larger memory=, or curvature='auto', which takes one that fits"
            )
        return Choice(name, "as asked")
    reasons = []
    for candidate, method in CURVATURES.items():
        if not method.auto:
            continue
        needed = method.memory(size)
        if needed > budget:
            reasons.append(f"{candidate} needs {_gib(needed)} GiB, {budget:.3g} may be used")
        elif method.work is not None and method.work(size) > PATIENCE:
            reasons.append(f"{candidate} takes {method.work(size):.0e} operations")
        else:
            return Choice(candidate, "; ".join(reasons) or "the exact Hessian fits into memory")
    last, spares = [(name, method.spares) for name, method in CURVATURES.items() if method.auto and method.spares][-1]
    return Choice(last, f"{'; '.join(reasons)}, so that it {spares}")


def _gib(amount: float) -> str:
    """One decimal, and of less than that two digits: what does not fit does not read as nothing."""
    return f"{amount:,.1f}" if amount >= 0.1 else f"{amount:.2g}"


def build_curvature(
    layer: LastLayer, name: str = "auto", memory: float | None = None, advance: Advance = lambda _: None
) -> Curvature:
    """The chosen curvature of a layer."""
    return build_chosen(layer, choose(name, Size.of(layer), memory), memory, advance)


def build_chosen(
    layer: LastLayer, choice: Choice, memory: float | None = None, advance: Advance = lambda _: None
) -> Curvature:
    """A curvature that was chosen before, by the size that the layer was to have."""
    method, budget, size = CURVATURES[choice.name], working_memory(memory), Size.of(layer)
    if size.sided != size and method.memory(size.sided) <= budget:
        layer = n_sided(layer)
    return method.build(layer, budget, advance)
