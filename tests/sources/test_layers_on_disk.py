"""Layers whose records stay on disk score as those in memory do, whatever the files and wherever they are cut."""

from __future__ import annotations

import itertools
import json
import stat

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import load_file, safe_open
from safetensors.torch import save_file as save_tensors
from scipy import sparse

from noshadow import Bundle, InputError, LastLayer, NoshadowWarning, audit, score
from noshadow.artefact import read_artefact
from noshadow.provenance import data_sha256
from noshadow.sources import streamed
from noshadow.sources.saved import IDENTITY, SPARSE_IDENTITY
from noshadow.sources.tensor_files import Written, write_tensors


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """A dozen records at a time, so that there are several chunks."""
    monkeypatch.setattr(streamed, "CHUNK_BYTES", 12 * 48)


def arrays(head="softmax", n=60, p=4, m=3, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)).astype(dtype)
    z = x @ rng.normal(size=(p, m)) + rng.normal(size=m)
    y = {
        "softmax": rng.integers(0, m, n),
        "logistic": rng.integers(0, 2, (n, m)),
        "squared": z + rng.normal(size=(n, m)),
    }
    return x, z, y[head]


def write(folder, kind, x, z, y, weight=None):
    """A shard of that kind; its path."""
    named = {"features": x, "outputs": z, "targets": y} | ({} if weight is None else {"sample_weight": weight})
    if kind == "npy":
        folder.mkdir()
        for name, values in named.items():
            np.save(folder / f"{name}.npy", values)
        return folder
    path = folder.with_suffix(f".{kind}")
    if kind == "safetensors":
        save_file({name: np.ascontiguousarray(values) for name, values in named.items()}, path)
    else:
        columns = {name: list(values) if np.ndim(values) == 2 else values for name, values in named.items()}
        pq.write_table(pa.table(columns), path, row_group_size=7)
    return path


def cut(named, places):
    edges = [0, *sorted(places), len(named[0])]
    return [tuple(values[a:b] for values in named) for a, b in itertools.pairwise(edges)]


