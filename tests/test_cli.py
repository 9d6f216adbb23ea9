"""The commands as a shell sees them: exit codes, JSON on stdout, help that teaches."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noshadow.cli import app


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*arguments):
    """In this process: the import takes longer than the command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout, result.stderr)


def shell(*arguments, cwd=None):
    """As a shell runs it."""
    command = [sys.executable, "-m", "noshadow", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, check=False)


@pytest.fixture
def archive(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    path = tmp_path / "layer.npz"
    np.savez(path, features=x, outputs=x @ rng.normal(size=(3, 4)), targets=rng.integers(0, 4, 60))
    return path


def test_demo_prints_ten_records_and_saves_all(tmp_path):
    result = shell("demo", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert len(shown["top"]) == 10
    assert {"loss", "gradient_norm", "entropy", "leverage", "influence", "newton", "leave_one_out"} <= set(
        shown["top"][0]
    )
    table = pd.read_parquet(tmp_path / "noshadow-demo.parquet")
    assert len(table) == 1797
    assert np.isfinite(table.select_dtypes("number").to_numpy()).all()
    assert shown["metadata"]["stationarity"] < 0.01
    again = json.loads(run("demo", "--json", "-o", tmp_path / "again.csv").stdout)
    for before, after in zip(shown["top"], again["top"], strict=True):  # the same seed, the same records
        assert after == pytest.approx(before, rel=1e-6)


def test_score_reads_an_npz(archive, tmp_path):
    result = run("score", archive, "--ridge", "1.5", "--top", "3", "-o", tmp_path / "s.csv")
    assert result.returncode == 0, result.stderr
    assert "60 records, softmax head, 3 features × 4 outputs" in result.stdout
    assert len(pd.read_csv(tmp_path / "s.csv")) == 60
    shown = json.loads(run("score", archive, "--json", "--full-step", "--no-bias").stdout)
    assert shown["metadata"]["bias"] is False
    assert shown["metadata"]["full_step"] is True


def test_score_reads_a_trace(archive, tmp_path):
    assert "mean_trace" not in json.loads(run("score", archive, "--json").stdout)["top"][0]
    arrays = dict(np.load(archive))
    trace = np.random.default_rng(1).exponential(size=(8, 60))
    np.savez(tmp_path / "traced.npz", **arrays, trace=trace)
    result = run("score", tmp_path / "traced.npz", "-o", tmp_path / "s.parquet")
    assert result.returncode == 0, result.stderr
    np.testing.assert_allclose(pd.read_parquet(tmp_path / "s.parquet")["mean_trace"], trace.mean(0), rtol=1e-12)
    np.savez(tmp_path / "turned.npz", **arrays, trace=trace.T)
    result = run("score", tmp_path / "turned.npz")
    assert result.returncode == 3
    assert "it looks transposed" in " ".join(result.stderr.split())


def test_failures_say_what_and_exit_with_three(archive, tmp_path):
    cases = {
        (tmp_path / "none.npz",): "does not exist",
        (archive, "--head", "logistic"): "4 logistic outputs need 0/1 targets",
        (archive, "--ridge", "-1"): "ridge: expected a finite number",
        (archive, "-o", tmp_path / "s.txt"): "must end in .parquet or .csv",
    }
    (tmp_path / "text.npz").write_text("not an archive")
    cases[(tmp_path / "text.npz",)] = "is not an .npz of plain arrays"
    np.savez(tmp_path / "half.npz", features=np.ones((3, 2)))
    cases[(tmp_path / "half.npz",)] = "has no array 'outputs'"
    np.save(tmp_path / "one.npy", np.ones(3))
    cases[(tmp_path / "one.npy",)] = "holds one array"
    np.savez(tmp_path / "pickle.npz", features=np.array([{}], dtype=object), outputs=np.ones(1), targets=np.ones(1))
    cases[(tmp_path / "pickle.npz",)] = "is not an .npz of plain arrays"
    for arguments, message in cases.items():
        result = run("score", *arguments)
        assert result.returncode == 3, (arguments, result.stderr)
        assert message in " ".join(result.stderr.split()), (arguments, result.stderr)
        assert result.stdout == ""


def test_usage_errors_exit_with_two():
    assert shell("score").returncode == 2
    assert run("nonsense").returncode == 2
    assert run("score", "x.npz", "--top", "0").returncode == 2


def test_help_and_version():
    import noshadow

    assert run("--version").stdout.strip() == f"noshadow {noshadow.__version__}"
    text = run("score", "--help").stdout
    for word in ("features", "outputs", "targets", "trace", "--ridge", "--json", "Example"):
        assert word in text
