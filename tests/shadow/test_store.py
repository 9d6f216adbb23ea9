"""The store: whole or not there, found out when damaged, never shared by two studies."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noshadow import artefact, shadow
from noshadow.errors import InputError, NoshadowWarning
from noshadow.import_paths import import_path
from noshadow.shadow.store import DamagedFile, Store
from tests.shadow.toys import N_SAMPLES, ridge

KEY = shadow.ModelKey("shadow", 5)


def study(directory, train=ridge, n_models=6, **settings):
    return shadow.Study(train, N_SAMPLES, n_models=n_models, store=directory, **settings)


@pytest.fixture(scope="module")
def one_model(tmp_path_factory):
    """A store with one model in it, its file's bytes and its arrays."""
    store = Store.open_for(tmp_path_factory.mktemp("store"), {"seed": 1})
    arrays = {"outputs": np.linspace(0, 1, 8).reshape(4, 2), "membership": np.array([True, False] * 2)}
    store.write(KEY, 17, arrays)
    return store, store.path(KEY).read_bytes(), arrays


def same(arrays, others):
    return arrays.keys() == others.keys() and all(
        arrays[name].dtype == others[name].dtype and np.array_equal(arrays[name], others[name]) for name in arrays
    )


def test_what_is_written_is_read_back(one_model):
    store, _, arrays = one_model
    assert same(store.read(KEY), arrays)
    assert not list(store.directory.rglob("*.partial"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(length=st.integers(0, 10_000))
def test_a_truncated_file_is_found(one_model, length):
    store, content, _ = one_model
    store.path(KEY).write_bytes(content[: length % len(content)])
    with pytest.raises(DamagedFile, match="000005"):
        store.read(KEY)


def test_no_flipped_bit_goes_unnoticed(tmp_path, flip_bits):
    """Of 500 in a model's file, in the targets' and in the manifest: none."""
    targets = np.arange(N_SAMPLES)
    study(tmp_path, targets=targets, head="squared", n_models=2).run("serial")
    store = Store.open(tmp_path)
    key = shadow.ModelKey("shadow", 1)

    def accepted(read):
        try:
            read()
        except (shadow.StoreError, InputError):
            return False
        return True

    assert flip_bits(store.path(key), lambda: accepted(lambda: store.read(key))) == 0
    assert flip_bits(tmp_path / "targets.safetensors", lambda: accepted(store.targets)) == 0
    assert flip_bits(tmp_path / "manifest.json", lambda: accepted(lambda: Store.open(tmp_path))) == 0
    assert accepted(lambda: store.read(key))


def test_damaged_targets_are_written_again(tmp_path):
    """From the same targets passed again, in any width of integers, and from no others."""
    targets = np.arange(N_SAMPLES) % 3
    study(tmp_path, targets=targets.astype(np.int32)).run("serial")
    file = tmp_path / "targets.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(shadow.StoreError, match=r"targets.safetensors cannot be used.*with the targets again"):
        _ = shadow.load(tmp_path).targets
    with pytest.raises(InputError, match="already holds other targets"):
        study(tmp_path, targets=targets[::-1]).run("serial")
    with pytest.warns(NoshadowWarning, match="were damaged and are written again"):
        result = study(tmp_path, targets=targets).run("serial")
    np.testing.assert_array_equal(result.targets, targets)
    np.testing.assert_array_equal(shadow.load(tmp_path).targets, targets)


@pytest.mark.parametrize("first", [np.int8, np.int32, np.int64, np.uint8, np.bool_])
@pytest.mark.parametrize("then", [np.int32, np.int64])
def test_targets_of_another_width_are_the_same(tmp_path, first, then):
    targets = np.arange(N_SAMPLES) % 2
    study(tmp_path, targets=targets.astype(first), n_models=1).run("serial")
    assert np.array_equal(study(tmp_path, targets=targets.astype(then), n_models=1).run("serial").targets, targets)


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (["cat", "dog"] * 12, r"must be numbers, got <U3 \(row 0: .*cat.*\); give classes as 0, 1, 2"),
        (np.array(["a", None] * 12, dtype=object), r"must be numbers, got object \(row 0: 'a'\)"),
        ([0.0, np.nan, np.inf] * 8, "NaN or infinite in rows 1, 2, 4, 5, 7 and 11 more; leave such records out"),
        (np.zeros(N_SAMPLES, complex), "must be numbers, got complex128"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(tmp_path, targets, words):
    with pytest.raises(InputError, match=f"targets: {words}"):
        study(tmp_path, targets=targets)
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_model_or_study_is_found(one_model, tmp_path):
    store, content, _ = one_model
    other = shadow.ModelKey("shadow", 6)
    store.path(other).write_bytes(content)
    assert not store.is_whole(other)
    foreign = Store.open_for(tmp_path, {"seed": 2})
    foreign.path(KEY).write_bytes(content)
    assert not foreign.is_whole(KEY)


def test_damaged_and_missing_models_are_trained_again(tmp_path):
    whole = study(tmp_path).run("serial").outputs
    store = Store.open(tmp_path)
    keys = store.stored()
    untouched = store.path(keys[0]).stat().st_mtime_ns
    store.path(keys[1]).unlink()
    store.path(keys[2]).write_bytes(store.path(keys[2]).read_bytes()[:-9])
    flipped = bytearray(store.path(keys[3]).read_bytes())
    flipped[-1] ^= 64
    store.path(keys[3]).write_bytes(flipped)
    with pytest.raises(shadow.StoreError, match=r"3 of 6 models.*models 1, 2, 3"):
        shadow.load(tmp_path)
    assert len(shadow.load(tmp_path, partial=True).keys) == 3
    with pytest.warns(NoshadowWarning, match=r"(?s)model 2.*model 3"):
        again = study(tmp_path).run("serial").outputs
    assert np.array_equal(again, whole)
    assert np.array_equal(shadow.load(tmp_path).outputs, whole)
    assert store.path(keys[0]).stat().st_mtime_ns == untouched


def test_more_models_only_add(tmp_path):
    few = study(tmp_path / "a", n_models=5).run("serial").outputs
    times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "shadow").iterdir())]
    more = study(tmp_path / "a", n_models=9).run("serial")
    assert np.array_equal(more.outputs[:5], few)
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "a" / "shadow").iterdir())[:5]] == times
    assert np.array_equal(more.outputs, study(tmp_path / "b", n_models=9).run("serial").outputs)


