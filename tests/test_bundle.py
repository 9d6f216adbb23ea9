"""A layer with all that an audit of it takes: the file alone gives the answer that the model gives."""

from __future__ import annotations

import json
import stat
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from noshadow import Bundle, InputError, LastLayer, NoshadowWarning, Trace, audit, last_layer
from noshadow.sources.saved import IDENTITY
from noshadow.sources.tensor_files import Written, write_tensors


def network(seed, data, epochs=30, trace=None):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
        if trace is not None:
            trace.update(model, data)
    return model


@pytest.fixture(scope="module")
def trained():
    """Two networks of one recipe, the trace of the first, its records and others."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(240, 5, generator=rng), torch.randint(0, 3, (240,), generator=rng)
    data, others, trace = (x[:120], y[:120]), (x[120:], y[120:]), Trace()
    return network(0, data, trace=trace), network(1, data), data, others, trace


IDS = [f"patient {k}" for k in range(120)]
GROUPS = {"site": ["north", "söuth", None] * 40, "age": np.arange(120) % 7}
NAMES = ["ant", "bee", "cow"]


def same(one, other, but=("date", "provenance")):
    pd.testing.assert_frame_equal(one.table, other.table, check_exact=True)
    assert {k: v for k, v in one.metadata.items() if k not in but} == {
        k: v for k, v in other.metadata.items() if k not in but
    }
    assert one.notes == other.notes


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    model, again, data, others, trace = trained
    path = tmp_path_factory.mktemp("bundle") / "layer.safetensors"
    last_layer(model, data, optimizer="sgd", weight_decay=1e-3).save(
        path,
        ids=IDS,
        trace=trace,
        groups=GROUPS,
        held_out=last_layer(model, others),
        rerun=(last_layer(again, data), last_layer(again, others)),
        class_names=NAMES,
    )
    return path


def test_the_file_gives_the_answer_of_the_model(trained, saved):
    model, again, data, others, trace = trained
    wanted = audit(
        model,
        data,
        IDS,
        optimizer="sgd",
        weight_decay=1e-3,
        groups=GROUPS,
        class_names=NAMES,
        trace=trace,
        rerun=again,
        held_out=others,
    )
    assert wanted.metadata["calibration"]["source"] == "rerun"
    bundle = Bundle.load(saved)
    found = audit(bundle)
    same(wanted, found)
    ours, theirs = wanted.metadata["provenance"], found.metadata["provenance"]
    assert (ours["weights_sha256"], ours["data_sha256"]) == (theirs["weights_sha256"], theirs["data_sha256"])
    assert theirs["file"]["data_sha256"] == ours["data_sha256"]
    assert theirs["file"]["versions"]["torch"] == torch.__version__
    assert {"sha256", "date"} <= set(theirs["file"])
    assert ours["file"] is None
    same(audit(last_layer(model, data)), audit(model, data), but=("date",))


def test_the_layer_alone_still_loads(trained, saved):
    layer = LastLayer.load(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        model, _, data, _, _ = trained
        plain = audit(model, data, optimizer="sgd", weight_decay=1e-3)
    pd.testing.assert_frame_equal(audit(layer).table, plain.table, check_exact=True)
    assert layer.origin.features == "trained"  # and is not taken for a converged head on fixed features


def test_what_the_file_holds(saved):
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    tensors = load_file(saved)
    assert {"held_out.outputs", "held_out.targets", "rerun.outputs", "rerun.held_out.outputs"} <= set(tensors)
    assert not any("features" in name for name in tensors if name != "features")  # those of others stay at home
    with safe_open(saved, "pt") as file:
        text = json.dumps(file.metadata())
    assert "patient" not in text
    assert "north" not in text


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(C=0.5, tol=1e-8),
        make_pipeline(StandardScaler(), LogisticRegression()),
        MLPClassifier((4,), max_iter=30, random_state=0),
        RidgeClassifier(),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b", "c"], [10, 20, 40]])
def test_estimators_keep_their_labels_and_their_index(model, classes, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), index=[f"r{k}" for k in range(60)], columns=list("abc"))
    y = pd.Series(np.array(classes)[rng.integers(0, len(classes), 60)], index=frame.index)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(frame, y)
        wanted = audit(model, (frame, y), class_names=[f"<{one}>" for one in classes])
        last_layer(model, (frame, y)).save(tmp_path / "l.safetensors", class_names=[f"<{one}>" for one in classes])
        same(wanted, audit(Bundle.load(tmp_path / "l.safetensors")))


def test_values_and_a_rerun_without_held_out_records(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3))
    y = x @ rng.normal(size=3) + rng.normal(size=50)
    layer = last_layer(Ridge(1.0).fit(x, y), (x, y))
    again = LastLayer(x, layer.outputs.numpy() + 0.1 * rng.normal(size=(50, 1)), y, "squared")
    layer.save(tmp_path / "l.safetensors", rerun=again, ids=np.arange(50, 100))
    same(audit(layer, ids=np.arange(50, 100), rerun=again), audit(Bundle.load(tmp_path / "l.safetensors")))


def test_losses_alone_and_outputs_that_were_never_read(trained, tmp_path):
    model, _, data, _, _ = trained
    layer = last_layer(model, data)
    losses = np.random.default_rng(0).exponential(size=(4, 120))
    outputs = np.random.default_rng(1).normal(size=(4, 120, 3))
    for trace in (losses, Trace.from_outputs(outputs)):
        layer.save(tmp_path / "l.safetensors", trace=trace)
        same(audit(layer, trace=trace), audit(Bundle.load(tmp_path / "l.safetensors")))


def test_what_is_there_already_is_not_passed_again(saved):
    bundle = Bundle.load(saved)
    for name, value in {"ids": IDS, "trace": np.ones((2, 120)), "groups": GROUPS, "class_names": NAMES}.items():
        with pytest.raises(InputError, match=f"{name}: the saved layer holds it already; leave it out"):
            audit(bundle, **{name: value})


def test_what_belongs_to_another_layer_is_not_saved(trained, tmp_path):
    model, again, data, others, _ = trained
    layer, path = last_layer(model, data), tmp_path / "l.safetensors"
    for given, message in (
        ({"ids": ["a"]}, "ids: 1 names for 120 records"),
        ({"groups": [1]}, "groups: expected a value for each of 120"),
        ({"trace": np.ones((3, 7))}, "trace: expected shape"),
        ({"held_out": others}, "held_out: the model is a LastLayer; pass a LastLayer"),
        ({"held_out": layer}, "held_out: 120 of its 120 records are training records"),
        ({"rerun": layer}, "rerun: it gives the same outputs"),
        ({"rerun": last_layer(again, others)}, "rerun: its records are not those of the model"),
        ({"class_names": ["a"]}, "class_names: 1 for 3 classes"),
        ({"groups": pd.date_range("2020", periods=120)}, "groups: its values are of kind datetime; pass text"),
    ):
        with pytest.raises(InputError, match=message):
            layer.save(path, **given)
    assert not path.exists()


def test_no_bit_can_be_flipped(saved, flip_bits):
    def accepted():
        try:
            Bundle.load(saved)
        except InputError:
            return False
        return True

    assert flip_bits(saved, accepted) == 0


def hostile(path, saved, facts=None, about=None, tensors=None):
    """The file with other facts or tensors, and a checksum that is right: anybody can write one."""
    with safe_open(saved, "pt") as file:
        held = json.loads(file.metadata()["facts"])
    held = {**held, **(facts or {})} if isinstance(facts, dict | None) else facts
    if about is not None:
        held["about"] = {**held["about"], **about} if isinstance(about, dict) else about
    arrays = {name: one for name, one in {**load_file(saved), **(tensors or {})}.items() if one is not None}
    written = {name: Written(one.dtype, tuple(one.shape), [one]) for name, one in arrays.items()}
    write_tensors(path, written, IDENTITY, held, "path")
    return path


@pytest.mark.parametrize(
    "change",
    [
        {"facts": ["a"]},
        {"facts": {"head": "hinge"}},
        {"facts": {"head": 3}},
        {"facts": {"bias": "yes"}},
        {"facts": {"ridge": True}},
        {"facts": {"ridge": -1.0}},
        {"facts": {"ridge": float("nan")}},
        {"facts": {"sample_weight": 1}},
        {"about": ["a"]},
        {"about": {"columns": [["id", "object"]]}},
        {"about": {"columns": [["id", ["text"]]]}},
        {"about": {"columns": [["nothing", "text"]]}},
        {"about": {"columns": "text"}},
        {"about": {"classes": ["a"]}},
        {"about": {"classes": ["a", "b", "c", "d"]}},
        {"about": {"classes": {"a": 1}}},
        {"about": {"features": "mine"}},
        {"about": {"features": 3}},
        {"about": {"model": ["x"]}},
        {"about": {"notes": "x"}},
        {"about": {"trace": {}}},
        {"about": {"trace": {"epochs": "x", "head": None, "label_smoothing": 0.0}}},
        {"about": {"trace": {"epochs": 3, "head": 7, "label_smoothing": None}}},
        {"about": {"class_names": ["a"]}},
        {"about": {"class_names": {"9": "x"}}},
        {"tensors": {"record.id.ends": torch.full((120,), 10**15)}},
        {"tensors": {"record.id.ends": torch.arange(120, 0, -1)}},
        {"tensors": {"record.id.ends": torch.zeros(3, dtype=torch.int64)}},
        {"tensors": {"record.id.text": torch.full((1210,), 255, dtype=torch.uint8)}},
        {"tensors": {"record.group_site.missing": torch.tensor([10**9])}},
        {"tensors": {"record.group_age": torch.zeros(7, dtype=torch.int64)}},
        {"tensors": {"record.group_age": torch.zeros(120)}},
        {"tensors": {"held_out.outputs": torch.zeros(4, 3, dtype=torch.float64)}},
        {"tensors": {"held_out.outputs": torch.full((120, 3), float("nan"), dtype=torch.float64)}},
        {"tensors": {"held_out.targets": torch.full((120,), 9)}},
        {"tensors": {"held_out.targets": None}},
        {"tensors": {"rerun.outputs": torch.zeros(120, 2, dtype=torch.float64)}},
        {"tensors": {"trace.mean_outputs": torch.zeros(120, 2)}},
        {"tensors": {"trace.rest": torch.zeros(1, dtype=torch.int16)}},
        {"tensors": {"trace.average": torch.zeros(7, dtype=torch.float64)}},
        {"tensors": {"trace.kept": torch.zeros(1)}},
        {"tensors": {"trace.marks": torch.zeros(120, dtype=torch.int64)}},
        {"tensors": {"features": torch.full((120, 16), float("inf"))}},
        {"tensors": {"features": torch.zeros(3, 16)}},
        {"tensors": {"outputs": torch.zeros(120, 0)}},
        {"tensors": {"targets": torch.full((120,), 99)}},
        {"tensors": {"coefficients": torch.zeros(2, 2)}},
        {"tensors": {"class_weight": torch.full((3,), -1.0)}},
        {"tensors": {"features": torch.zeros(10**12, 0), "outputs": torch.zeros(10**12, 0)}},
    ],
    ids=str,
)
def test_a_hostile_file_is_refused_in_a_sentence(saved, tmp_path, change):
    path = hostile(tmp_path / "h.safetensors", saved, **change)
    with pytest.raises(InputError) as caught:
        audit(Bundle.load(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
