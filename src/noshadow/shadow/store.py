"""A study on disk: one directory, a manifest, one checksummed file per model. No weights, no pickle.

    manifest.json              what the study is (records, procedure, seed), with a SHA-256 over all of it
    targets.safetensors        the true targets of the records, if they were given
    shadow/000012.safetensors  outputs and membership of shadow model 12
    target/000003.safetensors  the same for target model 3
    rerun/000003.safetensors   the same for target model 3, trained again with another seed
    claims.lock                byte ranges locked by those at work, see ``noshadow.shadow.claims``

Every file is written under a temporary name, synced and renamed: it is whole or it is not there. What is read
is checked, every bit of it (``noshadow.artefact``), so a truncated or altered file counts as missing and its model is
trained again.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow._version import __version__
from noshadow.artefact import Arrays, UnusableArtefact, read_artefact, write_artefact
from noshadow.errors import InputError
from noshadow.files import private_folder, write_text
from noshadow.shadow.claims import CAN_CLAIM, Claims
from noshadow.shadow.plan import ROLES, ModelKey, Role

__all__ = ["FORMAT", "DamagedFile", "Store", "StoreError", "fingerprint"]

FORMAT = 2


class StoreError(OSError):
    """A store cannot be written or read; the message says which file, why, and what to do.

    Examples
    --------
    >>> import tempfile
    >>> from noshadow import shadow
    >>> def train(members, seed):
    ...     raise MemoryError
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     try:
    ...         shadow.Study(train, 6, n_models=2, store=folder, procedure="breaks").run("serial", progress=False)
    ...     except shadow.StudyError:
    ...         shadow.load(folder)
    Traceback (most recent call last):
        ...
    noshadow.shadow.store.StoreError: store: ... holds no finished model yet
    """


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
            for folder in (path, *(path / role for role in ROLES)):
                private_folder(folder)
            if not (path / "manifest.json").exists():
                first = {"format": FORMAT, "noshadow": __version__, "study": identity}
                _create(path / "manifest.json", _signed({**first, "fingerprint": fingerprint(identity)}))
        store = cls.open(path)
        if store.fingerprint != fingerprint(identity):
            differences = _differences(store.manifest["study"], identity)
            raise InputError(
                f"store: {path} holds another study, which differs in\n  "
                + "\n  ".join(differences)
                + "\nUse another directory for this study, or change it back to continue that one; "
                "what train itself changes as it runs should be copied inside train."
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
        """What the manifest says of the study is read, decided and noted by one run at a time."""
        with self.claims() as claims:
            claims.wait_for_manifest()
            self.manifest = _read_manifest(self.directory / "manifest.json")
            yield

    def note(self, **facts: Any) -> None:
        """Keep facts beside the study's identity (how many models were asked for, how many train at once)."""
        manifest = {**self.manifest, **_plain(facts)}
        if manifest != self.manifest:
            with _writing(self.directory / "manifest.json"):
                write_text(self.directory / "manifest.json", _signed(manifest))
        self.manifest = manifest

    def path(self, key: ModelKey) -> Path:
        return self.directory / key.role / f"{key.number:06d}.safetensors"

    def write(self, key: ModelKey, seed: int, arrays: Arrays) -> None:
        """Keep a model's arrays. When this returns they are on the disk."""
        path = self.path(key)
        if CAN_CLAIM:  # then nobody else is at this model, and a partial file is that of a dead process
            for left_over in path.parent.glob(f".{path.name}.*.partial"):
                with suppress(OSError):
                    left_over.unlink()
        with _writing(path):
            write_artefact(path, arrays, self._identity(str(key)), {"seed": seed})

    def read(self, key: ModelKey) -> Arrays:
        """A model's arrays, checked. ``FileNotFoundError``: there are none, ``DamagedFile``: not whole."""
        return self._read(self.path(key), str(key), "a new run trains it again")

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

    def keep_targets(self, targets: NDArray[Any]) -> bool:
        """Keep the true targets; refused if the store has others. True if a damaged file was written again."""
        path = self.directory / "targets.safetensors"
        digest = _values_digest(targets)
        if self.manifest.get("targets", digest) != digest:
            raise InputError(f"targets: {self.directory} already holds other targets; use another directory")
        try:
            if self.targets() is not None:
                return False
            damaged = False
        except DamagedFile:
            damaged = True
        self.note(targets=digest)
        with _writing(path):
            write_artefact(path, {"targets": targets}, self._identity("targets"))
        return damaged

    def targets(self) -> NDArray[Any] | None:
        """The true targets of the records, if they were given."""
        path = self.directory / "targets.safetensors"
        remedy = "run the study with the targets again, which writes it again"
        try:
            return self._read(path, "targets", remedy)["targets"]
        except FileNotFoundError:
            return None

    @contextmanager
    def claims(self) -> Iterator[Claims]:
        """Claims on tasks of this study; they end with the block."""
        path = self.directory / "claims.lock"
        with _writing(path):
            claims = Claims(path)
        try:
            yield claims
        finally:
            claims.close()

    def _identity(self, name: str) -> dict[str, str]:
        return {"study": self.fingerprint, "of": name}

    def _read(self, path: Path, name: str, remedy: str) -> Arrays:
        try:
            return read_artefact(path, self._identity(name)).arrays
        except FileNotFoundError:
            raise
        except (UnusableArtefact, OSError) as error:
            raise DamagedFile(f"store: {path} cannot be used ({error}); {remedy}") from error


def fingerprint(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _values_digest(targets: NDArray[Any]) -> str:
    """The SHA-256 of targets; integers are the same in any width."""
    values = np.ascontiguousarray(targets.astype(np.int64 if targets.dtype.kind in "iub" else np.float64))
    kind = "values" if values.dtype.kind == "f" else "classes"
    return f"{kind} {list(values.shape)} {hashlib.sha256(values.tobytes()).hexdigest()}"


def _signed(manifest: Mapping[str, Any]) -> str:
    """A manifest as JSON, with the SHA-256 of all else in it."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return json.dumps({**content, "sha256": fingerprint(content)}, indent=2, sort_keys=True) + "\n"


def _plain(value: Any) -> Any:
    """The value as JSON gives it back, so that what is kept and what is asked compare equal."""
    return json.loads(json.dumps(value))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")
        manifest = json.loads(text)
        if manifest["format"] != FORMAT:
            raise InputError(f"store: {path} has format {manifest['format']}; this version reads {FORMAT}")
        if text != _signed(manifest) or manifest["fingerprint"] != fingerprint(manifest["study"]):
            raise StoreError(f"store: {path} was altered since it was written: its checksum does not hold")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise StoreError(f"store: {path} is not a manifest of a study ({error!r})") from error
    return {name: value for name, value in manifest.items() if name != "sha256"}


def _create(path: Path, content: str) -> None:
    """Write the file unless another thread or process has just done so; the first one stays."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
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
        if repr(kept.get(name, "absent")) != repr(asked.get(name, "absent"))  # 1, 1.0 and True are equal, not the same
    ]


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else str(key))
    return flat
