"""Tests that drive Ray run in a process of their own, a process for each file.

Ray ends its driver at once, with exit code 1 and without a word, when one of its own daemons dies; in the process of
all other tests that would end these too. Tests with ``pytest.mark.own_process`` are collected as usual, and run by a
second pytest, which writes down the outcome of each. The one that it was ended in the middle of is run once more, which
is told at the end, with what Ray's daemons had to say.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

OUTCOMES = "NOSHADOW_TESTS_OUTCOMES"  # names the file in which the second pytest writes down what became of each test
TRIES = 2
LONGEST = 900  # seconds


class InOwnProcess(pytest.Item):
    """A test that the second pytest runs, with all others of its file."""

    def __init__(self, *, others, **options):
        super().__init__(**options)
        self.others = others  # all such tests of the file, and what became of them: shared among them

    def runtest(self):
        if not self.others.outcomes:
            for remark in self.others.run(self.config.rootpath):
                self.warn(pytest.PytestWarning(remark))
        found = self.others.outcomes[self.nodeid]
        if found:
            raise FailedElsewhere("\n".join(found))

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value)

    def reportinfo(self):
        return self.path, 0, self.nodeid


class FailedElsewhere(AssertionError):
    """What the second pytest reported."""


class Others:
    """The tests of a file that have a process of their own; ``outcomes``: for each, what was wrong, if anything."""

    def __init__(self):
        self.names: list[str] = []
        self.outcomes: dict[str, list[str]] = {}

    def run(self, folder: Path) -> list[str]:
        """Fill ``outcomes``; what is to be told of processes that ended."""
        left, tries, remarks = list(self.names), Counter[str](), []
        while left:
            ended, printed = second_pytest(folder, left)
            self.outcomes |= ended
            left = [name for name in left if name not in ended]
            if not left:
                break
            tries[left[0]] += 1  # tests run in their order: it ended in the middle of the first that is left
            if tries[left[0]] < TRIES:
                remarks.append(
                    f"run once more: the process of {left[0]} ended in the middle of it:\n{last_words(printed)}"
                )
            else:
                wrong = f"its process ended {TRIES} times in the middle of it:\n{last_words(printed)}"
                self.outcomes[left.pop(0)] = [wrong]
        return remarks


def second_pytest(folder: Path, names: list[str]) -> tuple[dict[str, list[str]], str]:
    """What was wrong with each test that came to its end, and all that was printed."""
    with TemporaryDirectory() as place:
        log = Path(place) / "outcomes"
        log.touch()
        try:
            process = subprocess.run(
                [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *names],
                cwd=folder,
                env={**os.environ, OUTCOMES: str(log)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LONGEST,
                check=False,
            )
            printed = process.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            printed = (error.stdout or b"").decode(errors="replace") + f"\nended after {LONGEST} s"
        wrong, ended = defaultdict(list), {}
        for line in log.read_text(encoding="utf-8").splitlines():
            report = json.loads(line)
            if report["outcome"] != "passed":
                wrong[report["test"]].append(f"{report['when']} {report['outcome']}\n{report['text']}")
            if report["when"] == "teardown":
                ended[report["test"]] = wrong[report["test"]]
        return ended, printed


def last_words(printed: str) -> str:
    """The end of what was printed, and of what Ray's daemons wrote."""
    said = [f"printed: {printed[-2000:]}"]
    for name in ("raylet.out", "raylet.err", "gcs_server.out"):
        log = Path("/tmp/ray/session_latest/logs") / name  # where Ray keeps them
        if log.is_file():
            said.append(f"{name}: {log.read_text(errors='replace')[-2000:]}")
    return "\n".join(said)


def pytest_configure(config):
    config.addinivalue_line("markers", "own_process: run by a second pytest, as Ray may end the process that drives it")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    if OUTCOMES in os.environ:
        return
    files: dict[Path, Others] = defaultdict(Others)
    for place, item in enumerate(items):
        if item.get_closest_marker("own_process"):
            others = files[item.path]
            others.names.append(item.nodeid)
            items[place] = InOwnProcess.from_parent(item.parent, name=item.name, others=others)


def pytest_runtest_logreport(report):
    if OUTCOMES in os.environ:
        said = {"test": report.nodeid, "when": report.when, "outcome": report.outcome, "text": report.longreprtext}
        with open(os.environ[OUTCOMES], "a", encoding="utf-8") as log:
            log.write(json.dumps(said) + "\n")
