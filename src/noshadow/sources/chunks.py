"""Records that come in chunks, made anew in each pass: by a loader, a query, a generator behind ``__iter__``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noshadow.errors import InputError
from noshadow.sources.rows import NAMES, OPTIONAL
from noshadow.sources.tables import Column, Columns
from noshadow.sparse import as_csr
from noshadow.tensors import as_tensor

__all__ = ["ChunksTable"]


class ChunksTable:
    """Chunks (features, outputs, targets[, sample_weight]), tuples or mappings, the same ones in every pass.

    The first pass counts the records and keeps a digest of every chunk: a source that gives other records the next time
    (shuffled, augmented, used up) would mix up records, and is refused. Chunks in memory are one or two at a time.
    """

    def __init__(self, chunks: Iterable[Any]) -> None:
        if iter(chunks) is chunks:
            raise InputError(
                f"records: a {type(chunks).__name__} can be read once, and scoring takes several passes; pass an "
                "object whose __iter__ starts from the first chunk again, e.g. a list or a class of your own"
            )
        self._chunks = chunks
        self.name = f"chunks of a {type(chunks).__name__}"
        self.columns: Columns = {}
        self._digests: list[bytes] = []
        self.n = 0
        for k, chunk in enumerate(chunks):
            part = self._named(chunk, k)
            columns = {name: Column(values.dtype, tuple(values.shape[1:])) for name, values in part.items()}
            self.columns = self.columns or columns
            if columns != self.columns:
                name = next(name for name in {**columns, **self.columns} if columns.get(name) != self.columns.get(name))
                raise InputError(
                    f"records: chunk {k} has {name} with {columns.get(name, 'nothing')}, chunk 0 with "
                    f"{self.columns.get(name, 'nothing')}; all chunks must be of the same layer"
                )
            self._digests.append(_digest(part))
            self.n += len(part["features"])
        self._first = 0
        self._held: dict[str, Tensor] = {}
        self._start()

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]:
        if rows.start < self._first:
            self._start()
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        start = rows.start
        while start < rows.stop:
            end = self._first + len(self._held["features"])
            if start < end:
                place = slice(start - self._first, min(rows.stop, end) - self._first)
                for name in names:
                    parts[name].append(self._held[name][place])
                start = min(rows.stop, end)
            else:
                self._first, self._held = end, self._next()
        return {name: part[0] if len(part) == 1 else torch.cat(part) for name, part in parts.items()}

    def _start(self) -> None:
        self._pass = self._again()
        self._first = 0
        self._held = {name: torch.empty((0, *one.shape), dtype=one.dtype) for name, one in self.columns.items()}

    def _next(self) -> dict[str, Tensor]:
        try:
            return next(self._pass)
        except BaseException:
            self._start()  # a pass that broke off is over
            raise

    def _again(self) -> Iterator[dict[str, Tensor]]:
        """Another pass; refused as soon as it differs from the first."""
        k = -1
        for k, chunk in enumerate(self._chunks):
            part = self._named(chunk, k)
            if k >= len(self._digests) or _digest(part) != self._digests[k]:
                raise InputError(
                    f"records: chunk {k} (counted from 0) is not what it was in the first pass; the source must give "
                    "the same records in the same order each time, without shuffling and without random transforms"
                )
            yield part
        raise InputError(f"records: the source gave {k + 1} chunks, and {len(self._digests)} in the first pass")

    def _named(self, chunk: Any, k: int) -> dict[str, Tensor]:
        names = (*NAMES, *OPTIONAL)
        if isinstance(chunk, Mapping):
            values = {str(name): value for name, value in chunk.items()}
        elif isinstance(chunk, (tuple, list)) and len(NAMES) <= len(chunk) <= len(names):
            values = dict(zip(names, chunk, strict=False))
        else:
            values = {}
        if not set(NAMES) <= set(values) <= set(names):
            raise InputError(
                f"records: chunk {k} is not (features, outputs, targets) or (features, outputs, targets, "
                "sample_weight), nor a mapping with those names"
            )
        for name, value in values.items():
            if as_csr(value, name) is not None:
                raise InputError(
                    f"records: chunk {k} has sparse {name}; make them dense, or pass LastLayer(…) the sparse features "
                    "of all records"
                )
        part = {name: as_tensor(value, f"{name} of chunk {k}").cpu() for name, value in values.items()}
        for name, value in part.items():
            rows, expected = (len(one) if one.ndim else None for one in (value, part["features"]))
            if rows is None or rows != expected:
                raise InputError(f"records: chunk {k} has {rows} rows of {name} and {expected} of features")
        return part


def _digest(part: Mapping[str, Tensor]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name, values in sorted(part.items()):
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
