"""A layer as a file: its arrays, a row per record, and its facts, with a checksum over every bit.

features  (n, p) as they are stored        coefficients  (n_columns, m), class_weight: where the layer has them
outputs   (n, m) float64                   sample_weight (n,) likewise
targets   (n,) or (n, m)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from noshadow.artefact import UnusableArtefact
from noshadow.errors import FileError, InputError
from noshadow.files import check_output
from noshadow.sources.flat import tensors_table
from noshadow.sources.rows import NAMES, OPTIONAL, Source
from noshadow.sources.tables import Table
from noshadow.sources.tensor_files import Written, verified_facts, write_tensors

__all__ = ["IDENTITY", "SCHEMA", "load_parts", "save_parts"]

SCHEMA = 1
"""Raised when the same names mean something else."""
IDENTITY = {"noshadow": "layer", "schema": SCHEMA}
_WHOLE = ("coefficients", "class_weight")
_CHUNK_BYTES = 16 * 2**20


def save_parts(path: str | os.PathLike[str], source: Source, facts: Mapping[str, Any]) -> None:
    """Keep the records of a source, and the facts of its layer; those that are tensors as tensors."""
    target = check_output(path, (".safetensors",), "path")
    if source.sparse:
        raise InputError("features: they are sparse, and a saved layer holds dense ones; make them dense first")
    first, chunk = source.read(slice(0, 1)), max(1, _CHUNK_BYTES // (8 * (source.n_features + source.n_outputs + 1)))

    def rows_of(name: str) -> Iterator[Tensor]:
        for start in range(0, source.n, chunk):
            yield getattr(source.read(slice(start, min(start + chunk, source.n))), name)

    arrays = {}
    for name in (*NAMES, *OPTIONAL):
        values = getattr(first, name)
        if values is not None:
            arrays[name] = Written(values.dtype, (source.n, *values.shape[1:]), rows_of(name))
    for name in _WHOLE:
        if facts[name] is not None:
            arrays[name] = Written(facts[name].dtype, tuple(facts[name].shape), [facts[name]])
    plain = {name: value for name, value in facts.items() if name not in _WHOLE}
    write_tensors(target, arrays, IDENTITY, plain, "path")


def load_parts(path: str | os.PathLike[str]) -> tuple[Table, dict[str, Any]]:
    """The records and the facts of a file that is whole."""
    file = Path(path)
    try:
        facts = verified_facts(file, IDENTITY)
    except UnusableArtefact as error:
        raise FileError(f"path: {path} is not a layer that this version reads ({error})") from None
    except OSError as error:
        raise FileError(f"path: {path} cannot be read ({error.strerror})") from None
    for name in _WHOLE:
        array = tensors_table(file, (name,), saved=True).arrays.get(name)
        facts[name] = None if array is None else array.read(slice(0, array.n))
    return tensors_table(file, (*NAMES, *OPTIONAL), saved=True), facts
