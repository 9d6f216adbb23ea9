"""Files that are either whole or not there: written under a temporary name, synced, renamed.

Most of what is written says who was in the training data. Files are therefore readable by their owner alone,
whatever the umask and whatever they replace; pages, figures and downloads are written with ``private=False``.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from noshadow.errors import FileError, InputError

__all__ = [
    "EVERYONE",
    "OWNER_ONLY",
    "OWNER_ONLY_FOLDER",
    "atomic_path",
    "check_output",
    "check_writable",
    "file_digest",
    "holds_others",
    "private_folder",
    "write_bytes",
    "write_text",
]

OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700
EVERYONE = 0o666  # less what the umask takes away


@contextmanager
def atomic_path(path: str | os.PathLike[str], private: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path``; on success it is synced and takes its place, on failure it is removed."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.partial")
    try:  # from before it is there: Ctrl-C may come as soon as it is
        _create(temporary, private)
        yield temporary
        if private:
            temporary.chmod(OWNER_ONLY)  # whoever wrote it may have made it anew
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
        _sync_directory(target.parent)
    except BaseException:
        with suppress(OSError):  # there is none, or no folder for it: why is what was raised
            temporary.unlink()
        raise


def write_bytes(path: str | os.PathLike[str], content: bytes, private: bool = True) -> None:
    """Write a file atomically."""
    with atomic_path(path, private) as temporary:
        temporary.write_bytes(content)


def write_text(path: str | os.PathLike[str], content: str, private: bool = True) -> None:
    """Write a UTF-8 text file atomically."""
    write_bytes(path, content.encode("utf-8"), private)


def private_folder(path: str | os.PathLike[str]) -> Path:
    """The folder; where it is not there yet it is made, for its owner alone. One that is there is left as it is."""
    folder = Path(path)
    if not folder.is_dir():
        private_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=OWNER_ONLY_FOLDER)
            folder.chmod(OWNER_ONLY_FOLDER)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, not a folder")
    return folder


def holds_others(folder: Path, manifest: str) -> bool:
    """Whether a folder that has no manifest yet has something else in it. A manifest that is being written by another
    process, or was when its process was killed, is nothing else."""
    unfinished = f".{manifest}.*.partial"
    return any(one.name != manifest and not one.match(unfinished) for one in folder.iterdir())


def check_output(path: str | os.PathLike[str], suffixes: Sequence[str], argument: str = "output") -> Path:
    """The path of a file that is to be written after long work; refused now if it could not be written then."""
    target = Path(path)
    if target.suffix.lower() not in suffixes:
        raise InputError(f"{argument}: {str(path)!r} must end in {' or '.join(suffixes)}")
    if target.is_dir():
        raise InputError(f"{argument}: {str(path)!r} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise InputError(f"{argument}: the folder {str(target.parent)!r} does not exist")
    check_writable(target.parent, argument)
    return target


def check_writable(folder: Path, argument: str) -> None:
    """Refused unless a file can be made in the folder: tried, as rights alone do not tell."""
    trial = folder / f".{secrets.token_hex(6)}.partial"
    try:
        _create(trial, private=True)
        trial.unlink()
    except OSError as error:
        raise FileError(f"{argument}: nothing can be written into {str(folder)!r} ({error.strerror})") from None


def file_digest(path: str | os.PathLike[str], algorithm: str = "sha256") -> str:
    """The digest of a file's bytes, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def _create(path: Path, private: bool) -> None:
    """A new, empty file; never one that is there already, nor what a link points to."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_ONLY if private else EVERYONE))
    if private:
        path.chmod(OWNER_ONLY)  # the umask may have taken the owner's rights too


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
