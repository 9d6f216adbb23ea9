"""What the table says of a record beside its scores: names, targets, the nearest other class, groups."""

from __future__ import annotations

import uuid

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier
from sklearn.neural_network import MLPClassifier

from noshadow import Audit, Bundle, InputError, LastLayer, audit, last_layer


def layer(n=40, p=3, m=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    return LastLayer(x, x @ rng.normal(size=(p, m)), rng.integers(0, m, n), ridge=1.0)


def test_the_nearest_class_is_the_likeliest_other_one():
    found = layer()
    wanted = []
    for z, y in zip(found.outputs.numpy(), found.targets.numpy(), strict=True):
        wanted.append(max((k for k in range(4) if k != y), key=lambda k: z[k]))
    table = audit(found).table
    assert table["nearest_class"].tolist() == wanted
    assert list(table.columns[:3]) == ["id", "target", "nearest_class"]


@pytest.mark.parametrize("model", [LogisticRegression(), MLPClassifier((5,), max_iter=20)])
@pytest.mark.parametrize("classes", [["ant", "bee", "cow"], ["no", "yes"], [7, 3, 11], [-1, 1]])
def test_classes_are_written_as_the_targets_are(model, classes):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 3)), np.array(classes)[rng.integers(0, len(classes), 60)]
    model.fit(x, y)
    table = audit(model, (x, y)).table
    chances = model.predict_proba(x)
    for k in range(60):
        others = [c for c in range(len(classes)) if model.classes_[c] != y[k]]
        assert table["nearest_class"][k] == model.classes_[max(others, key=lambda c: chances[k, c])]
    assert table["nearest_class"].dtype == table["target"].dtype


def test_values_and_labels_have_no_nearest_class():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    for found in (
        LastLayer(x, x @ rng.normal(size=(2, 1)), rng.normal(size=30), "squared"),
        LastLayer(x, x @ rng.normal(size=(2, 3)), rng.integers(0, 2, (30, 3)), "logistic"),
    ):
        assert "nearest_class" not in audit(found).table


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"] * 20,
        np.array(["a", "b"] * 20),
        pd.Series(["a", "b"] * 20, index=range(100, 140), name="site"),
        pd.Categorical(["a", "b"] * 20),
        pd.Series(pd.Categorical(["a", "b"] * 20)),
        pd.Series(["a", "b"] * 20, dtype="string"),
        tuple(["a", "b"] * 20),
    ],
    ids=["list", "array", "series", "categorical", "categories", "string", "tuple"],
)
def test_a_group_per_record(values):
    column = audit(layer(), groups=values).table["group"]
    assert column.tolist() == ["a", "b"] * 20  # by place, whatever the index
    assert column.dtype == pd.Series(["a"]).dtype


def test_several_groups():
    ages = np.arange(40) // 10
    frame = pd.DataFrame({"site": ["x", None] * 20, "age": ages}, index=range(7, 47))
    for groups in (frame, {"site": frame["site"], "age": torch.from_numpy(ages)}):
        table = audit(layer(), groups=groups).table
        assert table["group_site"].isna().tolist() == [False, True] * 20
        assert np.array_equal(table["group_age"], ages)
        assert list(table.columns[3:5]) == ["group_site", "group_age"]
    yes = audit(layer(), groups={"old": ages > 2}).table["group_old"]
    assert yes.dtype == bool


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (["a"] * 39, r"groups: expected a value for each of 40 records, got shape \(39,\)"),
        ({"site": ["a"] * 41}, r"groups\['site'\]: expected a value for each of 40"),
        ("a" * 40, "groups: expected a value per record, got str"),
        (3, "groups: expected a value per record, got int"),
        (np.zeros((40, 2)), r"got shape \(40, 2\)"),
        ([["a"]] * 40, r"groups: "),
        (["a", 1] * 20, "groups: its values are of kind mixed"),
        ([b"a"] * 40, "groups: its values are of kind bytes"),
        ({3: ["a"] * 40}, "groups: 3 is no name of a group"),
        ({}, "groups: there is none in it"),
    ],
)
def test_groups_that_are_none(groups, message):
    with pytest.raises(InputError, match=message):
        audit(layer(), groups=groups)


def test_ids_name_every_record():
    with pytest.raises(InputError, match="ids: none in rows 1, 3, 5, 7, 9 and 15 more"):
        audit(layer(), ids=["a", None] * 20)
    with pytest.raises(InputError, match="ids: expected a name for each record"):
        audit(layer(), ids=3)


