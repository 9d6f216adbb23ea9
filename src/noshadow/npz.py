"""Arrays from .npz and .npy files that anyone may have written: only those asked for, and never more than fits.

The header of an array says how large it is. It is read first and compared with the bytes that the archive holds
for it and with the memory that is free, so that neither a header that claims 10¹² numbers nor an archive that
unpacks to terabytes gets a byte of memory. Objects are refused: nothing is ever unpickled.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from noshadow.errors import FileError
from noshadow.memory import GIB, free_memory

__all__ = ["CHUNK", "Arrays", "read_header", "read_npy", "read_npz"]

CHUNK = 2**22
Arrays = dict[str, NDArray[Any]]


def read_npz(
    path: str | os.PathLike[str],
    needed: Sequence[str] | None = None,
    optional: Sequence[str] = (),
    argument: str = "file",
) -> Arrays:
    """The arrays of those names; ``needed=None``: all there are. ``argument`` is what messages call the file."""
    with _explained(path, argument, "an .npz of plain arrays"):
        if not zipfile.is_zipfile(path):
            if _starts_as_npy(path):
                raise FileError(f"{argument}: {path} holds one array; np.savez(file, name=array, …) keeps several")
            raise ValueError("it is no zip archive")
        with zipfile.ZipFile(path) as archive:
            held = {name.removesuffix(".npy"): name for name in archive.namelist() if name.endswith(".npy")}
            missing = [name for name in needed or () if name not in held]
            if missing:
                there = ", ".join(held) or "nothing"
                raise FileError(f"{argument}: {path} has no array {missing[0]!r}; it holds {there}")
            wanted = held if needed is None else [name for name in (*needed, *optional) if name in held]
            infos = {name: archive.getinfo(held[name]) for name in wanted}
            _check_memory(sum(info.file_size for info in infos.values()), path, argument)
            arrays = {}
            for name, info in infos.items():
                with archive.open(info) as file:
                    arrays[name] = _array(file, info.file_size, repr(name))
    return arrays


def read_npy(path: str | os.PathLike[str], argument: str = "file") -> NDArray[Any]:
    """The array of an .npy file."""
    with _explained(path, argument, "an .npy of plain numbers"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_memory(size, path, argument)
        return _array(file, size, "it")


def _array(file: IO[bytes], size: int, name: str) -> NDArray[Any]:
    """One array from a stream of ``size`` bytes, header included."""
    shape, in_columns, dtype, header = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    entries = math.prod(shape)
    if entries * dtype.itemsize != size - header:
        raise ValueError(f"{name} should have {entries * dtype.itemsize:,} bytes and has {size - header:,}")
    flat = np.empty(entries, dtype)
    if flat.nbytes:
        raw, done = flat.view(np.uint8), 0
        while done < len(raw):
            chunk = file.read(min(CHUNK, len(raw) - done))
            if not chunk:
                raise ValueError(f"{name} ends after {done:,} of {len(raw):,} bytes")
            raw[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
            done += len(chunk)
    return flat.reshape(shape[::-1]).T if in_columns else flat.reshape(shape)


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, type, and the bytes that the header takes."""
    counted = _Counted(file)
    version = npy.read_magic(counted)
    if version == (1, 0):
        shape, in_columns, dtype = npy.read_array_header_1_0(counted)
    elif version in ((2, 0), (3, 0)):  # 3.0 differs in that names of fields may be in UTF-8
        shape, in_columns, dtype = npy.read_array_header_2_0(counted)
    else:
        raise ValueError(f"its format {version} is not known")
    return shape, in_columns, dtype, counted.count


class _Counted:
    """Counts what is read from a stream."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.count = 0

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self.count += len(content)
        return content


def _check_memory(size: int, path: str | os.PathLike[str], argument: str) -> None:
    free = free_memory()
    if size > free:
        raise FileError(
            f"{argument}: {path} holds {size / GIB:,.1f} GiB of arrays, {free / GIB:,.1f} GiB of memory are free"
        )


def _starts_as_npy(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        return file.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX


@contextmanager
def _explained(path: str | os.PathLike[str], argument: str, kind: str) -> Iterator[None]:
    """Whatever the zip, the decompressor or the header's parser raise at a damaged file becomes one sentence."""
    if not Path(path).is_file():
        found = "is a folder" if Path(path).is_dir() else "is not a file" if Path(path).exists() else "does not exist"
        raise FileError(f"{argument}: {path} {found}; expected {kind}")
    try:
        yield
    except FileError:
        raise
    except PermissionError:
        raise FileError(f"{argument}: {path} may not be read by this user") from None
    except Exception as error:  # zipfile, zlib, lzma, ast and NumPy each have their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileError(f"{argument}: {path} is not {kind} ({reason[:200]})") from None
