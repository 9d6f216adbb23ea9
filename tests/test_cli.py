"""The commands as a shell sees them: exit codes, JSON on stdout, help that teaches."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from noshadow import Audit, LastLayer, Trace, audit, score
from noshadow.cli import app
from noshadow.curvature import CURVATURES


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
    assert {"loss", "leverage", "newton", "leave_one_out", "exposure", "attack_accuracy"} <= set(shown["top"][0])
    table = pd.read_parquet(tmp_path / "noshadow-demo.parquet")
    assert len(table) == 898
    assert np.isfinite(table.select_dtypes("number").to_numpy()).all()
    again = json.loads(run("demo", "--json", "-o", tmp_path / "again.csv").stdout)
    for before, after in zip(shown["top"], again["top"], strict=True):  # the same seed, the same records
        words = {name for name, value in before.items() if isinstance(value, str)}
        assert {name: after[name] for name in words} == {name: before[name] for name in words}
        numbers = before.keys() - words
        assert {name: after[name] for name in numbers} == pytest.approx({k: before[k] for k in numbers}, rel=1e-6)


def test_score_reads_an_npz(archive, tmp_path):
    result = run("score", archive, "--ridge", "1.5", "--top", "3", "-o", tmp_path / "s.csv")
    assert result.returncode == 0, result.stderr
    assert "60 records, softmax head, 3 features × 4 outputs" in result.stdout
    assert len(pd.read_csv(tmp_path / "s.csv")) == 60
    shown = json.loads(run("score", archive, "--json", "--full-step", "--no-bias").stdout)
    assert shown["metadata"]["bias"] is False
    assert shown["metadata"]["full_step"] is True


@pytest.mark.parametrize("command", ["score", "audit"])
def test_the_help_names_every_curvature(command):
    (option,) = [one for one in get_command(app).commands[command].params if one.name == "curvature"]
    names = ", ".join(name.replace("dense", "dense (exact)") for name in CURVATURES)
    assert option.help.startswith(f"{names}, or auto")


def test_score_takes_a_curvature_and_refines(archive):
    shown = json.loads(run("score", archive, "--json", "--curvature", "kronecker", "--refine", "0.2").stdout)
    facts = shown["metadata"]
    assert (facts["curvature"], facts["curvature_exact"]) == ("kronecker", False)
    assert facts["accuracy"]["refined"] >= 1
    assert any("'kronecker' stands in for the exact Hessian" in note for note in shown["notes"])
    exact = json.loads(run("score", archive, "--json").stdout)
    assert (exact["metadata"]["curvature"], exact["metadata"]["accuracy"]) == ("dense", None)


def test_score_reads_weights_and_smoothing(archive, tmp_path):
    arrays = dict(np.load(archive))
    plain = {name: arrays[name] for name in ("features", "outputs", "targets")}
    weights = {"sample_weight": np.linspace(0.5, 2.0, 60), "class_weight": np.array([1.0, 2.0, 0.5, 1.0])}
    np.savez(tmp_path / "w.npz", **plain, **weights, label_smoothing=0.1)
    out = tmp_path / "w.csv"
    assert run("score", tmp_path / "w.npz", "-o", out).returncode == 0
    wanted = score(LastLayer(*plain.values(), **weights, label_smoothing=0.1), ["newton"])
    np.testing.assert_allclose(pd.read_csv(out)["newton"], wanted["newton"], rtol=1e-12)


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
    assert "trace in FILE" in result.stderr
    assert "it looks transposed" in " ".join(result.stderr.split())


def test_score_takes_a_trace_from_its_own_file(archive, tmp_path):
    arrays = dict(np.load(archive))
    epochs = np.random.default_rng(1).normal(size=(5, *arrays["outputs"].shape))
    trace = Trace.from_outputs(epochs, arrays["targets"], "softmax")
    layer = LastLayer(arrays["features"], arrays["outputs"], arrays["targets"])
    wanted = score(layer, ["mean_trace"], trace)["mean_trace"]
    np.save(tmp_path / "losses.npy", trace.losses.values.numpy())
    for path in (trace.save(tmp_path / "trace.safetensors"), tmp_path / "losses.npy"):
        result = run("score", archive, "--trace", path, "-o", tmp_path / "s.parquet")
        assert result.returncode == 0, result.stderr
        np.testing.assert_allclose(pd.read_parquet(tmp_path / "s.parquet")["mean_trace"], wanted, rtol=1e-12)
    Trace.from_outputs(epochs[:, :59], arrays["targets"][:59], "softmax").save(tmp_path / "other.safetensors")
    result = run("score", archive, "--trace", tmp_path / "other.safetensors")
    assert result.returncode == 2
    assert "--trace: expected shape (epochs, 60)" in " ".join(result.stderr.split())
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "other.safetensors").read_bytes()[:-9])
    result = run("score", archive, "--trace", tmp_path / "cut.safetensors")
    assert result.returncode == 3
    assert "it fails its checksum" in " ".join(result.stderr.split())


def test_score_takes_held_out_records_and_a_rerun(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)), rng.integers(0, 4, 80)
    z = x @ rng.normal(size=(3, 4)) / 2
    members = z.copy()
    members[np.arange(80), y] += 1.0
    runs = {"a": members, "held": z[::-1]}
    runs |= {f"again_{name}": one + 0.1 * rng.normal(size=one.shape) for name, one in runs.items()}
    for name, outputs in runs.items():
        np.savez(tmp_path / f"{name}.npz", features=x, outputs=outputs, targets=y)
    files = {name: str(tmp_path / f"{name}.npz") for name in runs}
    options = ["--held-out", files["held"], "--rerun", files["again_a"], "--rerun-held-out", files["again_held"]]
    saved = tmp_path / "scores.parquet"
    assert run("score", files["a"], *options, "-o", str(saved)).returncode == 0
    layers = {name: LastLayer(x, outputs, y) for name, outputs in runs.items()}
    wanted = audit(layers["a"], held_out=layers["held"], rerun=(layers["again_a"], layers["again_held"]))
    found = Audit.load(saved)
    assert found.metadata["calibration"] == wanted.metadata["calibration"]
    pd.testing.assert_frame_equal(found.table, wanted.table)
    refused = run("score", files["a"], *options[:4])
    assert refused.returncode == 2
    assert "--rerun-held-out: with held-out records" in refused.stderr


@pytest.mark.parametrize("option", ["--held-out", "--rerun"])
def test_score_says_which_of_its_files_is_wrong(archive, tmp_path, option):
    arrays = dict(np.load(archive))
    np.savez(tmp_path / "less.npz", outputs=arrays["outputs"], targets=arrays["targets"])
    np.savez(tmp_path / "nan.npz", **{**arrays, "features": np.full_like(arrays["features"], np.nan)})
    np.savez(tmp_path / "more.npz", **{**arrays, "outputs": arrays["outputs"] + 0.1, "weights": np.ones(60)})
    wanted = {"less": f"{option}: {tmp_path / 'less.npz'} has no array 'features'"}
    wanted["nan"] = f"{option}: of {tmp_path / 'nan.npz'}, features: "
    for name, text in wanted.items():
        result = run("score", archive, option, tmp_path / f"{name}.npz")
        assert result.returncode == 3
        assert text in " ".join(result.stderr.split())
    result = run("score", archive, option, tmp_path / "more.npz")
    assert f"{option}: what it calls weights is not read" in " ".join((result.stdout + result.stderr).split())


def test_failures_say_what_and_exit_with_three(archive, tmp_path):
    arrays = dict(np.load(archive))
    cases = {(archive, "--head", "squared"): "targets in FILE: 1 value per record, but outputs has 4 columns"}
    (tmp_path / "text.npz").write_text("not an archive")
    cases[(tmp_path / "text.npz",)] = "FILE: {} is not an .npz of plain arrays"
    (tmp_path / "cut.npz").write_bytes(archive.read_bytes()[:-300])
    cases[(tmp_path / "cut.npz",)] = "FILE: {} is not an .npz of plain arrays"
    (tmp_path / "folder.npz").mkdir()
    cases[(tmp_path / "folder.npz",)] = "FILE: {} is a folder"
    np.savez(tmp_path / "half.npz", features=np.ones((3, 2)))
    cases[(tmp_path / "half.npz",)] = "FILE: {} has no array 'outputs'"
    np.save(tmp_path / "one.npy", np.ones(3))
    cases[(tmp_path / "one.npy",)] = "FILE: {} holds one array"
    np.savez(tmp_path / "pickle.npz", features=np.array([{}], dtype=object), outputs=np.ones(1), targets=np.ones(1))
    cases[(tmp_path / "pickle.npz",)] = "'features' holds Python objects"
    np.savez(tmp_path / "nan.npz", **{**arrays, "features": np.full((60, 3), np.nan)})
    cases[(tmp_path / "nan.npz",)] = "features in FILE: NaN or infinite in rows 0, 1"
    np.savez(tmp_path / "ids.npz", **arrays, ids=np.zeros((60, 2)))
    cases[(tmp_path / "ids.npz",)] = "ids in FILE: expected shape (n,)"
    np.savez(tmp_path / "ridges.npz", **arrays, ridge=np.ones(3))
    cases[(tmp_path / "ridges.npz",)] = "ridge in FILE: expected one number"
    np.savez(tmp_path / "head.npz", **arrays, head=np.array("hinge"))
    cases[(tmp_path / "head.npz",)] = "head in FILE: 'hinge' is not a head"
    layer = LastLayer(**{name: arrays[name] for name in ("features", "outputs", "targets")}, head="softmax")
    layer.save(tmp_path / "saved.safetensors")
    cases[(tmp_path / "saved.safetensors",)] = "LastLayer.load to read it, or `noshadow audit` in a shell"
    cases[(archive, "-o", "/proc/s.csv")] = "--output: nothing can be written into '/proc'"
    for arguments, message in cases.items():
        result = run("score", *arguments)
        assert result.returncode == 3, (arguments, result.stderr)
        assert message.format(arguments[0]) in result.stderr, (arguments, result.stderr)
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""


def test_usage_errors_exit_with_two(archive, tmp_path):
    cases = {
        ("score",): "Missing argument",
        ("nonsense",): "No such command",
        ("score", archive, "--top", "0"): "--top",
        ("score", tmp_path / "none.npz"): "does not exist",
        ("score", archive, "--ridge", "-1"): "--ridge: expected a finite number",
        ("score", archive, "--ridge", "nan"): "--ridge: expected a finite number",
        ("score", archive, "--head", "hinge"): "--head: 'hinge' is not a head",
        ("score", archive, "--head", ""): "--head: '' is not a head",
        ("score", archive, "--curvature", "full"): "--curvature: 'full' is not one of",
        ("score", archive, "--refine", "3"): "--refine: expected a share",
        ("score", archive, "--memory", "0"): "--memory: expected a positive",
        ("score", archive, "-o", tmp_path / "s.txt"): "--output: '",
        ("score", archive, "-o", tmp_path / "nowhere" / "s.csv"): "--output: the folder",
        ("score", archive, "-o", tmp_path): "--output: '",
        ("demo", "--seed", "-1"): "--seed",
        ("demo", "-o", tmp_path / "d.xlsx"): "--output: '",
        ("theory", "--leverage", "1"): "--error, --n, --p: missing",
        ("theory", "--leverage", "1", "figure", "-o", "x.png"): "--leverage: describes a point",
        ("bench",): "SETTING: none was named",
        ("bench", "cifar"): "SETTING: 'cifar' is not one of",
        ("bench", "energy-mlp", "--address", "auto"): "--address: it is for --engine ray",
        ("bench", "energy-mlp", "--backbone", "minilm"): "--backbone: energy-mlp has no use for one",
        ("bench", "energy-mlp", "--shadows", "15"): "--shadows",
        (
            "bench",
            "energy-mlp",
            "--data",
            tmp_path / "nowhere",
            "--store",
            tmp_path / "b",
        ): "--data: there is no folder",
    }
    for arguments, message in cases.items():
        result = run(*arguments)
        assert result.returncode == 2, (arguments, result.stderr)
        assert message in " ".join(result.stderr.split()), (arguments, result.stderr)
        assert result.stdout == ""


def test_an_output_that_cannot_be_written_is_refused_before_the_work(archive, tmp_path, monkeypatch):
    def work(*_, **__):
        raise AssertionError("worked before it looked")

    monkeypatch.setattr("noshadow.commands.digits.run_demo", work)
    monkeypatch.setattr("noshadow.npz.read_npz", work)
    monkeypatch.setattr("noshadow.shadow.load", work)
    monkeypatch.setattr("noshadow.drawing.tradeoffs.gap_and_tradeoffs", work)
    monkeypatch.setattr("noshadow.bench.run.run_setting", work)
    assert run("demo", "-o", "/proc/d.csv").returncode == 3
    assert run("score", archive, "-o", tmp_path / "s.txt").returncode == 2
    assert run("attack", tmp_path, "-o", tmp_path / "s.txt").returncode == 2
    assert run("theory", "figure", "-o", tmp_path / "f.xyz").returncode == 2
    assert run("bench", "energy-mlp", "-o", "/proc/results").returncode == 3


def test_every_note_is_printed(archive, tmp_path):
    arrays = dict(np.load(archive))
    shares = np.exp(arrays["outputs"]) / np.exp(arrays["outputs"]).sum(1, keepdims=True)
    np.savez(tmp_path / "p.npz", **{**arrays, "outputs": shares})
    told = "outputs in FILE: these look like probabilities"
    shown = json.loads(run("score", tmp_path / "p.npz", "--json").stdout)
    assert any(note.startswith(told) for note in shown["notes"])
    assert not any("full_step=True" in note for note in shown["notes"])  # options, not Python
    plain = run("score", tmp_path / "p.npz", "-o", tmp_path / "p.parquet")
    assert told in " ".join(plain.stdout.split())
    assert plain.stdout.count("look like probabilities") == 1
    assert (tmp_path / "p.parquet").stat().st_mode & 0o777 == 0o600


def test_importing_noshadow_costs_nothing_and_gives_all():
    script = (
        "import sys, noshadow\nassert not {'torch', 'numpy', 'pandas', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "from noshadow.audit import Audit\n"  # the module is loaded, the name is still the function's
        "assert noshadow.audit.__module__ == 'noshadow.audit' and callable(noshadow.audit)\n"
        "assert noshadow.Audit is Audit\n"
        "assert all(getattr(noshadow, name) for name in noshadow.__all__)\n"
        "assert set(noshadow.__all__) <= set(dir(noshadow))\n"
        "assert noshadow.theory.expected_gap and noshadow.attacks.lira and noshadow.evaluate.recall\n"
        "assert noshadow.shadow.Study and noshadow.network.network_influence\n"
        "assert not hasattr(noshadow, 'nothing')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_and_version():
    import noshadow

    assert run("--version").stdout.strip() == f"noshadow {noshadow.__version__}"
    text = run("score", "--help").stdout
    for word in ("features", "outputs", "targets", "trace", "--ridge", "--json", "Example"):
        assert word in text
