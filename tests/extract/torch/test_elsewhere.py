"""The forward pass as tasks of Ray: the cache of one process from several, though one of them is killed."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from noshadow import InputError, audit
from noshadow.extract.torch import caching
from noshadow.passes.ray_tasks import RayTasks

pytestmark = pytest.mark.own_process

N, SHARDS = 103, 6  # shards of two batches of ten, the last of three records


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One for all tests of the file: it takes seconds to start."""
    tasks = RayTasks(workers=2)
    yield tasks
    tasks.close()


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(caching, "_SHARD_BYTES", 20 * (4 * 4 + 3 * 4))


class Network(nn.Module):
    """A file per worker says for how many records it ran; the first worker that sees ``fatal`` is killed."""

    def __init__(self, folder, fatal=None):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.drop, self.last = nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 3)
        self.folder, self.fatal, self.driver = str(folder), fatal, os.getpid()

    def forward(self, x):
        if os.getpid() != self.driver:
            if self.fatal is not None and bool((x == self.fatal).any()):
                try:
                    os.close(os.open(f"{self.folder}/died", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            with open(f"{self.folder}/ran-{os.getpid()}", "a") as file:
                file.write(f"{len(x)}\n")
        return self.last(self.drop(torch.tanh(self.body(x))))


class Records(Dataset):
    """Read one by one, by index."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return {"x": self.x[row], "labels": self.y[row]}


def records(n=N):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def run(network, data, **options):
    return audit(network, data, ridge=1.0, batch_size=10, progress=False, **options)


def ran(folder):
    return sum(int(line) for path in folder.glob("ran-*") for line in path.read_text().split())


def shards(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*"))}


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_same_cache_to_the_bit_though_a_worker_is_killed(tmp_path, dtype):
    x, y = records()
    data = Records(x, y)
    here = run(Network(tmp_path), data, cache=tmp_path / "here", cache_dtype=dtype)
    assert ran(tmp_path) == 0
    there = run(
        Network(tmp_path, fatal=float(x[57, 2])), data, cache=tmp_path / "there", cache_dtype=dtype, engine="ray"
    )
    assert (tmp_path / "died").exists()
    assert ran(tmp_path) >= N  # a shard whose worker died is run again
    assert len(list(tmp_path.glob("ran-*"))) >= 2
    assert len(shards(tmp_path / "here")) == SHARDS
    assert shards(tmp_path / "there") == shards(tmp_path / "here")
    pd.testing.assert_frame_equal(there.table, here.table, rtol=1e-10)
    assert there.notes == here.notes
    assert there.metadata["layer"] == "last"


def test_it_goes_on_where_it_was_and_only_reads_what_is_whole(tmp_path):
    data = records()
    run(Network(tmp_path), data, cache=tmp_path / "cache")
    whole = shards(tmp_path / "cache")
    (tmp_path / "cache" / "shard-00003.safetensors").unlink()
    damaged = tmp_path / "cache" / "shard-00005.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    again = run(Network(tmp_path), data, cache=tmp_path / "cache", engine="ray")
    assert shards(tmp_path / "cache") == whole
    assert ran(tmp_path) == 20 + 3
    pd.testing.assert_frame_equal(again.table, run(Network(tmp_path), data).table, rtol=1e-10)


def test_a_cache_of_other_data_is_refused(tmp_path):
    x, y = records()
    run(Network(tmp_path), (x, y), cache=tmp_path / "cache", engine="ray")
    other = x.clone()
    other[45] += 1.0
    with pytest.raises(InputError, match="is of other data: records 40 to 59"):
        run(Network(tmp_path), (other, y), cache=tmp_path / "cache", engine="ray")
    with pytest.raises(InputError, match="holds more than these 60 records"):
        run(Network(tmp_path), (x[:60], y[:60]), cache=tmp_path / "cache", engine="ray")


def test_reruns_and_held_out_records_are_read_there_too(tmp_path):
    data, held_out = records(), records(40)
    rerun = Network(tmp_path)
    nn.init.normal_(rerun.last.weight, generator=torch.Generator().manual_seed(5))
    options = {"rerun": rerun, "held_out": (held_out[0] + 1.0, held_out[1])}
    here = run(Network(tmp_path), data, **options)
    there = run(Network(tmp_path), data, **options, cache=tmp_path / "cache", engine="ray")
    assert ran(tmp_path) == 2 * N + 2 * 40
    pd.testing.assert_frame_equal(there.table, here.table, rtol=1e-10)
    assert "attack_accuracy" in there.table


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(*records(), strict=True))


class Locked(Records):
    def __init__(self, x, y):
        super().__init__(x, y)
        self.lock = threading.Lock()


def test_what_cannot_be_sent_is_told_in_a_sentence(tmp_path):
    folder, data = tmp_path / "cache", records()
    for stream in (Stream(), DataLoader(Stream(), batch_size=10)):
        with pytest.raises(InputError, match=r"engine: the data are a stream.*; pass a map-style Dataset, or leave"):
            run(Network(tmp_path), stream, cache=folder, engine="ray")
    locked = Network(tmp_path)
    locked.lock = threading.Lock()
    with pytest.raises(InputError, match=r"model: it cannot be sent to other processes \(.*lock.*\); leave engine out"):
        run(locked, data, cache=folder, engine="ray")
    with pytest.raises(InputError, match=r"data: they cannot be sent to other processes \(.*lock.*\); leave engine"):
        run(Network(tmp_path), Locked(*data), cache=folder, engine="ray")
    with pytest.raises(InputError, match="engine: 'spark' is not one of"):
        run(Network(tmp_path), data, cache=folder, engine="spark")
    assert ran(tmp_path) == 0
    x = data[0].clone()
    x[77, 1] = np.nan
    with pytest.raises(InputError, match="data: the inputs hold NaN or infinite values in row 77"):
        run(Network(tmp_path), (x, data[1]), cache=folder, engine="ray")


class Elsewhere(nn.Linear):
    """Its class cannot be had in another process."""

    def __reduce__(self):
        return __import__, ("a_module_that_is_not_there",)


def test_a_module_that_workers_do_not_have_is_named(tmp_path):
    network = Network(tmp_path)
    network.last = Elsewhere(4, 3)
    with pytest.raises(InputError, match=r"engine: a worker cannot read what it was sent .*a_module_that_is"):
        run(network, records(), cache=tmp_path / "cache", engine="ray")
