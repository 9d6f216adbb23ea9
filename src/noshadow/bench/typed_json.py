"""Dataclasses as JSON and back, checked by their type hints: what is read is what was written, or is refused.

Numbers, strings, tuples, dictionaries, dataclasses, arrays and ``evaluate.Summary`` are known. Numbers that JSON has no
word for are written as "nan", "inf" and "-inf". An array is written as its type, its shape and its little-endian bytes
(zlib, base64), a summary with its mean and deviation, for people, which must be those of its values.
"""

from __future__ import annotations

import base64
import binascii
import math
import types
import zlib
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from noshadow.evaluate import Summary

__all__ = ["DTYPES", "NotAsTyped", "T", "from_json", "to_json"]

T = TypeVar("T")
DTYPES = ("uint8", "int64", "float32", "float64")
_WORDS = ("nan", "inf", "-inf")


class NotAsTyped(ValueError):
    """A JSON value is not of its type; the message says where it is and what was expected."""


def to_json(value: Any) -> Any:
    """A value that ``json.dumps`` writes and ``from_json`` takes back."""
    if isinstance(value, Summary):
        return to_json({"mean": value.mean, "std": _none_for_nan(value.std), "values": value.values.tolist()})
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        data = zlib.compress(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("<")).tobytes(), 9)
        return {"dtype": value.dtype.name, "shape": list(value.shape), "zlib": base64.b64encode(data).decode()}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_json(kind: type[T], value: Any, where: str = "") -> T:
    """The value of that type; ``where`` is the place in the file, for messages."""
    return cast(T, _read(kind, value, where))


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (types.UnionType, Union):
        if value is None and type(None) in inner:
            return None
        return _read(next(one for one in inner if one is not type(None)), value, where)
    if kind is Summary:
        return _summary(value, where)
    if kind is np.ndarray or origin is np.ndarray:
        return _array(value, where)
    if is_dataclass(kind):
        return _dataclass(kind, value, where)
    if origin is dict:
        _require(isinstance(value, dict), "named values", value, where)
        return {key: _read(inner[1], item, _inside(where, key)) for key, item in value.items()}
    if origin is tuple:
        _require(isinstance(value, list), "a list", value, where)
        return tuple(_read(inner[0], item, _inside(where, str(place))) for place, item in enumerate(value))
    if kind is float:
        if isinstance(value, str) and value in _WORDS:
            return float(value)
        _require(isinstance(value, (int, float)) and not isinstance(value, bool), "a number", value, where)
        return float(value)
    if kind is int:
        _require(isinstance(value, int) and not isinstance(value, bool), "a whole number", value, where)
        return value
    if kind in (str, bool):
        _require(isinstance(value, kind), "text" if kind is str else "true or false", value, where)
        return value
    raise TypeError(f"{where}: {kind} has no place in JSON")


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), "named values", value, where)
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    needed = [name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise NotAsTyped(f"{_inside(where, missing[0])} is missing")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise NotAsTyped(f"{_inside(where, unknown[0])} is not known")
    try:
        return kind(**{name: _read(hints[name], item, _inside(where, name)) for name, item in value.items()})
    except NotAsTyped:
        raise
    except ValueError as error:  # what the class itself refuses
        raise NotAsTyped(f"{where}: {error}" if where else str(error)) from None


def _summary(value: Any, where: str) -> Summary:
    found = _read(dict[str, Any], value, where)
    if set(found) != {"mean", "std", "values"}:
        raise NotAsTyped(f"{where}: expected mean, std and values, got {', '.join(found) or 'nothing'}")
    values = _read(tuple[float, ...], found["values"], _inside(where, "values"))
    if not values:
        raise NotAsTyped(f"{_inside(where, 'values')} are missing")
    summary = Summary(np.array(values))
    for name, own in (("mean", summary.mean), ("std", _none_for_nan(summary.std))):
        written = _read(Union[float, None], found[name], _inside(where, name))  # noqa: UP007  a value, not a hint
        if (written is None) != (own is None) or not np.isclose(written or 0.0, own or 0.0, rtol=1e-9, atol=1e-12):
            raise NotAsTyped(f"{_inside(where, name)} is {written}, but that of the values is {own}")
    return summary


def _array(value: Any, where: str) -> np.ndarray[Any, Any]:
    found = _read(dict[str, Any], value, where)
    if set(found) != {"dtype", "shape", "zlib"} or found["dtype"] not in DTYPES:
        raise NotAsTyped(f"{where}: expected an array, its dtype one of {', '.join(DTYPES)}, its shape and its bytes")
    shape = _read(tuple[int, ...], found["shape"], _inside(where, "shape"))
    text = _read(str, found["zlib"], _inside(where, "zlib"))
    dtype = np.dtype(found["dtype"]).newbyteorder("<")
    size = math.prod(shape) * dtype.itemsize
    try:
        reader = zlib.decompressobj()  # no more than the shape says: a few bytes can stand for gigabytes
        data = reader.decompress(base64.b64decode(text, validate=True), size) if min(shape, default=1) > 0 else b""
    except (binascii.Error, zlib.error) as error:
        raise NotAsTyped(f"{where}: its bytes are damaged ({error})") from None
    if len(data) != size or (size and not (reader.eof or not reader.decompress(reader.unconsumed_tail, 1))):
        raise NotAsTyped(f"{where}: its bytes are not those of shape {list(shape)}")
    array: np.ndarray[Any, Any] = np.frombuffer(data, dtype=dtype).astype(dtype.newbyteorder("=")).reshape(shape)
    return array


def _none_for_nan(value: float) -> float | None:
    return None if math.isnan(value) else value


def _inside(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _require(fine: bool, expected: str, value: Any, where: str) -> None:
    if not fine:
        shown = repr(value) if isinstance(value, (str, int, float, type(None))) else type(value).__name__
        raise NotAsTyped(f"{where or 'the file'}: expected {expected}, got {shown[:60]}")