def same(layer, other, exactly=True):
    ours, theirs = score(layer), score(other)
    pd.testing.assert_frame_equal(ours, theirs, check_exact=exactly, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("head", ["softmax", "logistic", "squared"])
@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_file_scores_as_the_arrays_do_to_the_bit(tmp_path, kind, head):
    x, z, y = arrays(head)
    weight = np.linspace(0.0, 2.0, len(x))
    path = write(tmp_path / "layer", kind, x, z, y, weight)
    layer = LastLayer.open(path, head, ridge=0.5, penalize_bias=False)
    same(layer, LastLayer(x, z, y, head, ridge=0.5, penalize_bias=False, sample_weight=weight))
    assert layer.precision == torch.float32
    assert np.array_equal(layer.targets.numpy(), y)
    assert np.array_equal(layer.features.numpy(), x)


@settings(max_examples=40)
@given(
    places=st.sets(st.integers(0, 60), max_size=8), chunk=st.integers(1, 70), kind=st.sampled_from(["npy", "chunks"])
)
def test_wherever_records_are_cut(tmp_path_factory, places, chunk, kind):
    """Also into shards of no rows, and read in chunks that end anywhere."""
    named = arrays()
    parts = cut(named, [*places, *places])
    folder = tmp_path_factory.mktemp("shards")
    source = parts if kind == "chunks" else [write(folder / f"{k}", kind, *part) for k, part in enumerate(parts)]
    layer, whole = LastLayer.open(source), LastLayer(*named)
    for rows in layer.chunks(chunk):
        ours, theirs = layer.records(rows), whole.records(rows)
        assert torch.equal(ours.design, theirs.design)
        assert torch.equal(ours.outputs, theirs.outputs)
        assert torch.equal(ours.targets, theirs.targets)
    same(layer, whole)


@pytest.mark.parametrize("kind", ["npy", "safetensors", "parquet"])
def test_a_folder_of_shards_is_read_in_the_order_of_its_numbers(tmp_path, kind):
    named = arrays()
    for k, part in enumerate(cut(named, range(5, 60, 5))):
        write(tmp_path / f"part-{k}", kind, *part)  # part-10 sorts before part-2
    same(LastLayer.open(tmp_path), LastLayer(*named))


def test_a_mapping_names_the_files(tmp_path):
    x, z, y = arrays()
    paths = {name: tmp_path / f"{k}.npy" for k, name in enumerate(("features", "outputs", "targets"))}
    for path, values in zip(paths.values(), (x, z, y), strict=True):
        np.save(path, values)
    same(LastLayer.open(paths), LastLayer(x, z, y))
    same(LastLayer.open([paths, paths]), LastLayer(*(np.concatenate([v, v]) for v in (x, z, y))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_precisions_are_kept(tmp_path, dtype):
    x, z, y = (torch.from_numpy(values) for values in arrays())
    save_tensors({"features": x.to(dtype), "outputs": z, "targets": y}, tmp_path / "a.safetensors")
    layer = LastLayer.open(tmp_path / "a.safetensors")
    assert layer.precision == dtype
    same(layer, LastLayer(x.to(dtype), z, y))


def test_an_audit_and_a_trace_take_a_layer_on_disk(tmp_path):
    named = arrays()
    layer = LastLayer.open(write(tmp_path / "layer", "npy", *named), ridge=1.0)
    trace = np.random.default_rng(0).random((4, 60))
    ours, theirs = (audit(one, trace=trace) for one in (layer, LastLayer(*named, ridge=1.0)))
    pd.testing.assert_frame_equal(ours.table, theirs.table, check_exact=True)
    assert {**ours.metadata, "date": 0} == {**theirs.metadata, "date": 0}


def test_probabilities_are_noticed_over_all_chunks(tmp_path):
    x, z, y = arrays(m=2)
    p = torch.softmax(torch.from_numpy(z), 1).numpy()
    y = np.repeat([0, 1], 30)  # no chunk of the logistic head sees both classes
    with pytest.warns(NoshadowWarning, match="look like probabilities"):
        assert LastLayer.open(cut((x, p, y), range(10, 60, 10))).notes
    source = cut((x, p[:, :1], y), range(10, 60, 10))
    with pytest.warns(NoshadowWarning, match="look like probabilities"):
        layer = LastLayer.open(source, "logistic")
    with pytest.warns(NoshadowWarning):
        assert layer.notes == LastLayer(x, p[:, :1], y, "logistic").notes
    for rare in (0, 1):  # one record of a class, in the middle of the outputs, in the middle of the records
        y = np.full(60, 1 - rare)
        y[25], p[25, 0] = rare, 0.5
        with pytest.warns(NoshadowWarning, match="look like probabilities"):
            LastLayer.open(cut((x, p[:, :1], y), range(10, 60, 10)), "logistic")
        y[25] = 1 - rare
        assert not LastLayer.open(cut((x, p[:, :1], y), range(10, 60, 10)), "logistic").notes
    p[59, 0] = 1.01
    assert not LastLayer.open(source, "logistic").notes  # one logit that is none


@pytest.mark.parametrize("head", ["softmax", "logistic", "squared"])
def test_a_saved_layer_comes_back_whole(tmp_path, head):
    x, z, y = arrays(head)
    weights = (
        {}
        if head == "squared"
        else {"class_weight": np.random.default_rng(1).random((3, 2)[: 1 + (head != "softmax")])}
    )
    smoothing = {"label_smoothing": 0.1} if head == "softmax" else {}
    layer = LastLayer(
        x, z, y, head, 0.7, penalize_bias=False, coefficients=np.ones((5, 3)), sample_weight=np.arange(60), **weights,
        **smoothing,
    )  # fmt: skip
    path = tmp_path / "layer.safetensors"
    layer.save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["layer.safetensors"]
    back = LastLayer.load(path)
    assert repr(back) == repr(layer)
    same(back, layer)
    assert torch.equal(back.coefficients, layer.coefficients)
    back.save(path)  # over the file that it is read from
    with pytest.raises(InputError, match="was written to since the layer was opened"):
        score(back)
    same(LastLayer.load(path), layer)
    # readers that share no code with the writer
    kept = read_artefact(path, IDENTITY)
    assert np.array_equal(kept.arrays["features"], x)
    assert np.array_equal(load_file(path)["outputs"], z)
    with safe_open(path, "pt") as file:
        assert file.get_slice("targets").get_shape() == list(y.shape)


def sparse_layer(n=60, p=40, dtype=np.float32, **options):
    rng = np.random.default_rng(0)
    x = sparse.random(n, p, density=0.1, format="csr", random_state=0, dtype=dtype)
    x = sparse.vstack([x[:7], sparse.csr_matrix((1, p), dtype=dtype), x[8:]]).tocsr()  # a row without entries
    return LastLayer(x, rng.normal(size=(n, 3)), np.arange(n) % 3, ridge=0.7, **options), x


def test_sparse_features_are_saved_and_loaded_as_such(tmp_path, monkeypatch):
    layer, x = sparse_layer(sample_weight=np.arange(60))
    path = tmp_path / "layer.safetensors"
    monkeypatch.setattr("noshadow.sources.csr._ROWS", 7)
    layer.save(path, ids=[f"r{k}" for k in range(60)])
    back = LastLayer.load(path)
    assert back.sparse
    assert back.precision == torch.float32
    assert repr(back) == repr(layer)
    assert data_sha256(back) == data_sha256(layer)
    for rows in (slice(0, 60), slice(7, 8), slice(5, 23), slice(59, 60)):
        assert np.array_equal(back.records(rows).design, layer.records(rows).design)
    assert np.array_equal(back.features.to_dense(), x.toarray())
    pd.testing.assert_frame_equal(score(back), score(layer))
    held = audit(Bundle.load(path))
    assert held.table["id"].tolist() == [f"r{k}" for k in range(60)]
    back.save(tmp_path / "again.safetensors")
    assert data_sha256(LastLayer.load(tmp_path / "again.safetensors")) == data_sha256(layer)
    # a reader that shares no code with the writer
    parts = load_file(path)
    read = (parts[f"features.{name}"] for name in ("values", "columns", "starts"))
    assert np.array_equal(sparse.csr_matrix(tuple(read), x.shape).toarray(), x.toarray())
    assert "features" not in parts


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("columns", lambda part: part + 40, "in none of the 40 columns"),
        ("columns", lambda part: -part - 1, "in none of the 40 columns"),
        ("columns", lambda part: torch.zeros_like(part), "not in the order of the columns"),
        ("columns", lambda part: part.to(torch.int32), "not three rows of numbers"),
        ("starts", lambda part: part.flip(0), "do not begin and end"),
        ("starts", lambda part: torch.cat((part[:1], part[-1:], part[2:])), "a row ends before it begins"),
        (
            "starts",
            lambda part: torch.where(torch.arange(61) % 60 < 7, part, part[-1] + 5),
            "a row ends before it begins",
        ),
        ("starts", lambda part: part[1:], "sizes do not go together"),
        ("values", lambda part: part[1:], "sizes do not go together"),
        ("values", lambda part: None, "features are not all there"),
    ],
)
def test_sparse_features_that_are_none_are_refused(tmp_path, name, change, reason):
    """With a checksum that is right: anybody can write one."""
    path = tmp_path / "layer.safetensors"
    sparse_layer()[0].save(path)
    parts = load_file(path)
    parts[f"features.{name}"] = change(parts[f"features.{name}"])
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["facts"])
    written = {key: Written(one.dtype, tuple(one.shape), [one]) for key, one in parts.items() if one is not None}
    write_tensors(path, written, SPARSE_IDENTITY, facts, "path")
    with pytest.raises(InputError, match=reason):
        LastLayer.load(path)


