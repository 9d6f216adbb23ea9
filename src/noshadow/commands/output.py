"""What all commands share: JSON on stdout for machines, tables for people, errors as exit codes."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console

from noshadow.audit import Audit
from noshadow.errors import InputError, NoshadowWarning

COULD_NOT = 3
"""Exit code: the command was understood but could not be carried out."""


@contextmanager
def explained_errors() -> Iterator[None]:
    """Errors that a person can act on go to stderr as one sentence, with exit code 3."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)  # commands print an audit's notes themselves
        try:
            yield
        except (InputError, ImportError, OSError) as error:
            Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(COULD_NOT) from None


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON has no word for become null."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def show_audit(audit: Audit, count: int, as_json: bool, saved: str | None) -> None:
    """An audit's most exposed records, for a person or for a machine."""
    if as_json:
        top = audit.top(min(count, len(audit.table))).to_dict("records")
        print_json({"metadata": audit.metadata, "notes": audit.notes, "top": top, "saved": saved})
        return
    console = Console()
    console.print(audit.summary(count))
    if saved:
        console.print(f"All {len(audit.table):,} records: {saved}", markup=False, highlight=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
