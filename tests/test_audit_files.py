"""Audits on disk: what was saved is what is loaded, or it is refused in a sentence."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from noshadow import Audit, InputError, LastLayer, audit
from noshadow.tables import load_table, save_table

EVIL = [
    "=1+1",
    "'=1+1",
    "''=x",
    "-3",
    "'",
    "",
    " ",
    "a,b",
    'a"b',
    "a\nb",
    "a\r\nb",
    "NA",
    "nan",
    "None",
    "ü€",
    "1",
    "+",
]


@pytest.fixture(scope="module")
def result():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(170, 4))
    y = np.array(["no", "=yes"])[rng.integers(0, 2, 170)]
    model = LogisticRegression(tol=1e-10).fit(x, y)
    groups = pd.DataFrame(
        {
            "site": [*(EVIL * 10)[:169], None],
            "age": rng.integers(0, 9, 170),
            "weight": np.where(rng.random(170) < 0.1, np.nan, rng.normal(size=170)),
            "=old": rng.random(170) < 0.5,
            "seen": pd.date_range("2020-01-01", periods=170, freq="h"),
        }
    )
    ids = [text if k < len(EVIL) else f"{text}#{k}" for k, text in enumerate(EVIL * 10)]
    return audit(model, (x, y), ids=ids, groups=groups, class_names={"no": "<b>", "=yes": "ß"})


def same(one, other):
    pd.testing.assert_frame_equal(one.table, other.table, check_exact=True)
    assert one.table.dtypes.tolist() == other.table.dtypes.tolist()
    assert one.metadata == other.metadata
    assert one.notes == other.notes


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.PARQUET"])
def test_what_was_saved_is_loaded(result, tmp_path, name):
    loaded = Audit.load(result.save(tmp_path / name))
    same(result, loaded)
    assert loaded.top(3).equals(result.top(3))
    same(result, Audit.load(loaded.save(tmp_path / f"again-{name}")))


def test_targets_of_all_kinds_come_back(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 2))
    for found in (
        LastLayer(x, x, rng.integers(0, 2, 20)),
        LastLayer(x, x, rng.normal(size=(20, 2)), "squared"),
        LastLayer(x, x, rng.integers(0, 2, (20, 2)), "logistic"),
        LastLayer(1e-300 * x, x, rng.normal(size=(20, 2)), "squared"),
    ):
        held = audit(found)
        for name in ("a.parquet", "a.csv"):
            same(held, Audit.load(held.save(tmp_path / name)))


@settings(max_examples=30)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.none(), min_size=1, max_size=8),
    number=st.floats() | st.sampled_from([5e-324, -0.0, 1e308]),
)
def test_any_text_and_any_number_come_back(tmp_path_factory, texts, number):
    folder = tmp_path_factory.mktemp("tables")
    table = pd.DataFrame({"t": pd.Series(texts), "x": [number] * len(texts), "k": np.arange(len(texts))})
    if all(text is None for text in texts):
        table["t"] = pd.Series([None] * len(texts))
    for name in ("a.csv", "a.parquet"):
        loaded, facts = load_table(save_table(table, {"n": 1}, folder / name))
        pd.testing.assert_frame_equal(loaded, table, check_exact=True)
        assert facts == {"n": 1}


def test_files_of_others_are_refused(result, tmp_path):
    cases = {}
    pd.DataFrame({"id": [1]}).to_parquet(tmp_path / "theirs.parquet")
    cases["theirs.parquet"] = "without noshadow's facts"
    pd.DataFrame({"id": [1]}).to_csv(tmp_path / "theirs.csv")
    cases["theirs.csv"] = "theirs.csv.json is not beside it"
    save_table(pd.DataFrame({"id": [1]}), {"attack": "lira"}, tmp_path / "attack.parquet")
    cases["attack.parquet"] = "a table of noshadow, but not of an audit"
    save_table(result.table, {**result.metadata, "notes": [], "schema": 99}, tmp_path / "later.csv")
    cases["later.csv"] = "an audit in format 99, this version reads 1"
    (tmp_path / "text.parquet").write_text("no table")
    cases["text.parquet"] = "is not a table that noshadow saved"
    (tmp_path / "empty.parquet").write_bytes(b"")
    cases["empty.parquet"] = "is not a table that noshadow saved"
    (tmp_path / "folder.parquet").mkdir()
    cases["folder.parquet"] = "cannot be read (Is a directory)"
    cases["none.parquet"] = "cannot be read (No such file or directory)"
    cases["audit.xlsx"] = "must end in .parquet or .csv"
    for name, message in cases.items():
        with pytest.raises(InputError, match=re.escape(message)) as caught:
            Audit.load(tmp_path / name)
        assert str(caught.value).startswith("path: ")
        assert "\n" not in str(caught.value)


def test_a_csv_that_was_altered_is_refused(result, tmp_path):
    path = result.save(tmp_path / "a.csv")
    beside = tmp_path / "a.csv.json"
    text, facts = path.read_text(), beside.read_text()
    path.write_text(text.replace("True", "False", 1))
    with pytest.raises(InputError, match="it fails its checksum: it is damaged, or was altered"):
        Audit.load(path)
    path.write_text(text)
    for altered in (
        facts.replace('"records": 170', '"records": 171'),
        facts[:-20],
        "[]",
        "{}",
        facts.replace("no", "n"),
    ):
        beside.write_text(altered)
        with pytest.raises(InputError, match="not a table that noshadow saved, or it is damaged"):
            Audit.load(path)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_one_bit_is_enough_to_refuse(tmp_path, flip_bits, name):
    """A flipped bit is refused, or it changed nothing that is read."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2))
    whole = audit(LastLayer(x, x, rng.integers(0, 2, 8)), ids=list("abcdefgh"))
    path = whole.save(tmp_path / name)
    wrong = []

    def accepted():
        try:
            found = Audit.load(path)
        except InputError:
            return False
        try:
            same(whole, found)
        except AssertionError:
            wrong.append(found)
        return True

    flip_bits(path, accepted)
    assert not wrong


