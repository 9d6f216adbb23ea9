"""Kept results: whole and of the very thing asked for, or not taken back."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from noshadow.artefact import UnusableArtefact, read_artefact, write_artefact
from noshadow.bench import cache as keeping
from noshadow.bench.cache import keep, kept
from noshadow.bench.source import DataSource

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(True), "c": np.zeros((0, 2), np.float32)}
IDENTITY = {"of": 'a "sha256":"thing', "options": [1, None]}


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "kept.safetensors"
    write_artefact(path, ARRAYS, IDENTITY, {"seconds": 1.5})
    found = read_artefact(path, {"options": (1, None), "of": 'a "sha256":"thing'})
    assert (found.facts, found.identity) == ({"seconds": 1.5}, IDENTITY)
    for arrays in (found.arrays, load_file(path)):  # any reader of the format reads it
        assert arrays.keys() == ARRAYS.keys()
        assert all(np.array_equal(arrays[name], ARRAYS[name]) for name in ARRAYS)
        assert all(arrays[name].dtype == ARRAYS[name].dtype for name in ARRAYS)


def test_other_things_are_not_taken(tmp_path):
    path = tmp_path / "kept.safetensors"
    with pytest.raises(FileNotFoundError):
        read_artefact(path, IDENTITY)
    write_artefact(path, ARRAYS, IDENTITY)
    with pytest.raises(UnusableArtefact, match="of something else"):
        read_artefact(path, {**IDENTITY, "options": [2, None]})
    content = path.read_bytes()
    for damaged in (b"", b"x", content[:-1], content[:50], content + b"x", b"\xff" * 100):
        path.write_bytes(damaged)
        with pytest.raises(UnusableArtefact, match="checksum"):
            read_artefact(path, IDENTITY)


def test_no_flipped_bit_of_a_kept_result_is_accepted(tmp_path, flip_bits):
    path = tmp_path / "deep" / "lira.safetensors"
    keep(path, ARRAYS, {"summary": 0.5}, IDENTITY)
    assert flip_bits(path, lambda: kept(path, IDENTITY) is not None) == 0
    found = kept(path, IDENTITY)
    assert found is not None
    assert found[1] == {"summary": 0.5}


@pytest.mark.parametrize(("name", "value"), [("RESULTS", 99), ("__version__", "9.9")])
def test_results_of_another_version_are_made_again(tmp_path, monkeypatch, name, value):
    path = tmp_path / "lira.safetensors"
    keep(path, ARRAYS, None, IDENTITY)
    assert kept(path, {**IDENTITY, "options": []}) is None
    monkeypatch.setattr(keeping, name, value)
    assert kept(path, IDENTITY) is None


def test_no_flipped_bit_of_kept_features_is_accepted(tmp_path, monkeypatch, flip_bits):
    """A damaged file is made again; so is one of other options."""
    calls = []

    def features(*arguments):
        calls.append(1)
        return np.arange(8, dtype=np.float32).reshape(2, 4)

    monkeypatch.setattr("noshadow.bench.backbones.text_features", features)
    source = DataSource(None, tmp_path, "some/backbone")

    def computed_again():
        before = len(calls)
        np.testing.assert_array_equal(source.text_features(["good", "bad"]), np.arange(8).reshape(2, 4))
        return len(calls) > before

    assert computed_again()
    assert not computed_again()
    (path,) = (tmp_path / "features").iterdir()
    with monkeypatch.context() as patched:
        patched.setattr("noshadow.bench.source.keep", lambda *arguments: None)  # 500 files are not synced in no time
        assert flip_bits(path, lambda: not computed_again()) == 0
    path.write_bytes(path.read_bytes()[:-1])
    assert computed_again()
    assert not computed_again()
    monkeypatch.setattr("noshadow.bench.backbones.LONGEST_TEXT", 32)
    assert computed_again()


def test_another_layout_is_not_taken(tmp_path, monkeypatch):
    path = tmp_path / "kept.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("noshadow.artefact.FORMAT", "0")
        write_artefact(path, ARRAYS, IDENTITY)
    with pytest.raises(UnusableArtefact, match="it has format 0, this version reads 1"):
        read_artefact(path, IDENTITY)
