"""A study on disk: one directory, a manifest, one checksummed file a model. No weights, no pickle.

    manifest.json              what the study is (records, procedure, seed) and its fingerprint
    targets.safetensors        the true targets of the records, if they were given
    shadow/000012.safetensors  outputs and membership of shadow model 12, with a SHA-256 over all of it
    target/000003.safetensors  the same for target model 3
    claims.lock                byte ranges locked by the processes at work; the kernel frees those of the dead

Every file is written under a temporary name, synced and renamed: it is whole or it is not there. What is read
is checked against its SHA-256, so a truncated or altered file counts as missing and its model is trained
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from noshadow._version import __version__
from noshadow.errors import InputError
from noshadow.files import private_folder, write_bytes, write_text
from noshadow.shadow.plan import ModelKey, Role

if sys.platform != "win32":
    import fcntl

FORMAT = 1
CAN_CLAIM = sys.platform != "win32"
MANIFEST_BYTE = 2**40  # of claims.lock, far beyond those of the models
Arrays = dict[str, NDArray[Any]]


class StoreError(OSError):
    """A store cannot be written or read; the message says which file, why, and what to do."""


class DamagedFile(StoreError):
    """A file of the store is truncated, altered, or belongs to another study."""


class Store:
    """The directory of one study: ``open_for`` creates or continues it, ``open`` reads it."""

    def __init__(self, directory: Path, manifest: dict[str, Any]) -> None:
        self.directory = directory
        self.manifest = manifest

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Store:
        """An existing store, for reading."""
        path = Path(directory)
        if not (path / "manifest.json").is_file():
            raise InputError(f"store: {path} holds no study (there is no manifest.json in it)")
        return cls(path, _read_manifest(path / "manifest.json"))

    @classmethod
    def open_for(cls, directory: str | os.PathLike[str], study: Mapping[str, Any]) -> Store:
        """The store of this study: created if the directory is new, refused if it belongs to another one."""
        path = Path(directory)
        identity = _plain(study)
        with _writing(path / "manifest.json"):
            for folder in (path, path / "shadow", path / "target"):
                private_folder(folder)
            if not (path / "manifest.json").exists():
                first = {"format": FORMAT, "noshadow": __version__, "study": identity}
                _create(path / "manifest.json", _json({**first, "fingerprint": fingerprint(identity)}))
        store = cls.open(path)
        if store.fingerprint != fingerprint(identity):
            differences = _differences(store.manifest["study"], identity)
            raise InputError(
                f"store: {path} holds another study, which differs in\n  "
                + "\n  ".join(differences)
                + "\nUse another directory for this study, or change the arguments back to continue that one."
            )
        return store

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def study(self) -> dict[str, Any]:
        """What the study is: n_samples, seed, procedure, data."""
        return dict(self.manifest["study"])

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """What the manifest says of the study is read, decided and noted by one process at a time."""
        with self.claims() as claims:
            claims.wait_for_manifest()
            self.manifest = _read_manifest(self.directory / "manifest.json")
            yield

    def note(self, **facts: Any) -> None:
        """Keep facts beside the study's identity (how many models were asked for, how many train at once)."""
        manifest = {**self.manifest, **_plain(facts)}
        if manifest != self.manifest:
            with _writing(self.directory / "manifest.json"):
                write_text(self.directory / "manifest.json", _json(manifest))
        self.manifest = manifest

    def path(self, key: ModelKey) -> Path:
        return self.directory / key.role / f"{key.number:06d}.safetensors"

    def write(self, key: ModelKey, seed: int, arrays: Arrays) -> None:
        """Keep a model's arrays. When this returns they are on the disk."""
        path = self.path(key)
        if CAN_CLAIM:  # then no other process is at this model, and a partial file is that of a dead one
            for left_over in path.parent.glob(f".{path.name}.*.partial"):
                with suppress(OSError):
                    left_over.unlink()
        self._save(path, arrays, {"model": str(key), "seed": str(seed)})

    def read(self, key: ModelKey) -> Arrays:
        """A model's arrays, checked. ``FileNotFoundError``: there are none, ``DamagedFile``: not whole."""
        return self._load(self.path(key), {"model": str(key)})

    def is_whole(self, key: ModelKey) -> bool:
        """The model is there and passes its checksum."""
        try:
            self.read(key)
        except (FileNotFoundError, DamagedFile):
            return False
        return True

    def stored(self, role: Role = "shadow") -> list[ModelKey]:
        """The models that have a file, whole or not."""
        names = (path.stem for path in (self.directory / role).glob("*.safetensors"))
        return sorted(ModelKey(role, int(name)) for name in names if name.isdigit())

    def keep_targets(self, targets: NDArray[Any]) -> None:
        """Keep the true targets; refused if the store already has others."""
        kept = self.targets()
        if kept is None:
            self._save(self.directory / "targets.safetensors", {"targets": targets}, {"model": "targets"})
        elif kept.dtype != targets.dtype or not np.array_equal(kept, targets):
            raise InputError(f"targets: {self.directory} already holds other targets; use another directory")

    def targets(self) -> NDArray[Any] | None:
        """The true targets of the records, if they were given."""
        path = self.directory / "targets.safetensors"
        return self._load(path, {"model": "targets"})["targets"] if path.exists() else None

    def claims(self) -> Claims:
        return Claims(self.directory / "claims.lock")

    def _save(self, path: Path, arrays: Arrays, facts: dict[str, str]) -> None:
        arrays = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
        facts = {**facts, "study": self.fingerprint}
        content = save(arrays, {**facts, "sha256": _digest(arrays, facts)})
        with _writing(path):
            write_bytes(path, content)

    def _load(self, path: Path, expected: dict[str, str]) -> Arrays:
        try:
            with safe_open(path, framework="numpy") as file:
                facts = dict(file.metadata() or {})
                arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise DamagedFile(f"store: {path} cannot be read ({error}); it is trained again by a new run") from error
        expected = {**expected, "study": self.fingerprint}
        if facts.pop("sha256", "") != _digest(arrays, facts):
            raise DamagedFile(f"store: {path} fails its checksum; it is trained again by a new run")
        if not expected.items() <= facts.items():
            raise DamagedFile(f"store: {path} is not the file of {expected['model']} of this study")
        return arrays


