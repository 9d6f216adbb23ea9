"""Bundle: a layer and all that an audit of it takes, in one file that is read without running anything.

The file is in the safetensors format, with a checksum over every bit. Beside the layer (``noshadow.sources.saved``)
it holds what there is of

    held_out.outputs, held_out.targets           of records that the model was not trained on; not their features
    rerun.outputs, rerun.held_out.outputs        of a second model, for the same records
    trace.*                                      what training remembers (``noshadow.trace.storage``)
    record.id, record.target, record.group…      columns of records (``noshadow.packed``)

and in its facts the model's name, notes and checksums, the classes' names, and when and with what it was written.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.columns import class_names_of, group_columns, names_of
from noshadow.comparison import compare_runs
from noshadow.errors import FileError, InputError, NoshadowWarning
from noshadow.extract import extract
from noshadow.files import file_digest
from noshadow.layer import LastLayer
from noshadow.origin import FEATURES, Origin
from noshadow.packed import pack, unpack
from noshadow.progress import Progress
from noshadow.provenance import data_sha256, versions, weights_sha256
from noshadow.sources.saved import Saved, read_saved, save_parts
from noshadow.trace import Trace
from noshadow.trace.storage import memory_of, parts_of

__all__ = ["Bundle", "save_layer"]


@dataclass(frozen=True, eq=False)
class Bundle:
    """A layer and what an audit of it takes beside it, as ``LastLayer.save`` wrote them.

    ``noshadow.audit`` takes a bundle as a model.

    Attributes
    ----------
    layer : LastLayer
        Its records stay on disk.
    ids : array (n,) or None
        A name for each record.
    groups : array (n,), mapping or None
        As ``noshadow.audit`` takes them.
    trace : Trace or None
        What training remembers.
    held_out : LastLayer or None
        Records that the model was not trained on: outputs and targets, without features.
    rerun : LastLayer, pair of them or None
        A second model's outputs for the same records, and for the held-out ones.
    class_names : dict or None
        What reports call the classes.

    Examples
    --------
    >>> import noshadow, tempfile
    >>> layer = noshadow.LastLayer([[0.0], [1.0], [2.0]], [0.1, 1.0, 1.9], [0.0, 1.2, 1.8], head="squared")
    >>> path = f"{tempfile.mkdtemp()}/layer.safetensors"
    >>> layer.save(path, ids=["a", "b", "c"], groups=["north", "north", "south"])
    >>> noshadow.audit(noshadow.Bundle.load(path)).table["group"].tolist()
    ['north', 'north', 'south']
    """

    layer: LastLayer
    ids: Any = None
    groups: Any = None
    trace: Trace | None = None
    held_out: LastLayer | None = None
    rerun: Any = None
    class_names: Mapping[str, str] | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, progress: Progress = None) -> Bundle:
        """What was saved; a file that is damaged, or that no noshadow wrote, is refused.

        Parameters
        ----------
        path : str or Path
            What ``LastLayer.save`` wrote.
        progress : Progress, optional
            As of ``LastLayer.open``.

        Returns
        -------
        Bundle

        Examples
        --------
        >>> import noshadow, tempfile
        >>> layer = noshadow.LastLayer([[0.0], [1.0], [2.0]], [0.1, 1.0, 1.9], [0.0, 1.2, 1.8], head="squared")
        >>> path = f"{tempfile.mkdtemp()}/layer.safetensors"
        >>> layer.save(path, ids=["a", "b", "c"], trace=[[0.5, 0.4, 0.3], [0.1, 0.2, 0.1]])
        >>> bundle = noshadow.Bundle.load(path)
        >>> bundle.ids.tolist(), bundle.trace.epochs
        (['a', 'b', 'c'], 2)
        """
        saved = read_saved(path)
        layer = LastLayer.open(saved.records, **saved.facts, progress=progress)
        return _Reader(saved, layer).bundle() if saved.about else cls(layer)

    def beside(self, **given: Any) -> dict[str, Any]:
        """What goes with the layer, by argument of ``noshadow.audit``; what is given as well is refused.

        Examples
        --------
        >>> import noshadow
        >>> layer = noshadow.LastLayer([[0.0], [1.0]], [0.1, 1.0], [0.0, 1.2], head="squared")
        >>> noshadow.Bundle(layer, ids=["a", "b"]).beside(groups=["north", "south"])["groups"]
        ['north', 'south']
        >>> noshadow.Bundle(layer, ids=["a", "b"]).beside(ids=["c", "d"])
        Traceback (most recent call last):
            ...
        noshadow.errors.InputError: ids: the saved layer holds it already; leave it out
        """
        held = {name: getattr(self, name) for name in ("ids", "groups", "trace", "held_out", "rerun", "class_names")}
        for name, value in given.items():
            if value is not None and held[name] is not None:
                raise InputError(f"{name}: the saved layer holds it already; leave it out")
        return {name: given.get(name) if value is None else value for name, value in held.items()}


def save_layer(
    layer: LastLayer,
    path: str | os.PathLike[str],
    *,
    ids: Any = None,
    trace: Any = None,
    groups: Any = None,
    held_out: Any = None,
    rerun: Any = None,
    class_names: Any = None,
) -> None:
    """``LastLayer.save``: all is checked against the layer before anything is written."""
    compare_runs(layer, None, layer, rerun, held_out, lambda *_: layer)
    origin = layer.origin or Origin()
    found = extract(layer)
    tensors: dict[str, Tensor] = {}
    columns: dict[str, str] = {}
    if ids is not None or origin.index is not None:
        columns["id"] = _put(tensors, "record.id", names_of(ids, found.index, layer.n), "ids")
    if origin.labels is not None:
        columns["target"] = _put(tensors, "record.target", np.asarray(origin.labels), "targets")
    for name, values in group_columns(groups, layer.n).items():
        columns[name] = _put(tensors, f"record.{name}", values, "groups")
    remembered = None
    if trace is not None:
        arrays, remembered = parts_of(Trace.of(trace, layer).memory)
        tensors |= {f"trace.{name}": torch.from_numpy(array) for name, array in arrays.items()}
    if held_out is not None:
        tensors |= {"held_out.outputs": held_out.outputs, "held_out.targets": held_out.targets}
    if rerun is not None:
        first, second = rerun if isinstance(rerun, (tuple, list)) else (rerun, None)
        tensors["rerun.outputs"] = first.outputs
        if second is not None:
            tensors["rerun.held_out.outputs"] = second.outputs
    about = {
        "model": origin.model,
        "model_facts": dict(origin.facts),
        "notes": list(origin.notes),
        "features": origin.features,
        "classes": None if origin.classes is None else np.asarray(origin.classes).tolist(),
        "class_names": class_names_of(class_names, found),
        "columns": [list(one) for one in columns.items()],  # in their order
        "trace": remembered,
        "weights_sha256": weights_sha256(layer, layer),
        "data_sha256": data_sha256(layer),
        "versions": versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    facts = ("head", "ridge", "bias", "penalize_bias", "label_smoothing", "coefficients", "class_weight")
    save_parts(path, layer.source, {name: getattr(layer, name) for name in facts}, tensors, about)


def _put(tensors: dict[str, Tensor], name: str, values: Any, argument: str) -> str:
    kind, parts = pack(values, argument)
    tensors |= {f"{name}{part}": values for part, values in parts.items()}
    return kind


class _Reader:
    """What lies beside a layer, read and checked: the file may be anybody's."""

    def __init__(self, saved: Saved, layer: LastLayer) -> None:
        self.saved, self.layer, self.about = saved, layer, saved.about

    def bundle(self) -> Bundle:
        columns = self._fact("columns", list, [])
        if not all(
            isinstance(one, list) and len(one) == 2 and all(isinstance(word, str) for word in one) for one in columns
        ):
            raise self._damaged("its columns are not named")
        values = {name: self._column(name, kind) for name, kind in columns}
        layer = self.layer.of_origin(self._origin(values.get("target")))
        held_out = self._layer("held_out.outputs", self.saved.tensor("held_out.targets"))
        rerun = self._layer("rerun.outputs", layer.targets)
        again = None if held_out is None else self._layer("rerun.held_out.outputs", held_out.targets)
        groups = {name: some for name, some in values.items() if name == "group" or name.startswith("group_")}
        return Bundle(
            layer,
            values.get("id"),
            groups.get("group") if "group" in groups else _unprefixed(groups) or None,
            self._trace(),
            held_out,
            rerun if again is None else (rerun, again),
            self._class_names(),
        )

    def _fact(self, name: str, kind: type, default: Any) -> Any:
        value = self.about.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self._damaged(f"its {name} is {value!r}")
        return value

    def _damaged(self, reason: str) -> FileError:
        return FileError(f"path: {self.saved.path} is not a layer that this version reads ({reason[:200]})")

    def _origin(self, labels: Any) -> Origin:
        features = self._fact("features", str, "unknown")
        if features not in FEATURES:
            raise self._damaged(f"its features are {features!r}")
        notes, classes = self._fact("notes", list, []), self._fact("classes", list, None)
        if classes is not None and (self.layer.kind.classifies and self.layer.targets.ndim == 1):
            count = self.layer.kind.n_classes(self.layer.n_outputs)
            if len(classes) != count:
                raise self._damaged(f"it names {len(classes)} classes of {count}")
        file = {name: self.about.get(name) for name in ("date", "versions", "data_sha256")}
        return Origin(
            self._fact("model", str, "LastLayer"),
            self._fact("model_facts", dict, {}),
            tuple(str(note) for note in notes),
            None,
            labels,
            classes,
            features,
            self._fact("weights_sha256", str, None),
            {"sha256": file_digest(self.saved.path), **file},
        )

    def _column(self, name: str, kind: Any) -> Any:
        return unpack(kind, lambda part: self.saved.tensor(f"record.{name}{part}"), self.layer.n, f"path: {name}")

    def _layer(self, name: str, targets: Tensor | None) -> LastLayer | None:
        """Records of which only outputs and targets are known."""
        outputs = self.saved.tensor(name)
        if outputs is None or targets is None:
            if outputs is not None:
                raise self._damaged(f"{name} has no targets")
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NoshadowWarning)  # what there is to know was said of the layer
            try:
                return LastLayer(torch.zeros((len(outputs), 0)), outputs, targets, self.layer.head)
            except InputError as error:
                raise self._damaged(f"{name}: {error}") from None

    def _trace(self) -> Trace | None:
        facts = self._fact("trace", dict, None)
        if facts is None:
            return None
        tensors = {name.removeprefix("trace."): self.saved.tensor(name) for name in self.saved.names("trace.")}
        try:
            memory = memory_of({name: one.numpy() for name, one in tensors.items() if one is not None}, facts)
            return Trace.of(Trace.of_memory(memory), self.layer)
        except InputError as error:
            raise self._damaged(str(error)) from None
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
            raise self._damaged(f"its trace: {type(error).__name__}") from None

    def _class_names(self) -> dict[str, str] | None:
        names = self._fact("class_names", dict, None)
        return None if names is None else {str(one): str(name) for one, name in names.items()}


def _unprefixed(groups: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("group_"): values for name, values in groups.items()}
