"""``noshadow audit``: every file that it takes or refuses, every exit code; and nobody is named unasked."""

from __future__ import annotations

import bz2
import gzip
import importlib.resources
import json
import pickle
import stat
import subprocess
import sys
import zipfile

import joblib
import jsonschema
import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from noshadow import Audit, LastLayer, Trace, audit, last_layer
from noshadow.heads import HEADS
from noshadow.heads.squared import SquaredError
from noshadow.spread_sources import SPREAD_SOURCES
from tests.test_cli import run

SCHEMA = json.loads((importlib.resources.files("noshadow.schemas") / "audit.json").read_text(encoding="utf-8"))
CANARY = "kanarienvogel"


def arrays(n=80, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, x @ rng.normal(size=(3, 4)) / 2, rng.integers(0, 4, n)


@pytest.fixture(scope="module")
def fitted():
    """A converged model, whose rates need nothing else; strings as classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 4))
    y = np.where(x[:, 0] + rng.normal(size=150) > 0, "ill", "well")
    return LogisticRegression(tol=1e-10).fit(x, y), x, y


@pytest.fixture(scope="module")
def layer(fitted, tmp_path_factory):
    """What a researcher hands over."""
    model, x, y = fitted
    path = tmp_path_factory.mktemp("layer") / "layer.safetensors"
    last_layer(model, (x, y)).save(
        path, ids=[f"{CANARY}-id-{k}" for k in range(150)], groups={"site": [f"{CANARY}-group"] * 150}
    )
    return path


def shown(*arguments, code=0):
    result = run("audit", *arguments, "--json")
    assert result.returncode == code, (arguments, result.stderr)
    found = json.loads(result.stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def refused(*arguments, code=3):
    result = run("audit", *arguments)
    assert result.returncode == code, (arguments, result.stdout, result.stderr)
    assert result.stdout == ""
    (error,) = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    return error


def test_an_officer_gets_the_answer_of_the_model(fitted, layer, tmp_path):
    model, x, y = fitted
    found = shown(layer, "-o", tmp_path / "new" / "audit")
    wanted = audit(model, (x, y))
    assert found["summary"] == pytest.approx(wanted.summary())
    assert found["rated"]
    assert sum(found["bands"].values()) == 150
    table = Audit.load(found["saved"]["audit"]).table
    np.testing.assert_array_equal(table["attack_accuracy"], wanted.table["attack_accuracy"])
    assert table["target"].tolist() == y.tolist()
    assert found["provenance"]["weights_sha256"] == wanted.metadata["provenance"]["weights_sha256"]
    folder = tmp_path / "new" / "audit"
    assert sorted(file.name for file in folder.iterdir()) == ["audit.html", "audit.parquet"]
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    text = run("audit", layer).stdout
    assert "LogisticRegression: 150 records, logistic head (a saved layer; nothing is run)" in " ".join(text.split())
    assert "near certain" in text


def test_nobody_is_named_unasked(layer, tmp_path, caplog):
    for arguments in ((layer,), (layer, "--json"), (layer, "-o", tmp_path, "--json"), (layer, "--fail-above", "0.5")):
        result = run("audit", *arguments)
        assert CANARY not in result.stdout + result.stderr, arguments
    assert CANARY not in caplog.text
    assert CANARY not in json.dumps(Audit.load(tmp_path / "audit.parquet").metadata)
    assert CANARY not in json.dumps(Audit.load(tmp_path / "audit.parquet").summary())
    assert CANARY not in json.dumps(list(Audit.load(tmp_path / "audit.parquet").notes))
    asked = shown(layer, "--top", "3")
    assert len(asked["top"]) == 3
    assert CANARY in asked["top"][0]["id"]
    assert CANARY in run("audit", layer, "--top", "3").stdout


def test_errors_name_rows_and_not_records(tmp_path):
    x, z, y = arrays()
    ids = np.array([f"{CANARY}{k}" for k in range(80)])
    ids[7] = ids[3]
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y, ids=ids)
    text = refused(tmp_path / "a.npz")
    assert "rows 3, 7" in text
    assert CANARY not in text
    bad = x.copy()
    bad[5, 1] = np.nan
    np.savez(tmp_path / "b.npz", features=bad, outputs=z, targets=y, ids=np.sort(ids))
    assert CANARY not in refused(tmp_path / "b.npz")


def test_the_gate(layer, tmp_path):
    rates = audit_rates(layer)
    over = int((rates > 0.55).sum())
    assert 0 < over < 150
    for arguments, code in (
        (("--fail-above", "0.55"), 1),
        (("--fail-above", "0.55", "--max-records", str(over)), 0),
        (("--fail-above", "0.55", "--max-records", str(over - 1)), 1),
        (("--max-records", "150"), 0),
    ):
        found = shown(layer, *arguments, code=code)
        assert found["policy"]["met"] is (code == 0)
    assert found["policy"]["fail_above"] == 0.9
    policy = tmp_path / "policy.toml"
    policy.write_text("fail_above = 0.55\n")
    assert shown(layer, "--policy", policy, code=1)["policy"]["over"] == over
    plain = run("audit", layer, "--policy", policy, "-o", tmp_path / "out")
    assert plain.returncode == 1
    assert "not met" in plain.stdout
    assert (tmp_path / "out" / "audit.html").exists()
    assert shown(layer)["policy"] is None
    policy.write_text("fail_over = 1\n")
    assert "--policy: " in refused(layer, "--policy", policy)
    assert "give one of them" in refused(layer, "--policy", policy, "--max-records", "3", code=2)
    assert "--fail-above: expected a success rate" in refused(layer, "--fail-above", "0.2", code=2)
    assert "--max-records: expected" in refused(layer, "--max-records", "-1", code=2)


def audit_rates(path):
    from noshadow import Bundle

    return audit(Bundle.load(path)).table["attack_accuracy"]


def test_without_rates_a_policy_is_not_met_but_not_judged(tmp_path):
    x, z, y = arrays()
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y)
    text = refused(tmp_path / "a.npz", "--fail-above", "0.9")
    assert "no predicted rates" in text
    assert "--held-out" in text
    assert "--rerun" in text
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "audit.html").write_text("Policy met, says an older audit", encoding="utf-8")
    refused(tmp_path / "a.npz", "--fail-above", "0.9", "-o", tmp_path / "out")
    report = (tmp_path / "out" / "audit.html").read_text(encoding="utf-8")
    assert "Policy met" not in report
    assert "cannot say how many records are at risk" in report
    found = shown(tmp_path / "a.npz")
    assert not found["rated"]
    assert found["bands"]["not rated"] == 80
    assert "No success rates" in run("audit", tmp_path / "a.npz").stdout


def test_arrays_in_all_their_files(tmp_path):
    x, z, y = arrays()
    ids = np.array([f"r{k}" for k in range(80)])
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y, ids=ids, group=np.arange(80) % 3)
    columns = {"features": list(x), "outputs": list(z), "targets": y, "ids": ids, "group": np.arange(80) % 3}
    pd.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
    save_file({"features": x, "outputs": z, "targets": y}, tmp_path / "a.safetensors")
    (tmp_path / "shards").mkdir()
    for name, values in (("features", x), ("outputs", z), ("targets", y)):
        np.save(tmp_path / "shards" / f"{name}.npy", values)
    wanted = audit(LastLayer(x, z, y, ridge=2.0), ids=ids, groups=np.arange(80) % 3)
    for name in ("a.npz", "a.parquet", "a.safetensors", "shards"):
        saved = shown(tmp_path / name, "--ridge", "2", "-o", tmp_path / "out")["saved"]["audit"]
        table = Audit.load(saved).table
        np.testing.assert_array_equal(table["newton"], wanted.table["newton"])
        if name in ("a.npz", "a.parquet"):
            assert table["id"].tolist() == ids.tolist()
            assert table["group"].tolist() == wanted.table["group"].tolist()
    scored = run("score", tmp_path / "a.parquet", "--ridge", "2", "-o", tmp_path / "s.parquet")
    assert scored.returncode == 0, scored.stderr
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "s.parquet")["newton"], wanted.table["newton"])


def test_arrays_under_another_name_are_not_left_out_in_silence(tmp_path):
    x, z, y = arrays()
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y, id=np.arange(80) + 7)
    notes = shown(tmp_path / "a.npz")["notes"]
    assert any(note.startswith("FILE: what it calls id is not read; arrays may be features") for note in notes)
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y, ids=np.arange(80) + 7)
    assert not any("not read" in note for note in shown(tmp_path / "a.npz")["notes"])


def test_columns_and_tensors_under_other_names_are_told_of(tmp_path):
    x, z, y = arrays()
    names = pd.Series([f"r{k}" for k in range(80)])
    frame = pd.DataFrame({"features": x.tolist(), "outputs": z.tolist(), "targets": y, "ids": names})
    frame.sort_values("ids", ascending=False).to_parquet(tmp_path / "a.parquet")  # which keeps the index as well
    assert not any("not read" in note for note in shown(tmp_path / "a.parquet")["notes"])
    frame.rename(columns={"ids": "id"}).assign(weight=1.0).to_parquet(tmp_path / "b.parquet")
    told = "FILE: what it calls id, weight is not read; arrays may be features, outputs, targets, sample_weight"
    assert any(note.startswith(f"{told}, ids, group") for note in shown(tmp_path / "b.parquet")["notes"])
    held = {"features": torch.tensor(x), "outputs": torch.tensor(z), "targets": torch.tensor(y)}
    save_tensors({**held, "weights": torch.ones(80)}, tmp_path / "c.safetensors")
    told = "FILE: what it calls weights is not read; arrays may be features, outputs, targets, sample_weight"
    assert told in shown(tmp_path / "c.safetensors")["notes"]
    for name, values in {**held, "ids": torch.arange(80)}.items():
        (tmp_path / "folder").mkdir(exist_ok=True)
        np.save(tmp_path / "folder" / f"{name}.npy", values.numpy())
    assert told.replace("weights is", "ids is") in shown(tmp_path / "folder")["notes"]


def test_held_out_records_and_a_rerun_from_files(tmp_path):
    rng = np.random.default_rng(0)
    x, z, y = arrays()
    z[np.arange(80), y] += 1.0
    others, again, again_out = z[::-1] - 0.5 * rng.random(z.shape), z + 0.1 * rng.normal(size=z.shape), None
    again_out = others + 0.1 * rng.normal(size=z.shape)
    names = {"a": z, "held": others, "again": again, "again_held": again_out}
    for name, outputs in names.items():
        np.savez(tmp_path / f"{name}.npz", features=x, outputs=outputs, targets=y)
    losses = rng.exponential(size=(4, 80))
    np.save(tmp_path / "losses.npy", losses)
    files = {name: tmp_path / f"{name}.npz" for name in names}
    options = ("--held-out", files["held"], "--rerun", files["again"], "--rerun-held-out", files["again_held"])
    found = shown(files["a"], *options, "--trace", tmp_path / "losses.npy", "--fail-above", "1.0")
    assert found["calibration"]["source"] == "rerun"
    assert (found["trace"], found["policy"]["met"]) == ("losses", True)
    members, held, one, two = (LastLayer(x, names[name], y) for name in names)
    wanted = audit(members, trace=losses, held_out=held, rerun=(one, two))
    assert found["summary"] == pytest.approx(wanted.summary())
    assert "--rerun-held-out" in refused(files["a"], *options[:2], *options[4:], code=2)
    assert "--rerun-held-out: with held-out records" in refused(files["a"], *options[:4], code=2)
    assert "--held-out: 80 of its 80 records" in refused(files["a"], "--held-out", files["a"], code=2)


def test_a_scikit_learn_model(fitted, tmp_path):
    _, x, y = fitted
    frame = pd.DataFrame(x, columns=list("abcd"))
    model = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)).fit(frame, y)
    skops.io.dump(model, tmp_path / "m.skops")
    frame.assign(label=y, ids=[f"r{k}" for k in range(150)]).to_parquet(tmp_path / "d.parquet")
    found = shown(tmp_path / "m.skops", "--data", tmp_path / "d.parquet", "--target", "label", "-o", tmp_path)
    assert found["summary"] == pytest.approx(audit(model, (frame, y)).summary())
    assert Audit.load(tmp_path / "audit.parquet").table["id"].tolist()[:2] == ["r0", "r1"]
    skops.io.dump(make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)).fit(x, y), tmp_path / "n.skops")
    np.savez(tmp_path / "d.npz", X=x, y=y)
    shown(tmp_path / "n.skops", "--data", tmp_path / "d.npz")
    assert "--data: " in refused(tmp_path / "m.skops", code=2)
    assert "no column 'target'" in refused(tmp_path / "m.skops", "--data", tmp_path / "d.parquet")
    assert "--checkpoint: it is not for a scikit-learn model" in refused(
        tmp_path / "m.skops", "--data", tmp_path / "d.npz", "--checkpoint", "x", code=2
    )


def test_types_that_nobody_trusts_are_named_and_not_made(fitted, tmp_path):
    _, x, y = fitted
    model = make_pipeline(FunctionTransformer(np.sort), LogisticRegression()).fit(x, y)
    model.steps[0][1].func = subprocess.check_output  # what an attacker would put there
    skops.io.dump(model, tmp_path / "m.skops")
    np.savez(tmp_path / "d.npz", X=x, y=y)
    text = refused(tmp_path / "m.skops", "--data", tmp_path / "d.npz")
    assert "subprocess.check_output" in text
    assert "--trust subprocess.check_output" in text
    model.steps[0][1].func = np.sort
    model.steps[0][1].kw_args = {"axis": 1}
    skops.io.dump(model, tmp_path / "m.skops")
    unknown = skops.io.get_untrusted_types(file=tmp_path / "m.skops")
    trusted = [word for name in unknown for word in ("--trust", name)]
    shown(tmp_path / "m.skops", "--data", tmp_path / "d.npz", *trusted)


CODE = """
import torch

def build():
    return torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))

