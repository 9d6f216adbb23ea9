"""The data sets of the settings: from a folder that the user names, else from the cache, else from the public source.

Each data set is a few lines in ``DATA_SETS``: the files that hold it, how each is read, and where the public one is.
Archives are read in memory, member by member; nothing is unpacked to disk and nothing is ever unpickled.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.bench.download import DownloadError, check_digest, download
from noshadow.errors import FileError, InputError
from noshadow.files import atomic_path
from noshadow.npz import read_npz

__all__ = ["DATA_SETS", "ENERGY_RANGES", "Arrays", "DataSet", "File", "load_arrays"]

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class File:
    """A file that holds a data set, or a part of it.

    records  how many training records are in it
    digest   SHA-256 of the file as its publisher gives it; "": any file that can be read will do
    """

    name: str
    records: int
    read: Callable[[Path], Arrays]
    digest: str = ""


@dataclass(frozen=True)
class DataSet:
    """Files that are taken where they are found, in this order; the last one is what ``url`` gives."""

    title: str
    files: tuple[File, ...]
    url: str
    size: int
    """Most bytes that ``url`` may give."""
    rows: str
    """The array with a row per training record."""


def load_arrays(name: str, folder: Path | None, cache: Path, at_least: int = 1, progress: bool | None = None) -> Arrays:
    """The arrays of a data set, with ``at_least`` so many training records.

    Looked for in ``folder``, then in ``cache/data``; then fetched from the public source into ``cache/data``.
    """
    if name not in DATA_SETS:
        raise InputError(f"data: {name!r} is not one of {', '.join(DATA_SETS)}")
    if folder is not None and not folder.is_dir():
        raise InputError(f"data: there is no folder {folder}")
    data = DATA_SETS[name]
    whole = data.files[-1]
    if at_least > whole.records:
        raise InputError(f"pool: {at_least:,} records are asked for, {data.title} has {whole.records:,}")
    enough = [file for file in data.files if file.records >= at_least]
    for place in (cache / "data",) if folder is None else (folder, cache / "data"):
        for file in enough:
            if (place / file.name).is_file():
                return _read_local(data, file, place / file.name, at_least)
    (cache / "data").mkdir(parents=True, exist_ok=True)
    try:
        with atomic_path(cache / "data" / whole.name, private=False) as temporary:
            download(data.url, temporary, data.title, data.size, progress)
            check_digest(temporary, whole.digest, data.url)
            return _read(data, whole, temporary, at_least, data.url)
    except DownloadError as error:
        raise FileError(_missing(data, enough, at_least, folder, cache, str(error))) from None


def _read_local(data: DataSet, file: File, path: Path, at_least: int) -> Arrays:
    try:
        check_digest(path, file.digest, str(path))
    except DownloadError as error:
        raise FileError(f"data: {error}; delete the file, or put a whole one in its place") from None
    return _read(data, file, path, at_least, str(path))


def _read(data: DataSet, file: File, path: Path, at_least: int, shown: str) -> Arrays:
    """Read a file that messages call ``shown``."""
    try:
        arrays = file.read(path)
        if data.rows not in arrays:
            raise ValueError(f"it holds {', '.join(arrays)} but no {data.rows}")
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"data: {shown} cannot be read as {data.title}: {error}") from None
    records = len(arrays[data.rows])
    if records < at_least:
        raise InputError(f"pool: {at_least:,} records are asked for, {shown} has {records:,}")
    return arrays


def _missing(
    data: DataSet, files: Sequence[File], at_least: int, folder: Path | None, cache: Path, problem: str
) -> str:
    names = " or ".join(file.name for file in files)
    looked = "none was given" if folder is None else f"now {folder}"
    return (
        f"data: no file with {at_least:,} records of {data.title} is on this machine, and none could be fetched "
        f"({problem}). Put {names} into the folder named with --data or NOSHADOW_DATA ({looked}), "
        f"or into {cache / 'data'}; {files[-1].name} is what {data.url} gives"
    )


def _california_archive(path: Path) -> Arrays:
    """The columns that scikit-learn makes of the 1990 census' totals: averages per household, value in 100,000 USD."""
    with tarfile.open(path, "r:gz") as archive:
        totals = np.loadtxt(_member(archive, "CaliforniaHousing/cal_housing.data"), delimiter=",")
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = totals.T
    columns = {
        "MedInc": income,
        "HouseAge": age,
        "AveRooms": rooms / households,
        "AveBedrms": bedrooms / households,
        "Population": population,
        "AveOccup": population / households,
        "Latitude": latitude,
        "Longitude": longitude,
    }
    return {"X": np.column_stack(list(columns.values())), "y": value / 100_000.0, "feature_names": np.array([*columns])}


ENERGY_RANGES = {
    "X1": (0.62, 0.98),
    "X2": (514.5, 808.5),
    "X3": (245.0, 416.5),
    "X4": (110.25, 220.5),
    "X5": (3.5, 7.0),
    "X6": (2.0, 5.0),
    "X7": (0.0, 0.4),
    "X8": (0.0, 5.0),
    "Y1": (6.01, 43.1),
    "Y2": (10.9, 48.03),
}


