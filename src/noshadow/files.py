"""Files that are either whole or not there: written under a temporary name, synced, renamed."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path``; on success it is synced and takes its place, on failure it is removed."""
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, content.encode("utf-8"))


def file_digest(path: str | os.PathLike[str], algorithm: str = "sha256") -> str:
    """The digest of a file's bytes, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