def scaled(members, seed, scale):
    return {"outputs": scale * ridge(members, seed)["outputs"]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed: 0 there, 1 here"),
        ({"data": np.ones(3)}, r"data: float64\[3\].* there, float64\[3\]"),
        ({"train": partial(scaled, scale=3.0)}, "procedure.arguments"),
        ({"train": ridge}, "procedure.name: scaled there, ridge here"),
    ],
)
def test_another_study_is_refused_with_what_differs(tmp_path, change, named):
    first = {"train": partial(scaled, scale=2.0), "data": np.zeros(3), "seed": 0}
    before = study(tmp_path, **first).run("serial").outputs
    with pytest.raises(InputError, match=f"(?s)holds another study.*{named}"):
        study(tmp_path, **{**first, **change}).run("serial")
    assert np.array_equal(shadow.load(tmp_path).outputs, before)


def test_targets_and_head_are_kept_and_guarded(tmp_path):
    targets = np.arange(N_SAMPLES)
    result = study(tmp_path, targets=targets, head="squared").run("serial")
    assert np.array_equal(result.targets, targets)
    assert shadow.load(tmp_path).head == "squared"
    with pytest.raises(InputError, match="targets"):
        study(tmp_path, targets=targets + 1).run("serial")
    with pytest.raises(InputError, match="head"):
        study(tmp_path, head="softmax").run("serial")


def test_an_altered_manifest_is_refused(tmp_path):
    study(tmp_path).run("serial")
    manifest = tmp_path / "manifest.json"
    text = manifest.read_text()
    for before, after in (('"seed": 0', '"seed": 3'), ('"n_models": 6', '"n_models": 5')):
        manifest.write_text(text.replace(before, after))
        with pytest.raises(shadow.StoreError, match="altered"):
            shadow.load(tmp_path)
    manifest.write_text(text.replace('"format": 2', '"format": 1'))
    with pytest.raises(InputError, match="has format 1; this version reads 2"):
        shadow.load(tmp_path)
    with pytest.raises(InputError, match="holds no study"):
        shadow.load(tmp_path / "nowhere")


def test_a_full_disk_stops_with_a_message_and_loses_nothing(tmp_path, monkeypatch):
    written = []

    def write(path, content):
        if len(written) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(path)
        real_write(path, content)

    real_write = artefact.write_bytes
    monkeypatch.setattr(artefact, "write_bytes", write)
    with pytest.raises(shadow.StoreError, match=r"000003.*No space left on device.*run again"):
        study(tmp_path).run("serial")
    monkeypatch.undo()
    assert len(shadow.load(tmp_path, partial=True).keys) == 3
    expected = study(tmp_path / "undisturbed").run("serial").outputs
    assert np.array_equal(study(tmp_path).run("serial").outputs, expected)


def test_a_write_that_the_kernel_cuts_short_leaves_no_half_file(tmp_path):
    """A real failure of write(2): the process may not write files over 1,000 bytes, a model needs more."""
    script = """
        import resource, sys
        from noshadow import shadow
        from tests.shadow.toys import N_SAMPLES, ridge
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        big = lambda members, seed: {**ridge(members, seed), "more": __import__("numpy").zeros(1000)}
        try:
            shadow.Study(big, N_SAMPLES, n_models=4, store=sys.argv[1], procedure="big").run("processes")
        except shadow.StoreError as error:
            print(error)
    """
    environment = {**os.environ, "PYTHONPATH": import_path()}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "File too large" in done.stdout, done.stderr
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"manifest.json", "claims.lock"}


def test_the_store_holds_no_pickle_and_no_weights(tmp_path):
    study(tmp_path).run("serial")
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "claims.lock"} | {f"shadow/{k:06d}.safetensors" for k in range(6)}
    assert Store.open(tmp_path).read(KEY).keys() == {"outputs", "membership", "weights"}  # what train gave


def test_store_path_may_be_a_path_or_a_string(tmp_path):
    assert np.array_equal(
        study(str(tmp_path / "a")).run("serial").outputs, study(Path(tmp_path / "b")).run("serial").outputs
    )


def test_a_study_that_asks_for_fewer_gets_fewer(tmp_path):
    assert study(tmp_path, n_models=6, n_target_models=3).run("serial").target_models.outputs.shape[0] == 3
    fewer = study(tmp_path, n_models=4, n_target_models=2).run("serial")
    assert (len(fewer.outputs), len(fewer.target_models.outputs)) == (4, 2)
    assert study(tmp_path, n_models=4).run("serial").target_models is None
    assert (len(shadow.load(tmp_path).outputs), len(shadow.load(tmp_path).target_models.outputs)) == (6, 3)
