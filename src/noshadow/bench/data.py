"""The data sets of the settings: from a folder that the user names, else from the public source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.errors import InputError

Arrays = dict[str, NDArray[Any]]


def load_arrays(name: str, folder: Path | None, cache: Path, at_least: int) -> Arrays:
    """The arrays of a data set."""
    assert folder is not None
    if name == "california_housing":
        return _npz(folder / "california_housing.npz")
    if name == "energy_efficiency":
        frame = pd.read_csv(folder / "energy_efficiency.csv")
        values = frame.to_numpy(dtype=np.float64)
        return {"X": values[:, :8], "y": values[:, 8]}
    if name in ("cifar10", "cifar100"):
        return _npz(folder / f"{name}_10k.npz")
    if name == "bloodmnist":
        return _npz(folder / "bloodmnist_train.npz")
    if name == "sst2":
        frame = pd.read_csv(folder / "sst2_train.tsv.gz", sep="\t", quoting=3, keep_default_na=False)
        return {"sentence": frame["sentence"].to_numpy(dtype=object), "label": frame["label"].to_numpy()}
    raise InputError(f"data: {name!r} is not a data set")


def _npz(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}
