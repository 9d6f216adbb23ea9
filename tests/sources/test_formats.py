"""A format of one's own: a class, and a line in the registry."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pytest
import torch

from noshadow import InputError, LastLayer, NoshadowWarning, score
from noshadow.commands.inputs import read_arrays
from noshadow.commands.kinds import kind_of
from noshadow.sources.find import FORMATS, Format
from noshadow.sources.tables import Column

from .test_layers_on_disk import arrays


@dataclass(frozen=True)
class Feather:
    """Read whole, which will do here."""

    path: Path
    names: tuple[str, ...]

    @property
    def name(self):
        return str(self.path)

    @property
    def n(self):
        return feather.read_table(self.path).num_rows

    @property
    def columns(self):
        first = self.read(slice(0, 1), [one for one in self.names if one in names_of(self.path)])
        return {name: Column(values.dtype, tuple(values.shape[1:])) for name, values in first.items()}

    def read(self, rows, names):
        table = feather.read_table(self.path)
        return {name: torch.tensor(table.column(name).to_pylist()[rows], dtype=torch.float64) for name in names}


def names_of(path):
    return feather.read_table(path).column_names


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(FORMATS, ".feather", Format(lambda path, names: Feather(path, tuple(names)), names_of))


def write(path, rows, **more):
    x, z, y = (np.asarray(one) for one in arrays())
    values = {"features": x[rows].tolist(), "outputs": z[rows].tolist(), "targets": y[rows].astype(float).tolist()}
    feather.write_feather(pa.table({**values, **more}), path)
    return path


def test_files_and_folders_of_a_registered_format_are_read(tmp_path, registered):
    expected = score(LastLayer(*arrays(), ridge=1.0))
    for k, rows in enumerate((slice(0, 25), slice(25, 60))):
        write(tmp_path / f"part-{k}.feather", rows)
    (tmp_path / "part-1.feather").rename(tmp_path / "part-1.FEATHER")
    pd.testing.assert_frame_equal(score(LastLayer.open(tmp_path, "softmax", 1.0)), expected, rtol=1e-9)
    with pytest.raises(InputError, match=r"must be a \.safetensors or \.parquet or \.feather file"):
        LastLayer.open(Path(__file__), "softmax")


def test_the_command_line_reads_it_and_tells_of_what_it_leaves_out(tmp_path, registered):
    path = write(tmp_path / "layer.feather", slice(0, 60), weights=[1.0] * 60)
    assert kind_of(path) == "table"
    with pytest.warns(NoshadowWarning, match="what it calls weights is not read"):
        found = read_arrays(path, None, 1.0)
    pd.testing.assert_frame_equal(score(found.layer), score(LastLayer(*arrays(), ridge=1.0)), rtol=1e-9)


def test_ids_and_groups_are_those_of_the_file_where_the_format_has_them(tmp_path, monkeypatch):
    def beside(path, names):
        table = feather.read_table(path)
        return {name: table.column(name).to_pylist() for name in names if name in table.column_names}

    path = write(tmp_path / "layer.feather", slice(0, 60), ids=[f"r{row}" for row in range(60)])
    own = Format(lambda path, names: Feather(path, tuple(names)), names_of, beside)
    monkeypatch.setitem(FORMATS, ".feather", own)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_arrays(path, None, 1.0)
    assert (found.ids[59], found.groups) == ("r59", None)
    monkeypatch.setitem(FORMATS, ".feather", replace(own, beside=None))
    with pytest.warns(NoshadowWarning, match="what it calls ids is not read"):
        assert read_arrays(path, None, 1.0).ids is None


def test_without_it_the_file_is_refused(tmp_path):
    path = write(tmp_path / "layer.feather", slice(0, 60))
    for read in (kind_of, lambda path: LastLayer.open(path, "softmax")):
        with pytest.raises(InputError, match=r"layer.feather (is none of|must be a)"):
            read(path)
