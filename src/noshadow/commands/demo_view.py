"""What ``noshadow demo`` shows: to people within 60 columns and without need of colour, to machines as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from noshadow.bands import BANDS, NOT_RATED, band_counts
from noshadow.commands.digits import Demo
from noshadow.commands.digits_shadows import Agreement
from noshadow.commands.pictures import PLAIN, SHADES, drawn, side_by_side
from noshadow.commands.render import print_notes
from noshadow.report.reasons import STANDS_OUT, Standing, standings

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["BOTH", "HARD", "TOGETHER", "UNUSUAL", "facts_of", "in_words", "reason", "show_demo"]

UNUSUAL, HARD, BOTH, TOGETHER = "unusual", "hard to fit", "both", "together"

_PICTURE = 10  # characters, so that five fit beside each other into 60
_WIDEST = 80  # columns, for text that is to be read
_FILES = {"shadows": "Shadow models", "table": "All records", "report": "Open in a browser"}


def in_words(digit: Any, nearest: Any) -> str:
    """What a digit is, and what the model takes it for next: "an 8 that looks like a 1"."""
    one, other = (f"{'an' if str(name) == '8' else 'a'} {name}" for name in (digit, nearest))
    return f"{one} that looks like {other}"


def reason(standing: Standing) -> str:
    """Why a digit is exposed, in a word: what of its leverage and its loss stands out among all digits."""
    unusual, hard = (share is not None and share >= STANDS_OUT for share in standing)
    return BOTH if unusual and hard else UNUSUAL if unusual else HARD if hard else TOGETHER


def facts_of(
    demo: Demo, agreed: Agreement, count: int, saved: Mapping[str, str], notes: Sequence[str]
) -> dict[str, Any]:
    """All of it for a machine."""
    return {
        "metadata": demo.audit.metadata,
        "training": demo.facts,
        "bands": _bands(demo),
        "agreement": asdict(agreed),
        "notes": list(notes),
        "top": _top(demo, count).to_dict("records"),
        "saved": dict(saved),
    }


def show_demo(demo: Demo, agreed: Agreement, count: int, saved: Mapping[str, str], notes: Sequence[str]) -> None:
    """All of it for a person."""
    from rich.console import Console

    console = Console(highlight=False)
    width = min(console.width, _WIDEST)

    def say(text: str = "", style: str | None = None) -> None:
        console.print(text, style=style, markup=False, width=width)

    facts, found, top = demo.facts, demo.audit.metadata, _top(demo, count)
    say("Training", "bold")
    say(
        f"{found['records']:,} of scikit-learn's {facts['digits']:,} digits, {facts['epochs']} epochs, and once more "
        f"with another seed; {facts['held_out']:,} digits are held out. The network reads "
        f"{facts['right_on_members']:.1%} of its own digits right and {facts['right_on_others']:.1%} of the others."
    )
    say("\nWhat was found", "bold")
    say(
        f"{found['head']} head, layer {found['layer']!r}, {found['features']:,} features × {found['outputs']:,} "
        f"outputs, {found['records']:,} records"
    )
    say("\nHow often would an attacker be right?", "bold")
    say("Predicted, of each digit: was it trained on? 0.5 is guessing.")
    for line in _band_lines(_bands(demo), width):
        say(line)
    say(f"\nThe {len(top)} most exposed", "bold")
    shades = SHADES if "utf" in console.encoding.lower() else PLAIN
    pictures = [drawn(demo.images[row], _PICTURE, shades) for row in top.index]
    for line in side_by_side(pictures, [f"no. {name}" for name in top["id"]], width):
        console.print(line, markup=False, no_wrap=True)
    console.print(_top_table(top))
    say(
        f"{UNUSUAL}: it decides more of its own fit (leverage) than {STANDS_OUT:.0%} of the digits. {HARD}: its loss "
        f"stayed higher in training. {TOGETHER}: neither alone."
    )
    say("\nIs that so?", "bold")
    whence = "came with noshadow; --retrain trains them again" if agreed.came_with_package else "were trained just now"
    say(
        f"LiRA, an attack with {agreed.models} shadow models of the same recipe, on other halves of the digits. Its "
        f"models {whence}."
    )
    console.print(_agreement_table(agreed))
    say(
        "LiRA again: one half of its models against the other half. Perfect: a score that knows how exposed each digit "
        "is; LiRA's verdict is noisy.\n"
        f"Predicted success rates are off by {agreed.calibration_error:.3f}, in the mean over tenths of the digits: of "
        f"the most exposed tenth {agreed.predicted[-1]:.2f} was predicted, {agreed.measured[-1]:.2f} measured; of the "
        f"least exposed {agreed.predicted[0]:.2f} and {agreed.measured[0]:.2f}."
    )
    print_notes(notes)
    say()
    for name, path in saved.items():
        console.print(f"{_FILES[name]}: {path}", markup=False, soft_wrap=True)


def _bands(demo: Demo) -> dict[str, int]:
    table = demo.audit.table
    return band_counts(table["attack_accuracy"].to_numpy(), table["flagged"].to_numpy())


def _band_lines(counts: Mapping[str, int], width: int) -> list[str]:
    """A line per band with a bar; records without a rate, if there are any, on a line of their own."""
    ranges = {band.name: f"{band.low:g} to {band.high:g}" for band in BANDS}
    shown = {name: number for name, number in counts.items() if number or name != NOT_RATED}
    texts = [f"{name:13}  {ranges.get(name, ''):11} {number:5,}" for name, number in shown.items()]
    room = width - len(texts[0]) - 1
    return [
        f"{text} {'█' * max(round(room * number / sum(counts.values())), min(number, 1))}".rstrip()
        for text, number in zip(texts, shown.values(), strict=True)
    ]


def _top(demo: Demo, count: int) -> pd.DataFrame:
    """The most exposed, with a reason each."""
    audit = demo.audit
    table = audit.top(min(count, len(audit.table)))
    places = audit.table.index.get_indexer(table.index).astype(np.int64)
    return table.assign(reason=[reason(standing) for standing in standings(audit.table, places)])


def _top_table(top: pd.DataFrame) -> Table:
    table = _plain_table()
    for name in ("no.", "rate"):
        table.add_column(name, justify="right")
    for name in ("what it is", "why"):
        table.add_column(name, justify="left")
    for row in top.to_dict("records"):
        what = in_words(row["target"], row["nearest_class"])
        table.add_row(str(row["id"]), f"{row['attack_accuracy']:.2f}", what, row["reason"])
    return table


def _agreement_table(agreed: Agreement) -> Table:
    table = _plain_table()
    for name in ("LiRA's most exposed, found", "audit", "LiRA again", "perfect"):
        table.add_column(name, justify="left" if name.startswith("LiRA's") else "right")
    for found in agreed.recalls:
        sought = f"{found.sought} ({found.top:.0%}) in the top {found.kept} ({found.keep:.0%})"
        table.add_row(sought, *(f"{value:.0%}" for value in (found.recall, found.again, found.perfect)))
    return table


def _plain_table() -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
