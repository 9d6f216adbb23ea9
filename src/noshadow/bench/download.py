"""A file from a public address: whole and the one that was expected, or not there."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from noshadow._version import __version__
from noshadow.files import file_digest
from noshadow.progress import progress_bar

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5
CHUNK = 2**18


class DownloadError(OSError):
    """A file could not be fetched, or is not the one that was expected."""


def download(url: str, path: Path, title: str, progress: bool | None = None) -> None:
    """Fetch ``url`` into ``path``; a broken connection is taken up again where it stopped, while that gets further."""
    with path.open("wb") as file:
        for _ in range(ATTEMPTS):
            before = file.tell()
            try:
                missing = _receive(url, file, title, progress)
                problem = f"the connection ended {missing:,} bytes early"
            except HTTPError as error:
                raise DownloadError(f"{url}: {error.code} {error.reason}") from None
            except (OSError, HTTPException) as error:
                missing, problem = None, _reason(error)
            if missing == 0:
                return
            if file.tell() <= before:
                break
    raise DownloadError(f"{url}: {problem}")


def check_digest(path: Path, digest: str, shown: str) -> None:
    """Compare a file, which messages call ``shown``, with ``algorithm:hexadecimal``; "" is not compared."""
    if not digest:
        return
    algorithm, expected = digest.split(":")
    found = file_digest(path, algorithm)
    if found != expected:
        raise DownloadError(f"{shown} is not the published file: its {algorithm} is {found}, expected {expected}")


def _receive(url: str, file: IO[bytes], title: str, progress: bool | None) -> int:
    """Append what is missing; returns how many bytes are missing still."""
    done = file.tell()
    headers = {"User-Agent": f"noshadow/{__version__}"} | ({"Range": f"bytes={done}-"} if done else {})
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT) as response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):  # all of it from the start
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = None if length is None else file.tell() + int(length)
        with progress_bar(title, total, progress, in_bytes=True) as advance:
            advance(file.tell())
            while chunk := response.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    return 0 if total is None else total - file.tell()


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(reason).__name__
