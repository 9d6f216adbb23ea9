"""Kept results: arrays and facts in one file, with a checksum over every bit and an identity of what they are of.

A file is in the safetensors format, so that anything that reads that format reads it. Its metadata hold

    format    the number of this layout
    identity  JSON: all that the content is a function of (data, options, versions)
    facts     JSON: what is kept beside the arrays
    sha256    of all bytes of the file, with these 64 digits taken as zeros

A file is taken back only if it is whole and of the very thing that is asked for; else the work is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.files import write_bytes

__all__ = [
    "FORMAT",
    "ZEROS",
    "Arrays",
    "Artefact",
    "UnusableArtefact",
    "digest_position",
    "read_artefact",
    "text_of",
    "write_artefact",
]

FORMAT = "1"
Arrays = dict[str, NDArray[Any]]
_MARK = b'"sha256":"'  # a quotation mark inside of metadata is escaped, so that these bytes stand there once
ZEROS = b"0" * 64
"""What stands in the place of the checksum while it is taken."""


class UnusableArtefact(ValueError):
    """The file is not whole, or is of something else; the message says which."""


@dataclass(frozen=True, eq=False)
class Artefact:
    """What was kept."""

    arrays: Arrays
    facts: Any
    identity: Any


def write_artefact(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], identity: Any, facts: Any = None
) -> None:
    """Keep arrays and facts; when this returns they are on the disk, whole."""
    metadata = {"format": FORMAT, "identity": text_of(identity), "facts": text_of(facts), "sha256": ZEROS.decode()}
    from safetensors.numpy import save  # here: a layer in memory does without

    content = save({name: np.asarray(array, order="C") for name, array in arrays.items()}, metadata)
    start = digest_position(content)
    write_bytes(path, content[:start] + hashlib.sha256(content).hexdigest().encode() + content[start + 64 :])


def read_artefact(path: str | os.PathLike[str], identity: Any) -> Artefact:
    """What was kept. ``FileNotFoundError``: nothing; ``UnusableArtefact``: a damaged file, or another identity."""
    content = Path(path).read_bytes()
    start = digest_position(content)
    digest = hashlib.sha256(content[:start])
    digest.update(ZEROS)
    digest.update(memoryview(content)[start + 64 :])
    if content[start : start + 64] != digest.hexdigest().encode():
        raise UnusableArtefact("it fails its checksum")
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        found, facts = json.loads(metadata["identity"]), json.loads(metadata["facts"])
        arrays = load(content)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UnusableArtefact(f"it cannot be read: {error}") from error
    if metadata.get("format") != FORMAT:
        raise UnusableArtefact(f"it has format {metadata.get('format')}, this version reads {FORMAT}")
    if metadata["identity"] != text_of(identity):
        raise UnusableArtefact(f"it is of something else: {found}")
    return Artefact(arrays, facts, found)


def digest_position(content: bytes) -> int:
    """Where the digits of the checksum start."""
    header = content[: 8 + int.from_bytes(content[:8], "little")]
    position = header.find(_MARK)
    if position < 0:
        raise UnusableArtefact("it has no checksum")
    return position + len(_MARK)


def text_of(value: Any) -> str:
    """A value as the metadata have it."""
    return json.dumps(value, sort_keys=True)
