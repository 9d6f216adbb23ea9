"""What people see on a terminal: every table, plot, note and error of the commands, by rich.

rich is imported when something is shown: not for help, not for ``--json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Group

    from noshadow.bench.result import Result
    from noshadow.commands.policy import Command
    from noshadow.evaluate import Summary
    from noshadow.findings import Audit
    from noshadow.gate import Verdict

__all__ = [
    "audit_table",
    "braille_plot",
    "print_notes",
    "print_problem",
    "show_attack",
    "show_audit",
    "show_findings",
    "show_point",
    "show_result",
    "show_settings",
]


def print_problem(text: str, notes: Sequence[str]) -> None:
    """On stderr: the notes so far, then what went wrong."""
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)
    for note in notes:
        console.print(f"note: {note}", style="yellow", markup=False, highlight=False)
    console.print(text, style="red", markup=False, highlight=False)


def print_notes(notes: Sequence[str]) -> None:
    """Below a table: what to know before trusting it, a line each."""
    from rich.console import Console

    for note in notes:
        Console().print(f"note: {note}", style="yellow", markup=False, highlight=False)


def show_audit(audit: Audit, count: int, as_json: bool, saved: str | None, command: Command) -> None:
    """An audit's most exposed records, for a person or for a machine; notes and hints in the words of the command."""
    hints = [command.hint(hint) for hint in audit.metadata.get("advice", ())]
    audit = replace(audit, notes=tuple(command.notes), metadata={**audit.metadata, "advice": hints})
    if as_json:
        from noshadow.commands.output import print_json

        top = audit.top(min(count, len(audit.table))).to_dict("records")
        print_json({"metadata": audit.metadata, "notes": audit.notes, "top": top, "saved": saved})
        return
    from rich.console import Console

    console = Console()
    console.print(audit_table(audit, count))
    if saved:
        console.print(f"All {len(audit.table):,} records: {saved}", markup=False, highlight=False, soft_wrap=True)


def show_findings(
    audit: Audit, verdict: Verdict | None, command: Command, words: str, saved: Mapping[str, str], top: int
) -> None:
    """What ``noshadow audit`` found: the bands, the policy, what to know; records only where so many were asked for."""
    from rich.console import Console

    from noshadow.bands import BANDS, NOT_RATED, band_counts

    console = Console(highlight=False)
    facts, table = audit.metadata, audit.table

    def say(text: str, style: str | None = None) -> None:
        console.print(text, style=style, markup=False)

    say(f"{facts['model']}: {facts['records']:,} records, {facts['head']} head ({words})", "bold")
    rated = "attack_accuracy" in table
    if rated or bool(table["flagged"].any()):
        counts = band_counts(table["attack_accuracy"] if rated else None, table["flagged"])
        say("Predicted success of an attack on each record:")
        for band in BANDS:
            share = counts[band.name] / max(1, len(table))
            say(f"  {band.name:<14} {band.low:.2f} to {band.high:.2f} {counts[band.name]:>9,} {share:>7.1%}")
        if counts[NOT_RATED]:
            say(f"  {NOT_RATED:<27} {counts[NOT_RATED]:>9,}")
    if not rated:
        say("No success rates are predicted; the hints below say what they take.")
    if verdict is not None:
        say(f"Policy: {verdict.sentence}", "green" if verdict.met else "red")
    if top:
        console.print(audit_table(replace(audit, notes=(), metadata={**facts, "advice": []}), top))
    for note in command.notes:
        say(f"note: {note}", "yellow")
    for hint in facts.get("advice", ()):
        say(f"hint: {command.hint(hint)}", "dim")
    for name, place in saved.items():
        console.print(f"{name}: {place}", markup=False, soft_wrap=True)


