"""Which tasks of a study are being worked on, seen by all threads and processes on the same store.

A claim is a lock on one byte of a file. The kernel drops it when its process ends, however that ends, so there are no
stale claims. Such locks are a process's, not a thread's, and all are lost when the process closes the file once: so a
process opens the file of a store once, for all its threads, and keeps in memory which bytes its threads hold.

Without such locks (Windows) processes do not see each other's claims: two of them then do the same work twice, which
costs time and harms nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from noshadow.shadow.plan import ROLES, ModelKey

if sys.platform != "win32":
    import fcntl

__all__ = ["CAN_CLAIM", "Claims"]

CAN_CLAIM = sys.platform != "win32"
_MANIFEST_BYTE = 2**40  # of the file, far beyond those of the models


class _LockFile:
    """The one open file of a store in this process, and the bytes that its threads hold."""

    def __init__(self, path: Path) -> None:
        self.users = 0
        self.held: set[int] = set()
        self.manifest = threading.Lock()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


_FILES: dict[Path, _LockFile] = {}
_GUARD = threading.Lock()


def _forget_after_fork() -> None:
    """A child holds none of its parent's locks."""
    global _GUARD
    _GUARD = threading.Lock()
    for lock_file in _FILES.values():
        os.close(lock_file.descriptor)
    _FILES.clear()


if CAN_CLAIM:
    os.register_at_fork(after_in_child=_forget_after_fork)


class Claims:
    """The claims of one run of a study, from its start to ``close``."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._mine: set[int] = set()
        self._has_manifest = False
        with _GUARD:
            if self._path not in _FILES:
                _FILES[self._path] = _LockFile(self._path)
            self._file = _FILES[self._path]
            self._file.users += 1

    def close(self) -> None:
        """Release all that is held."""
        for byte in list(self._mine):
            self._release(byte)
        if self._has_manifest:
            _unlock(self._file.descriptor, _MANIFEST_BYTE)
            self._file.manifest.release()
        with _GUARD:
            self._file.users -= 1
            if self._file.users == 0 and _FILES.get(self._path) is self._file:
                os.close(self._file.descriptor)
                del _FILES[self._path]

    def take(self, key: ModelKey) -> bool:
        """Claim the task that starts with this model; False if another run has it."""
        byte = _byte_of(key)
        with _GUARD:
            if byte in self._file.held or not _lock(self._file.descriptor, byte, wait=False):
                return False
            self._file.held.add(byte)
            self._mine.add(byte)
        return True

    def wait_for_manifest(self) -> None:
        """Claim the manifest, once no other run has it."""
        self._file.manifest.acquire()
        _lock(self._file.descriptor, _MANIFEST_BYTE, wait=True)
        self._has_manifest = True

    def release(self, key: ModelKey) -> None:
        self._release(_byte_of(key))

    def _release(self, byte: int) -> None:
        with _GUARD:
            _unlock(self._file.descriptor, byte)
            self._file.held.discard(byte)
            self._mine.discard(byte)


def _byte_of(key: ModelKey) -> int:
    return len(ROLES) * key.number + ROLES.index(key.role)


def _lock(file: int, byte: int, wait: bool) -> bool:
    if sys.platform != "win32":
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, byte)
        except (BlockingIOError, PermissionError):
            return False
    return True


def _unlock(file: int, byte: int) -> None:
    if sys.platform != "win32":
        fcntl.lockf(file, fcntl.LOCK_UN, 1, byte)