def test_class_names_are_kept_by_class():
    names = ["zero", "one", "two", "three"]
    wanted = {"0": "zero", "1": "one", "2": "two", "3": "three"}
    assert audit(layer(), class_names=names).metadata["class_names"] == wanted
    assert audit(layer(), class_names={2: "two"}).metadata["class_names"] == {"2": "two"}
    assert audit(layer()).metadata["class_names"] is None
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), np.array(["b", "a"] * 15)
    for model in (LogisticRegression(), RidgeClassifier()):
        found = audit(model.fit(x, y), (x, y), class_names=["Anna", "Bert"]).metadata["class_names"]
        assert found == {"a": "Anna", "b": "Bert"}
    several = LastLayer(x, x, rng.integers(0, 2, (30, 2)), "logistic")
    assert audit(several, class_names=["p", "q"]).metadata["class_names"] == {"0": "p", "1": "q"}
    for given, message in (
        (["a", "b"], r"class_names: 2 for 4 classes \(0, 1, 2, 3\)"),
        ("abcd", "class_names: 1 for 4 classes"),
        ({9: "nine"}, "class_names: 9 is not a class"),
    ):
        with pytest.raises(InputError, match=message):
            audit(layer(), class_names=given)
    with pytest.raises(InputError, match="class_names: the targets are values"):
        audit(LinearRegression().fit(x, x[:, 0]), (x, x[:, 0]), class_names=["a"])


@pytest.mark.parametrize(
    ("groups", "wanted"),
    [
        ([True, None] * 20, ["True", None]),
        (pd.array([True, None] * 20, dtype="boolean"), ["True", None]),
        (np.array([True, False] * 20, dtype=object), ["True", "False"]),
        (pd.array([1, 2] * 20, dtype="Int64"), [1, 2]),
        (np.array([1, 2.5] * 20, dtype=object), [1.0, 2.5]),
    ],
)
def test_groups_that_came_as_objects_can_be_saved(groups, wanted, tmp_path):
    found = audit(layer(), groups=groups)
    assert as_it_is(found) == wanted
    for name in ("a.parquet", "a.csv"):
        assert as_it_is(Audit.load(found.save(tmp_path / name))) == wanted
    layer().save(tmp_path / "l.safetensors", groups=groups)
    assert as_it_is(audit(Bundle.load(tmp_path / "l.safetensors"))) == wanted


def as_it_is(found):
    return [None if pd.isna(value) else value for value in found.table["group"][:2]]


def test_groups_of_whole_numbers_may_be_missing(tmp_path):
    found = audit(layer(), groups=pd.array([1, None] * 20, dtype="Int64"))
    values = Audit.load(found.save(tmp_path / "a.csv")).table["group"]
    assert values[0] == 1.0
    assert values.isna().tolist() == [False, True] * 20
    with pytest.raises(InputError, match="groups: a number is too large"):
        audit(layer(), groups=[2**70 + k for k in range(40)])


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        ([(k, "a") for k in range(40)], "mixed"),
        ([uuid.UUID(int=k) for k in range(40)], "mixed"),
        ([b"%d" % k for k in range(40)], "bytes"),
        ([1, "1", *range(2, 40)], "mixed-integer"),
        ([2**70 + k for k in range(40)], "integer"),
        (pd.date_range("2026", periods=40).date, "date"),
    ],
)
def test_ids_that_no_file_holds_are_refused_before_the_work(ids, kind):
    with pytest.raises(InputError, match=rf"ids: they are of kind {kind}; pass text"):
        audit(layer(), ids=ids)


def test_ids_may_be_a_tensor():
    assert audit(layer(), ids=torch.arange(40) + 7).table["id"].tolist() == list(range(7, 47))


def test_an_index_of_several_levels_is_refused_before_the_work(tmp_path):
    rng = np.random.default_rng(0)
    x, y = pd.DataFrame(rng.normal(size=(30, 2)), columns=["a", "b"]), np.array([0, 1] * 15)
    pairs = x.set_axis(pd.MultiIndex.from_arrays([range(30), range(30)]))
    model = LogisticRegression().fit(x, y)
    for work in (audit, lambda *given: last_layer(*given).save(tmp_path / "l.safetensors")):
        with pytest.raises(InputError, match=r"ids: they are of kind mixed.*reset_index"):
            work(model, (pairs, y))
    assert audit(model, (pairs, y), ids=range(30)).table["id"].tolist() == list(range(30))
