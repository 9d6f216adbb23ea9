"""One policy: every way to fail is a sentence in the words of the command line and the right exit code."""

from __future__ import annotations

import ast
import errno
import inspect
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import typer

from noshadow import shadow
from noshadow.cli import app
from noshadow.commands.policy import COULD_NOT, USAGE, Command, explained_errors
from noshadow.errors import FileError, InputError, NoshadowWarning, missing_extra
from noshadow.shadow.store import StoreError
from noshadow.shadow.study import StudyError
from noshadow.shadow.work import Failure
from tests.shadow.toys import N_SAMPLES

OPTIONS = {"ridge": "--ridge", "head": "--head", "full_step": "--full-step", "bias": "--bias"}
CONTENTS = {"features": "features in FILE", "store": "STORE"}


def ends_with(error, capsys):
    """The exit code and what is on stderr when a command raises this."""
    with pytest.raises(typer.Exit) as caught, explained_errors(OPTIONS, CONTENTS):
        raise error
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert "Traceback" not in shown.err
    return caught.value.exit_code, shown.err.rstrip("\n")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("ridge: must be ≥ 0"), USAGE, "error: --ridge: must be ≥ 0"),
        (InputError("ridge, head: give one"), USAGE, "error: --ridge, --head: give one"),
        (InputError("features: NaN; use head='softmax'"), COULD_NOT, "features in FILE: NaN; use --head softmax"),
        (InputError("other: no"), COULD_NOT, "error: other: no"),
        (FileError("ridge: the file is damaged"), COULD_NOT, "error: --ridge: the file is damaged"),
        (StoreError("store: x is altered"), COULD_NOT, "error: STORE: x is altered"),
        (missing_extra("ray", "ray"), COULD_NOT, "pip install 'noshadow[ray]'"),
        (OSError(errno.ENOSPC, "No space left on device", "/x/y"), COULD_NOT, "No space left on device: /x/y"),
        (MemoryError(), COULD_NOT, "out of memory"),
        (np._core._exceptions._ArrayMemoryError((2**40,), np.dtype(float)), COULD_NOT, "Unable to allocate"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), COULD_NOT, "out of memory"),
        (KeyboardInterrupt(), COULD_NOT, "interrupted, nothing was written"),
        (ZeroDivisionError("a bug"), COULD_NOT, "please report it: ZeroDivisionError: a bug (test_policy.py, line"),
        (InputError("ridge: a\n  b\nc"), USAGE, "--ridge: a b c"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_codes_and_sentences(error, code, text, capsys):
    found, shown = ends_with(error, capsys)
    assert found == code
    assert text in shown


def test_memory_that_torch_cannot_have(capsys):
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert "out of memory" in ends_with(caught.value, capsys)[1]


def test_a_failed_study_is_one_sentence(tmp_path, capsys):
    def train(members, seed):
        raise ZeroDivisionError("a bad day")

    with pytest.raises(shadow.StudyError) as caught:
        shadow.Study(train, N_SAMPLES, n_models=5, store=tmp_path).run("serial")
    code, shown = ends_with(caught.value, capsys)
    assert code == COULD_NOT
    assert "5 of 5 models could not be trained" in shown
    assert "model 0: ZeroDivisionError: a bad day" in shown
    assert "2 more" in shown


def test_names_and_remedies_are_translated():
    command = Command(OPTIONS, CONTENTS)
    assert command.says("pass full_step=True, or bias=False") == "pass --full-step, or --no-bias"
    assert command.says("ridge=2.5 and other=3") == "--ridge 2.5 and other=3"
    assert command.says("pass ridge= (or other=), or bias=") == "pass --ridge (or other=), or --bias"
    assert command.says("3 of 4: no argument") == "3 of 4: no argument"


def test_warnings_become_notes_once_and_other_warnings_stay_warnings(capsys):
    def warns():
        with explained_errors(OPTIONS) as command:
            for _ in range(2):
                warnings.warn("ridge: try head='softmax'", NoshadowWarning, stacklevel=1)
            warnings.warn("not ours", UserWarning, stacklevel=1)
        return command.notes

    def fails():
        with explained_errors(OPTIONS):
            warnings.warn("a warning before the end", NoshadowWarning, stacklevel=1)
            raise InputError("ridge: no")

    with pytest.warns(UserWarning, match="not ours"):
        assert warns() == ["--ridge: try --head softmax"]
    with pytest.raises(typer.Exit):
        fails()
    assert capsys.readouterr().err.splitlines() == ["note: a warning before the end", "error: --ridge: no"]


@pytest.mark.parametrize("length", [3, 10**5])
def test_output_that_cannot_be_written(length):
    script = (
        "import typer\nfrom noshadow.commands.policy import explained_errors\n"
        f"def command():\n    with explained_errors():\n        print({length} * 'x')\ntyper.run(command)\n"
    )
    read, write = os.pipe()
    os.close(read)
    gone = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (gone.returncode, gone.stderr) == (COULD_NOT, b"")  # head has what it wanted
    with open("/dev/full", "w") as disk:
        full = subprocess.run([sys.executable, "-c", script], stdout=disk, stderr=subprocess.PIPE, check=False)
    assert (full.returncode, full.stderr) == (COULD_NOT, b"error: No space left on device\n")


def test_help_needs_no_torch_and_fits_80_columns():
    script = (
        "import sys\nfrom typer.testing import CliRunner\nfrom noshadow.cli import app\n"
        "for name in ([], ['demo'], ['audit'], ['score'], ['attack'], ['bench'], ['theory'], ['theory', 'figure']):\n"
        "    text = CliRunner().invoke(app, [*name, '--help'], env={'COLUMNS': '80', 'TERMINAL_WIDTH': '80'}).stdout\n"
        "    assert max(map(len, text.splitlines())) <= 80, text\n"
        "    assert 'xample' in text or not name, text\n"
        "    assert '...\\n' not in text.partition('Options:')[2], text\n"
        "assert not {'torch', 'sklearn', 'pandas', 'scipy'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_advice_names_the_options_that_a_command_has():
    command = Command(
        {"memory": "--memory", "store": "STORE"}, {"trace": "trace in FILE", "ids": "ids in FILE"}, ["trace"]
    )
    assert command.says("trace: pass it as trace=, or memory=2") == "trace in FILE: pass it as --trace, or --memory 2"
    assert command.says("give ids=, unique") == "give ids in FILE, unique"  # what only a file can hold
    assert command.hint("raise memory=") == "raise --memory"
    told = command.hint("pass held_out=, records that were not trained on")
    assert told == "pass --held-out, records that were not trained on (options of noshadow audit)"


def commands(group, before=()):
    """The function behind every command and subcommand, by its words."""
    found = {(*before, one.name or one.callback.__name__): one.callback for one in group.registered_commands}
    if before and group.registered_callback is not None:
        found[before] = group.registered_callback.callback
    for inner in group.registered_groups:
        found |= commands(inner.typer_instance, (*before, inner.name))
    return found


def test_every_command_goes_through_the_policy():
    """All that a command does, but for naming things, is inside of ``explained_errors``."""
    found = commands(app)
    assert {("demo",), ("audit",), ("score",), ("attack",), ("bench",), ("theory",), ("theory", "figure")} <= set(found)
    for words, function in found.items():
        (tree,) = ast.parse(inspect.getsource(inspect.unwrap(function))).body
        *before, last = tree.body
        assert all(isinstance(node, (ast.Expr, ast.Assign)) for node in before), words
        assert isinstance(last, ast.With), words
        assert last.items[0].context_expr.func.id == "explained_errors", words
        assert {"as_json"} <= set(inspect.signature(function).parameters), words


@pytest.mark.parametrize(("failed", "end"), [(3, "2: no"), (4, "2: no; 1 more"), (6, "2: no; 3 more")])
def test_of_many_failed_models_a_few_are_named(capsys, failed, end):
    failures = {f"model {number}": Failure("no") for number in range(failed)}
    code, text = ends_with(StudyError("models failed.", failures), capsys)
    assert code == COULD_NOT
    assert text == f"error: models failed. model 0: no; model 1: no; model {end}"
