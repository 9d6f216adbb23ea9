"""Files are whole or not there."""

from __future__ import annotations

import pytest

from noshadow.errors import missing_extra, name_rows
from noshadow.files import atomic_path, write_text


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


def test_messages():
    assert name_rows([3]) == "row 3"
    assert name_rows(range(8)) == "rows 0, 1, 2, 3, 4 and 3 more"
    assert "pip install 'noshadow[ray]'" in str(missing_extra("ray", "ray"))
