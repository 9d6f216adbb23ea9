"""Arrays of a last layer from files that anyone may have written: what ``score`` and ``audit`` read."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noshadow.errors import FileError, NoshadowWarning

if TYPE_CHECKING:
    from noshadow.sources.find import Format

__all__ = ["OPTIONAL", "REQUIRED", "LayerArrays", "read_arrays", "read_trace"]

REQUIRED = ("features", "outputs", "targets")
_WEIGHTS = ("sample_weight", "class_weight", "coefficients")
_BESIDE = ("ids", "group")
OPTIONAL = (*_BESIDE, "head", "ridge", "trace", "label_smoothing", *_WEIGHTS)


@dataclass(frozen=True, eq=False)
class LayerArrays:
    """A layer, and what the file says of its records beside it; None: nothing."""

    layer: Any
    ids: Any = None
    groups: Any = None
    trace: Any = None


def read_arrays(
    file: Path,
    head: str | None,
    ridge: float | None,
    bias: bool = True,
    penalize_bias: bool = True,
    argument: str = "file",
) -> LayerArrays:
    """The arrays of an .npz, of a file of one of ``noshadow.sources.find.FORMATS``, or of a folder.

    An .npz may say head and ridge too; what is given here comes first. The others stay on disk. ``argument`` is what
    messages call the file.
    """
    from noshadow.layer import LastLayer
    from noshadow.npz import read_npz
    from noshadow.sources.find import format_of

    kept = {"bias": bias, "penalize_bias": penalize_bias}
    if (file.is_dir() and file.suffix != ".npz") or format_of(file) is not None:
        layer = LastLayer.open(file, head or "softmax", 0.0 if ridge is None else ridge, **kept)
        beside = _beside(file, format_of(file) if file.is_file() else None, argument)
        known = (*REQUIRED, "sample_weight", *(() if beside is None else _BESIDE))
        _tell_of_others(_names_on_disk(file), known, argument)
        return LayerArrays(layer, *((beside or {}).get(name) for name in _BESIDE))
    arrays = read_npz(file, REQUIRED, OPTIONAL, argument)
    with zipfile.ZipFile(file) as archive:
        held = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    _tell_of_others(held, REQUIRED + OPTIONAL, argument)
    weights: dict[str, Any] = {name: arrays.get(name) for name in _WEIGHTS}
    layer = LastLayer(
        arrays["features"],
        arrays["outputs"],
        arrays["targets"],
        head=head if head is not None else str(_one(arrays, "head", "softmax")),
        ridge=ridge if ridge is not None else float(_one(arrays, "ridge", 0.0)),
        label_smoothing=float(_one(arrays, "label_smoothing", 0.0)),
        **kept,
        **weights,
    )
    for name in ("ids", "group"):
        if name in arrays and arrays[name].ndim != 1:
            raise FileError(f"{name}: expected shape (n,), one per record, got {arrays[name].shape}")
    return LayerArrays(layer, arrays.get("ids"), arrays.get("group"), arrays.get("trace"))


def _tell_of_others(held: Iterable[str], known: Sequence[str], argument: str) -> None:
    """A note on arrays that are not read: names under another word than ours would be left out in silence."""
    others = [name for name in dict.fromkeys(held) if name not in known]
    if others:
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        text = f"{argument}: what it calls {', '.join(others[:5])}{more} is not read; arrays may be {', '.join(known)}"
        warnings.warn(text, NoshadowWarning, stacklevel=3)


def _names_on_disk(path: Path) -> list[str]:
    """What a file calls its arrays; of a folder, what all files in it do."""
    from noshadow.sources.find import format_of

    if path.is_dir():
        shown = (one for one in sorted(path.iterdir()) if not one.name.startswith("."))
        return [name for one in shown for name in _names_on_disk(one)]
    if path.suffix == ".npy":
        return [path.stem]
    kind = format_of(path)
    return [] if kind is None else kind.names(path)


def read_trace(file: Path) -> Any:
    """A saved trace, or losses (epochs, n) in an .npy."""
    from noshadow.npz import read_npy
    from noshadow.trace import Trace

    return read_npy(file, "trace") if file.suffix == ".npy" else Trace.load(file)


def _beside(file: Path, kind: Format | None, argument: str) -> dict[str, Any] | None:
    """The columns of a file beside its arrays; None: its format has none."""
    if kind is None or kind.beside is None:
        return None
    try:
        return kind.beside(file, _BESIDE)
    except Exception as error:  # each library has its own
        raise FileError(f"{argument}: {file} cannot be read ({' '.join(str(error).split())[:200]})") from None


def _one(arrays: dict[str, Any], name: str, default: str | float) -> Any:
    """The one value of an array that holds a word or a number, as the default is."""
    if name not in arrays:
        return default
    value = arrays[name]
    if value.size != 1 or value.dtype.kind not in ("US" if isinstance(default, str) else "fiu"):
        expected = "word" if isinstance(default, str) else "number"
        raise FileError(f"{name}: expected one {expected}, got {value.dtype} of shape {value.shape}")
    return value.item()
