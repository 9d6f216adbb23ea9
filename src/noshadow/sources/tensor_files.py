"""Kept results of any size: the layout of ``noshadow.artefact``, written and checked some rows at a time."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from noshadow.artefact import FORMAT, ZEROS, UnusableArtefact, digest_position, text_of
from noshadow.errors import FileError
from noshadow.files import atomic_path
from noshadow.sources.flat import LARGEST_HEADER, TYPES, tensors_header

__all__ = ["Written", "verified_facts", "write_tensors"]

_PIECE = 2**22
_CODES = {dtype: code for code, dtype in TYPES.items()}


class Written(NamedTuple):
    """An array that is to be written: its type, its shape, and its rows, some at a time."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: Iterable[Tensor]


def write_tensors(
    path: str | os.PathLike[str], arrays: Mapping[str, Written], identity: Any, facts: Any, argument: str
) -> None:
    """Keep arrays and facts; when this returns they are on the disk, whole. ``argument`` is what messages call it."""
    metadata = {"format": FORMAT, "identity": text_of(identity), "facts": text_of(facts), "sha256": ZEROS.decode()}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + math.prod(array.shape) * array.dtype.itemsize
        header[name] = {"dtype": _CODES[array.dtype], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    try:
        with atomic_path(path) as temporary, open(temporary, "r+b") as file:
            file.write(head)
            for array in arrays.values():
                for part in array.parts:
                    content = _content(part.to(array.dtype))
                    file.write(content)
                    digest.update(content)
            if file.tell() != len(head) + end:
                raise RuntimeError(f"{file.tell() - len(head)} bytes were written where {end} were announced")
            file.seek(digest_position(head))
            file.write(digest.hexdigest().encode())
    except OSError as error:
        raise FileError(
            f"{argument}: {path} could not be written ({error.strerror or error}); nothing half-written is left, make "
            "room or fix the cause, and run again"
        ) from None


def verified_facts(path: str | os.PathLike[str], *identities: Any) -> Any:
    """The facts of a file that is whole and of one of those identities, read piece by piece; else
    ``UnusableArtefact``."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(LARGEST_HEADER, os.fstat(file.fileno()).st_size):
            raise UnusableArtefact("it is truncated, or no safetensors file")
        file.seek(0)
        head = file.read(8 + length)
        start = digest_position(head)
        digest = hashlib.sha256(head[:start] + ZEROS + head[start + 64 :])
        while piece := file.read(_PIECE):
            digest.update(piece)
    if head[start : start + 64] != digest.hexdigest().encode():
        raise UnusableArtefact("it fails its checksum: it is truncated or damaged")
    metadata = tensors_header(Path(path))[1]
    if metadata.get("format") != FORMAT:
        raise UnusableArtefact(f"it has format {metadata.get('format')}, this version reads {FORMAT}")
    if metadata.get("identity") not in [text_of(one) for one in identities]:
        raise UnusableArtefact(f"it is of something else: {metadata.get('identity')}")
    try:
        return json.loads(metadata["facts"])
    except (KeyError, ValueError, RecursionError):
        raise UnusableArtefact("its facts cannot be read") from None


def _content(part: Tensor) -> memoryview:
    return part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