def test_entries_of_a_torch_table_in_any_order_are_saved_in_theirs(tmp_path):
    starts, columns = torch.tensor([0, 3, 5, 6]), torch.tensor([1, 0, 1, 2, 0, 2])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    table = torch.sparse_csr_tensor(starts, columns, values, (3, 3), check_invariants=False)
    dense = np.array([[2.0, 4.0, 0.0], [5.0, 0.0, 4.0], [0.0, 0.0, 6.0]])  # the first row names column 1 twice
    z, y = np.array([[0.1], [0.9], [2.1]]), np.array([0.0, 1.0, 2.0])
    LastLayer(table, z, y, "squared", 1.0).save(tmp_path / "layer.safetensors")
    back = LastLayer.load(tmp_path / "layer.safetensors")
    assert np.array_equal(back.features.to_dense(), dense)
    np.testing.assert_allclose(score(back), score(LastLayer(dense, z, y, "squared", 1.0)), rtol=1e-9, atol=1e-12)


def test_every_flipped_bit_of_a_saved_layer_is_noticed(tmp_path):
    path = tmp_path / "layer.safetensors"
    LastLayer(*arrays(n=5)).save(path)
    content = path.read_bytes()
    for place in [*range(0, len(content), 13), len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(InputError, match="is not a layer that this version reads"):
            LastLayer.load(path)
    for short in (0, 4, 100, len(content) - 1):
        path.write_bytes(content[:short])
        with pytest.raises(InputError, match="is not a layer that this version reads"):
            LastLayer.load(path)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        LastLayer.load(path)


def test_a_saved_layer_is_loaded_and_not_opened(tmp_path):
    LastLayer(*arrays(), ridge=3.0).save(tmp_path / "layer.safetensors")
    with pytest.raises(InputError, match=r"use noshadow\.LastLayer\.load"):  # open would lose the ridge
        LastLayer.open(tmp_path / "layer.safetensors")
    with pytest.raises(InputError, match=r"must end in \.safetensors"):
        LastLayer(*arrays()).save(tmp_path / "layer.pt")


def test_nothing_is_left_where_the_disk_is_full(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"path: .* could not be written \(No space left on device\)"):
        LastLayer(*arrays()).save(tmp_path / "layer.safetensors")
    assert not list(tmp_path.iterdir())
