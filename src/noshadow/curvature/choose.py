"""Which curvature a layer gets: the registry, and the choice by memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from noshadow.curvature.blocks import blocks_curvature, blocks_memory, blocks_refusal
from noshadow.curvature.dense import dense_curvature, dense_memory, dense_refusal
from noshadow.curvature.iterative import iterative_curvature, iterative_memory, iterative_refusal
from noshadow.curvature.kronecker import kronecker_curvature, kronecker_memory, kronecker_refusal
from noshadow.curvature.protocol import Advance, Curvature, Size
from noshadow.errors import InputError
from noshadow.layer import LastLayer

DEFAULT_MEMORY = 4.0
"""Working memory that the curvature may use, in GiB."""


@dataclass(frozen=True)
class Method:
    """A registered curvature.

    build    makes it for a layer within so many GiB; ``advance`` is told of every record, twice
    memory   GiB that it needs at the least for a layer of that size
    refusal  what is so large about it, for the sentence that refuses it
    """

    build: Callable[[LastLayer, float, Advance], Curvature]
    memory: Callable[[Size], float]
    refusal: Callable[[Size], str]


CURVATURES: dict[str, Method] = {
    "dense": Method(dense_curvature, dense_memory, dense_refusal),
    "blocks": Method(blocks_curvature, blocks_memory, blocks_refusal),
    "kronecker": Method(kronecker_curvature, kronecker_memory, kronecker_refusal),
    "iterative": Method(iterative_curvature, iterative_memory, iterative_refusal),
}
"""In the order of preference: ``auto`` takes the first that fits."""


def choose(name: str, size: Size, memory: float, held: float = 0.0) -> str:
    """The curvature of that name, or for "auto" the first that fits into ``memory`` GiB beside ``held`` GiB of data."""
    if name not in ("auto", *CURVATURES):
        raise InputError(f"curvature: {name!r} is not one of {', '.join(map(repr, ('auto', *CURVATURES)))}")
    if not memory > 0:
        raise InputError(f"memory: expected a positive number of GiB, got {memory!r}")
    candidates = list(CURVATURES) if name == "auto" else [name]
    for candidate in candidates:
        if CURVATURES[candidate].memory(size) + held <= memory:
            return candidate
    last = CURVATURES[candidates[-1]]
    table = f"the {size.n:,} records take {held:.1f} GiB as a dense table and " if held else ""
    raise InputError(
        f"memory: {table}{last.refusal(size)} and needs about {last.memory(size):.1f} GiB, the budget is {memory:g} "
        "GiB; pass a larger memory=, or reduce the features (e.g. PCA) or the number of classes"
    )


def build_curvature(
    layer: LastLayer, name: str = "auto", memory: float = DEFAULT_MEMORY, advance: Advance = lambda _: None
) -> Curvature:
    """The chosen curvature of a layer."""
    return CURVATURES[choose(name, Size.of(layer), memory)].build(layer, memory, advance)
