"""The command line: ``noshadow COMMAND``. Exit codes: 0 fine, 1 over policy, 2 usage, 3 could not do it.

What a command needs is imported when it runs, so that help is there at once and Ctrl-C is heard from the start.
"""

from __future__ import annotations

from typing import Annotated

import typer

from noshadow._version import __version__
from noshadow.commands.attack import attack
from noshadow.commands.audit import audit
from noshadow.commands.bench import bench
from noshadow.commands.demo import demo
from noshadow.commands.report import report
from noshadow.commands.score import score
from noshadow.commands.theory import theory_app

__all__ = ["app", "main", "options"]

_HELP = """Which training records can a membership-inference attacker expose? From one trained model, without shadow
models.

\b
Examples:
  noshadow demo
  noshadow audit layer.safetensors -o audit/
  noshadow score layer.npz -o scores.parquet
  noshadow report audit/audit.parquet
  noshadow attack study/
  noshadow bench --list
  noshadow theory --leverage 10 --error 2 --n 100 --p 10

Each command says more with --help, and gives JSON with --json. Exit codes: 0 fine, 1 over policy, 2 usage, 3 could not
do it.
"""

app = typer.Typer(
    name="noshadow",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it wraps at any width and can be copied
)
app.command("demo")(demo)
app.command("audit")(audit)
app.command("score")(score)
app.command("report")(report)
app.command("attack")(attack)
app.command("bench")(bench)
app.add_typer(theory_app, name="theory")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"noshadow {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Entry point of the ``noshadow`` command."""
    app()
