"""What ``noshadow audit`` is pointed at, as arguments of ``noshadow.audit``; each kind says which options it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noshadow.commands.inputs import read_arrays, read_trace
from noshadow.commands.kinds import kind_of
from noshadow.commands.own_code import is_code, load_weights, made
from noshadow.errors import FileError, InputError, missing_extra

__all__ = ["Asked", "Subject", "find_subject", "other_layers"]


@dataclass(frozen=True)
class Asked:
    """The options that depend on what is audited; None or empty: not given."""

    data: str | None = None
    target: str | None = None
    checkpoint: Path | None = None
    trust: Sequence[str] = ()
    trace: Path | None = None
    held_out: str | None = None
    rerun: Path | None = None
    rerun_held_out: Path | None = None
    head: str | None = None
    ridge: float | None = None
    bias: bool | None = None
    penalize_bias: bool | None = None
    weight_decay: float | None = None
    optimizer: str | None = None
    loss: str | None = None
    label_smoothing: float | None = None
    layer: str | None = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None and value != ()}


@dataclass(frozen=True)
class Subject:
    """What is audited: in words, and as the arguments of ``noshadow.audit``."""

    words: str
    model: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)


_EACH = ("trace", "held_out", "rerun")
_PAIRED = (*_EACH, "rerun_held_out")
_OBJECTIVE = ("head", "ridge", "weight_decay", "optimizer", "loss", "label_smoothing", "layer")


def find_subject(file: str, asked: Asked) -> Subject:
    """What the file, or the name of one's own code, stands for."""
    if is_code(file):
        return _told("one's own code", _of_code, (*_EACH, "data", "target", "checkpoint", *_OBJECTIVE), file, asked)
    path = Path(file)
    if not path.exists():
        raise InputError(f"file: {file} does not exist, and is no package.module:name either")
    kind = "npz" if path.is_dir() else kind_of(path)
    if kind == "layer":
        return _told("a saved layer", _of_layer, _PAIRED, path, asked)
    if kind == "skops":
        return _told("a scikit-learn model", _of_skops, (*_EACH, "data", "target", "trust", "ridge"), path, asked)
    return _told("arrays", _of_arrays, (*_PAIRED, "head", "ridge", "bias", "penalize_bias"), path, asked)


def _told(
    words: str, read: Callable[[Any, Asked], Subject], takes: Sequence[str], subject: Any, asked: Asked
) -> Subject:
    for name in asked.given():
        if name not in takes:
            raise InputError(f"{name}: it is not for {words}; leave it out")
    return read(subject, asked)


def _of_layer(path: Path, asked: Asked) -> Subject:
    from noshadow.bundle import Bundle

    bundle = Bundle.load(path)
    others = other_layers(asked, bundle.layer.head, bundle.held_out is not None)
    return Subject("a saved layer; nothing is run", bundle, others)


def _of_arrays(path: Path, asked: Asked) -> Subject:
    bias = asked.bias is not False
    found = read_arrays(path, asked.head, asked.ridge, bias, asked.penalize_bias is not False)
    beside = {"ids": found.ids, "groups": found.groups, "trace": found.trace}
    return Subject("arrays; nothing is run", found.layer, {**beside, **other_layers(asked, found.layer.head)})


def other_layers(asked: Asked, head: str, others: bool = False) -> dict[str, Any]:
    """Other layers, each from a file of its own; ``others``: what is audited comes with held-out records."""
    found: dict[str, Any] = {} if asked.trace is None else {"trace": read_trace(asked.trace)}
    if asked.held_out is not None:
        found["held_out"] = _layer(Path(asked.held_out), "held_out", head)
    if asked.rerun is not None:
        found["rerun"] = _layer(asked.rerun, "rerun", head)
        if asked.rerun_held_out is not None:
            found["rerun"] = found["rerun"], _layer(asked.rerun_held_out, "rerun_held_out", head)
        elif others or asked.held_out is not None:
            raise InputError("rerun_held_out: with held-out records rerun= needs the second model's of them; pass it")
    elif asked.rerun_held_out is not None:
        raise InputError("rerun_held_out: it goes with rerun=, of the training records; pass both")
    return found


def _layer(path: Path, argument: str, head: str) -> Any:
    """The layer of a file beside the one that is audited; whatever is wrong with it is said of its own option."""
    from noshadow.layer import LastLayer

    if not path.exists():
        raise InputError(f"{argument}: {path} does not exist")
    kind = kind_of(path, argument)
    if kind == "skops":
        raise FileError(f"{argument}: {path} is a model; pass a layer or arrays, as what is audited")
    try:
        return LastLayer.load(path) if kind == "layer" else read_arrays(path, head, None, argument=argument).layer
    except InputError as error:
        if error.argument == argument:
            raise
        raise FileError(f"{argument}: of {path}, {error}") from None


