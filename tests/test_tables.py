"""Tables on disk: for their owner alone, and no cell of a .csv is a formula."""

from __future__ import annotations

import json
import stat

import numpy as np
import pandas as pd
import pytest

from noshadow.errors import InputError
from noshadow.tables import save_table, without_formulas

EVIL = ["=1+1", "+1", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "−1", "＝1"]
HARMLESS = ["a\r=b", "a,\n=b", "a=b", "1-2", "", "x@y.org", "'quoted", " =1"]


def test_no_text_of_a_csv_is_a_formula(tmp_path):
    ids = EVIL + HARMLESS
    table = pd.DataFrame({"id": ids, "target": pd.Categorical(ids), "loss": np.linspace(-3, 3, len(ids))})
    save_table(table, {"n": 1}, tmp_path / "a.csv")
    found = pd.read_csv(tmp_path / "a.csv", keep_default_na=False)
    for column in ("id", "target"):
        assert found[column].tolist() == ["'" + text for text in EVIL] + HARMLESS
    np.testing.assert_allclose(found["loss"], table["loss"])  # a negative number stays one
    assert json.loads((tmp_path / "a.csv.json").read_text())["n"] == 1
    save_table(table, {}, tmp_path / "a.parquet")
    assert pd.read_parquet(tmp_path / "a.parquet")["id"].tolist() == ids


def test_other_values_are_as_they_are():
    mixed = pd.DataFrame({"id": [-1, "=x", None, b"=y"], "=name": [1, 2, 3, 4], "flagged": [True, False] * 2})
    found = without_formulas(mixed)
    assert found["id"].tolist() == [-1, "'=x", None, b"=y"]
    assert list(found.columns) == ["id", "'=name", "flagged"]
    assert mixed["id"].tolist()[1] == "=x"  # the table itself is not touched


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_table_is_its_owners(tmp_path, name):
    (tmp_path / name).write_text("old")
    (tmp_path / name).chmod(0o644)
    save_table(pd.DataFrame({"id": [1]}), {}, tmp_path / name)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InputError, match=r"path: '.*xlsx' must end in"):
        save_table(pd.DataFrame({"id": [1]}), {}, tmp_path / "a.xlsx")