def test_a_truncated_file_is_refused(result, tmp_path):
    path = result.save(tmp_path / "a.parquet")
    content = path.read_bytes()
    for length in range(0, len(content), 997):
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="path: "):
            Audit.load(path)


def test_what_no_file_gives_back_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 1))
    held = audit(LastLayer(x, x, rng.normal(size=4), "squared"))
    held.table["id"] = pd.Series(["a", 1, "b", 2], dtype=object)
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(InputError, match="path: column 'id' holds values of kind mixed"):
            held.save(tmp_path / name)
    odd = pd.DataFrame({"id": pd.Series(["a\ud800"], dtype=object)})
    for name in ("a.parquet", "a.csv"):
        with pytest.raises(InputError, match="path: the table cannot be written"):
            save_table(odd, {}, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_facts_say_which_format_they_are(result, tmp_path):
    result.save(tmp_path / "a.csv")
    facts = json.loads((tmp_path / "a.csv.json").read_text(encoding="utf-8"))
    assert facts["schema"] == 1
    assert "schema" not in result.metadata


def test_a_summary_is_flat_and_names_nobody(result):
    found = result.summary()
    assert all(type(value) is float and np.isfinite(value) for value in found.values())
    assert (found["records"], found["features"], found["outputs"]) == (170.0, 4.0, 1.0)
    rates = result.table["attack_accuracy"]
    assert found["attack_accuracy_max"] == rates.max()
    assert found["attack_accuracy_median"] == pytest.approx(np.median(rates))
    bands = [name for name in found if name.startswith("records_")]
    assert sum(found[name] for name in bands) == 170
    assert found["records_near_certain"] == float(((rates >= 0.9) | result.table["flagged"]).sum())
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in found)
    x = np.random.default_rng(0).normal(size=(30, 2))
    rough = audit(LastLayer(x, 3 * x, np.arange(30) % 2)).summary()
    assert not any(name.startswith(("records_", "attack_")) for name in rough)


def test_a_summary_does_not_pass_over_what_has_no_bound(result):
    table = result.table.copy()
    table.loc[0, result.ranking] = np.inf
    found = dataclasses.replace(result, table=table).summary()
    assert f"{result.ranking}_max" not in found  # of the others it would be too low
    assert f"{result.ranking}_mean" not in found
    assert found[f"{result.ranking}_median"] == pytest.approx(np.median(table[result.ranking]))
