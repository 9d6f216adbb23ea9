"""The theory's expected gap as a map, and its trade-off curves (Figure 1 of the paper)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from noshadow import theory
from noshadow.drawing.canvas import panels, write_one

__all__ = ["gap_and_tradeoffs"]


def gap_and_tradeoffs(path: Path, n: int, p: int) -> Path:
    """E[Δℓ] over (ε², h̄); β(α) for several ε at h̄ = 1; β(α) for several h̄ at ε = 1; σ = 1. PNG, SVG or PDF."""
    square, leverage = np.linspace(0.0, 4.0, 121), np.linspace(0.0, 10.0, 121)
    gap = theory.expected_gap(leverage[:, None], np.sqrt(square), n, p)
    alpha = np.linspace(0.0, 1.0, 401)
    with panels(3, (4.0, 3.7), 3, extra_height=0.0) as (figure, [left, middle, right]):
        from matplotlib import colormaps  # not before it was said what is missing

        mesh = left.pcolormesh(square, leverage, gap, shading="gouraud", cmap="viridis", rasterized=True)
        left.grid(visible=False)
        figure.colorbar(mesh, ax=left)
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, 5))  # darker: smaller, in grey too
        left.set(title="expected gap E[Δℓ]", xlabel="ε²", ylabel="h̄")
        families = [
            (middle, "h̄ = 1", [(f"ε = {e:g}", 1.0, e) for e in (0.0, 1.0, 2.0, 4.0, 8.0)]),
            (right, "ε = 1", [(f"h̄ = {h:g}", h, 1.0) for h in (0.5, 2.0, 8.0, 32.0, 128.0)]),
        ]
        for axes, title, members in families:
            for (label, h, e), colour, marker in zip(members, shades, "osD^v", strict=True):
                optimal = theory.tradeoff(alpha, h, e, n, p, test="optimal")
                axes.plot(alpha, optimal, color=colour, marker=marker, ms=4.5, markevery=50, label=label)
                axes.plot(alpha, theory.tradeoff(alpha, h, e, n, p), color=colour, ls=":", lw=1.2)
            axes.plot([0, 1], [1, 0], color="0.6", lw=0.8)
            axes.set(title=f"{title}, σ = 1, n − p = {n - p}", xlabel="false-positive rate α", xlim=(0, 1), ylim=(0, 1))
            axes.legend(frameon=False, fontsize="small", title="dotted: threshold", title_fontsize="small")
        middle.set_ylabel("false-negative rate β")
        return write_one(figure, path, photographs=True)  # 256 colours would be bands in the map
