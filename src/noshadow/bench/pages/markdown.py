"""Numbers, sentences and tables in Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from noshadow import evaluate
from noshadow.attacks.registry import ATTACKS
from noshadow.bench.paper import Estimate
from noshadow.bench.result import SPEARMAN, Ceiling
from noshadow.evaluate import Summary

__all__ = [
    "ATTACK_NAMES",
    "CONFIDENCE",
    "PERFECT",
    "Ours",
    "beside",
    "best",
    "ceiling_cell",
    "cell",
    "difference_cell",
    "duration",
    "escaped",
    "estimate",
    "fact",
    "mean_cell",
    "ours",
    "percent_pair",
    "table",
    "two_figures",
]

CONFIDENCE = 0.95  # with which the targets tell two scores apart
ATTACK_NAMES = {name: attack.label for name, attack in ATTACKS.items()}
PERFECT = "a perfect score"

Ours = tuple[float, "float | None"]
"""Mean and deviation, None of one target, in the paper's unit."""


def ours(summary: Summary, metric: str) -> Ours:
    """Mean and std of one of our numbers in the paper's unit: recalls in percent."""
    unit = 1.0 if metric == SPEARMAN else 100.0
    return unit * summary.mean, unit * summary.std if len(summary.values) > 1 else None


def estimate(value: Ours, metric: str) -> str:
    """Mean ± deviation."""
    digits = 3 if metric == SPEARMAN else 1
    mean, std = value
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def cell(summary: Summary | None, paper: Estimate | None, bold: bool, metric: str) -> str:
    """Our number, and the paper's below."""
    mine = "–" if summary is None else estimate(ours(summary, metric), metric)
    mine = f"**{mine}**" if bold else mine
    return mine if paper is None else f"{mine}<br>*{estimate(paper, metric)}*"


def ceiling_cell(ceiling: Ceiling | None, metric: str) -> str:
    return "–" if ceiling is None else estimate(ours(ceiling.metrics[metric], metric), metric)


def mean_cell(ceiling: Ceiling | None, metric: str) -> str:
    """A ceiling without its deviation."""
    return "–" if ceiling is None else estimate((ours(ceiling.metrics[metric], metric)[0], None), metric)


def best(found: Mapping[str, Summary], metric: str) -> set[str]:
    """The scores to print bold: the best, what is printed alike or not told apart; none if that is all of them.

    Scores of fewer targets than others, which are expensive ones, cannot be compared with these and are left out.
    """
    most = max(len(summary.values) for summary in found.values())
    found = {name: summary for name, summary in found.items() if len(summary.values) == most}
    printed = {name: estimate((ours(summary, metric)[0], None), metric) for name, summary in found.items()}
    first = max(found, key=lambda name: found[name].mean)
    alike = evaluate.best_scores({name: summary.values for name, summary in found.items()}, CONFIDENCE)
    alike |= {name for name in found if printed[name] == printed[first]}
    return alike if len(alike) < len(found) else set()


def difference_cell(first: Any, second: Any) -> str:
    """By how many points a recall of the first is ahead, over the same targets, with its interval."""
    if len(first) < 2:
        return f"{100 * (first[0] - second[0]):+.1f}"
    found = evaluate.paired_difference(first, second, confidence=CONFIDENCE)
    return f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} … {100 * found.high:+.1f})"


def beside(number: int, paper: int | None) -> str:
    """Our number, the paper's in brackets where it is another."""
    return f"{number:,}" if paper is None or number == paper else f"{number:,} ({paper:,})"


def percent_pair(first: float | None, second: float | None) -> str:
    return "–" if first is None or second is None else f"{100 * first:.1f} / {100 * second:.1f}"


def fact(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def two_figures(value: float) -> str:
    """Two significant figures, in full."""
    digits = max(0, len(f"{value:.0f}") - 2)
    return f"{round(value, -digits):,.0f}"


def duration(seconds: float | None) -> str:
    """In the unit that suits it, two significant figures or three."""
    if seconds is None:
        return "–"
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 0.995 * size:
            return _rounded(seconds / size, unit)
    return _rounded(1e3 * seconds, "ms")


def _rounded(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table; the first ``left`` columns hold text, the others numbers."""
    ruler = ["---"] * left + ["--:"] * (len(head) - left)
    return ["| " + " | ".join(line) + " |" for line in (head, ruler, *rows)]


def escaped(text: str, longest: int = 90) -> str:
    """Text that Markdown, in a table, shows as it is: shortened, on one line."""
    line = " ".join(text.split())
    if len(line) > longest:
        line = line[: longest - 1].rstrip() + "…"
    line = html.escape(line, quote=False).replace("$", "&#36;")  # a pair of dollars would be a formula
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", line)
