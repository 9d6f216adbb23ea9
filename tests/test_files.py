"""Files are whole or not there, and what says who was in the training data is its owner's alone."""

from __future__ import annotations

import os
import stat

import numpy as np
import pytest

from noshadow import shadow
from noshadow.bench.cache import keep
from noshadow.errors import FileError, InputError, missing_extra, name_rows
from noshadow.files import atomic_path, check_output, private_folder, write_bytes, write_text
from tests.shadow.toys import N_SAMPLES, ridge


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o377], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_files_are_their_owners_whatever_the_umask_and_what_was_there(tmp_path, umask):
    write_text(tmp_path / "new", "x")
    assert mode(tmp_path / "new") == 0o600
    (tmp_path / "old").write_text("x")
    (tmp_path / "old").chmod(0o644)
    write_bytes(tmp_path / "old", b"y")
    assert mode(tmp_path / "old") == 0o600
    with atomic_path(tmp_path / "anew") as temporary:  # a library that makes the file anew
        assert mode(temporary) & 0o077 == 0
        temporary.unlink()
        temporary.touch(0o666)
    assert mode(tmp_path / "anew") == 0o600
    assert mode(private_folder(tmp_path / "a" / "b")) == 0o700
    assert mode(tmp_path / "a") == 0o700


def test_pages_and_figures_follow_the_umask(tmp_path, umask):
    write_text(tmp_path / "page.html", "x", private=False)
    assert mode(tmp_path / "page.html") == 0o666 & ~umask


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path):
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path) == tmp_path
    assert mode(tmp_path) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="is a file"):
        private_folder(tmp_path / "file")


def test_a_store_is_its_owners(tmp_path, umask):
    store = tmp_path / "deep" / "store"
    shadow.Study(ridge, N_SAMPLES, n_models=2, store=store, targets=np.zeros(N_SAMPLES), head="squared").run("serial")
    keep(store / "lira.safetensors", {"x": np.zeros(2)}, {}, "id")
    found = {path: mode(path) for path in [store, *store.rglob("*")]}
    assert {value for path, value in found.items() if path.is_dir()} == {0o700}
    assert {value & 0o177 for path, value in found.items() if path.is_file()} == {0}
    assert mode(store / "manifest.json") == mode(store / "shadow" / "000001.safetensors") == 0o600
    assert len(found) >= 8


def test_an_output_is_checked_before_it_is_written(tmp_path, monkeypatch):
    assert check_output(tmp_path / "a.CSV", (".parquet", ".csv")) == tmp_path / "a.CSV"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match=r"output: '.*a.txt' must end in .parquet or .csv"):
        check_output(tmp_path / "a.txt", (".parquet", ".csv"))
    with pytest.raises(InputError, match=r"output: the folder '.*nowhere' does not exist"):
        check_output(tmp_path / "nowhere" / "a.csv", (".csv",))
    (tmp_path / "b.csv").mkdir()
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        check_output(tmp_path / "b.csv", (".csv",))
    with pytest.raises(FileError, match="nothing can be written into '/proc'"):  # not even by root
        check_output("/proc/a.csv", (".csv",))


def test_messages():
    assert name_rows([3]) == "row 3"
    assert name_rows(range(8)) == "rows 0, 1, 2, 3, 4 and 3 more"
    assert "pip install 'noshadow[ray]'" in str(missing_extra("ray", "ray"))
    assert InputError("ridge: expected 3: no").argument == "ridge"


@pytest.mark.parametrize("when", ["open", "close", "chmod"])
def test_a_write_that_is_interrupted_as_it_begins_leaves_nothing(tmp_path, monkeypatch, when):
    """Ctrl-C reaches Python between any two calls."""
    owner = type(tmp_path) if when == "chmod" else os
    call = getattr(owner, when)

    def interrupted(*arguments, **options):
        monkeypatch.undo()
        call(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, when, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "model", b"whole")
    assert not list(tmp_path.iterdir())
