"""What people see on a terminal of 60 columns: nothing is cut, and the examples of help are right."""

from __future__ import annotations

import re
import shlex

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from noshadow import shadow
from noshadow.cli import app
from noshadow.commands.fitted import FittedTable

NARROW = {"COLUMNS": "60"}


def seen(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=NARROW, terminal_width=60)
    assert result.exit_code == 0, result.output
    return result.stdout


def every_command(group=None, words=()):
    """All commands and groups by their words."""
    group = group or typer.main.get_command(app)
    yield words, group
    for name, inner in getattr(group, "commands", {}).items():
        yield from every_command(inner, (*words, name))


COMMANDS = dict(every_command())


@pytest.mark.parametrize("words", COMMANDS)
def test_help_fits_and_teaches_by_examples_that_are_right(words):
    text = seen(*words, "--help")
    assert max(map(len, text.splitlines())) <= 60
    assert "..." not in text.partition("Options:")[2].replace("[OPTIONS] COMMAND [ARGS]...", "")
    examples = re.findall(r"^ +noshadow (.*)$", text.partition("Examples:")[2], re.MULTILINE)
    assert examples
    for example in examples:
        given = shlex.split(example.partition(" > ")[0])
        place = ()
        while place != tuple(given) and (*place, given[len(place)]) in COMMANDS:
            place = (*place, given[len(place)])
        assert place[: len(words)] == words
        assert place
        known = {option for one in COMMANDS[place].params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in given[len(place) :] if re.match(r"--?[a-z]", word)} <= known, example


def test_tables_are_not_cut(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)), rng.integers(0, 4, 60)
    np.savez(tmp_path / "layer.npz", features=x, outputs=x @ rng.normal(size=(3, 4)), targets=y)

    def train(members, seed):
        return np.random.default_rng(seed).normal(size=(60, 4))

    shadow.Study(train, 60, n_models=16, store=tmp_path / "study", targets=y, head="softmax").run("serial")
    shown = {
        "score": seen("score", tmp_path / "layer.npz"),
        "attack": seen("attack", tmp_path / "study", "-o", tmp_path / "a.parquet"),
        "bench": seen("bench", "--list"),
        "theory": seen("theory", "--leverage", 10, "--error", 2, "--n", 100, "--p", 10),
    }
    for name, text in shown.items():
        lines = [line for line in text.splitlines() if str(tmp_path) not in line]
        assert max(map(len, lines)) <= 60, name
        assert "…" not in text, name
    assert "no room for: " in shown["score"]
    hints = " ".join(shown["score"].split())
    assert "pass it as --trace" in hints
    assert "pass --held-out, records" in hints
    assert "(options of noshadow audit)" not in hints  # it has them itself
    assert "_out=" not in hints
    for said in ("success rate", "epsilon lower bound", "tpr at 0.01 % fpr"):
        assert said in shown["attack"]


def test_columns_get_room_in_their_order_of_importance():
    columns = {"id": ["a" * 5], "loss": ["1.25"], "leave_one_out": ["2"], "exposure": ["0.5"]}
    table = FittedTable("title", columns, ("id", "exposure", "leave_one_out"))
    assert table.shown(80) == list(columns)
    widths = {"id": 5, "loss": 4, "leave_one_out": 7, "exposure": 8}  # of "one_out", of "exposure"
    room = 1 + sum(1 + widths[name] for name in ("id", "exposure", "leave_one_out"))
    assert table.shown(room) == ["id", "leave_one_out", "exposure"]
    assert table.shown(room - 1) == ["id", "loss", "exposure"]  # less important, but it fits
    assert table.shown(1) == ["id", "exposure"]
    console = Console(width=room, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  open while it records
    console.print(table)
    text = console.export_text()
    assert "no room for: loss" in text
    assert max(map(len, text.splitlines())) <= room


def test_a_long_name_is_folded_not_cut():
    table = FittedTable("t", {"id": ["x" * 100], "exposure": ["0.5"]}, ("id", "exposure"))
    console = Console(width=40, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  open while it records
    console.print(table)
    assert console.export_text().count("x") == 100 + 1  # and that of the heading