def _energy(path: Path) -> Arrays:
    """Eight properties of a building and its heating load; known by shape and ranges: it goes about in many forms."""
    frame = pd.read_csv(path)
    if list(frame.columns) != list(ENERGY_RANGES) or len(frame) != 768:
        raise ValueError(f"expected 768 rows of {', '.join(ENERGY_RANGES)}")
    values = frame.to_numpy(dtype=np.float64)
    for column, (least, most), found in zip(frame.columns, ENERGY_RANGES.values(), values.T, strict=True):
        if not np.allclose([found.min(), found.max()], [least, most]):
            raise ValueError(f"{column} goes from {found.min():g} to {found.max():g}, expected {least:g} to {most:g}")
    return {"X": values[:, :8], "y": values[:, 8]}


def _cifar_archive(path: Path, train: Sequence[str], test: str, labels: int) -> Arrays:
    """The binary version: records of ``labels`` label bytes, the last of them the class, and 3 × 32 × 32 pixels."""

    def records(raw: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(-1, labels + 3072)
        images = rows[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(images), rows[:, labels - 1].copy()

    with tarfile.open(path, "r:gz") as archive:
        x_train, y_train = records(b"".join(_member(archive, name).read() for name in train))
        x_test, y_test = records(_member(archive, test).read())
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def _bloodmnist(path: Path) -> Arrays:
    arrays = read_npz(path, ("train_images", "train_labels"))
    return {"x": arrays["train_images"], "y": arrays["train_labels"].reshape(-1)}


def _sentences(source: Path | IO[bytes], compression: Any = None) -> Arrays:
    frame = pd.read_csv(source, sep="\t", quoting=3, keep_default_na=False, compression=compression)
    return {"sentence": frame["sentence"].to_numpy(dtype=object), "label": frame["label"].to_numpy()}


def _sst2_archive(path: Path) -> Arrays:
    with zipfile.ZipFile(path) as archive, archive.open("SST-2/train.tsv") as file:
        return _sentences(file)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is not a file")
    return file


DATA_SETS = {
    "california_housing": DataSet(
        title="California Housing",
        files=(
            File("california_housing.npz", 20_640, read_npz),
            File(
                "cal_housing.tgz",
                20_640,
                _california_archive,
                "aaa5c9a6afe2225cc2aed2723682ae403280c4a3695a2ddda4ffb5d8215ea681",  # scikit-learn's
            ),
        ),
        url="https://ndownloader.figshare.com/files/5976036",
        size=2**20,
        rows="y",
    ),
    "energy_efficiency": DataSet(
        title="UCI Energy Efficiency",
        files=(
            File("energy_efficiency.csv", 768, _energy),
            File(
                "energy_efficiency_uci.csv",
                768,
                _energy,
                # of the numbers of any copy with two decimals, X6 and X8 whole: so UCI writes them
                "db44dbe453acd464b5cf65be2fb01a28aa9c5b2630300e65fbe28cde35f5d96f",
            ),
        ),
        url="https://archive.ics.uci.edu/static/public/242/data.csv",
        size=39_946,
        rows="y",
    ),
    "cifar10": DataSet(
        title="CIFAR-10",
        files=(
            File("cifar10_10k.npz", 10_000, read_npz),
            File(
                "cifar-10-binary.tar.gz",
                50_000,
                partial(
                    _cifar_archive,
                    train=[f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)],
                    test="cifar-10-batches-bin/test_batch.bin",
                    labels=1,
                ),
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",  # TensorFlow Datasets'
            ),
        ),
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        size=170_052_171,
        rows="y_train",
    ),
    "cifar100": DataSet(
        title="CIFAR-100",
        files=(
            File("cifar100_10k.npz", 10_000, read_npz),
            File(
                "cifar-100-binary.tar.gz",
                50_000,
                partial(
                    _cifar_archive,
                    train=["cifar-100-binary/train.bin"],
                    test="cifar-100-binary/test.bin",
                    labels=2,
                ),
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",  # likewise
            ),
        ),
        url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        size=168_513_733,
        rows="y_train",
    ),
    "bloodmnist": DataSet(
        title="BloodMNIST",
        files=(
            File("bloodmnist_train.npz", 11_959, read_npz),
            File(
                "bloodmnist.npz",
                11_959,
                _bloodmnist,
                "062023e186f537e26b3c21ea3b2614ddfc475e8a14825dfd20663bbb7e37bddc",  # its publisher gives an MD5 only
            ),
        ),
        url="https://zenodo.org/records/10519652/files/bloodmnist.npz",
        size=2**26,
        rows="y",
    ),
    "sst2": DataSet(
        title="SST-2",
        files=(
            File("sst2_train.tsv.gz", 67_349, partial(_sentences, compression="gzip")),
            File(
                "SST-2.zip",
                67_349,
                _sst2_archive,
                "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa",  # Hugging Face Datasets'
            ),
        ),
        url="https://dl.fbaipublicfiles.com/glue/data/SST-2.zip",
        size=7_439_277,
        rows="label",
    ),
}
