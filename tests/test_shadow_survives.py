"""A study that is killed, again and again, or run by two processes at once, ends with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest

from noshadow import shadow
from noshadow.shadow.engines import import_path
from shadow_toys import N_SAMPLES, noted_ridge, slow_ridge

N_MODELS = 80
DRIVER = """
import sys
from functools import partial
import shadow_toys
from noshadow import shadow
name, store, folder, n_models = sys.argv[1:]
train = getattr(shadow_toys, name)
train = partial(train, folder=folder) if folder else train
shadow.Study(train, shadow_toys.N_SAMPLES, n_models=int(n_models), store=store).run("processes", workers=2)
"""


def start_study(train, store, folder="", n_models=N_MODELS):
    command = [sys.executable, "-c", DRIVER, train, str(store), str(folder), str(n_models)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": import_path()}, stderr=subprocess.PIPE)


def finished(store):
    return len(list((store / "shadow").glob("*.safetensors")))


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed")
    return shadow.Study(slow_ridge, N_SAMPLES, n_models=N_MODELS, store=store).run("serial")


def test_twenty_kills_change_no_bit(tmp_path, undisturbed):
    moments = random.Random(2024)
    for _ in range(20):
        before = finished(tmp_path)
        process = start_study("slow_ridge", tmp_path)
        more = moments.randrange(4)
        wait_until(lambda: finished(tmp_path) >= before + more or process.poll() is not None)  # noqa: B023
        time.sleep(moments.uniform(0.0, 0.06))
        process.kill()
        _, errors = process.communicate()
        assert process.returncode == -signal.SIGKILL, errors.decode()
    assert 20 <= finished(tmp_path) < N_MODELS
    result = shadow.Study(slow_ridge, N_SAMPLES, n_models=N_MODELS, store=tmp_path).run("processes")
    assert np.array_equal(result.outputs, undisturbed.outputs)
    assert np.array_equal(result.membership, undisturbed.membership)
    assert np.array_equal(result.extra("ballast"), undisturbed.extra("ballast"))
    names = {path.name for path in (tmp_path / "shadow").iterdir()}
    assert names == {
        f"{number:06d}.safetensors" for number in range(N_MODELS)
    }  # no half-written file is left


def test_two_processes_on_one_store_share_the_work(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    processes = [start_study("noted_ridge", tmp_path / "store", notes, 40) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    result = shadow.Study(
        partial(noted_ridge, folder=str(notes)), N_SAMPLES, n_models=40, store=tmp_path / "store"
    ).run("serial")
    calls = [line for path in notes.iterdir() for line in path.read_text().split()]
    assert sorted(calls) == sorted(map(str, result.seeds))  # each model was trained once, by one of them
    alone = shadow.Study(slow_ridge, N_SAMPLES, n_models=40, store=tmp_path / "alone").run("serial")
    assert np.array_equal(result.outputs, alone.outputs)


def test_workers_do_not_outlive_a_killed_study(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    process = start_study("endless", tmp_path / "store", notes, 4)
    wait_until(lambda: len(list(notes.iterdir())) == 2)
    workers = [int(path.name) for path in notes.iterdir()]
    assert all(map(alive, workers))
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(alive, workers)), 20.0)


def test_ctrl_c_ends_the_study_and_its_workers(tmp_path):
    notes = tmp_path / "notes"
    notes.mkdir()
    process = start_study("endless", tmp_path / "store", notes, 4)
    wait_until(lambda: len(list(notes.iterdir())) == 2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors.decode()
    wait_until(lambda: not any(alive(int(path.name)) for path in notes.iterdir()), 20.0)