def audit_table(audit: Audit, count: int = 10) -> Group:
    """The most exposed records of an audit as a table, with the notes below it."""
    from rich.console import Group
    from rich.text import Text

    from noshadow.commands.fitted import FittedTable

    facts = audit.metadata
    title = (
        f"{facts['records']:,} records, {facts['head']} head, "
        f"{facts['features']:,} features × {facts['outputs']:,} outputs"
    )
    shown = audit.top(min(count, len(audit.table)))
    columns = {str(name): [_cell(value) for value in shown[name]] for name in shown.columns if name != "flagged"}
    if shown["flagged"].any():
        columns["flagged"] = ["yes" if value else "" for value in shown["flagged"]]
    first = ("id", audit.ranking, "target", "attack_accuracy", "flagged", "nearest_class", "leverage", "loss")
    rows = FittedTable(f"{title}\nthe most exposed, by {audit.ranking}", columns, first)
    notes = [Text(f"note: {note}", style="yellow") for note in audit.notes]
    advice = [Text(f"hint: {hint}", style="dim") for hint in facts.get("advice", ())]
    return Group(rows, *notes, *advice)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def show_attack(facts: Mapping[str, Any], top: pd.DataFrame, saved: Path) -> None:
    """What ``noshadow attack`` found: the attack as a whole, then the most exposed records."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{facts['attack']}: {facts['models']} models, {facts['records']:,} records"
    console.print(title, style="bold", highlight=False)
    whole = Table(show_header=False)
    for name, value in list(facts.items())[3:]:
        whole.add_row(name.replace("_percent_", " % ").replace("_", " "), f"{value:.4f}")
    console.print(whole)
    rows = Table(title=f"The {len(top)} most exposed records", title_justify="left")
    for column in ("rank", "record", "success rate", "separation", "in models"):
        rows.add_column(column, justify="right")
    for row in top.itertuples():
        separation = f"{row.separation:.2f} ± {row.separation_error:.2f}"
        rows.add_row(str(row.rank), str(row.record), f"{row.success_rate:.3f}", separation, str(row.models_in))
    console.print(rows)
    console.print(f"All {facts['records']:,} records: {saved}", markup=False, highlight=False, soft_wrap=True)


def show_settings(rows: Sequence[Mapping[str, str]]) -> None:
    """The settings of ``noshadow bench --list``, a paragraph each: as a table they would need 120 columns."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    console.print("For each scale: shadow + target models on so many records", style="bold")
    for row in rows:
        facts = dict(row)
        console.print(Text(facts.pop("setting"), style="bold"))
        what = f"{facts.pop('data')}, {facts.pop('model')}, {facts.pop('head')} head"
        for text in (what, ", ".join(f"{scale} {size}" for scale, size in facts.items())):
            console.print(Padding(Text(text), (0, 0, 0, 2)))


def show_result(result: Result, saved: Sequence[Path]) -> None:
    """The first table of the paper for a setting, the ceilings and the paper's number beside ours."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from noshadow.bench.paper import TABLE_1
    from noshadow.bench.result import RECALLS, SPEARMAN

    console = Console()
    models = f"{result.shadows} shadow and {result.targets} target models"
    console.print(f"\n{result.title}: {models}, {result.pool:,} records", style="bold", highlight=False)
    if result.note:
        console.print(f"Differs from the paper: {result.note}", markup=False, highlight=False)
    title = "Of the records that LiRA exposes most, how many are found, in % (± over targets)"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("score", overflow="fold")
    for column in ("1% at 5%", "0.1%", "1%", "5%", "ρ", "paper"):
        table.add_column(column, justify="right", no_wrap=True)

    def cells(metrics: Mapping[str, Summary]) -> list[str]:
        return [*(_percent(metrics[name]) for name in RECALLS), f"{metrics[SPEARMAN].mean:.3f}"]

    paper = TABLE_1.get(result.setting, {})
    for name, row in result.lira.scores.items():
        printed = paper.get(name)
        theirs = "" if printed is None else f"{printed[0]:.1f}±{printed[1]:.0f}"
        table.add_row(name, *cells(row.metrics), theirs)
    for label, ceiling in (("LiRA again", result.lira.ceiling), ("a perfect score", result.lira.oracle)):
        if ceiling is not None:
            table.add_row(label, *cells(ceiling.metrics), "", style="dim")
    console.print(table)
    seconds = result.seconds
    console.print(
        "1% at 5%: the 1 % most exposed, among the 5 % with the highest scores; paper: its number for that; 0.1%, 1%, "
        "5%: as many are sought as kept; ρ: Spearman's.\nLiRA again: half of its shadow models against the other half; "
        "a perfect score: one that knows how exposed each record is, against so noisy a truth.\n"
        f"Core-seconds: {seconds.shadows:.3g} to train the shadow models, {seconds.scores:.2g} to score one "
        f"target, {seconds.speedup:,.0f} times less.\nSaved: {saved[0]}"
        + (f" and {len(saved) - 1} figures beside it" if len(saved) > 1 else ""),
        markup=False,
        highlight=False,
    )


def _percent(summary: Summary) -> str:
    spread = f"±{100 * summary.std:.0f}" if len(summary.values) > 1 else ""
    return f"{100 * summary.mean:.1f}{spread}"


def show_point(result: dict[str, Any]) -> None:
    """The figures of ``noshadow theory`` as a table and the curve as a plot."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
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
    console.print("false-negative rate against false-positive rate (line: optimal attack; dots: guessing)")
    console.print(braille_plot(result["curve"]["alpha"], result["curve"]["optimal"]), highlight=False)


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def braille_plot(alpha: Sequence[float], beta: Sequence[float], width: int = 56, height: int = 16) -> str:
    """β(α) and the diagonal on the unit square in braille: each character holds 2 × 4 dots."""
    import numpy as np

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
