"""Tests in a process of their own: each has its outcome, though that process ends in the middle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import os
import pathlib
import pytest

pytestmark = pytest.mark.own_process

@pytest.fixture
def torn():
    yield
    assert False, "in the end"

def test_fine():
    assert os.getpid() != int(os.environ["OUTER"])

def test_wrong():
    assert 2 + 2 == 5

def test_torn(torn):
    pass

def test_ends_once():
    flag = pathlib.Path("ended")
    if not flag.exists():
        flag.touch()
        os._exit(1)

def test_ends_always():
    os._exit(1)

def test_after():
    pass
"""


def test_outcomes_come_back_though_the_process_ends(tmp_path):
    (tmp_path / "conftest.py").write_text(
        "import os\nos.environ.setdefault('OUTER', str(os.getpid()))\npytest_plugins = ['tests.own_process']\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -rA\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = run.stdout
    assert run.returncode == 1
    outcome = {
        line.split("::")[1].split()[0]: line.split()[0] for line in said.splitlines() if line[:4] in ("PASS", "FAIL")
    }
    assert outcome == {
        "test_fine": "PASSED",
        "test_wrong": "FAILED",
        "test_torn": "FAILED",
        "test_ends_once": "PASSED",
        "test_ends_always": "FAILED",
        "test_after": "PASSED",
    }
    assert "assert (2 + 2) == 5" in said
    assert "in the end" in said
    assert "run once more: the process of test_some.py::test_ends_once ended in the middle of it" in said
    assert "its process ended 2 times in the middle of it" in said
