"""A section for a model card, in Markdown: the public summary where people look for it, as on the Hugging Face Hub.

It is made from what may be shown in public, and of nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from noshadow.errors import InputError
from noshadow.report import words
from noshadow.report.shown import Shown
from noshadow.report.summarise import Summary, percent

__all__ = ["markdown"]


def markdown(shown: Shown, summary: Summary, title: str | None = None) -> str:
    """The section; ``title``: what the model is called. Refused of a private report's content."""
    if not shown.public:
        raise InputError("public: a model card is public; redact the audit for that first")
    of = f" of {_text(title)}" if title else ""
    parts = [f"## Membership inference risk{of}", "", _text(summary.finding)]
    if summary.detail:
        parts += ["", _text(summary.detail)]
    if shown.verdict:
        parts += ["", f"**{'Policy met' if shown.verdict[0] else 'Policy not met'}.** {_text(shown.verdict[1])}"]
    if shown.ranges is not None:
        rows = (
            (
                part.name,
                f"{percent(part.low, 0)} to {percent(part.high, 0)}" if part.low == part.low else "not known",
                f"{part.count:,}",
                percent(part.share),
            )
            for part in reversed(shown.ranges)
        )
        parts += ["", *_table(("Band", "Attacker is right", "Records", "Share"), rows)]
    for table in shown.breakdowns:
        if table.counted:
            lines = (
                (row.name, f"{row.records:,}", "withheld" if row.exposed is None else f"{row.exposed:,}")
                for row in table.rows
            )
            parts += ["", f"By {_text(table.title)}; counted are records that {_text(summary.exposed_means)}.", ""]
            parts += _table((table.title, "Records", "Exposed"), lines)
    if any(table.counted for table in shown.breakdowns):
        parts += ["", words.SUPPRESSED]
    if shown.groups_left_out:
        parts += ["", _text(words.groups_left_out(shown.groups_left_out, shown.public))]
    parts += ["", "### How far to trust it", ""]
    parts += [f"- **{one.name}** ({one.level}): {_text(one.text)}" for one in summary.trust]
    parts += ["", "### What this does not show", "", *(f"- {line}" for line in words.NOT_SHOWN)]
    parts += ["", "### Where this comes from", "", *(f"- {name}: {_text(value)}" for name, value in summary.provenance)]
    return "\n".join([*parts, ""])


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [heads, ("---", *("--:",) * (len(heads) - 1))]
    made = [f"| {' | '.join(_text(cell) for cell in heads)} |", f"| {' | '.join(lines[1])} |"]
    return made + [f"| {' | '.join(_text(cell) for cell in row)} |" for row in rows]


def _text(text: str) -> str:
    """Text that Markdown and the HTML inside of it take as text."""
    safe = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|!~$])", r"\\\1", safe)
