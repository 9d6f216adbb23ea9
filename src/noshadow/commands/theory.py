"""``noshadow theory``: the figures and the curve of one point; ``noshadow theory figure``: Figure 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noshadow.commands.output import explained_errors, print_json
from noshadow.commands.render import print_notes, show_point
from noshadow.errors import InputError

__all__ = ["figure", "figures", "theory_app"]

_OPTIONS = {name: f"--{name}" for name in ("leverage", "error", "n", "p", "sigma", "exact", "output")}
_IMAGES = (".png", ".svg", ".pdf")

theory_app = typer.Typer(no_args_is_help=False, rich_markup_mode=None)


@theory_app.callback(invoke_without_command=True)
def figures(
    context: typer.Context,
    leverage: Annotated[float | None, typer.Option(help="Population leverage h̄ = xᵀΣ⁻¹x.")] = None,
    error: Annotated[float | None, typer.Option(help="Structural error ε = y − xᵀθ.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Training records.")] = None,
    p: Annotated[int | None, typer.Option("--p", help="Parameters, the bias included.")] = None,
    sigma: Annotated[float, typer.Option(help="Noise σ of the other records.")] = 1.0,
    exact: Annotated[bool, typer.Option("--exact", help="Average over V ~ χ² instead of V = n−p.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """How exposed is one point of a linear model?

    By the exact laws: its leverage and its error alone decide that.

    \b
    Examples:
      noshadow theory --leverage 10 --error 2 --n 100 --p 10
      noshadow theory figure --output figure1.png
    """
    given = {"leverage": leverage, "error": error, "n": n, "p": p}
    with explained_errors(_OPTIONS) as command:
        if context.invoked_subcommand is not None:
            stray = [name for name, value in given.items() if value is not None]
            if stray:
                raise InputError(f"{stray[0]}: describes a point, {context.invoked_subcommand} takes none")
            return
        missing = [name for name, value in given.items() if value is None]
        if leverage is None or error is None or n is None or p is None:
            raise InputError(f"{', '.join(missing)}: missing; a point needs --leverage, --error, --n and --p")
        from noshadow.commands.point import describe

        result = describe(leverage, error, n, p, sigma, exact)
        if as_json:
            print_json({**result, "notes": command.notes})
        else:
            show_point(result)
            print_notes(command.notes)


@theory_app.command()
def figure(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File (.png, .svg, .pdf), or a folder for figure1.png.")
    ],
    n: Annotated[int, typer.Option("--n", help="Training records.")] = 30,
    p: Annotated[int, typer.Option("--p", help="Parameters.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Figure 1 of the paper: a map and curves.

    The expected gap by leverage and error, and trade-off curves of some points.

    \b
    Examples:
      noshadow theory figure -o figure1.svg
    """
    with explained_errors(_OPTIONS) as command:
        from noshadow.drawing.tradeoffs import gap_and_tradeoffs
        from noshadow.files import check_output

        path = check_output(output / "figure1.png" if output.is_dir() else output, _IMAGES)
        gap_and_tradeoffs(path, n, p)
        if as_json:
            print_json({"figure": str(path), "n": n, "p": p, "notes": command.notes})
        else:
            print_notes(command.notes)
            typer.echo(f"wrote {path}")
