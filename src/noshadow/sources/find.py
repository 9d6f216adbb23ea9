"""The table of a path, of several, or of chunks: by what is there, never by a guess at an order."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from noshadow.errors import FileError, InputError
from noshadow.sources.chunks import ChunksTable
from noshadow.sources.csr import CsrTable
from noshadow.sources.flat import Flat, npy_table, tensors_header, tensors_table
from noshadow.sources.parquet import ParquetTable, parquet_columns, parquet_names
from noshadow.sources.rows import NAMES, OPTIONAL
from noshadow.sources.tables import Shards, Table

__all__ = ["FORMATS", "Format", "find_table", "format_of", "numbered", "one_shard"]

_ALL = (*NAMES, *OPTIONAL)
_NEARLY = 0.8  # likeness of two names, of 1
_REMEDY = "pass a list of the shards in their order"
_OF = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True)
class Format:
    """A kind of file that holds a shard.

    open    the table of a file, with those of the named arrays that it has
    names   what a file calls all that it holds, so that arrays that are not read can be told of
    beside  those of the named columns, ids and groups of any type, that a file has beside its arrays; None: it has none
    """

    open: Callable[[Path, Sequence[str]], Table]
    names: Callable[[Path], list[str]]
    beside: Callable[[Path, Sequence[str]], dict[str, Any]] | None = None


FORMATS: dict[str, Format] = {
    ".safetensors": Format(tensors_table, lambda path: list(tensors_header(path)[0])),
    ".parquet": Format(ParquetTable, parquet_names, parquet_columns),
}
"""By suffix, in lower case."""


def format_of(path: Path) -> Format | None:
    """The format of a file, by its suffix in whatever case; None: it is of none that holds a shard."""
    return FORMATS.get(path.suffix.lower())


def find_table(records: Any) -> Table:
    """What ``LastLayer.open`` was given, as one table."""
    if isinstance(records, (Flat, Shards, CsrTable)):
        return records
    if _is_shard(records):
        path = records if isinstance(records, Mapping) else Path(records)
        if isinstance(path, Path) and path.is_dir():
            if not _is_npy_folder(path):
                return _joined([one_shard(shard) for shard in _shards_of(path)])
            _refuse_both(path)
        return one_shard(path)
    if isinstance(records, (list, tuple)) and records and all(map(_is_shard, records)):
        return _joined([one_shard(shard) for shard in records])
    if isinstance(records, Iterable) and not isinstance(records, (str, bytes)):
        return ChunksTable(records)
    raise InputError(
        f"records: expected a path, a list of paths or chunks that can be read again and again, got "
        f"{type(records).__name__}"
    )


def one_shard(shard: Any) -> Table:
    """A file of one of ``FORMATS``, a folder with an .npy file for each array, or a mapping from array to .npy."""
    if isinstance(shard, Mapping):
        unknown = [name for name in shard if name not in _ALL]
        if unknown:
            raise InputError(f"records: {unknown[0]!r} is none of {', '.join(_ALL)}")
        return npy_table({name: Path(path) for name, path in shard.items()}, str(next(iter(shard.values()))))
    path = Path(shard)
    if path.is_dir():
        if not _is_npy_folder(path):
            raise FileError(f"records: {path} has no features.npy, outputs.npy and targets.npy in it")
        _refuse_misnamed(path)
        return npy_table({name: path / f"{name}.npy" for name in _ALL if (path / f"{name}.npy").exists()}, str(path))
    if not path.exists():
        raise FileError(f"records: {path} does not exist")
    kind = format_of(path)
    if kind is not None:
        return kind.open(path, _ALL)
    raise InputError(
        f"records: {path} must be a {' or '.join(FORMATS)} file, or a folder with features.npy, outputs.npy and "
        "targets.npy"
    )


def numbered(names: list[str], where: str) -> list[str]:
    """Names of shards in the order of the numbers in them, of which none is missing: ``part-2`` before ``part-10``,
    ``00001-of-00008`` with seven others."""
    found: dict[int, str] = {}
    for name in names:
        place = _place(name)
        if place is None:
            raise FileError(f"records: {where}: {name} has no number in its name; {_REMEDY}")
        number, total = int(name[place]), _OF.search(name)
        if total and int(total[2]) != len(names):
            raise FileError(f"records: {where}: {name} is one of {int(total[2])} shards, but {len(names)} are there")
        if number in found:
            raise FileError(f"records: {where}: {found[number]} and {name} have the same number; {_REMEDY}")
        found[number] = name
    first = min(found)
    if first > 1:
        raise FileError(f"records: {where}: the first shard is number {first}; those before it are missing")
    for number in range(first, first + len(found)):
        if number not in found:
            raise FileError(f"records: {where}: shard {number} is missing, there are others after it; {_REMEDY}")
    return [found[number] for number in sorted(found)]


def _place(name: str) -> slice | None:
    """Where the number of a shard is in its name: before ``-of-``, or the last there is; None: there is none."""
    found = _OF.search(name) or next(reversed([*re.finditer(r"(\d+)", _without_suffix(name))]), None)
    return None if found is None else slice(*found.span(1))


def _is_shard(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(isinstance(path, (str, os.PathLike)) for path in value.values())
    return isinstance(value, (str, os.PathLike))


def _is_npy_folder(path: Path) -> bool:
    return any((path / f"{name}.npy").exists() for name in NAMES)


def _shards_of(folder: Path) -> list[Path]:
    entries = [one for one in folder.iterdir() if not one.name.startswith(".")]
    shards = [one for one in entries if _holds_records(one)]
    if not shards:
        raise FileError(
            f"records: {folder} holds no shards: neither {' nor '.join(FORMATS)} files, nor features.npy, outputs.npy "
            "and targets.npy"
        )
    _refuse_unfinished(folder, entries, shards)
    if len(shards) == 1 and "-of-" not in shards[0].name:
        return shards
    names = numbered([one.name for one in shards], str(folder))
    _refuse_others(folder, names)
    return [folder / name for name in names]


def _holds_records(path: Path) -> bool:
    return format_of(path) is not None or (path.is_dir() and _is_npy_folder(path))


def _without_suffix(name: str) -> str:
    """The name of a file without its kind; of a folder, ``part.0``, all of it."""
    path = Path(name)
    return name if format_of(path) is None else path.stem


def _refuse_both(folder: Path) -> None:
    """Arrays beside shards: whichever were taken, the records of the others would be left out."""
    shards = sorted(one.name for one in folder.iterdir() if not one.name.startswith(".") and _holds_records(one))
    if shards:
        raise FileError(
            f"records: {folder} holds both .npy arrays and shards ({shards[0]}); pass the folder of the arrays alone, "
            "or a list of the shards in their order"
        )


def _refuse_misnamed(folder: Path) -> None:
    """An array whose name is nearly one that is looked for would be left out: weights, and the layer unweighted."""
    for path in sorted(folder.glob("*.npy")):
        meant = get_close_matches(path.stem.lower(), _ALL, 1, _NEARLY)
        if meant and path.stem not in _ALL and not (folder / f"{meant[0]}.npy").exists():
            raise FileError(
                f"records: {path} is not read; rename it to {meant[0]}.npy if it is that array, or move it elsewhere"
            )


def _refuse_unfinished(folder: Path, entries: list[Path], shards: list[Path]) -> None:
    """A folder that is named as shards are and holds none of their arrays, a link of such a name that leads nowhere, or
    ``part-2.parquet.tmp`` without ``part-2.parquet``: a copy that was interrupted. Left out, it would be missed only
    where others come after it."""
    folders = {_pattern(one.name) for one in shards if one.is_dir()}
    files = {_pattern(one.name) for one in shards if not one.is_dir()}
    for one in sorted(entries):
        if one in shards:
            continue
        if (one.is_dir() or not one.exists()) and _pattern(one.name) in folders:
            raise FileError(
                f"records: {folder}: {one.name} is named as a shard and holds no features.npy, outputs.npy and "
                "targets.npy; copy it again, or remove it if it is none"
            )
        if _pattern(one.stem) in files and not one.with_suffix("").exists():
            raise FileError(
                f"records: {folder}: {one.name} is there and {one.stem} is not: a copy that was interrupted; finish "
                "it, or remove it if it is none"
            )


def _refuse_others(folder: Path, names: list[str]) -> None:
    """``held_out-1`` beside ``train-0``, ``epoch2-1`` beside ``epoch3-0``: numbers would make one layer of them, and
    only one has its records."""
    first = names[0]
    for name in names[1:]:
        if _pattern(_without_suffix(name)) != _pattern(_without_suffix(first)):
            what = "differ in more than their numbers"
        elif _but_the_number(name) != _but_the_number(first):
            what = "differ in another number than that of the shard"
        else:
            continue
        raise FileError(
            f"records: {folder}: {first} and {name} {what}, so that they need not be of one layer; {_REMEDY}"
        )


def _but_the_number(name: str) -> list[int]:
    """The other numbers in the name of a shard."""
    place = _place(name)
    rest = name if place is None else f"{name[: place.start]}#{name[place.stop :]}"
    return [int(number) for number in re.findall(r"\d+", _without_suffix(rest))]


def _pattern(name: str) -> str:
    """The name without its numbers."""
    return re.sub(r"\d+", "#", name)


def _joined(parts: list[Table]) -> Table:
    """Shards without rows say nothing of their columns and are left out; if none has rows, the first stands for all."""
    full = [part for part in parts if part.n] or parts[:1]
    return full[0] if len(full) == 1 else Shards(tuple(full))
