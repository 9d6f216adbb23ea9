"""Arrays from files that anyone may have written: what is asked for, within the memory there is, or one sentence."""

from __future__ import annotations

import io
import json
import tracemalloc
import zipfile

import numpy as np
import pytest

from noshadow import npz
from noshadow.errors import FileError
from noshadow.npz import read_npy, read_npz

RNG = np.random.default_rng(0)


def npy_bytes(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def header(shape, descr="<f8", version=1):
    """The header of an .npy, without the numbers that it promises."""
    text = json.dumps({"descr": descr, "fortran_order": False, "shape": list(shape)})
    text = text.replace("[", "(").replace("]", ",)").replace("false", "False").encode() + b" " * 10 + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text


def archive(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def refused(path, *words, **options):
    with pytest.raises(FileError) as caught:
        read_npz(path, **options)
    assert str(caught.value).startswith(f"file: {path}")
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_wrote_is_read_as_numpy_reads_it(tmp_path, save):
    arrays = {
        "c": RNG.normal(size=(5, 3)),
        "f": np.asfortranarray(RNG.normal(size=(5, 3, 2))),
        "half": RNG.normal(size=7).astype(np.float16),
        "swapped": np.arange(4, dtype=">i4"),
        "words": np.array(["a", "beta"]),
        "bytes": np.array([b"a", b"beta"]),
        "one": np.array(2.5),
        "none": np.zeros((0, 3)),
        "flags": np.array([True, False]),
        "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        np.testing.assert_array_equal(found[name], array)
    np.save(tmp_path / "f.npy", arrays["f"])
    np.testing.assert_array_equal(read_npy(tmp_path / "f.npy"), arrays["f"])


def test_only_what_is_asked_for_is_read(tmp_path):
    huge = 3 * 2**26
    path = archive(tmp_path / "a.npz", {"x.npy": npy_bytes(np.arange(3.0)), "other.npy": bytes(huge)})
    tracemalloc.start()
    found = read_npz(path, ("x",), ("y",))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(found) == ["x"]
    assert peak < huge / 10


def test_a_header_that_claims_more_than_is_there_costs_no_memory(tmp_path):
    claims = header((10**6, 10**6))
    path = archive(tmp_path / "a.npz", {"x.npy": claims + bytes(64)})
    tracemalloc.start()
    refused(path, "'x' should have 8,000,000,000,000 bytes and has 64")
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    (tmp_path / "x.npy").write_bytes(claims)
    with pytest.raises(FileError, match=r"it should have 8,000,000,000,000 bytes and has 0"):
        read_npy(tmp_path / "x.npy")
    refused(archive(tmp_path / "b.npz", {"x.npy": header((2**40, 2**40, 2**40))}), "should have")
    refused(archive(tmp_path / "c.npz", {"x.npy": header((-3, -3)) + bytes(72)}), "is not an .npz of plain arrays")


def test_a_bomb_is_not_unpacked(tmp_path, monkeypatch):
    size = 2**26  # a thousandth of it on disk
    path = archive(tmp_path / "a.npz", {"x.npy": header((size // 8,)) + bytes(size)})
    assert path.stat().st_size < size / 500
    monkeypatch.setattr(npz, "free_memory", lambda: 1e7)
    tracemalloc.start()
    refused(path, "holds 0.1 GiB of arrays, 0.0 GiB of memory are free")
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()
    np.save(tmp_path / "x.npy", np.zeros(2**21))
    with pytest.raises(FileError, match="memory are free"):
        read_npy(tmp_path / "x.npy")


def test_objects_are_not_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}, 1], dtype=object))
    refused(tmp_path / "a.npz", "'x' holds Python objects")
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    with pytest.raises(FileError, match="holds Python objects"):
        read_npy(tmp_path / "x.npy")


def test_what_is_no_archive(tmp_path):
    (tmp_path / "text.npz").write_text("not an archive")
    refused(tmp_path / "text.npz", "is not an .npz of plain arrays (it is no zip archive)")
    (tmp_path / "empty.npz").write_bytes(b"")
    refused(tmp_path / "empty.npz", "is not an .npz")
    (tmp_path / "folder.npz").mkdir()
    refused(tmp_path / "folder.npz", "is a folder; expected an .npz")
    refused(tmp_path / "nowhere.npz", "does not exist")
    np.save(tmp_path / "one.npy", np.ones(3))
    refused(tmp_path / "one.npy", "holds one array")
    np.savez(tmp_path / "half.npz", features=np.ones(3))
    refused(tmp_path / "half.npz", "has no array 'outputs'; it holds features", needed=("features", "outputs"))
    refused(archive(tmp_path / "b.npz", {"x.npy": b"\x93NUMPY\x07\x00"}), "is not an .npz")
    import os

    os.mkfifo(tmp_path / "pipe.npz")
    refused(tmp_path / "pipe.npz", "is not a file")


def test_damage_of_every_kind_is_a_sentence(tmp_path):
    """Cut at any length, any byte changed: either the very same arrays, or one sentence."""
    x, y = RNG.normal(size=(6, 2)), np.arange(6)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    whole = (tmp_path / "a.npz").read_bytes()
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    for _ in range(400):
        content = bytearray(whole)
        content[RNG.integers(len(whole))] ^= int(RNG.integers(1, 256))
        damaged.append(bytes(content))
    outcomes = {"same": 0, "refused": 0}
    for content in damaged:
        (tmp_path / "b.npz").write_bytes(content)
        try:
            found = read_npz(tmp_path / "b.npz", ("x", "y"))
        except FileError:
            outcomes["refused"] += 1
        else:
            np.testing.assert_array_equal(found["x"], x)
            np.testing.assert_array_equal(found["y"], y)
            outcomes["same"] += 1
    assert outcomes["refused"] > 250
