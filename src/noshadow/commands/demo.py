"""``noshadow demo``: the main job, end to end, on data that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noshadow.commands.policy import explained_errors
from noshadow.commands.render import show_audit

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save all records, .parquet or .csv.")] = Path(
        "noshadow-demo.parquet"
    ),
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the training run.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Train a small network, audit it, show its most exposed images.

    No download: the 1,797 handwritten digits come with scikit-learn. Takes a few seconds.

    \b
    Example: noshadow demo
             noshadow demo --top 20 -o digits.csv
    """
    with explained_errors({"output": "--output"}) as command:
        from noshadow.commands.digits import run_demo
        from noshadow.files import check_output
        from noshadow.tables import TABLES

        check_output(output, TABLES)
        result = run_demo(seed)
        show_audit(result, top, as_json, str(result.save(output)), command.notes)
