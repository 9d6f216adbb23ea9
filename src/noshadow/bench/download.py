"""A file from a public address: whole and the one that was expected, or not there."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from noshadow._version import __version__
from noshadow.files import file_digest
from noshadow.progress import progress_bar

__all__ = ["ATTEMPTS", "CHUNK", "THIS_MACHINE", "TIMEOUT", "DownloadError", "check_digest", "download"]

TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5
CHUNK = 2**18
THIS_MACHINE = ("127.0.0.1", "::1", "localhost")


class DownloadError(OSError):
    """A file could not be fetched, or is not the one that was expected."""


def download(url: str, path: Path, title: str, most: int, progress: bool | None = None) -> None:
    """Fetch ``url``, at most ``most`` bytes, into ``path``.

    A broken connection is taken up again where it stopped, while that gets further. What goes over a network goes
    over https, after each redirect too; plain http is for a server on this machine that was named as such.
    """
    local = urlsplit(url).hostname in THIS_MACHINE
    _check_address(url, url, local)
    with path.open("wb") as file:
        for _ in range(ATTEMPTS):
            before = file.tell()
            try:
                missing = _receive(url, file, title, most, progress)
                problem = f"the connection ended {missing:,} bytes early"
            except HTTPError as error:
                raise DownloadError(f"{url}: {error.code} {error.reason}") from None
            except DownloadError:
                raise
            except (OSError, HTTPException) as error:
                missing, problem = None, _reason(error)
            if missing == 0:
                return
            if file.tell() <= before:
                break
    raise DownloadError(f"{url}: {problem}")


def check_digest(path: Path, digest: str, shown: str) -> None:
    """Compare a file, which messages call ``shown``, with its SHA-256; "" is not compared."""
    found = file_digest(path) if digest else ""
    if found != digest:
        raise DownloadError(f"{shown} is not the published file: its SHA-256 is {found}, expected {digest}")


def _receive(url: str, file: IO[bytes], title: str, most: int, progress: bool | None) -> int:
    """Append what is missing; returns how many bytes are missing still."""
    done = file.tell()
    headers = {"User-Agent": f"noshadow/{__version__}"} | ({"Range": f"bytes={done}-"} if done else {})
    with build_opener(_SafeRedirects(url)).open(Request(url, headers=headers), timeout=TIMEOUT) as response:
        if not response.headers.get("Content-Range", "").startswith(f"bytes {done}-"):  # all of it from the start
            file.seek(0)
            file.truncate()
        length = response.headers.get("Content-Length")
        total = None if length is None else file.tell() + int(length)
        if total is not None and total > most:
            raise DownloadError(f"{url}: it announces {total:,} bytes, the published file has at most {most:,}")
        with progress_bar(title, total, progress, in_bytes=True) as advance:
            advance(file.tell())
            while chunk := response.read(CHUNK):
                if file.tell() + len(chunk) > most:
                    raise DownloadError(f"{url}: it sends more than the {most:,} bytes that the published file has")
                file.write(chunk)
                advance(len(chunk))
    return 0 if total is None else total - file.tell()


class _SafeRedirects(HTTPRedirectHandler):
    """Follows redirects, but not out of https."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._local = urlsplit(url).hostname in THIS_MACHINE and urlsplit(url).scheme == "http"

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        _check_address(newurl, self._url, self._local)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_address(url: str, first: str, local: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme != "https" and not (local and parts.scheme == "http" and parts.hostname in THIS_MACHINE):
        where = "" if url == first else f" leads to {url}, which"
        raise DownloadError(f"{first}{where} is not https; nothing is fetched over an open connection")


def _reason(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    return str(reason) or type(reason).__name__
