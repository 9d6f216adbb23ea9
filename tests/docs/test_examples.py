"""The example scripts run, and what they claim is so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
SAID = {
    "canaries.py": "chosen",
    "dp_audit.py": "ε claimed",
    "huggingface_text.py": "The most exposed",
    "pytorch_trace.py": "a trace of its own run",
    "shadow_prior.py": "both together",
    "sklearn_table.py": "patient-",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path):
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # the other cores have other tests
    )
    assert ended.returncode == 0, ended.stderr
    assert SAID[name] in ended.stdout
    claims(name, ended.stdout)


def claims(name: str, text: str) -> None:
    """What a reader is to see in the numbers."""
    last = [line.split() for line in text.splitlines() if line.strip()]
    if name == "pytorch_trace.py":
        hits = {line.rsplit(" ", 1)[0].strip(): int(line.rsplit(" ", 1)[1]) for line in text.splitlines()[1:4]}
        assert hits["a trace of its own run"] > hits["the final model"]
    elif name == "dp_audit.py":
        rows = [(float(noise), float(claimed), float(shown)) for noise, claimed, shown, *_ in last[1:]]
        assert all(shown < claimed for _, claimed, shown in rows)
        assert rows[0][2] > rows[-1][2]  # less noise, more shown
    elif name == "sklearn_table.py":
        highest = [
            float(line.split("highest rate ")[1].split(",")[0]) for line in text.splitlines() if "penalty" in line
        ]
        assert highest == sorted(highest, reverse=True)
    elif name == "shadow_prior.py":
        alone, few, both = (int(line[-1].rstrip("%")) for line in last[1:])
        assert both >= max(alone, few)
