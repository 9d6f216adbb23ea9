"""A folder that keeps what a run has done: a file for each block or sum of blocks, with a checksum over every bit.

It belongs to one layer and one set of options, told by the digest of the records. What is damaged is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.artefact import UnusableArtefact, read_artefact, write_artefact
from noshadow.errors import FileError, InputError
from noshadow.files import holds_others, private_folder, write_text
from noshadow.layer import LastLayer

__all__ = ["SCHEMA", "Store", "layer_identity"]

SCHEMA = 3
"""Raised when the same names mean something else, or when passes sum something else under their names."""
_ROWS = 65_536
_SEVERAL = ("records", "scores", "coefficients")


class Store:
    """The folder of one run; made, or continued if it is of the same run."""

    def __init__(self, folder: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self._identity = json.loads(json.dumps({"noshadow": "scores", "schema": SCHEMA, **identity}))
        manifest = self.folder / "run.json"
        try:
            private_folder(self.folder)
            if not manifest.exists():
                if holds_others(self.folder, manifest.name):
                    raise InputError(f"store: {self.folder} holds other files; name a new folder, or an empty one")
                write_text(manifest, json.dumps(self._identity, indent=2) + "\n")
            there = json.loads(manifest.read_text(encoding="utf-8"))
            other = next((name for name in self._identity if there.get(name) != self._identity[name]), None)
        except OSError as error:
            raise FileError(f"store: {self.folder} cannot be used ({error.strerror or error})") from None
        except (ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise FileError(f"store: {manifest} is damaged; remove the folder, the next run makes it again") from None
        if other is not None:
            what = f"other {other}" if other in _SEVERAL else f"another {other}"
            raise InputError(
                f"store: {self.folder} is of a run with {what}; use another folder, or remove this one to start anew"
            )

    def get(self, name: str) -> dict[str, Tensor] | None:
        """What was kept under that name, if it is whole."""
        try:
            kept = read_artefact(self._path(name), {**self._identity, "of": name})
        except (FileNotFoundError, UnusableArtefact):
            return None
        except OSError as error:
            raise FileError(f"store: {self._path(name)} cannot be read ({error.strerror or error})") from None
        return {key: torch.from_numpy(np.array(array)) for key, array in kept.arrays.items()}

    def keep(self, name: str, arrays: Mapping[str, Tensor]) -> None:
        """When this returns they are on the disk, whole."""
        try:
            write_artefact(
                self._path(name),
                {key: value.detach().cpu().numpy() for key, value in arrays.items()},
                {**self._identity, "of": name},
            )
        except OSError as error:
            raise FileError(
                f"store: {self._path(name)} could not be written ({error.strerror or error}); all that was kept before "
                "is whole: make room or fix the cause, and run again to go on"
            ) from None

    def drop(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._path(name).unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


def layer_identity(layer: LastLayer) -> dict[str, Any]:
    """What the scores of a layer are a function of: its facts, and the SHA-256 of its records, in one pass."""
    hashes = {name: hashlib.sha256() for name in ("features", "outputs", "targets", "sample_weight")}
    for start in range(0, layer.n, _ROWS):
        rows = layer.source.read(slice(start, min(start + _ROWS, layer.n)))
        for name, digest in hashes.items():
            values = getattr(rows, name)
            if values is not None:
                for part in _parts(values):
                    digest.update(_bytes(part))
    described = {name: digest.hexdigest() for name, digest in hashes.items()}
    facts: dict[str, Any] = {"records": [layer.n, layer.n_features, layer.n_outputs, str(layer.precision), described]}
    for name in ("head", "ridge", "bias", "penalize_bias", "label_smoothing"):
        facts[name] = getattr(layer, name)
    for name in ("coefficients", "class_weight"):
        whole = getattr(layer, name)
        facts[name] = None if whole is None else hashlib.sha256(_bytes(whole)).hexdigest()
    return facts


def _parts(values: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors that a tensor consists of."""
    if values.layout != torch.sparse_csr:
        return (values,)
    return values.crow_indices(), values.col_indices(), values.values()


def _bytes(values: Tensor) -> memoryview:
    return values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
