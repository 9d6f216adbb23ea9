"""What an audit's table says of a record beside its scores: name, target, the nearest other class, groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from noshadow.errors import InputError, name_rows
from noshadow.extract import Extracted

__all__ = ["class_names_of", "group_columns", "names_of", "nearest_classes", "target_columns"]

_CHUNK = 65_536  # records at a time


def names_of(ids: Sequence[Any] | None, index: pd.Index[Any] | None, n: int) -> Any:
    """A name for each of n records: the ids, the index of the data, or 0, 1, …"""
    if ids is None and index is None:
        return np.arange(n)
    remedy = "" if ids is not None else "; they are the index of X: pass ids=, or X.reset_index(drop=True)"
    try:
        values = ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else index if ids is None else ids
        names = pd.Index(cast(Any, values), tupleize_cols=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"ids: expected a name for each record ({' '.join(str(error).split())[:200]})") from None
    if len(names) != n:
        raise InputError(f"ids: {len(names)} names for {n} records{remedy}")
    missing = np.flatnonzero(names.isna()).tolist()
    if missing:
        raise InputError(f"ids: none in {name_rows(missing)} (counted from 0); every record needs a name{remedy}")
    repeated = np.flatnonzero(names.duplicated(keep=False))
    if len(repeated):  # the rows, as messages may end up in logs that are not to name anybody
        alike = np.flatnonzero(names == names[repeated[0]]).tolist()
        raise InputError(f"ids: the same name in {name_rows(alike)} (counted from 0); names must be unique{remedy}")
    found = names.to_numpy()
    held = pd.api.types.infer_dtype(found, skipna=False)
    if held not in ("string", "integer", "floating", "boolean", "datetime64") or (
        found.dtype == object and held != "string"
    ):  # said now, and not by the file that cannot hold them when all is done
        raise InputError(f"ids: they are of kind {held}; pass text, as [str(one) for one in ids], or numbers{remedy}")
    return found


def target_columns(found: Extracted) -> dict[str, Any]:
    """``target``, or a column for each of several; as the user knows them."""
    targets = found.layer.targets.cpu().numpy() if found.labels is None else np.asarray(found.labels)
    if targets.ndim == 1 or targets.shape[1] == 1:
        return {"target": targets.reshape(-1)}
    return {f"target_{k}": targets[:, k] for k in range(targets.shape[1])}


def nearest_classes(found: Extracted) -> dict[str, Any]:
    """``nearest_class``: the likeliest class other than the record's own, as targets are written; none of values."""
    layer, parts = found.layer, []
    for rows in layer.chunks(_CHUNK):
        records = layer.source.read(rows)
        nearest = layer.kind.nearest_class(records.outputs, records.targets)
        if nearest is None:
            return {}
        parts.append(nearest.cpu())
    index = torch.cat(parts).numpy()
    return {"nearest_class": index if found.classes is None else np.asarray(found.classes)[index]}


def group_columns(groups: Any, n: int) -> dict[str, Any]:
    """``group``, or ``group_NAME`` for each of several, from a sequence (n,), a mapping of those or a frame."""
    if groups is None:
        return {}
    if isinstance(groups, (Mapping, pd.DataFrame)):
        if not len(groups.keys()):
            raise InputError("groups: there is none in it; leave it out, or name one")
        columns = {}
        for name in groups:
            if not (isinstance(name, str) and name):
                raise InputError(f"groups: {name!r} is no name of a group; use text")
            columns[f"group_{name}"] = _group(groups[name], n, f"groups[{name!r}]")
        return columns
    return {"group": _group(groups, n, "groups")}


def _group(values: Any, n: int, name: str) -> pd.Series[Any]:
    """One value per record: numbers, yes and no, times or text; a text may be missing."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
        raise InputError(f"{name}: expected a value per record, got {type(values).__name__}")
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
    if isinstance(array, (pd.Series, pd.api.extensions.ExtensionArray, pd.Index)):
        plain = array.dtype.categories.dtype if isinstance(array.dtype, pd.CategoricalDtype) else array.dtype
        text = not isinstance(plain, np.dtype) or plain.kind == "O"
        array = array.astype(object).tolist() if text else np.asarray(array)
    if np.ndim(array) != 1 or len(array) != n:
        shape = np.shape(array)
        raise InputError(f"{name}: expected a value for each of {n} records, got shape {shape}")
    column: pd.Series[Any] = pd.Series(array)
    held = pd.api.types.infer_dtype(column, skipna=True)
    if held not in ("string", "empty", "boolean", "integer", "floating", "mixed-integer-float", "datetime64"):
        raise InputError(f"{name}: its values are of kind {held}; pass text, or numbers")
    if column.dtype != object or held in ("string", "empty"):
        return column
    if held == "boolean":  # some are missing, or they came as objects: files have no such yes and no
        words: pd.Series[Any] = column.map({True: "True", False: "False"}).astype(object).where(column.notna(), None)
        return words
    return _numbers(column, name)


def _numbers(column: pd.Series[Any], name: str) -> pd.Series[Any]:
    """Numbers that came as objects; with NaN where one is missing."""
    if column.isna().any():
        return column.map(lambda value: np.nan if pd.isna(value) else float(value)).astype(np.float64)
    try:
        return column.astype(np.int64 if column.map(lambda value: float(value).is_integer()).all() else np.float64)
    except OverflowError:
        raise InputError(f"{name}: a number is too large for 64 bits; pass text") from None


def class_names_of(class_names: Any, found: Extracted) -> dict[str, str] | None:
    """What to call each class, by the class as the table writes it.

    A sequence names the classes in the order of the outputs (of several labels: the labels), a mapping those that it
    has.
    """
    if class_names is None:
        return None
    layer = found.layer
    if found.classes is not None:
        classes: Sequence[Any] | NDArray[Any] = np.asarray(found.classes).tolist()
    else:
        m, several = layer.n_outputs, layer.targets.ndim == 2
        classes = range(0 if not layer.kind.classifies else m if several else layer.kind.n_classes(m))
    if not len(classes):
        raise InputError("class_names: the targets are values, and there are no classes to name; leave it out")
    if isinstance(class_names, Mapping):
        known = {str(one) for one in classes}
        unknown = [key for key in class_names if str(key) not in known]
        if unknown:
            raise InputError(f"class_names: {unknown[0]!r} is not a class; they are {_listed(classes)}")
        return {str(key): str(name) for key, name in class_names.items()}
    if isinstance(class_names, (str, bytes)) or len(class_names) != len(classes):
        count = 1 if isinstance(class_names, (str, bytes)) else len(class_names)
        raise InputError(f"class_names: {count} for {len(classes)} classes ({_listed(classes)}); pass one for each")
    return {str(one): str(name) for one, name in zip(classes, class_names, strict=True)}


def _listed(classes: Sequence[Any] | NDArray[Any]) -> str:
    shown = [str(one) for one in list(classes)[:5]]
    return ", ".join(shown) + (" …" if len(classes) > 5 else "")
