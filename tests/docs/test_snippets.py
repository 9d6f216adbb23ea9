"""Every code block in the README and the docs does what it says."""

from __future__ import annotations

import doctest
import io
import json
import re
import shlex
import subprocess
import sys
import tomllib
import types
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from noshadow.cli import app
from noshadow.extract.doors import DOORS
from noshadow.scores import SCORES

from .snippets import ROOT, SETUPS, Page, Snippet, pages, read_page

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = {page.name: page for page in pages()}
LONG = ("noshadow bench",)  # trains for minutes: parsed, unless it only lists
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


ON_RAY = [name for name, page in PAGES.items() if any('"ray"' in snippet.code for snippet in page.snippets)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.own_process if name in ON_RAY else ()) for name in PAGES]
)
def test_the_snippets_of_a_page_run(name, tmp_path, monkeypatch):
    with patch.dict(SCORES), patch.dict(DOORS):  # a page may add to them; others must not see it
        run_page(PAGES[name], tmp_path, monkeypatch)


def run_page(page: Page, folder, monkeypatch) -> None:
    """All blocks of a page, in order, in one module called ``__main__``, as if typed one after the other."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.chdir(folder)
    if page.setup is not None:
        path = SETUPS / f"{page.setup}.py"
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), module.__dict__)
    scripts = {snippet.file for snippet in page.snippets if snippet.language == "python"} - {None}
    lines = [line for snippet in page.snippets if snippet.language == "sh" for line in commands(snippet.code)]
    for script in scripts:
        assert any(line.startswith(f"python {script}") for line in lines), f"{page.name}: nobody runs {script}"
    for snippet in page.snippets:
        where = f"{page.name}, line {snippet.line}"
        printed = run_snippet(snippet, where, module)
        if snippet.prints is not None:
            wanted, found = snippet.prints.replace("…", "..."), printed
            if snippet.about:
                wanted, found = (re.sub(r"\d+(\.\d+)?", "0", text) for text in (wanted, found))
            assert doctest.OutputChecker().check_output(wanted, found, OPTIONS), f"{where} printed:\n{printed}"


def run_snippet(snippet: Snippet, where: str, module: types.ModuleType) -> str:
    """What a block prints."""
    if snippet.file is not None:
        Path(snippet.file).write_text(snippet.code, encoding="utf-8")
        if snippet.language == "python":
            return ""
    if snippet.language == "python":
        heard = io.StringIO()
        code = compile("\n" * (snippet.line - 1) + snippet.code, where, "exec")
        with redirect_stdout(heard):
            exec(code, module.__dict__)
        return heard.getvalue()
    if snippet.language == "sh":
        return "".join(run_line(line, where) for line in commands(snippet.code))
    if snippet.language == "toml":
        tomllib.loads(snippet.code)
    elif snippet.language == "json":
        json.loads(snippet.code)
    elif snippet.language == "yaml":
        for line in run_lines(yaml.safe_load(snippet.code)):
            check_line(line, where)
    else:
        raise AssertionError(f"{where}: nobody runs a block of {snippet.language!r}")
    return ""


def commands(code: str) -> list[str]:
    """The lines of a shell block; one that ends in a backslash goes on."""
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def run_lines(workflow) -> list[str]:
    """The ``run:`` lines of a workflow."""
    if isinstance(workflow, dict):
        found = commands(workflow["run"]) if isinstance(workflow.get("run"), str) else []
        return [*found, *(line for value in workflow.values() for line in run_lines(value))]
    return [line for value in workflow for line in run_lines(value)] if isinstance(workflow, list) else []


def run_line(line: str, where: str) -> str:
    """Run a command of noshadow and hold it to its exit code; look at any other."""
    words = shlex.split(line, comments=True)
    if words[0] == "python" and Path(words[1]).is_file():  # the page has had it saved
        ended = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{where}: {line}\n{ended.stderr}"
        return ended.stdout
    if words[0] != "noshadow" or (line.startswith(LONG) and "--list" not in words):
        check_line(line, where)
        return ""
    wanted = re.search(r"# exit (\d)", line)
    written = words.index(">") if ">" in words else len(words)
    ended = CliRunner().invoke(app, words[1:written], env={"COLUMNS": "100"})
    assert ended.exit_code == (int(wanted[1]) if wanted else 0), f"{where}: {line}\n{ended.output}"
    for file in words[written + 1 :]:
        Path(file).write_text(ended.stdout, encoding="utf-8")
    return ended.stdout


def check_line(line: str, where: str) -> None:
    """What is not run is at least possible: options that exist, targets and extras that are there."""
    words = shlex.split(line, comments=True)
    if words[0] == "noshadow":
        parse(words[1:], where)
    elif words[0] == "make":
        assert set(words[1:]) <= set(TARGETS), f"{where}: no such target in {line!r}"
    elif words[:2] == ["pip", "install"] or words[:4] == ["python", "-m", "pip", "install"]:
        for extras in re.findall(r"(?:noshadow|\.)\[([\w,]+)\]", line):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), (
                f"{where}: no such extra in {line!r}"
            )
    elif words[0] == "python":
        # the examples have tests of their own; train.py is the reader's
        assert words[1] == "train.py" or (ROOT / words[1]).is_file(), f"{where}: {words[1]} is not there"
    else:
        assert words[0] in ("cd", "git"), f"{where}: nobody knows what to do with {line!r}"


def parse(words: list[str], where: str) -> None:
    """Refuse options and commands that noshadow has not; files need not be there."""
    command = get_command(app)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    context = command.context_class(command, info_name="noshadow")
    try:
        command.make_parser(context).parse_args(args=[word for word in words if word not in (">", "|")])
    except Exception as error:
        raise AssertionError(f"{where}: {error}") from None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nassert 1 == 2, 42\n```\n", "42"),
        ("```python\nprint(1)\n```\n\n<!-- output -->\n```text\n2\n```\n", r"printed:\s+1"),
        ("```python\nprint('one 1')\n```\n\n<!-- output, about -->\n```text\ntwo 2\n```\n", r"printed:\s+one"),
        ("```sh\nnoshadow bench --no-such-option\n```\n", "no-such-option"),
        ("```sh\nnoshadow score missing.npz\n```\n", "missing.npz"),
        ("```sh\nmake nothing\n```\n", "no such target"),
        ("```sh\npip install 'noshadow[nothing]'\n```\n", "no such extra"),
        ("```sh\npip install '.[nothing]'\n```\n", "no such extra"),
        ("```sh\nrm -rf x\n```\n", "nobody knows"),
        ("```python\n# one.py\nassert 1 == 2, 42\n```\n", "nobody runs one.py"),
        ("```python\n# one.py\nassert 1 == 2, 42\n```\n\n```sh\npython one.py\n```\n", "42"),
        ("```ruby\n1\n```\n", "nobody runs"),
        ("```yaml\nsteps: [{run: noshadow score --nothing}]\n```\n", "nothing"),
    ],
)
def test_a_wrong_snippet_is_noticed(text, complaint, tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(Page, "name", property(lambda page: page.path.name))
    with pytest.raises(AssertionError, match=complaint):
        run_page(read_page(path), tmp_path, monkeypatch)


def test_most_blocks_are_run_and_none_is_overlooked():
    """The fences of all pages, counted without the parser of the tests."""
    for page in PAGES.values():
        text = page.path.read_text(encoding="utf-8")
        opened = re.findall(r"^```(\w+)", text, re.MULTILINE)
        expected = [language for language in opened if language not in ("text", "mermaid")]
        assert [snippet.language for snippet in page.snippets] == expected
