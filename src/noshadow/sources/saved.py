"""A layer as a file: its arrays, a row per record, and its facts, with a checksum over every bit.

features  (n, p) as they are stored        coefficients  (n_columns, m), class_weight: where the layer has them
outputs   (n, m) float64                   sample_weight (n,) likewise
targets   (n,) or (n, m)

Sparse features are three arrays instead (``noshadow.sources.csr``), and n_features is among the facts.

Others may lie beside them, under names of their own (``noshadow.bundle``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from noshadow.artefact import UnusableArtefact
from noshadow.errors import FileError
from noshadow.files import check_output
from noshadow.memory import require_free_memory
from noshadow.sources.csr import PARTS, CsrTable, csr_written
from noshadow.sources.flat import TYPES, tensors_header, tensors_table
from noshadow.sources.rows import NAMES, OPTIONAL, Source
from noshadow.sources.tables import Table
from noshadow.sources.tensor_files import Written, verified_facts, write_tensors

__all__ = ["IDENTITY", "SCHEMA", "SPARSE_IDENTITY", "Saved", "read_saved", "save_parts"]

SCHEMA = 1
"""Raised when the same names mean something else."""
IDENTITY = {"noshadow": "layer", "schema": SCHEMA}
SPARSE_IDENTITY = {"noshadow": "layer", "schema": 2}
"""Of files whose features are sparse, which versions that know dense ones alone do not read."""
_WHOLE = ("coefficients", "class_weight")
_FACTS: dict[str, tuple[type, ...]] = {
    "head": (str,),
    "ridge": (int, float),
    "bias": (bool,),
    "penalize_bias": (bool,),
    "label_smoothing": (int, float),
}
_SPARSE_FACTS = {**_FACTS, "n_features": (int,)}
_CHUNK_BYTES = 16 * 2**20


def save_parts(
    path: str | os.PathLike[str],
    source: Source,
    facts: Mapping[str, Any],
    beside: Mapping[str, Tensor] | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Keep the records of a source and the facts of its layer; those that are tensors as tensors.

    ``beside`` are other tensors, by names that no array of the layer has; ``about`` other facts.
    """
    target = check_output(path, (".safetensors",), "path")
    width = source.n_outputs if source.sparse else source.n_features + source.n_outputs
    first, chunk = source.read(slice(0, 1)), max(1, _CHUNK_BYTES // (8 * (width + 1)))

    def rows_of(name: str) -> Iterator[Tensor]:
        for start in range(0, source.n, chunk):
            yield getattr(source.read(slice(start, min(start + chunk, source.n))), name)

    arrays = csr_written(source) if source.sparse else {}
    for name in (*NAMES, *OPTIONAL):
        values = getattr(first, name)
        if values is not None and not (source.sparse and name == "features"):
            arrays[name] = Written(values.dtype, (source.n, *values.shape[1:]), rows_of(name))
    whole = {name: facts[name] for name in _WHOLE if facts[name] is not None} | dict(beside or {})
    arrays |= {name: Written(values.dtype, tuple(values.shape), [values]) for name, values in whole.items()}
    plain = {name: value for name, value in facts.items() if name not in _WHOLE}
    plain |= {"n_features": source.n_features} if source.sparse else {}
    identity = SPARSE_IDENTITY if source.sparse else IDENTITY
    write_tensors(target, arrays, identity, {**plain, "about": dict(about or {})}, "path")


@dataclass(frozen=True, eq=False)
class Saved:
    """A file that is whole.

    records  features, outputs, targets and weights, on disk
    facts    of the layer, as ``LastLayer.open`` takes them
    about    the other facts; empty in files that have none
    """

    path: Path
    records: Table
    facts: dict[str, Any]
    about: dict[str, Any]

    def tensor(self, name: str) -> Tensor | None:
        """One of the tensors beside the records, whole; None: it is not there."""
        return _whole(self.path, name)

    def names(self, start: str) -> list[str]:
        """Of the tensors beside the records, those that begin so."""
        return [name for name in tensors_header(self.path)[0] if name.startswith(start)]


def read_saved(path: str | os.PathLike[str]) -> Saved:
    """A layer's file, checked bit for bit, or refused in a sentence."""
    file = Path(path)
    try:
        facts = verified_facts(file, IDENTITY, SPARSE_IDENTITY)
    except UnusableArtefact as error:
        raise FileError(f"path: {path} is not a layer that this version reads ({error})") from None
    except OSError as error:
        raise FileError(f"path: {path} cannot be read ({error.strerror})") from None
    about = facts.pop("about", {}) if isinstance(facts, dict) else None
    sparse = isinstance(facts, dict) and "n_features" in facts
    known = _SPARSE_FACTS if sparse else _FACTS
    if not isinstance(about, dict) or facts.keys() != known.keys():
        raise FileError(f"path: {path} is not a layer that this version reads (its facts are not those of one)")
    for name, kinds in known.items():
        if not isinstance(facts[name], kinds) or (isinstance(facts[name], bool) and bool not in kinds):
            raise FileError(f"path: {path} is not a layer that this version reads (its {name} is {facts[name]!r})")
    records: Table = tensors_table(file, (*NAMES, *OPTIONAL), saved=True)
    if sparse:
        records = _sparse_table(file, facts.pop("n_features"))
    return Saved(file, records, {**facts, **{name: _whole(file, name) for name in _WHOLE}}, about)


def _sparse_table(file: Path, n_features: int) -> CsrTable:
    others = tensors_table(file, (*NAMES[1:], *OPTIONAL), saved=True)
    parts = {name: array for name in PARTS for array in tensors_table(file, (name,), saved=True).arrays.values()}
    if not others.arrays or len(parts) < len(PARTS):
        raise FileError(f"path: {file} is not a layer that this version reads (its features are not all there)")
    return CsrTable(others, parts, n_features)


def _whole(file: Path, name: str) -> Tensor | None:
    found = tensors_header(file)[0].get(name)
    if found is not None:
        size = math.prod(found[1]) * TYPES[found[0]].itemsize
        require_free_memory(float(size), f"path: {name!r} in {file}", "read it on a machine with more memory")
    array = tensors_table(file, (name,), saved=True).arrays.get(name)
    return None if array is None else array.read(slice(0, array.n))
