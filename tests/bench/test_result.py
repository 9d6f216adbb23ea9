"""Results as files: what is read is what was written; what is of another schema, damaged or edited is refused."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from noshadow.bench.result import METRICS, SCHEMA, dump_result, load_result, load_results, save_result
from noshadow.bench.typed_json import NotAsTyped, from_json, to_json
from noshadow.errors import FileError, InputError
from tests.bench.toy_results import ceiling, toy_result

COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "experiments"


def write(tmp_path, change):
    value = json.loads(dump_result(toy_result()))
    change(value)
    path = tmp_path / "toy-net.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def test_what_is_read_is_what_was_written(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 5, 3), dtype=np.uint8)
    before = toy_result(images=images, texts=['ä \u2028 "b"'], oracle=ceiling(0.9), stationarity=float("nan"))
    before.attacks["lira"].summary["epsilon_lower_bound"] = float("inf")
    path = save_result(before, tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    after = load_result(path)
    assert dump_result(after) == dump_result(before)
    assert after.lira.summary["epsilon_lower_bound"] == float("inf")
    assert np.isnan(after.stationarity)
    assert after.lira.oracle is not None
    np.testing.assert_array_equal(after.shown["highest newton"][3].image, images[3])
    np.testing.assert_array_equal(after.first_target.scores["loss"], before.first_target.scores["loss"])
    assert after.first_target.scores["loss"].dtype == np.float32
    assert after.shown["lowest influence"][0].text == before.shown["lowest influence"][0].text
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN, which other readers of JSON refuse


@pytest.mark.parametrize("schema", [None, 0, SCHEMA + 1, "1"])
def test_another_schema_is_refused_in_a_sentence(tmp_path, schema):
    path = write(tmp_path, lambda value: value.pop("schema") if schema is None else value.update(schema=schema))
    with pytest.raises(FileError, match=rf"reads schema {SCHEMA}; noshadow bench toy-net --rescore") as caught:
        load_result(path)
    assert str(path) in str(caught.value)


def lira(value):
    return value["attacks"]["lira"]


def rates(value):
    return value["first_target"]["lira_success_rate"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("pool"), "pool is missing"),
        (lambda v: v.update(extra=1), "extra is not known"),
        (lambda v: v.update(pool="many"), "pool: expected a whole number, got 'many'"),
        (lambda v: v.update(pool=True), "pool: expected a whole number, got True"),
        (lambda v: v.update(shadows=0), "shadows: expected 1 or more, got 0"),
        (lambda v: v["attacks"].pop("lira"), "lira is missing"),
        (lambda v: v["fit"].update(loss_of_members=None), "fit.loss_of_members: expected a number, got None"),
        (lambda v: lira(v)["scores"]["loss"]["metrics"].pop("spearman"), "attacks.lira.scores.loss: metrics: expected"),
        (lambda v: lira(v)["ceiling"]["curve"].pop(), "attacks.lira.ceiling: curve: expected 25 numbers, got 24"),
        (lambda v: lira(v)["scores"]["loss"]["curve"]["std"].pop(), "attacks.lira.scores.loss.curve: curve: expected"),
        (
            lambda v: lira(v)["scores"]["loss"]["metrics"]["recall@1%"].update(mean=0.99),
            "recall@1%.mean is 0.99, but that of the values is 0.5",
        ),
        (lambda v: lira(v)["ceiling"]["metrics"]["recall@1%"].update(std=None), "recall@1%.std is None, but"),
        (lambda v: lira(v)["ceiling"]["metrics"]["recall@1%"].update(values=[]), "recall@1%.values are missing"),
        (lambda v: rates(v).update(shape=[7]), "first_target.lira_success_rate: its bytes are not those of shape [7]"),
        (lambda v: rates(v).update(zlib="!"), "its bytes are damaged"),
        (lambda v: rates(v).update(dtype="object"), "expected an array, its dtype one of"),
    ],
)
def test_what_is_damaged_or_edited_is_refused_where_it_is(tmp_path, change, words):
    with pytest.raises(FileError) as caught:
        load_result(write(tmp_path, change))
    assert words in str(caught.value)
    assert "toy-net.json is not a result" in str(caught.value)


def test_arrays_are_no_larger_than_they_say():
    bomb = base64.b64encode(zlib.compress(bytes(10**8))).decode()
    with pytest.raises(NotAsTyped, match="are not those of shape"):
        from_json(np.ndarray, {"dtype": "uint8", "shape": [4], "zlib": bomb}, "image")
    for shape in ((0,), (), (2, 0, 3)):
        array = np.zeros(shape, dtype=np.float64)
        assert from_json(np.ndarray, to_json(array)).shape == shape


def test_no_json_at_all(tmp_path):
    path = tmp_path / "x.json"
    for text in ("{", "[]", "\xff"):
        path.write_bytes(text.encode("latin-1"))
        with pytest.raises(FileError, match=r"x\.json"):
            load_result(path)


def test_results_come_from_files_and_folders_in_the_papers_order(tmp_path):
    for name in ("zeta", "energy-mlp", "sst2-finetune"):
        save_result(replace(toy_result(), setting=name), tmp_path / "some")
    save_result(toy_result(setting="alpha"), tmp_path)
    found = load_results([tmp_path / "alpha.json", tmp_path / "some"])
    assert [result.setting for result in found] == ["sst2-finetune", "energy-mlp", "alpha", "zeta"]
    with pytest.raises(InputError, match="there are 2 of alpha"):
        load_results([tmp_path, tmp_path / "alpha.json"])
    with pytest.raises(InputError, match="there is no"):
        load_results([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="none was found"):
        load_results([tmp_path / "empty"])


def test_the_committed_results_are_as_they_would_be_written():
    files = sorted(COMMITTED.glob("*.json"))
    assert len(files) == 8
    for file in files:
        result = load_result(file)
        assert dump_result(result) == file.read_text(encoding="utf-8")
        assert all(set(row.metrics) == set(METRICS) for row in result.lira.scores.values())