def data():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(50, 3, generator=rng), torch.arange(50) % 2

class Pair(torch.utils.data.TensorDataset):
    def __init__(self):
        super().__init__(*data())

records = Pair()

def broken():
    raise ZeroDivisionError("a bad day")
"""


def test_ones_own_code_is_run_and_said_to_be(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    save_tensors(net.state_dict(), "w.safetensors")
    options = ("--checkpoint", "w.safetensors", "--optimizer", "sgd", "--weight-decay", "0.01")
    result = run("audit", "mine:build", "--data", "mine:data", *options, "--json")
    assert result.returncode == 0, result.stderr
    assert f"running code: mine:build, imported from {tmp_path}" in result.stderr
    assert "running code: mine:data" in result.stderr
    import mine

    wanted = audit(net, mine.data(), optimizer="sgd", weight_decay=0.01)
    assert json.loads(result.stdout)["summary"] == pytest.approx(wanted.summary())
    for data in ("mine:records", "mine:Pair"):
        assert run("audit", "mine:build", "--data", data, *options).returncode == 0
    np.savez("d.npz", X=mine.data()[0].numpy(), y=mine.data()[1].numpy())
    assert run("audit", "mine:build", "--data", "d.npz", *options).returncode == 0

    def fails(*arguments, code=3):
        found = run("audit", *arguments)
        assert found.returncode == code, found.stderr
        return found.stderr.splitlines()[-1]

    assert "FILE: mine:broken failed: ZeroDivisionError: a bad day" in fails("mine:broken", "--data", "mine:data")
    assert "FILE: nowhere:build failed: ModuleNotFoundError" in fails("nowhere:build", "--data", "mine:data")
    assert "FILE: mine:nothing failed: AttributeError" in fails("mine:nothing", "--data", "mine:data")
    assert "--data: pass the training records" in fails("mine:build", code=2)
    assert "--data: none.npz does not exist" in fails("mine:build", "--data", "none.npz", code=2)
    torch.save(net.state_dict(), "w.pt")
    text = fails("mine:build", "--data", "mine:data", "--checkpoint", "w.pt")
    assert "--checkpoint: w.pt is a pickle" in text
    assert "safetensors.torch.save_file" in text
    save_tensors({"0.weight": torch.zeros(2, 2)}, "other.safetensors")
    text = fails("mine:build", "--data", "mine:data", "--checkpoint", "other.safetensors")
    assert "cannot be loaded into the model" in text
    assert "nothing is run" not in run("audit", "mine:build", "--data", "mine:data", *options).stdout


class Evil:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", ["m.pkl", "m.safetensors", "m.npz", "m.parquet", "m"])
def test_a_pickle_is_told_by_its_content_and_never_read(tmp_path, protocol, name):
    path, mark = tmp_path / name, tmp_path / "executed"
    path.write_bytes(pickle.dumps(Evil(mark), protocol))
    text = refused(path)
    assert "is a pickle, which runs code when it is read, and is not read" in text
    assert "safetensors.torch.save_file" in text
    assert "skops.io.dump" in text
    assert "noshadow.last_layer(model, data).save" in text
    assert not mark.exists()


def test_pickles_of_all_makers(fitted, tmp_path):
    model = fitted[0]
    cases = {}
    for compress in (0, 3, ("gzip", 3), ("bz2", 3), ("xz", 3), ("lzma", 3)):
        path = tmp_path / f"{compress}.joblib"
        joblib.dump(model, path, compress=compress)
        cases[path] = "skops.io.dump"
    for name, opener in (("m.pkl.gz", gzip.open), ("m.pkl.bz2", bz2.open)):
        with opener(tmp_path / name, "wb") as file:
            pickle.dump(model, file)
        cases[tmp_path / name] = "skops.io.dump"
    net = torch.nn.Linear(2, 2)
    for name, held, new in (("a.pt", net, True), ("b.bin", net.state_dict(), True), ("c.pth", net, False)):
        torch.save(held, tmp_path / name, _use_new_zipfile_serialization=new)
        cases[tmp_path / name] = "safetensors.torch.save_file"
    (tmp_path / "cut.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:400])
    cases[tmp_path / "cut.pt"] = "safetensors.torch.save_file"
    for path, remedy in cases.items():
        text = refused(path)
        assert "is a pickle" in text, path
        assert remedy in text, path


def test_every_other_file_is_refused(layer, fitted, tmp_path):
    x, z, y = arrays()
    cases = {}

    def case(name, content, message):
        (tmp_path / name).write_bytes(content)
        cases[name] = message

    case("empty.safetensors", b"", "is empty")
    case("text.csv", b"a,b\n1,2\n", "none of the files that noshadow reads")
    case("model.h5", b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file")
    case("model.onnx", b"\x08\x07\x12\x07pytorch", "none of the files that noshadow reads")
    case("bad.npz", b"not an archive", "is not an .npz of plain arrays")
    case("bad.parquet", b"PAR1" + bytes(50), "a damaged Parquet file")
    case("cut.skops", b"PK\x03\x04" + bytes(60), "a damaged or truncated archive")
    whole = layer.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    case("cut.safetensors", whole[:-100], "it is truncated")
    case("head.safetensors", whole[: length // 2], "its header is longer than the file")
    case("more.safetensors", whole + b"x", "something was appended to it")
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    case("flipped.safetensors", bytes(flipped), "it fails its checksum")
    case("lies.safetensors", (2**60).to_bytes(8, "little") + whole[8:], "its header is longer than the file")
    case("short.safetensors", b"\x01\x02", "is not a safetensors file")
    np.save(tmp_path / "one.npy", x)
    cases["one.npy"] = "holds one array"
    save_tensors(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.safetensors")
    cases["weights.safetensors"] = "holds the weights of a model"
    Trace.from_losses(np.ones((2, 3))).save(tmp_path / "trace.safetensors")
    cases["trace.safetensors"] = "pass a trace as --trace"
    audit(LastLayer(x, z, y)).save(tmp_path / "done.parquet")
    cases["done.parquet"] = "audited already"
    with zipfile.ZipFile(tmp_path / "docs.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    cases["docs.zip"] = "an archive of other things"
    with zipfile.ZipFile(tmp_path / "bad.skops", "w") as archive:
        archive.writestr("schema.json", "{]")
    cases["bad.skops"] = "no model that skops can read"
    np.savez(tmp_path / "objects.npz", features=np.array([{}], dtype=object), outputs=x, targets=y)
    cases["objects.npz"] = "holds Python objects"
    np.savez(tmp_path / "other.npz", a=x)
    cases["other.npz"] = "has no array 'features'"
    (tmp_path / "nothing").mkdir()
    cases["nothing"] = "holds no shards"
    for name, message in cases.items():
        more = ("--data", tmp_path / "other.npz") if name == "bad.skops" else ()
        if name == "bad.skops":
            np.savez(tmp_path / "other.npz", X=x, y=y)
        assert message in refused(tmp_path / name, *more), name
    assert "does not exist" in refused(tmp_path / "none.safetensors", code=2)
    assert "does not exist" in refused("no such:thing", code=2)


def tensors_file(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"\xff\xfe{}", b""),
        (b"[]", b""),
        (b"{", b""),
        (b'{"a": 1}', b""),
        (b"[" * 100_000, b""),
        ({"__metadata__": ["x"]}, b""),
        ({"__metadata__": {"identity": {"noshadow": "layer"}}}, b""),
        ({"__metadata__": {"identity": '{"noshadow": "layer", "schema": 1}'}}, b""),
        ({"__metadata__": {"identity": '{"noshadow": "layer", "schema": 99}', "sha256": "0" * 64}}, b""),
        ({"features": {"dtype": "F32", "shape": [10**15], "data_offsets": [0, 4 * 10**15]}}, b""),
        ({"features": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}}, b""),
        ({"features": {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]}}, b""),
        ({"features": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, bytes(4)),
        ({"features": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
        ({"features": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, bytes(4)),
        ({"features": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4)),
        ({"features": {"dtype": "F32", "shape": [1e400], "data_offsets": [0, 4]}}, bytes(4)),
        (
            {
                "features": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                "outputs": {"dtype": "F32", "shape": [2, 1], "data_offsets": [4, 12]},
                "targets": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
            },
            bytes(16),
        ),
        (
            {
                "features": {"dtype": "F32", "shape": [10**18, 0], "data_offsets": [0, 0]},
                "outputs": {"dtype": "F32", "shape": [10**18, 0], "data_offsets": [0, 0]},
                "targets": {"dtype": "F32", "shape": [10**18, 0], "data_offsets": [0, 0]},
            },
            b"",
        ),
    ],
)
def test_hostile_safetensors(tmp_path, header, data):
    text = refused(tensors_file(tmp_path / "h.safetensors", header, data))
    assert "FILE" in text
    assert "should not have happened" not in text
    assert len(text) < 600


def test_options_that_are_of_no_use_are_refused(layer, tmp_path):
    for option, value in (
        ("--head", "softmax"),
        ("--ridge", "1"),
        ("--data", "x"),
        ("--checkpoint", "x"),
        ("--trust", "x"),
        ("--loss", "mse"),
        ("--layer", "fc"),
    ):
        assert f"{option}: it is not for a saved layer; leave it out" in refused(layer, option, value, code=2)
    x, z, y = arrays()
    np.savez(tmp_path / "a.npz", features=x, outputs=z, targets=y, head=np.array("hinge"))
    assert "head in FILE: 'hinge' is not a head" in refused(tmp_path / "a.npz")
    assert "--head: 'hinge' is not a head" in refused(tmp_path / "a.npz", "--head", "hinge", code=2)
    assert "--curvature: 'full' is not one of" in refused(layer, "--curvature", "full", code=2)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(layer, tmp_path, monkeypatch):
    def work(*_, **__):
        raise AssertionError("worked before it looked")

    monkeypatch.setattr("noshadow.commands.subjects.find_subject", work)
    assert "--output: /proc/audit cannot be made" in refused(layer, "-o", "/proc/audit")
    assert "--output: nothing can be written into '/proc'" in refused(layer, "-o", "/proc")
    (tmp_path / "file").write_text("x")
    assert "--output: " in refused(layer, "-o", tmp_path / "file")


def test_as_a_shell_runs_it(layer, tmp_path):
    command = [sys.executable, "-m", "noshadow", "audit", str(layer), "-o", "out", "--json", "--max-records", "150"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    jsonschema.validate(found, SCHEMA)
    assert found["provenance"]["command"] == f"noshadow audit {layer} -o out --json --max-records 150"
    assert CANARY not in done.stdout + done.stderr


def test_the_schema_refuses_what_it_should(layer):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = shown(layer)
    for change in ({"schema": 2}, {"extra": 1}, {"bands": {}}, {"summary": {"records": "x"}}, {"saved": None}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**found, **change}, SCHEMA)


def test_the_schema_takes_heads_and_sources_of_spreads_that_are_registered(tmp_path, monkeypatch):
    """A line in a registry is all that either takes; those of this version are listed."""
    of_model, of_rates = (SCHEMA["properties"][name] for name in ("model", "calibration"))
    assert [name for name in HEADS if name not in of_model["properties"]["head"]["description"]] == []
    assert [name for name in SPREAD_SOURCES if name not in of_rates["properties"]["source"]["description"]] == []
    jsonschema.validate({"source": "shadows"}, of_rates)

    class Own(SquaredError):
        name = "own"

    monkeypatch.setitem(HEADS, "own", Own())
    x = np.random.default_rng(0).normal(size=(60, 2))
    np.savez(tmp_path / "layer.npz", features=x, outputs=x.sum(1), targets=x[:, 0], head="own")
    assert shown(tmp_path / "layer.npz")["model"]["head"] == "own"
