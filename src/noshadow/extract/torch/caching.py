"""The forward pass with a memory on disk: what the last layer sees and gives is written shard by shard, and a pass that
was interrupted goes on where it stopped.

A cache is a folder:

    cache.json               what it is of: the model by the digest of its weights, the layer, the options
    shard-00000.safetensors  features, outputs and possible targets of so many batches, with a checksum over every bit
                             and a digest of the data that they were made from

The data are read in every pass and compared with those digests: only the forward pass is spared. A shard is either
whole and of these data or made again; the first batch always runs, and the first of the first shard that is whole must
give what it gave.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noshadow.artefact import UnusableArtefact
from noshadow.errors import FileError, InputError
from noshadow.extract.torch.batches import Batch, Signature, split
from noshadow.extract.torch.door import Pass
from noshadow.extract.torch.kinds import choose_target
from noshadow.files import holds_others, private_folder, write_text
from noshadow.layer import LastLayer
from noshadow.memory import GIB
from noshadow.passes.blocks import Parts
from noshadow.sources.flat import Flat, tensors_header, tensors_table
from noshadow.sources.tables import Shards
from noshadow.sources.tensor_files import Written, verified_facts, write_tensors

__all__ = ["DTYPES", "SCHEMA", "CachedPass", "data_digest", "model_digest"]

SCHEMA = 1
"""Raised when the same names mean something else, or when shards hold another number of batches."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SHARD_BYTES = 64 * 2**20
_TARGET = "target: "
_CLOSE = (
    1e-3  # between two runs of one model on one batch, relative to the largest output: other devices round otherwise
)


