"""Records that stand alone in a direction of the features, whatever the curvature of the loss makes of them.

h = 1 of squared error says that no other record has anything to say in some direction that this one points in: without
it the fit is undefined. Of classes it need not: where outputs are saturated, the curvature W of all other records in a
direction can be 10⁸ times smaller than that of the one record, which then has h = 1 to eight digits. But curvature
grows as outputs move: without the record the others settle the fit after all, only not where a quadratic of today's
curvature would have it. So of classes the features themselves are asked, by their plain leverage x̃ᵀ(X̃ᵀX̃ + D)⁺x̃.
"""

from __future__ import annotations

from collections.abc import Sequence

from noshadow.curvature.removal import LEVERAGE_FLOOR
from noshadow.curvature.sided import n_sided
from noshadow.curvature.whiten import whiten
from noshadow.layer import LastLayer
from noshadow.memory import GIB

__all__ = ["stand_alone"]

_CHUNK = 8_192  # records at a time
_MATRICES = 6  # of the size of the Gram matrix, at the same time


def stand_alone(layer: LastLayer, rows: Sequence[int], memory: float) -> tuple[int, ...]:
    """Those of ``rows``, records with h = 1, without which the fit is undefined.

    Features of more columns than ``memory`` GiB can hold the products of are not asked: none is said to be alone.
    """
    if not rows or layer.kind.quadratic:
        return tuple(rows)
    if _MATRICES * 8 * min(layer.n_columns, layer.n + 1) ** 2 > memory * GIB:
        return ()
    layer = n_sided(layer) if layer.n_columns > layer.n + 1 else layer
    transform = whiten(layer, _CHUNK).transform
    found: list[int] = []
    asked = set(rows)
    for part in layer.chunks(_CHUNK):
        here = [row for row in range(part.start, part.stop) if row in asked]
        if here:
            design = layer.records(part).design[[row - part.start for row in here]]
            plain = (design @ transform).square().sum(1)
            found += [row for row, own in zip(here, plain.tolist(), strict=True) if 1.0 - own < LEVERAGE_FLOOR]
    return tuple(found)