def _of_skops(path: Path, asked: Asked) -> Subject:
    if asked.data is None:
        raise InputError(
            "data: a model comes without its training records; pass them, an .npz with X and y or a .parquet"
        )
    model, data = _estimator(path, asked.trust, "file"), _data(asked.data, asked.target, "data")
    return Subject("a scikit-learn model", model, {**data, "ridge": asked.ridge, **_models(asked, _rerun_skops)})


def _rerun_skops(asked: Asked) -> Any:
    assert asked.rerun is not None
    return _estimator(asked.rerun, asked.trust, "rerun")


def _estimator(path: Path, trust: Sequence[str], argument: str) -> Any:
    """A skops file; types that neither skops nor the user trusts are named, and nothing of it is made."""
    try:
        import skops.io as skops
    except ImportError:
        raise missing_extra("skops", "skops") from None
    if kind_of(path, argument) != "skops":
        raise FileError(f"{argument}: {path} is no skops file; save the model with skops.io.dump(model, 'model.skops')")
    try:
        unknown = [name for name in skops.get_untrusted_types(file=path) if name not in trust]
        if unknown:
            flags = " ".join(f"--trust {name}" for name in unknown)
            raise FileError(
                f"{argument}: {path} holds types that are not known to be safe: {', '.join(unknown)}; if you trust "
                f"whoever wrote it, and only then, pass {flags}"
            )
        return skops.load(path, trusted=list(trust))
    except FileError:
        raise
    except Exception as error:  # zip's, JSON's, skops' and the estimator's own
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise FileError(f"{argument}: {path} is no model that skops can read ({reason})") from None


def _of_code(given: str, asked: Asked) -> Subject:
    if asked.data is None:
        raise InputError("data: pass the training records, as package.module:name, an .npz with X and y or a .parquet")
    model = made(given, "file")
    if asked.checkpoint is not None:
        load_weights(model, asked.checkpoint, "checkpoint")

    def again(asked: Asked) -> Any:
        assert asked.rerun is not None
        return load_weights(made(given, "file"), asked.rerun, "rerun")

    arguments = {name: getattr(asked, name) for name in _OBJECTIVE}
    data = _data(asked.data, asked.target, "data")
    return Subject("your own code, which was run", model, {**arguments, **data, **_models(asked, again)})


def _models(asked: Asked, rerun: Callable[[Asked], Any]) -> dict[str, Any]:
    """What goes with a model and its data: held-out data, a second model."""
    found: dict[str, Any] = {} if asked.trace is None else {"trace": read_trace(asked.trace)}
    if asked.held_out is not None:
        found["held_out"] = _data(asked.held_out, asked.target, "held_out")["data"]
    if asked.rerun is not None:
        if not asked.rerun.exists():
            raise InputError(f"rerun: {asked.rerun} does not exist")
        found["rerun"] = rerun(asked)
    return found


def _data(given: str, target: str | None, argument: str) -> dict[str, Any]:
    """Records with their targets: one's own code, an .npz with X and y, or a .parquet with a column of targets."""
    if is_code(given):
        return {"data": made(given, argument)}
    path = Path(given)
    if not path.exists():
        raise InputError(f"{argument}: {given} does not exist, and is no package.module:name either")
    kind = kind_of(path, argument)
    if kind == "npz":
        from noshadow.npz import read_npz

        arrays = read_npz(path, ("X", "y"), ("ids", "group"), argument)
        return {"data": (arrays["X"], arrays["y"]), "ids": arrays.get("ids"), "groups": arrays.get("group")}
    if kind != "parquet":
        raise FileError(f"{argument}: {path} holds no records; pass an .npz with X and y, or a .parquet")
    return _frame(path, target or "target", argument)


def _frame(path: Path, target: str, argument: str) -> dict[str, Any]:
    import pandas as pd

    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow has its own
        raise FileError(f"{argument}: {path} cannot be read ({' '.join(str(error).split())[:200]})") from None
    if target not in frame:
        raise FileError(f"{argument}: {path} has no column {target!r}; name the one of the targets with --target")
    beside = {name: frame.pop(name) if name in frame else None for name in ("ids", "group")}
    y = frame.pop(target)
    return {
        "data": (frame.reset_index(drop=True), y.reset_index(drop=True)),
        "ids": beside["ids"],
        "groups": beside["group"],
    }
