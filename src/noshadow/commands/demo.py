"""``noshadow demo``: the whole way, on data that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noshadow.commands.output import explained_errors, print_json

__all__ = ["demo"]

_OPTIONS = {"output": "--output", "seed": "--seed"}


def demo(
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="All records, .parquet or .csv; the report is written beside it, .html."),
    ] = Path("noshadow-demo.parquet"),
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed digits to show.")] = 10,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Which half of the digits is trained on, and how.")
    ] = 0,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="Train the 128 shadow models again, in place of those that came with noshadow."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Train, audit, draw and check: the whole way.

    No download: the 1,797 handwritten digits come with scikit-learn. A network is trained on half of them, traced, and
    trained once more with another seed; the other half is held out. The audit predicts how often an attack would
    succeed on each digit, and is then held against LiRA with 128 shadow models of the same recipe, whose results come
    with noshadow.

    \b
    Examples:
      noshadow demo
      noshadow demo --seed 1 -o digits.csv
      noshadow demo --retrain
      noshadow demo --json > demo.json
    """
    with explained_errors(_OPTIONS) as command:
        from noshadow.commands.demo_view import facts_of, show_demo
        from noshadow.commands.digits import run_demo
        from noshadow.commands.digits_shadows import agreement, retrained, shipped
        from noshadow.files import check_output
        from noshadow.tables import TABLES

        check_output(output, TABLES)
        page = check_output(output.with_suffix(".html"), (".html",))
        store = output.with_name(f"{output.stem}-shadows")
        shadows = retrained(store) if retrain else shipped()
        found = run_demo(seed)
        agreed = agreement(found.audit, shadows)
        saved = {"shadows": str(store)} if retrain else {}
        saved["table"] = str(found.audit.save(output))
        saved["report"] = str(found.audit.report(page, show=found.picture, title="A network that reads digits"))
        if as_json:
            print_json(facts_of(found, agreed, top, saved, command.notes))
        else:
            show_demo(found, agreed, top, saved, command.notes)
