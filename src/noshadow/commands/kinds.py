"""What a file is, by its content and not by its name. Nothing is unpickled to find out; a pickle is refused.

layer    a layer that ``LastLayer.save`` wrote          npz      arrays of a last layer
tensors  safetensors with the arrays of a last layer    parquet  columns of a last layer
skops    a scikit-learn model                           table    another of ``noshadow.sources.find.FORMATS``
"""

from __future__ import annotations

import bz2
import json
import lzma
import pickletools
import zipfile
import zlib
from pathlib import Path
from typing import Literal

from noshadow.errors import FileError

__all__ = ["Kind", "kind_of"]

Kind = Literal["layer", "tensors", "npz", "parquet", "skops", "table"]
_PEEK = 65_536
_NPY, _HDF, _PARQUET, _ZIP = b"\x93NUMPY", b"\x89HDF", b"PAR1", b"PK\x03\x04"
_BY_CONTENT = (".safetensors", ".parquet")  # which are known above, whatever they are called
_TORCH = (
    "save its weights with safetensors.torch.save_file(model.state_dict(), 'model.safetensors') and audit "
    "package.module:build --checkpoint model.safetensors --data …, or"
)
_SKLEARN = "save it with skops.io.dump(model, 'model.skops') and audit that with --data, or"
_LAYER = "save what an audit takes with noshadow.last_layer(model, data).save('layer.safetensors')"


def kind_of(path: Path, argument: str = "file") -> Kind:
    """What the file holds; a sentence on what to do where that is nothing to audit. ``argument`` names it."""
    try:
        with open(path, "rb") as file:
            start = file.read(_PEEK)
    except IsADirectoryError:
        raise FileError(f"{argument}: {path} is a folder; name a file in it") from None
    except OSError as error:
        raise FileError(f"{argument}: {path} cannot be read ({error.strerror})") from None
    if not start:
        raise FileError(f"{argument}: {path} is empty")
    if start.startswith(_ZIP):
        return _zipped(path, start, argument)
    if start.startswith(_PARQUET):
        return _parquet(path, argument)
    if (content := _pickled(start)) is not None:
        raise _pickle(path, content, argument)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return _tensors(path, argument)
    if start.startswith(_NPY):
        raise FileError(
            f"{argument}: {path} holds one array; np.savez(file, features=…, outputs=…, targets=…) keeps three"
        )
    if path.suffix == ".npz":
        return "npz"  # whose reader says what is wrong with it
    if path.suffix.lower() not in _BY_CONTENT and _is_registered(path):
        return "table"
    what = "an HDF5 file" if start.startswith(_HDF) else "none of the files that noshadow reads"
    raise FileError(
        f"{argument}: {path} is {what}; pass a layer that was saved (.safetensors), arrays (.npz, .parquet), a "
        "scikit-learn model (.skops) or package.module:build"
    )


def _is_registered(path: Path) -> bool:
    from noshadow.sources.find import format_of

    return format_of(path) is not None


def _zipped(path: Path, start: bytes, argument: str) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):  # the last: zipfile, of odd compressions
        if b"data.pkl" in start:
            raise _pickle(path, b"torch", argument) from None
        if b"schema.json" in start or path.suffix == ".skops":
            raise FileError(f"{argument}: {path} is a damaged or truncated archive") from None
        return "npz"  # whose reader says what is wrong with it
    if any(name.split("/")[-1].endswith(".pkl") for name in names):
        raise _pickle(path, b"torch", argument)
    if "schema.json" in names:
        return "skops"
    if any(name.endswith(".npy") for name in names):
        return "npz"
    raise FileError(f"{argument}: {path} is an archive of other things; pass an .npz of arrays, or a .skops model")


def _parquet(path: Path, argument: str) -> Kind:
    import pyarrow.parquet as pq

    from noshadow.tables import METADATA_KEY

    try:
        with open(path, "rb") as file:
            held = pq.read_schema(file).metadata or {}
    except Exception as error:  # pyarrow has its own
        reason = " ".join(str(error).split())[:200]
        raise FileError(f"{argument}: {path} is a damaged Parquet file ({reason})") from None
    if METADATA_KEY.encode() in held:
        raise FileError(f"{argument}: {path} is what noshadow saved, and audited already; see noshadow report --help")
    return "parquet"


def _tensors(path: Path, argument: str) -> Kind:
    from noshadow.sources.flat import tensors_header
    from noshadow.sources.rows import NAMES

    try:
        tensors, metadata, *_ = tensors_header(path)
    except FileError as error:
        raise FileError(f"{argument}: {str(error).partition(': ')[2]}") from None
    try:
        own = json.loads(metadata.get("identity", "{}"))
    except (ValueError, RecursionError):
        own = {}
    what = own.get("noshadow") if isinstance(own, dict) else None
    if what == "layer":
        return "layer"
    if what is not None:
        raise FileError(f"{argument}: {path} holds no layer but noshadow's {str(what)[:40]!r}; pass a trace as --trace")
    if all(name in tensors for name in NAMES):
        return "tensors"
    raise FileError(
        f"{argument}: {path} holds the weights of a model, and an audit takes what its last layer sees of the training "
        f"records; audit package.module:build --checkpoint {path.name} --data …, or {_LAYER}"
    )


def _pickled(start: bytes) -> bytes | None:
    """The first bytes of a pickle, of any protocol and however compressed; None: it is none."""
    content = start
    for magic, opener in (
        (b"\x1f\x8b", lambda: zlib.decompressobj(31)),
        (b"x", lambda: zlib.decompressobj()),
        (b"BZh", bz2.BZ2Decompressor),
        (b"\xfd7zXZ\x00", lzma.LZMADecompressor),
        (b"]\x00\x00", lzma.LZMADecompressor),
    ):
        if start.startswith(magic):
            try:
                content = opener().decompress(start, _PEEK)
            except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError):
                continue
            break
    if content[:1] == b"\x80" and content[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return content
    try:  # the first protocols begin with any of their operations; these are looked at, not carried out
        steps = [step.name for step, _, _ in pickletools.genops(content)]
    except Exception:
        return None
    return content if len(steps) > 1 else None


def _pickle(path: Path, content: bytes, argument: str) -> FileError:
    remedy = _SKLEARN if b"sklearn" in content else _TORCH if b"torch" in content else f"{_TORCH} {_SKLEARN}"
    return FileError(
        f"{argument}: {path} is a pickle, which runs code when it is read, and is not read; where it was made, "
        f"{remedy} {_LAYER}"
    )