class Claims:
    """Which tasks this process is working on, seen by other processes on the same store.

    A claim is a lock on one byte of a file. The kernel drops it when its holder ends, however it ends, so
    there are no stale claims. Without such locks (Windows) every claim is granted: two processes then do the
    same work twice, which costs time and harms nothing. Claims belong to the process: its threads are not told
    apart.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Claims:
        if sys.platform != "win32":
            with _writing(self._path):
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def take(self, key: ModelKey) -> bool:
        """Claim the task that starts with this model; False if another process has it."""
        if sys.platform != "win32" and self._file is not None:
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _byte_of(key))
            except (BlockingIOError, PermissionError):
                return False
        return True

    def wait_for_manifest(self) -> None:
        """Claim the manifest, once no other process has it."""
        if sys.platform != "win32" and self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, MANIFEST_BYTE)

    def release(self, key: ModelKey) -> None:
        if sys.platform != "win32" and self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _byte_of(key))


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _byte_of(key: ModelKey) -> int:
    return 2 * key.number + (key.role == "target")


def _digest(arrays: Arrays, facts: Mapping[str, str]) -> str:
    shapes = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    digest = hashlib.sha256(json.dumps([shapes, dict(facts)], sort_keys=True).encode())
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True) + "\n"


def _plain(value: Any) -> Any:
    """The value as JSON gives it back, so that what is kept and what is asked compare equal."""
    return json.loads(json.dumps(value))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InputError(f"store: {path} has format {manifest['format']}; this version reads {FORMAT}")
        if manifest["fingerprint"] != fingerprint(manifest["study"]):
            raise StoreError(f"store: {path} was altered: its fingerprint is not that of its study")
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"store: {path} is not a manifest of a study ({error!r})") from error
    return dict(manifest)


def _create(path: Path, content: str) -> None:
    """Write the file unless another process has just done so; the first one stays."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    write_text(draft, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not path.exists():
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what the file system refuses into a message that says where, why and that nothing is lost."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(
            f"store: could not write {path}: {reason}. "
            "Every model finished before is whole; make room or fix the cause, and run again to continue."
        ) from error


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    kept, asked = _flat(there), _flat(here)
    return [
        f"{name}: {kept.get(name, 'absent')!s} there, {asked.get(name, 'absent')!s} here"
        for name in sorted(kept.keys() | asked.keys())
        if kept.get(name, "absent") != asked.get(name, "absent")
    ]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else str(key))
    return flat
