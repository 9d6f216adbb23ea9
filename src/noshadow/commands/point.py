"""What ``noshadow theory`` shows: the figures and the curve of one point, and Figure 1 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from noshadow import theory
from noshadow.errors import missing_extra
from noshadow.files import atomic_path
from noshadow.theory.numerics import Array

__all__ = ["DELTA", "LEVELS", "describe", "draw_figure", "plot", "show"]

LEVELS = (1e-4, 1e-3, 1e-2, 1e-1)
DELTA = 1e-5


def describe(leverage: float, error: float, n: int, p: int, sigma: float, exact: bool) -> dict[str, Any]:
    """Every figure of one point; what does not exist for these sizes is None."""
    point = (leverage, error, n, p, sigma)
    law = theory.leverage_law(leverage, n, p)
    alpha = np.concatenate([np.geomspace(1e-4, 1e-2, 21)[:-1], np.linspace(0.01, 0.99, 99)])
    levels = np.array(LEVELS)

    def by_test(function: Callable[..., Any], *first: Any) -> dict[str, Any]:
        return {
            test: np.asarray(function(*first, *point, test=test, exact=exact)).tolist()
            for test in ("threshold", "optimal")
        }

    return {
        "leverage": leverage,
        "error": error,
        "n": n,
        "p": p,
        "sigma": sigma,
        "exact": exact,
        "empirical_leverage": {"mean": float(law.mean()), "typical": float(law.typical())},
        "expected_gap": float(theory.expected_gap(*point)) if n - p > 2 else None,
        "gap_expansion": float(theory.gap_expansion(*point)) if n - p > 4 else None,
        "auc": by_test(theory.auc),
        "success_rate": by_test(theory.success_rate),
        "fpr": list(LEVELS),
        "tpr_at_fpr": by_test(theory.tpr_at_fpr, levels),
        "delta": DELTA,
        "epsilon_lower_bound": by_test(theory.epsilon_lower_bound, DELTA),
        "curve": {"alpha": alpha.tolist(), **by_test(theory.tradeoff, alpha)},
    }


def show(result: dict[str, Any], console: Console) -> None:
    """The figures as a table and the curve as a plot."""
    gap, expansion = (_figure(result[name]) for name in ("expected_gap", "gap_expansion"))
    console.print(
        f"leverage h̄ = {result['leverage']:g}, error ε = {result['error']:g}, σ = {result['sigma']:g}, "
        f"n = {result['n']}, p = {result['p']}"
    )
    console.print(f"empirical leverage, mean: {result['empirical_leverage']['mean']:.4g}")
    console.print(f"expected gap E[ℓ_out − ℓ_in]: {gap} (expansion to second order: {expansion})")
    table = Table("attack on the loss", "threshold", "optimal")
    for name, label in (("success_rate", "success rate"), ("auc", "area under the curve")):
        table.add_row(label, *(_figure(result[name][test]) for test in ("threshold", "optimal")))
    for i, level in enumerate(result["fpr"]):
        row = (_figure(result["tpr_at_fpr"][test][i]) for test in ("threshold", "optimal"))
        table.add_row(f"true-positive rate at {level:g}", *row)
    bound = (_figure(result["epsilon_lower_bound"][test]) for test in ("threshold", "optimal"))
    table.add_row(f"ε at least, for δ = {result['delta']:g}", *bound)
    console.print(table)
    alpha = np.asarray(result["curve"]["alpha"])
    console.print("false-negative rate against false-positive rate (line: optimal attack; dots: guessing)")
    console.print(plot(alpha, np.asarray(result["curve"]["optimal"])), highlight=False)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def plot(alpha: Array, beta: Array, width: int = 56, height: int = 16) -> str:
    """β(α) and the diagonal on the unit square in braille: each character holds 2 × 4 dots."""
    columns, rows = 2 * width, 4 * height
    x = np.linspace(0.0, 1.0, columns)
    y = np.interp(x, np.concatenate([[0.0], alpha, [1.0]]), np.concatenate([[1.0], beta, [0.0]]))
    dots = np.zeros((rows, columns), dtype=bool)
    level = np.rint((1.0 - y) * (rows - 1)).astype(int)
    for column in range(columns):  # fill the steps, so that a steep curve stays a line
        start, stop = sorted((level[max(column - 1, 0)], level[column]))
        dots[start : stop + 1, column] = True
    dots[np.rint(x[::4] * (rows - 1)).astype(int), np.arange(columns)[::4]] = True
    bits = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
    cells = (dots.reshape(height, 4, width, 2) * bits[None, :, None, :]).sum((1, 3))
    lines = ["".join(chr(0x2800 + int(cell)) for cell in line) for line in cells]
    axis = {0: "1 ┤", height - 1: "0 ┤"}
    body = "\n".join(axis.get(i, "  │") + line for i, line in enumerate(lines))
    return f"{body}\n  └{'─' * width}\n   0{'1'.rjust(width - 1)}"


def draw_figure(path: Path, n: int, p: int) -> None:
    """Figure 1: E[Δℓ] over (ε², h̄); β(α) for several ε at h̄ = 1; β(α) for several h̄ at ε = 1; σ = 1."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("matplotlib", "bench") from None
    square, leverage = np.linspace(0.0, 4.0, 121), np.linspace(0.0, 10.0, 121)
    gap = theory.expected_gap(leverage[:, None], np.sqrt(square), n, p)
    alpha = np.linspace(0.0, 1.0, 401)

    page = Figure(figsize=(12.0, 3.7), layout="constrained")
    left, middle, right = page.subplots(1, 3)
    mesh = left.pcolormesh(square, leverage, gap, shading="gouraud", cmap="viridis", rasterized=True)
    page.colorbar(mesh, ax=left)
    left.set(title="expected gap E[Δℓ]", xlabel="ε²", ylabel="h̄")
    families = [
        (middle, "h̄ = 1", [(f"ε = {e:g}", 1.0, e) for e in (0.0, 1.0, 2.0, 4.0, 8.0)]),
        (right, "ε = 1", [(f"h̄ = {h:g}", h, 1.0) for h in (0.5, 2.0, 8.0, 32.0, 128.0)]),
    ]
    for axes, title, members in families:
        for label, h, e in members:
            (line,) = axes.plot(alpha, theory.tradeoff(alpha, h, e, n, p, test="optimal"), label=label)
            axes.plot(alpha, theory.tradeoff(alpha, h, e, n, p), color=line.get_color(), ls=":", lw=1)
        axes.plot([0, 1], [1, 0], color="0.6", lw=0.8)
        axes.set(title=f"{title}, σ = 1, n − p = {n - p}", xlabel="false-positive rate α", xlim=(0, 1), ylim=(0, 1))
        axes.legend(frameon=False, fontsize="small", title="dotted: threshold", title_fontsize="small")
    middle.set_ylabel("false-negative rate β")
    with atomic_path(path, private=False) as temporary:
        page.savefig(temporary, format=path.suffix.lstrip(".").lower(), dpi=80)
