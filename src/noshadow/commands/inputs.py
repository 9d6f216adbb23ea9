"""Arrays of a last layer from files that anyone may have written: what ``score`` and ``audit`` read."""

from __future__ import annotations

import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noshadow.errors import FileError, NoshadowWarning

__all__ = ["OPTIONAL", "REQUIRED", "LayerArrays", "read_arrays", "read_trace"]

REQUIRED = ("features", "outputs", "targets")
_WEIGHTS = ("sample_weight", "class_weight", "coefficients")
OPTIONAL = ("ids", "group", "head", "ridge", "trace", "label_smoothing", *_WEIGHTS)


@dataclass(frozen=True, eq=False)
class LayerArrays:
    """A layer, and what the file says of its records beside it; None: nothing."""

    layer: Any
    ids: Any = None
    groups: Any = None
    trace: Any = None


def read_arrays(
    file: Path, head: str | None, ridge: float | None, bias: bool = True, penalize_bias: bool = True
) -> LayerArrays:
    """The arrays of an .npz, or the columns of a .parquet, of a .safetensors or of a folder of .npy files.

    An .npz may say head and ridge too; what is given here comes first. The others stay on disk.
    """
    from noshadow.layer import LastLayer
    from noshadow.npz import read_npz

    kept = {"bias": bias, "penalize_bias": penalize_bias}
    if (file.is_dir() and file.suffix != ".npz") or file.suffix in (".parquet", ".safetensors"):
        layer = LastLayer.open(file, head or "softmax", 0.0 if ridge is None else ridge, **kept)
        beside = _columns(file, ("ids", "group")) if file.suffix == ".parquet" else {}
        return LayerArrays(layer, beside.get("ids"), beside.get("group"))
    arrays = read_npz(file, REQUIRED, OPTIONAL)
    _tell_of_others(file)
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


def _tell_of_others(file: Path) -> None:
    """A note on arrays that are not read: names under another word than ours would be left out in silence."""
    with zipfile.ZipFile(file) as archive:
        held = (name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))
        others = [name for name in held if name not in (*REQUIRED, *OPTIONAL)]
    if others:
        text = (
            f"file: what it calls {', '.join(others[:5])} is not read; arrays may be {', '.join(REQUIRED + OPTIONAL)}"
        )
        warnings.warn(text, NoshadowWarning, stacklevel=3)


def read_trace(file: Path) -> Any:
    """A saved trace, or losses (epochs, n) in an .npy."""
    from noshadow.npz import read_npy
    from noshadow.trace import Trace

    return read_npy(file, "trace") if file.suffix == ".npy" else Trace.load(file)


def _columns(file: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Those columns of a Parquet file that are there."""
    import pyarrow.parquet as pq

    try:
        with open(file, "rb") as stream:
            parquet = pq.ParquetFile(stream)
            held = [name for name in names if name in parquet.schema_arrow.names]
            table = parquet.read(columns=held)
    except Exception as error:  # pyarrow has its own
        raise FileError(f"file: {file} cannot be read ({' '.join(str(error).split())[:200]})") from None
    return {name: table.column(name).to_pandas() for name in held}


def _one(arrays: dict[str, Any], name: str, default: str | float) -> Any:
    """The one value of an array that holds a word or a number, as the default is."""
    if name not in arrays:
        return default
    value = arrays[name]
    if value.size != 1 or value.dtype.kind not in ("US" if isinstance(default, str) else "fiu"):
        expected = "word" if isinstance(default, str) else "number"
        raise FileError(f"{name}: expected one {expected}, got {value.dtype} of shape {value.shape}")
    return value.item()
