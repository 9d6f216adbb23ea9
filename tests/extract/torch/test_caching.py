"""The cache of a forward pass: the same audit, an interrupted pass that goes on, nothing of something else."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from noshadow import InputError, audit
from noshadow.extract.torch import caching


class Network(nn.Module):
    """Counts the records that it sees, and fails where it is told to."""

    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.last = nn.Linear(5, 4), nn.Linear(4, classes)
        self.seen, self.stop_after = 0, None

    def forward(self, x):
        self.seen += len(x)
        if self.stop_after is not None and self.seen > self.stop_after:
            raise KeyboardInterrupt
        return self.last(torch.tanh(self.body(x)))


def data(n=100, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(caching, "_SHARD_BYTES", 20 * (4 * 4 + 3 * 4))  # two batches of ten


def run(folder, network=None, records=None, **options):
    network = Network() if network is None else network
    return audit(network, data() if records is None else records, ridge=1.0, batch_size=10, cache=folder, **options)


def plain(network=None, records=None):
    return audit(Network() if network is None else network, data() if records is None else records, ridge=1.0)


def equal(one, other):
    pd.testing.assert_frame_equal(one.table, other.table, rtol=1e-6)  # other batches: other sums in the forward pass
    facts = {"date", "stationarity", "best_ridge", "linearity", "provenance"}  # of the last bits of the features, too
    assert one.metadata["provenance"]["weights_sha256"] == other.metadata["provenance"]["weights_sha256"]
    assert {k: v for k, v in one.metadata.items() if k not in facts} == {
        k: v for k, v in other.metadata.items() if k not in facts
    }


def test_the_same_audit_to_the_bit(tmp_path):
    with_cache = run(tmp_path / "cache")
    without = audit(Network(), data(), ridge=1.0, batch_size=10)
    pd.testing.assert_frame_equal(with_cache.table, without.table, check_exact=True)
    assert {**with_cache.metadata, "date": 0} == {**without.metadata, "date": 0}
    assert with_cache.notes == without.notes
    files = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert files == ["cache.json", *(f"shard-{k:05d}.safetensors" for k in range(5))]
    for path in (tmp_path / "cache").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("stop", [5, 25, 40, 99])
@pytest.mark.parametrize("n", [100, 93, 7])
def test_an_interrupted_pass_goes_on(tmp_path, stop, n):
    broken, whole, again = Network(), Network(), Network()
    broken.stop_after = stop
    if stop < n:
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, broken, data(n))
    done = 20 * len(list(tmp_path.glob("shard-*")))
    resumed = run(tmp_path, whole, data(n))
    if stop < n:
        assert done == 20 * (stop // 20)
        assert whole.seen == (n if done == 0 else n - done + 10)  # the first batch always runs
    equal(resumed, plain(records=data(n)))
    pd.testing.assert_frame_equal(run(tmp_path, again, data(n)).table, resumed.table, check_exact=True)
    assert again.seen == min(n, 10)


def test_a_killed_process(tmp_path):
    script = (
        "import os, signal, sys, torch\n"
        "from tests.extract.torch.test_caching import Network, data, caching, audit\n"
        "caching._SHARD_BYTES = 560\n"
        "class Dies(Network):\n"
        "    def forward(self, x):\n"
        "        if self.seen >= 70: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().forward(x)\n"
        "Dies.__name__ = 'Network'\n"
        "audit(Dies(), data(), ridge=1.0, batch_size=10, cache=sys.argv[1])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(tmp_path.glob("shard-*"))) == 3
    network = Network()
    equal(run(tmp_path, network), plain())
    assert network.seen == 50


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "swap"])
def test_a_damaged_shard_is_made_again(tmp_path, damage):
    first = run(tmp_path)
    path = tmp_path / "shard-00002.safetensors"
    content = path.read_bytes()
    if damage == "flip":
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    elif damage == "cut":
        path.write_bytes(content[:-20])
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes((tmp_path / "shard-00001.safetensors").read_bytes())
    network = Network()
    pd.testing.assert_frame_equal(run(tmp_path, network).table, first.table, check_exact=True)
    assert network.seen == 30  # the first batch, and that shard
    assert path.read_bytes() == content


def test_a_model_with_other_buffers_is_another_model(tmp_path, monkeypatch):
    """What a BatchNorm has seen is no parameter, and the outputs depend on it."""
    network = Network()
    network.body = nn.Sequential(network.body, nn.BatchNorm1d(4)).eval()
    network.eval()
    run(tmp_path, network)
    monkeypatch.setattr(caching, "_CLOSE", 1e9)  # the first batch alone would tell of this one
    network.body[1].running_mean[0] += 1e-6
    with pytest.raises(InputError, match="is of another model"):
        run(tmp_path, network)


def test_a_cache_of_something_else_is_refused(tmp_path):
    run(tmp_path)
    other = Network()
    with torch.no_grad():
        other.body.weight[0, 0] += 1e-6
    with pytest.raises(
        InputError, match="is of another model, its layers or weights are not those of this one; use another"
    ):
        run(tmp_path, other)
    with pytest.raises(InputError, match="is of another model"):
        run(tmp_path, Network().double())
    with pytest.raises(InputError, match=r"with another cache_dtype, None there and bfloat16 here"):
        run(tmp_path, cache_dtype="bfloat16")
    with pytest.raises(InputError, match=r"with another layer, None there and last here"):
        run(tmp_path, layer="last")
    with pytest.raises(InputError, match=r"with another batch_size, 10 there and 20 here"):
        audit(Network(), data(), ridge=1.0, batch_size=20, cache=tmp_path)


def test_other_data_are_refused(tmp_path):
    run(tmp_path)
    x, y = data()
    for row in (0, 47, 99):
        changed = x.clone()
        changed[row, 0] += 1e-3
        start = row // 20 * 20
        with pytest.raises(InputError, match=rf"of other data: records {start} to {start + 19} \(counted from 0\)"):
            run(tmp_path, records=(changed, y))
    labels = y.clone()
    labels[50] = (labels[50] + 1) % 3
    with pytest.raises(InputError, match="of other data: records 40 to 59"):
        run(tmp_path, records=(x, labels))
    for records in ((x[:80], y[:80]), (x[:90], y[:90]), (x.flip(0), y.flip(0))):
        with pytest.raises(InputError, match=r"is of other data|its code or the data changed"):
            run(tmp_path, records=records)
    longer = torch.cat([x, x]), torch.cat([y, y])  # the same records and more: those are added
    equal(run(tmp_path, records=longer), plain(records=longer))


class Changed(Network):
    def forward(self, x):
        return self.last(torch.relu(self.body(x)))


Changed.__name__ = "Network"


def test_a_model_whose_code_changed_is_refused(tmp_path):
    run(tmp_path)
    with pytest.raises(InputError, match="for the first batch the model gives other outputs than those in"):
        run(tmp_path, Changed())


@pytest.mark.parametrize("lost", [1, 2])
def test_a_model_whose_code_changed_does_not_go_on_behind_shards_that_were_lost(tmp_path, lost):
    """It would make those again and take the others, which are of the model as it was."""
    run(tmp_path)
    for shard in sorted(tmp_path.glob("shard-*"))[:lost]:
        shard.unlink()
    for _ in range(2):
        with pytest.raises(InputError, match=r"for the batch from record \d+ on the model gives other outputs than"):
            run(tmp_path, Changed())
    equal(run(tmp_path), plain())  # the model as it was does


def test_loaders_streams_and_several_targets(tmp_path):
    x, y = data()

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(x, y, strict=True))

    class Rows(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, row):
            return {"x": x[row], "labels": y[row], "name": f"record {row}"}

    class Numbered(Rows):
        def __getitem__(self, row):
            return x[row], y[row], row

    for k, records in enumerate((DataLoader(Stream(), batch_size=10), Rows(), DataLoader(Numbered(), batch_size=10))):
        first = run(tmp_path / f"{k}", records=records)
        network = Network()
        pd.testing.assert_frame_equal(run(tmp_path / f"{k}", network, records).table, first.table, check_exact=True)
        assert network.seen == 10
        equal(first, plain())


def test_bfloat16_rounds_features_and_nothing_else(tmp_path):
    rounded = run(tmp_path, cache_dtype="bfloat16")
    exact = plain()
    size = sum(path.stat().st_size for path in tmp_path.glob("shard-*"))
    assert np.allclose(rounded.table["loss"], exact.table["loss"], rtol=1e-6)
    assert np.allclose(rounded.table["leave_one_out"], exact.table["leave_one_out"], rtol=0.1)
    assert not np.allclose(rounded.table["leverage"], exact.table["leverage"], rtol=1e-6)
    run(tmp_path / "exact")
    assert sum(path.stat().st_size for path in (tmp_path / "exact").glob("shard-*")) - size > 100 * 4 * 2 * 0.8


def test_arguments_and_folders_that_cannot_be(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"cache_dtype: 'int8' is not one of 'float32', 'bfloat16'"):
        run(tmp_path, cache_dtype="int8")
    with pytest.raises(InputError, match=r"cache_dtype: there is no cache"):
        audit(Network(), data(), cache_dtype="float32")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files; name a new folder"):
        run(tmp_path)
    with pytest.raises(InputError, match=r"cache: .*notes\.txt"):
        run(tmp_path / "notes.txt")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".cache.json.0123456789ab.partial").touch()  # of a process that was killed just then
    run(tmp_path / "a")
    manifest = tmp_path / "a" / "cache.json"
    text = manifest.read_text()
    for bad in ("", "[]", text[:50], json.dumps({**json.loads(text), "schema": 99})):
        manifest.write_text(bad)
        with pytest.raises(InputError, match=r"damaged; remove the folder|no cache that this version reads"):
            run(tmp_path / "a")
    from sklearn.linear_model import LogisticRegression

    x, y = (values.numpy() for values in data())
    with pytest.raises(InputError, match="cache: it spares the forward pass of a torch Module, and a scikit-learn"):
        audit(LogisticRegression().fit(x, y), (x, y), cache=tmp_path / "b")
    monkeypatch.setattr(caching.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(InputError, match=r"GiB are free in .*c; use a folder on another disk"):
        run(tmp_path / "c")


def test_a_full_disk_leaves_what_was_whole(tmp_path, monkeypatch):
    sync, calls = os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 8:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cache: .* could not be written \(No space left on device\)"):
        run(tmp_path)
    monkeypatch.setattr("os.fsync", sync)
    assert not list(tmp_path.glob(".*"))
    kept = len(list(tmp_path.glob("shard-*")))
    assert kept > 0
    network = Network()
    equal(run(tmp_path, network), plain())
    assert network.seen == 110 - 20 * kept


def test_a_rerun_and_held_out_records_are_cached_beside_the_model(tmp_path):
    rerun, others = Network(), data(40, seed=1)
    nn.init.normal_(rerun.last.weight)
    found = run(tmp_path, rerun=rerun, held_out=others)
    network, again = Network(), Network()
    again.load_state_dict(rerun.state_dict())
    equal(run(tmp_path, network, rerun=again, held_out=others), found)
    assert network.seen == again.seen == 20  # the first batch of each of their two passes
    held = audit(Network(), data(), ridge=1.0, rerun=rerun, held_out=others)
    pd.testing.assert_frame_equal(found.table, held.table, rtol=1e-5)
    assert "attack_tpr" in found.table


def test_a_head_that_does_not_fit_is_refused_after_the_first_batch(tmp_path):
    network = Network()
    with pytest.raises(InputError, match="the exact Hessian of this head has"):
        run(tmp_path, network, head="softmax", curvature="dense", memory=1e-6)
    assert network.seen == 10
