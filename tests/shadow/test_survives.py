"""A study that is killed, again and again, or run by two processes at once, ends with the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest

from noshadow import shadow
from noshadow.import_paths import import_path
from noshadow.shadow.claims import Claims
from tests.shadow.toys import N_SAMPLES, noted_ridge, slow_ridge

N_MODELS = 80
NURSERY = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with it ignored
from functools import partial
from tests.shadow import toys
from noshadow import shadow
for line in sys.stdin:
    engine, name, store, folder, n_models = line.rstrip("\\n").split("|")
    pid = os.fork()
    if pid == 0:
        train = getattr(toys, name)
        train = partial(train, folder=folder) if folder else train
        shadow.Study(train, toys.N_SAMPLES, n_models=int(n_models), store=store).run(engine, workers=2)
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """A process that has imported everything and forks a study on request: twenty studies start in no time."""

    def __init__(self):
        environment = {**os.environ, "PYTHONPATH": import_path()}
        self._process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *reason):
        self._process.communicate()
        assert self._process.returncode == 0

    def start(self, engine, train, store, folder="", n_models=N_MODELS):
        """Start a study; gives its process id."""
        self._process.stdin.write(f"{engine}|{train}|{store}|{folder}|{n_models}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def exit_code(self):
        """Wait for the study to end."""
        return int(self._process.stdout.readline())


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
    with Nursery() as nursery:
        for kill in range(20):
            wanted = finished(tmp_path) + moments.randrange(4)
            study = nursery.start("processes" if kill % 10 == 5 else "serial", "slow_ridge", tmp_path)
            wait_until(lambda wanted=wanted: finished(tmp_path) >= wanted)
            time.sleep(moments.uniform(0.0, 0.06))
            os.kill(study, signal.SIGKILL)
            assert nursery.exit_code() == -signal.SIGKILL
    assert 10 <= finished(tmp_path) < N_MODELS
    result = shadow.Study(slow_ridge, N_SAMPLES, n_models=N_MODELS, store=tmp_path).run("processes")
    assert np.array_equal(result.outputs, undisturbed.outputs)
    assert np.array_equal(result.membership, undisturbed.membership)
    assert np.array_equal(result.extra("ballast"), undisturbed.extra("ballast"))
    names = {path.name for path in (tmp_path / "shadow").iterdir()}
    assert names == {f"{number:06d}.safetensors" for number in range(N_MODELS)}  # no half-written file is left


def test_two_processes_on_one_store_share_the_work(tmp_path, undisturbed):
    notes = tmp_path / "notes"
    notes.mkdir()
    with Nursery() as one, Nursery() as other:
        for nursery, engine in ((one, "serial"), (other, "processes")):
            nursery.start(engine, "noted_ridge", tmp_path / "store", notes, N_MODELS)
        assert (one.exit_code(), other.exit_code()) == (0, 0)
    result = shadow.load(tmp_path / "store")
    calls = [seed for path in notes.iterdir() for seed in path.read_text().split()]
    assert sorted(calls) == sorted(map(str, result.seeds))  # each model was trained once, by one of them
    assert len(list(notes.iterdir())) >= 2  # processes that had a share in it
    assert np.array_equal(result.outputs, undisturbed.outputs)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
def test_workers_do_not_outlive_their_study(tmp_path, ending):
    notes = tmp_path / "notes"
    notes.mkdir()
    with Nursery() as nursery:
        study = nursery.start("processes", "endless", tmp_path / "store", notes, 4)
        wait_until(lambda: len(list(notes.iterdir())) == 2)
        workers = [int(path.name) for path in notes.iterdir()]
        assert all(map(alive, workers))
        os.kill(study, ending)
        assert nursery.exit_code() != 0
        wait_until(lambda: not any(map(alive, workers)), 20.0)


def test_threads_on_one_store_share_the_work(tmp_path, undisturbed):
    """Claims are seen between threads, and a thread that opens the store does not end another's claims."""
    notes, store = tmp_path / "notes", tmp_path / "store"
    notes.mkdir()
    results = []

    def run(engine):
        train = partial(noted_ridge, folder=str(notes))
        results.append(shadow.Study(train, N_SAMPLES, n_models=N_MODELS, store=store).run(engine, workers=1))

    threads = [threading.Thread(target=run, args=(engine,)) for engine in ("serial", "serial", "processes")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    calls = [seed for path in notes.iterdir() for seed in path.read_text().split()]
    assert sorted(calls) == sorted(map(str, results[0].seeds))  # each model was trained once
    for result in results:
        assert np.array_equal(result.outputs, undisturbed.outputs)


def test_a_claim_holds_while_others_come_and_go(tmp_path):
    path, key = tmp_path / "claims.lock", shadow.ModelKey("shadow", 3)
    first = Claims(path)
    assert first.take(key)
    passing = Claims(path)
    assert not passing.take(key)
    passing.close()  # a process loses all its locks on a file that it closes once
    other = "import sys; from pathlib import Path; from noshadow.shadow.claims import Claims; "
    other += "from noshadow.shadow import ModelKey; print(Claims(Path(sys.argv[1])).take(ModelKey('shadow', 3)))"

    def elsewhere():
        environment = {**os.environ, "PYTHONPATH": import_path()}
        command = [sys.executable, "-c", other, str(path)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout.strip()

    assert elsewhere() == "False"
    first.release(key)
    assert elsewhere() == "True"
    first.close()
