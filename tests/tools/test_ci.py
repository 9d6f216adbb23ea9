"""What is claimed of versions is what continuous integration runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))


def steps():
    return [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_every_target_that_shows_a_claim_is_run():
    lines = {step["run"] for step in steps() if "run" in step}
    assert lines == {".ci/run", "make minima", "make dist"}
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().endswith("exec make test")
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"test", "minima", "dist"} <= set(targets)


def test_the_lowest_python_that_is_claimed_is_the_one_that_runs():
    versions = {step["with"]["python-version"] for step in steps() if step.get("uses", "").startswith("actions/setup")}
    claimed = {name.rsplit(" ", 1)[1] for name in PROJECT["classifiers"] if "Python :: 3." in name}
    assert versions == claimed
    lowest = min(claimed, key=lambda version: int(version.split(".")[1]))
    assert PROJECT["requires-python"] == f">={lowest}"


def test_the_minima_are_those_of_the_project():
    """``numpy>=1.26.4`` is tested with numpy 1.26.4; a floor without its last number, with its first release."""
    floors = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", need).groups() for need in PROJECT["dependencies"])
    lines = (ROOT / "constraints-min.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert {name: padded(version) for name, version in floors.items()} == {
        name: padded(version) for name, version in pinned.items()
    }


def padded(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))
