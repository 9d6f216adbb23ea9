"""Ctrl-C, as a terminal sends it: one sentence, exit code 3, and what was finished is kept."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import numpy as np

from noshadow import shadow
from tests.bench.tiny_data import write_data

START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from noshadow.cli import main
sys.argv = ["noshadow", *sys.argv[1:]]
main()
"""


def interrupt(arguments, ready, cwd, seconds=300.0):
    """Start a command in a group of its own, as a terminal does; send Ctrl-C to all of it when it is ready."""
    command = [sys.executable, "-c", START, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + seconds
    while not ready(process):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_bench_says_how_many_models_are_kept(tmp_path):
    write_data(tmp_path / "data")
    store = tmp_path / "store"
    arguments = ["bench", "energy-mlp", "--scale", "smoke", "--no-figures", "--data", tmp_path / "data"]
    arguments += ["--shadows", "4000", "--store", store, "--engine", "processes", "--json"]
    models = store / "energy-mlp-smoke-120-0" / "shadows"
    code, out, err = interrupt(arguments, lambda _: any(models.glob("shadow/*.safetensors")), tmp_path)
    assert code == 3, err
    assert out == ""
    assert "Traceback" not in err
    said = re.fullmatch(r"interrupted, (\d+) of 4000 models kept in (.*); run the same again to continue\n", err)
    assert said, err
    assert said[2] == str(models)
    assert 1 <= int(said[1]) <= len(list(models.glob("shadow/*.safetensors"))) < 4000
    assert not list(models.rglob("*.partial"))


def test_an_attack_that_is_interrupted_writes_nothing(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, 400)

    def train(members, seed):
        return np.random.default_rng(seed).normal(size=(400, 3))

    shadow.Study(train, 400, n_models=64, store=tmp_path / "s", targets=targets, head="softmax").run("serial")
    loaded = re.compile(r"/sklearn/ensemble/.*\.so")

    def attacks(process):
        """Once it has the library that the attack needs; the attack itself takes many seconds."""
        with open(f"/proc/{process.pid}/maps") as maps:
            return loaded.search(maps.read()) is not None

    code, out, err = interrupt(["attack", "s", "--attack", "shokri"], attacks, tmp_path)
    assert (code, out) == (3, "")
    assert err == "interrupted, nothing was written\n"
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
