"""Front doors: one table, a line per door, nothing imported for models that nobody has."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from noshadow import InputError, LastLayer, audit
from noshadow.extract import Extracted
from noshadow.extract.doors import DOORS, Door


def saved_layer(path, data, objective, options):
    """What a door for files would do."""
    with np.load(path) as arrays:
        return Extracted(LastLayer(arrays["features"], arrays["outputs"], arrays["targets"], "squared"), path.name)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"features": rng.normal(size=(30, 2)), "outputs": rng.normal(size=(30, 1)), "targets": rng.normal(size=30)}


def test_a_door_is_one_line(tmp_path, monkeypatch, arrays):
    path = tmp_path / "layer.npz"
    np.savez(path, **arrays)
    with pytest.raises(
        InputError, match="model: expected a torch Module, a scikit-learn estimator or a LastLayer, got"
    ):
        audit(path)
    door = Door(lambda model: hasattr(model, "suffix"), f"{__name__}:saved_layer", complete=True)
    monkeypatch.setitem(DOORS, "a file", door)
    expected = audit(LastLayer(**arrays, head="squared"))
    found = audit(path)
    assert found.table.equals(expected.table)
    assert found.metadata["model"] == "layer.npz"
    with pytest.raises(InputError, match=r"^ridge: a file already holds it; pass ridge when it is made"):
        audit(path, ridge=1.0)
    with pytest.raises(InputError, match="a LastLayer or a file, got int"):
        audit(3)


def test_what_goes_with_a_model_that_holds_its_data_holds_its_own(tmp_path, monkeypatch, arrays):
    """Held-out records and a rerun of a file are files, or layers."""
    rng = np.random.default_rng(1)
    arrays["outputs"] = arrays["targets"][:, None] + 0.5 * rng.normal(size=(30, 1))
    others = {**arrays, "targets": arrays["targets"] + rng.normal(size=30)}
    runs = {"a": arrays, "held": others}
    runs |= {
        f"again_{name}": {**one, "outputs": one["outputs"] + 0.1 * rng.normal(size=(30, 1))}
        for name, one in runs.items()
    }
    for name, one in runs.items():
        np.savez(tmp_path / f"{name}.npz", **one)
    door = Door(lambda model: hasattr(model, "suffix"), f"{__name__}:saved_layer", complete=True)
    monkeypatch.setitem(DOORS, "a file", door)
    files = {name: tmp_path / f"{name}.npz" for name in runs}
    layers = {name: LastLayer(**one, head="squared") for name, one in runs.items()}
    for held, again in ((files, files), (layers, files), (files, layers)):
        found = audit(files["a"], held_out=held["held"], rerun=(again["again_a"], again["again_held"]))
        expected = audit(layers["a"], held_out=layers["held"], rerun=(layers["again_a"], layers["again_held"]))
        assert found.metadata["calibration"]["source"] == "rerun"
        assert found.table.equals(expected.table)
    assert audit(files["a"], rerun=files["again_a"]).table.equals(audit(layers["a"], rerun=layers["again_a"]).table)
    with pytest.raises(InputError, match=r"^held_out: .* pass a LastLayer here too, got tuple"):
        audit(files["a"], held_out=(arrays["features"], arrays["targets"]))


def test_a_door_before_another_has_its_models(monkeypatch, arrays):
    layer = LastLayer(**arrays, head="squared")
    first = Door(lambda model: isinstance(model, LastLayer), f"{__name__}:renamed", complete=True)
    others = dict(DOORS)
    monkeypatch.setattr("noshadow.extract.doors.DOORS", {"mine": first, **others})
    assert audit(layer).metadata["model"] == "mine"


def renamed(model, data, objective, options):
    return Extracted(model, "mine")


def test_a_door_that_is_not_complete_needs_data(monkeypatch):
    monkeypatch.setitem(DOORS, "a text", Door(lambda model: isinstance(model, str), f"{__name__}:saved_layer"))
    with pytest.raises(InputError, match=r"^data: pass the training data"):
        audit("model")


def test_to_be_refused_a_model_needs_no_library():
    code = """
import sys
from noshadow.extract.doors import find_door
from noshadow import InputError
try:
    find_door(3)
except InputError:
    print([name for name in ("sklearn", "pandas") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_every_door_opens():
    """The function of each is there; what it does with its models its own tests say."""
    for door in DOORS.values():
        module, _, name = door.function.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))