class CachedPass(Pass):
    """What is collected of the head, kept in a folder as it comes."""

    def __init__(
        self,
        model: nn.Module,
        signature: Signature,
        total: int | None,
        layer: str | None,
        output: str | int | None,
        fits: Callable[[int, int, int], object] = lambda *_: None,
        *,
        folder: str | os.PathLike[str],
        dtype: str | None = None,
    ) -> None:
        super().__init__(model, signature, total, layer, output, fits)
        if dtype is not None and dtype not in DTYPES:
            raise InputError(f"cache_dtype: {dtype!r} is not one of {', '.join(map(repr, DTYPES))}")
        self.folder, self.kept_dtype = Path(folder), None if dtype is None else DTYPES[dtype]
        self._asked = {"layer": layer, "output": output, "cache_dtype": dtype}
        self._identity: dict[str, Any] = {}
        self._per_shard = 1
        self.width = (0, 0)
        self._whole: dict[str, Any] | None = (
            None  # the facts of the shard that the next batch belongs to, if it is whole
        )
        self._digest = hashlib.sha256()
        self._parts: dict[str, list[Tensor]] = {}
        self._first_row, self._begun = 0, False
        self._compared = False  # whether the model gives what a whole shard holds
        self._made: list[Path] = []

    def add(self, raw: Any) -> int:
        found = None
        if self.head is None:
            found = self.open(raw)
        elif self.batches % self._per_shard == 0:
            self._begin()
        count = self.fill(raw, found)
        if self.batches % self._per_shard == 0:
            self._end()
        return count

    def open(self, raw: Any) -> tuple[Tensor, Tensor]:
        """Find the head in the first batch, and make or continue the folder; features and outputs of the batch."""
        found = self._checked(split(raw, self.signature).placed(self.device, self.dtype))
        self._open(*found)
        self._begin()
        if self._whole is not None:
            self._require_same_outputs(found[1].cpu())
        return found

    def fill(self, raw: Any, found: tuple[Tensor, Tensor] | None = None) -> int:
        """Add a batch to the shard that was begun: its digest and, if the shard is not whole, what the head gives."""
        batch = split(raw, self.signature)
        self.notes |= dict.fromkeys(batch.notes)
        self._digest.update(data_digest(batch))
        if self._whole is None:
            x, z = found or self._checked(batch.placed(self.device, self.dtype))
            self._collect(x.cpu(), z.cpu(), batch)
        elif not self._compared:  # the shards before it were made again
            self._require_same_outputs(self._checked(batch.placed(self.device, self.dtype))[1].cpu())
        self.rows, self.batches = self.rows + batch.count, self.batches + 1
        return batch.count

    def begin_elsewhere(self, rows: int, batches: int, whole: dict[str, Any] | None) -> None:
        """Stand before a shard that the driver keeps: so many rows and batches come before it."""
        self._digest, self._parts = hashlib.sha256(), {}
        self.rows, self.batches, self._first_row, self._whole = rows, batches, rows, whole
        self._compared = True  # by the driver

    def filled(self) -> tuple[dict[str, Tensor], str]:
        """What the shard that was begun holds, and the digest of its data."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}, self._digest.hexdigest()

    def shards(self, batches: int) -> Iterator[tuple[range, dict[str, Any] | None]]:
        """The batches of each shard of so many, and its facts if it is whole."""
        for start in range(0, batches, self._per_shard):
            yield range(start, min(start + self._per_shard, batches)), self._facts_of(start // self._per_shard)

    def take(self, whole: dict[str, Any] | None, rows: int, batches: int, parts: Parts, data: str) -> None:
        """The next shard, of so many rows and batches, as another process read or made it."""
        self._whole, self._first_row = whole, self.rows
        self._parts = {name: [values] for name, values in parts.items()}
        self.rows, self.batches = self.rows + rows, self.batches + batches
        self._end(data)

    def _require_memory(self, n: int, x: Tensor, z: Tensor) -> None:
        """None is needed: whether there is room is looked at on the disk."""

    def _open(self, x: Tensor, z: Tensor) -> None:
        """The folder, made or continued; refused where it is of something else."""
        kind = self.kept_dtype or x.dtype
        per_row = x.shape[1] * kind.itemsize + z.shape[1] * z.element_size()
        self.width = x.shape[1], z.shape[1]
        self._per_shard = max(1, _SHARD_BYTES // max(1, per_row * len(x)))
        self._identity = {
            "noshadow": "cache",
            "schema": SCHEMA,
            "weights": model_digest(self.model),
            **self._asked,
            "found": [self.layer, self.output],
            "batch_size": len(x),
        }
        manifest = self.folder / "cache.json"
        try:
            private_folder(self.folder)
            if not manifest.exists():
                if holds_others(self.folder, manifest.name):
                    raise InputError(f"cache: {self.folder} holds other files; name a new folder, or an empty one")
                write_text(manifest, json.dumps(self._identity, indent=2) + "\n")
            there = json.loads(manifest.read_text(encoding="utf-8"))
            if not isinstance(there, dict):
                raise ValueError("no mapping")
        except OSError as error:
            raise FileError(f"cache: {self.folder} cannot be used ({error.strerror or error})") from None
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise FileError(f"cache: {manifest} is damaged; remove the folder, the next run makes it again") from None
        self._require_same(there)
        self._require_room(per_row)

    def _require_same(self, there: Mapping[str, Any]) -> None:
        here = json.loads(json.dumps(self._identity))
        other = next((name for name in here if there.get(name) != here[name]), None)
        if other is None:
            return
        remedy = "use another folder, or remove this one"
        if other == "weights":
            raise InputError(
                f"cache: {self.folder} is of another model, its layers or weights are not those of this one; {remedy}"
            )
        if other in ("noshadow", "schema"):
            raise InputError(f"cache: {self.folder} is no cache that this version reads; {remedy}")
        what = "the layer and output" if other == "found" else other
        raise InputError(
            f"cache: {self.folder} was made with another {what}, {there.get(other)} there and {here[other]} here; "
            f"{remedy}"
        )

    def _require_room(self, per_row: int) -> None:
        if self.total is None:
            return
        done = sum(path.stat().st_size for path in self.folder.glob("shard-*.safetensors"))
        needed, free = self.total * per_row - done, shutil.disk_usage(self.folder).free
        if needed > free:
            raise FileError(
                f"cache: what the last layer sees and gives for {self.total:,} records takes {needed / GIB:,.1f} GiB "
                f"more, {free / GIB:,.1f} GiB are free in {self.folder}; use a folder on another disk, or "
                "cache_dtype='bfloat16'"
            )

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.safetensors"

    def _begin(self) -> None:
        self._digest, self._parts, self._first_row, self._begun = hashlib.sha256(), {}, self.rows, True
        self._whole = self._facts_of(self.batches // self._per_shard)

    def _facts_of(self, shard: int) -> dict[str, Any] | None:
        """Those of a shard that is whole; one that is damaged is made again."""
        try:
            facts: dict[str, Any] = verified_facts(self._path(shard), {**self._identity, "shard": shard})
        except (UnusableArtefact, OSError):
            return None
        return facts

    def _collect(self, x: Tensor, z: Tensor, batch: Batch) -> None:
        if (x.shape[1], z.shape[1]) != self.width:
            raise InputError(
                f"model: it gives {z.shape[1]} outputs for {self._where(batch)}, and {self.width[1]} before"
            )
        parts = {"features": x.to(self.kept_dtype or x.dtype), "outputs": z}
        parts |= {f"{_TARGET}{name}": values.cpu() for name, values in batch.candidates.items()}
        for name, values in parts.items():
            self._parts.setdefault(name, []).append(values.clone())

    def _end(self, data: str | None = None) -> None:
        """Keep the shard that the last batch has filled; one that was whole must be of the same data."""
        shard, data, self._begun = (self.batches - 1) // self._per_shard, data or self._digest.hexdigest(), False
        rows = self.rows - self._first_row
        if self._whole is not None:
            if (self._whole["data"], self._whole["rows"]) != (data, rows):
                raise InputError(
                    f"cache: {self.folder} is of other data: records {self._first_row} to {self.rows - 1} (counted "
                    "from 0) are not those that it was made from; pass the same data in the same order, without random "
                    "transforms, or use another folder"
                )
            self.activations &= frozenset(self._whole["activations"])
            return
        facts = {"data": data, "rows": rows, "activations": sorted(self.activations)}
        arrays = {
            name: Written(parts[0].dtype, (sum(map(len, parts)), *parts[0].shape[1:]), parts)
            for name, parts in self._parts.items()
        }
        for name, array in arrays.items():
            if array.shape[0] != rows:
                raise InputError(
                    f"data: {array.shape[0]} rows of {name} for {rows} records, counted from {self._first_row}"
                )
        write_tensors(self._path(shard), arrays, {**self._identity, "shard": shard}, facts, "cache")
        self._made.append(self._path(shard))
        self._parts = {}

    def _require_same_outputs(self, z: Tensor) -> None:
        """Of the batch that a whole shard begins with: those that it holds."""
        table = tensors_table(self._path(self.batches // self._per_shard), ["outputs"])
        kept = table.read(slice(0, min(len(z), table.n)), ["outputs"])["outputs"].to(torch.float64)
        if kept.shape != z.shape or bool((kept - z).abs().max() > _CLOSE * kept.abs().max()):
            for path in self._made:  # they are of this model, and whole
                path.unlink(missing_ok=True)
            where = "the first batch" if not self.batches else f"the batch from record {self.rows} on"
            raise InputError(
                f"cache: for {where} the model gives other outputs than those in {self.folder}, with the same "
                "weights: its code or the data changed; use another folder, or remove this one"
            )
        self._compared = True

    def collected(self) -> tuple[Tensor, Tensor, str | None]:
        """Outputs, of which only the shape is there, and targets of all records."""
        if self._begun:
            self._end()
        self._require_all_rows()
        last = (self.batches - 1) // self._per_shard
        if self._path(last + 1).exists():
            raise InputError(
                f"cache: {self.folder} is of other data: it holds more than these {self.rows} records; pass the same "
                "data, or use another folder"
            )
        flat = [tensors_table(path, list(tensors_header(path)[0])) for path in map(self._path, range(last + 1))]
        self._table = Shards(tuple(flat))
        targets = [name for name in self._table.columns if name.startswith(_TARGET)]
        found = {name.removeprefix(_TARGET): self._table.read(slice(0, self.rows), [name])[name] for name in targets}
        z = torch.zeros(()).expand(self.rows, self.width[1])  # the outputs stay on disk
        target, note = choose_target(found, z, self.signature)
        self._chosen = next(_TARGET + name for name, values in found.items() if values is target)
        return z, target, note

    def made(self, z: Tensor, target: Tensor, **facts: Any) -> LastLayer:
        """The layer, its records in the cache."""
        names = {"features": "features", "outputs": "outputs", "targets": self._chosen}
        parts = []
        for part in self._table.parts:
            assert isinstance(part, Flat)
            parts.append(Flat(part.name, {name: part.arrays[held] for name, held in names.items()}))
        return LastLayer.open(Shards(tuple(parts)), **facts, progress=False)


def model_digest(model: nn.Module) -> str:
    """SHA-256 of a model: what it is made of, and each of its parameters and buffers."""
    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", repr(model)).encode())  # without addresses
    for name, values in [*model.named_parameters(), *model.named_buffers()]:
        _update(digest, name, values)
    return digest.hexdigest()


def data_digest(batch: Batch) -> bytes:
    """SHA-256 of the inputs and possible targets of a batch."""
    digest = hashlib.sha256()
    _walk(digest, "args", batch.args)
    _walk(digest, "kwargs", batch.kwargs)
    _walk(digest, "targets", batch.candidates)
    return digest.digest()


def _walk(digest: Any, name: str, value: Any) -> None:
    if isinstance(value, Tensor):
        _update(digest, name, value)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        _update(digest, name, torch.from_numpy(value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _walk(digest, f"{name}.{key}", inner)
    elif isinstance(value, (tuple, list)):
        digest.update(f"{name} {len(value)}\n".encode())
        for k, inner in enumerate(value):
            _walk(digest, f"{name}.{k}", inner)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        digest.update(f"{name} {value!r}\n".encode())
    else:
        raise InputError(
            f"cache: the data hold a {type(value).__name__}, which cannot be told from another; leave cache out, or "
            "make tensors of it in the Dataset"
        )


def _update(digest: Any, name: str, values: Tensor) -> None:
    digest.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
    plain = values.detach().cpu().contiguous().reshape(-1)
    digest.update(plain.view(torch.uint8).numpy().data)
