"""The page of the commands, from their own help: ``make docs`` writes it into the site."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from noshadow.cli import app

__all__ = ["leaves", "page"]

HEAD = """# Commands

<!-- written by tools/commands_page.py from the commands' own help; do not edit -->

Every command has `--help`. With `--json` stdout holds JSON and nothing else; progress goes to stderr, on a terminal
only. The exit codes are [0, 1, 2 or 3](files.md#exit-codes). No telemetry, and no network but for data that
`noshadow bench` is asked for.
"""


def page() -> str:
    """Markdown: a section per command, its help, its examples, its options."""
    parts = [HEAD]
    for words, command in leaves(get_command(app), ("noshadow",)):
        parts.append(section(words, command))
    return "\n".join(parts)


def leaves(command: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    """The commands below a group, and groups that do something of their own, with the words that call them."""
    below = getattr(command, "commands", {})
    found = [] if below and len(words) == 1 else [(words, command)]
    for name, inner in below.items():
        found += leaves(inner, (*words, name))
    return found


def section(words: tuple[str, ...], command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and not one.hidden]
    names = " ".join(one.metavar or one.name.upper() for one in arguments)
    text, _, examples = (command.help or "").partition("\b")
    lines = [f"## {' '.join(words)}", "", f"`{' '.join(words)} {'[OPTIONS] ' if options else ''}{names}`".rstrip(), ""]
    lines += [" ".join(paragraph.split()) + "\n" for paragraph in text.split("\n\n") if paragraph.strip()]
    if examples.strip():
        lines += ["```text", *_dedented(examples), "```", ""]
    rows = [(f"`{one.metavar or one.name.upper()}`", one) for one in arguments]
    rows += [(", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts)), one) for one in options]
    if rows:
        lines += ["| | |", "|---|---|"]
        lines += [f"| {shown} | {_cell(one)} |" for shown, one in rows]
        lines.append("")
    return "\n".join(lines)


def _dedented(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    width = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
    return [line[width:] for line in lines]


def _cell(parameter: Any) -> str:
    """What it is for, and its default where it says none itself."""
    text = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    default = parameter.default
    if "efault" not in text and isinstance(default, (str, int, float)) and not isinstance(default, bool):
        text += f" Default: {default}."
    return text.strip()
