"""``noshadow report AUDIT``: the report of a saved audit, its public summary, or two audits side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noshadow.commands.output import explained_errors, print_json
from noshadow.commands.rules import judged, policy_options, read_policy, takes_policy
from noshadow.errors import FileError, InputError

if TYPE_CHECKING:
    from noshadow.findings import Audit

__all__ = ["OVER_POLICY", "report"]

OVER_POLICY = 1
_NAMES = ("public", "markdown", "policy", "compare", "show", "title")
_OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMES} | {"path": "--output", "audit": "AUDIT"}
_OPTIONS |= policy_options()


@takes_policy
def report(
    audit: Annotated[
        Path | None,
        typer.Argument(metavar="AUDIT", exists=True, dir_okay=False, help="A saved audit, .parquet or .csv."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: AUDIT.html, AUDIT-public.html or .md."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Aggregates only, small counts withheld: for everybody.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="A section for a model card, in Markdown; public too.")
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The policy in a TOML file: fail_above = 0.9, max_records = 0."),
    ] = None,
    show: Annotated[str | None, typer.Option(help="A column of the audit to show of the most exposed records.")] = None,
    title: Annotated[str | None, typer.Option(help="What the model is called.")] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BEFORE AFTER", help="Two saved audits, without AUDIT: did a defence help?"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
    *,
    rules: dict[str, Any],
) -> None:
    """Write the report of a saved audit.

    One HTML file to read, sign and file. Ends with 1 if the audit is over a policy that was given; the report is
    there all the same.

    \b
    Examples:
      noshadow report audit.parquet
      noshadow report audit.parquet --fail-above 0.9
      noshadow report audit.parquet --public
      noshadow report audit.parquet --markdown -o card.md
      noshadow report --compare before.parquet after.parquet
    """
    with explained_errors(_OPTIONS, more=("held_out", "rerun")) as command:
        if compare is not None:
            _require_alone(
                audit=audit, public=public, markdown=markdown, policy=policy, **rules, show=show, title=title,
            )  # fmt: skip
            found = _compare(*compare, output or Path("compare.html"))
        elif audit is None:
            raise InputError("audit: missing; name a saved audit, or two with --compare")
        else:
            rule = read_policy(policy, **rules)
            found = _report(audit, output, public or markdown, markdown, rule, show, title)
        said = found.pop("said")
        if as_json:
            print_json({**found, "notes": [*said, *command.notes]})
        else:
            for line in said:
                typer.echo(line)
            typer.echo(f"wrote {found['report']}")
        if found.get("met") is False:
            raise typer.Exit(OVER_POLICY)


def _require_alone(**others: Any) -> None:
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise InputError(f"compare: compares two audits and takes no {_OPTIONS[given[0]]}")


def _report(
    source: Path,
    output: Path | None,
    public: bool,
    markdown: bool,
    policy: Any,
    show: str | None,
    title: str | None,
) -> dict[str, Any]:
    from noshadow.report import write_report

    found = _load(source, "audit")
    verdict = None if policy is None else judged(policy, found)
    ending = ".md" if markdown else "-public.html" if public else ".html"
    path = output or source.with_name(source.stem + ending)
    if markdown and path.suffix.lower() != ".md":
        raise InputError(f"path: {str(path)!r} must end in .md, since --markdown was passed")
    made = write_report(found, path, verdict=verdict, show=show, public=public, title=title, source=source.name)
    said = (
        [] if verdict is None else ["policy met" if verdict.met else "policy not met"] if public else [verdict.sentence]
    )
    policy_facts = {} if verdict is None else {"met": verdict.met} | ({} if public else {"over": verdict.over})
    return {"report": str(made), "public": public, **policy_facts, "said": said}


def _load(path: Path, argument: str) -> Audit:
    """A saved audit; what is wrong with it is said of the argument that names it."""
    from noshadow.findings import Audit

    if path.suffix.lower() == ".safetensors":
        raise FileError(f"{argument}: {path} is no audit; noshadow audit {path} -o audit/ makes one of a saved layer")
    try:
        return Audit.load(path)
    except InputError as error:
        raise type(error)(f"{argument}: {str(error).removeprefix('path: ')}") from None


def _compare(before: Path, after: Path, output: Path) -> dict[str, Any]:
    from noshadow.report import write_comparison

    first, second = (_load(path, "compare") for path in (before, after))
    found = write_comparison(first, second, output, (before.name, after.name))
    numbers = {
        name: getattr(found, name) for name in ("matched", "only_before", "only_after", "mean", "error", "up", "down")
    }
    exposed = (
        None if found.exposed is None else dict(zip(("before", "after", "left", "entered"), found.exposed, strict=True))
    )
    moves = None if found.moves is None else found.moves.tolist()
    said = [*(f"note: {line}" for line in found.concerns), found.sentence]
    return {"report": str(output), **numbers, "exposed": exposed, "moves": moves, "said": said}
