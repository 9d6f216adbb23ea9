"""What all commands share: JSON on stdout for machines, tables and notes for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from noshadow.commands.policy import COULD_NOT, USAGE, Command, explained_errors

if TYPE_CHECKING:
    from noshadow.audit import Audit

__all__ = ["COULD_NOT", "USAGE", "Command", "explained_errors", "print_json", "print_notes", "show_audit"]


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON has no word for become null."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def print_notes(notes: Sequence[str]) -> None:
    """Below a table: what to know before trusting it, a line each."""
    from rich.console import Console

    for note in notes:
        Console().print(f"note: {note}", style="yellow", markup=False, highlight=False)


def show_audit(audit: Audit, count: int, as_json: bool, saved: str | None, notes: Sequence[str] | None = None) -> None:
    """An audit's most exposed records, for a person or for a machine. ``notes``: in place of the audit's own."""
    from rich.console import Console

    audit = audit if notes is None else replace(audit, notes=tuple(notes))
    if as_json:
        top = audit.top(min(count, len(audit.table))).to_dict("records")
        print_json({"metadata": audit.metadata, "notes": audit.notes, "top": top, "saved": saved})
        return
    console = Console()
    console.print(audit.summary(count))
    if saved:
        console.print(f"All {len(audit.table):,} records: {saved}", markup=False, highlight=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
