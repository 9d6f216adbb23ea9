"""The weights of a training run at several moments, put into its model one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from noshadow.errors import FileError, InputError

__all__ = ["each_loaded"]

_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile and data parallelism put them before every name
_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin")


def each_loaded(model: nn.Module, state_dicts: Iterable[Any]) -> Iterator[int]:
    """The model with each of the state dicts in it, in turn; its own weights are back at the end, whatever happens.

    A state dict of another model is refused before anything of it is loaded.
    """
    if isinstance(state_dicts, (str, os.PathLike, Mapping)):
        raise InputError("state_dicts: pass a list of them, one for each checkpoint")
    with _restored(model) as own:
        for number, given in enumerate(state_dicts):
            name = f"state_dicts[{number}]"
            values = _unwrapped(_read(given, name))
            _require_same_model(values, model, name)
            # a file may leave out the second name of a shared tensor
            model.load_state_dict(_not_overwritten(values, model, own), strict=False)
            yield number


@contextmanager
def _restored(model: nn.Module) -> Iterator[Mapping[str, Any]]:
    """The state of the model, copied; afterwards it is, to the bit, what it was before."""
    own = {name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in _state(model)}
    try:
        yield own
    finally:
        model.load_state_dict(own)


def _not_overwritten(values: Mapping[str, Any], model: nn.Module, own: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict, with the copies in place of the model's own tensors: the dicts before were loaded over these."""
    live = dict(_state(model))
    return {key: own[key] if _is_same(value, live[key]) else value for key, value in values.items()}


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) and isinstance(other, Tensor) and one.data_ptr() == other.data_ptr() != 0


def _state(model: nn.Module) -> Iterable[tuple[str, Any]]:
    return model.state_dict().items()


def _read(given: Any, name: str) -> Mapping[str, Any]:
    """A mapping as it is; a .safetensors file, a .pt file or a folder with one of them, which is not unpickled."""
    if isinstance(given, Mapping):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise InputError(f"{name}: expected a state dict or the path of one, got {type(given).__name__}")
    path = Path(given)
    if path.is_dir():
        inside = [path / file for file in _IN_FOLDERS if (path / file).is_file()]
        if not inside:
            raise FileError(f"{name}: the folder {path} has neither {' nor '.join(_IN_FOLDERS)}; name the file")
        path = inside[0]
    try:
        values = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except FileNotFoundError:
        raise FileError(f"{name}: {path} does not exist") from None
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise FileError(f"{name}: {path} holds no state dict ({_line(error)})") from None
    except Exception:  # pickle's own, where the file holds more than tensors
        raise FileError(
            f"{name}: {path} holds more than tensors, and nothing is unpickled; save model.state_dict() alone"
        ) from None
    if not isinstance(values, Mapping):
        raise FileError(f"{name}: {path} holds a {type(values).__name__}, not a state dict")
    return values


def _unwrapped(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for prefix in _WRAPPERS:
        if values and all(str(key).startswith(prefix) for key in values):
            return _unwrapped({key.removeprefix(prefix): value for key, value in values.items()})
    return values


def _require_same_model(values: Mapping[str, Any], model: nn.Module, name: str) -> None:
    """Refuse a state dict of another model, by the first key that differs."""
    own = dict(_state(model))
    there = {value.data_ptr() for key, value in own.items() if key in values and isinstance(value, Tensor)}
    for key, value in own.items():
        if key not in values:
            if isinstance(value, Tensor) and value.numel() and value.data_ptr() in there:
                continue  # shared with one that is there
            raise InputError(
                f"{name}: it has no {key!r}, which the model has; pass state dicts of this model{_nested(values, key)}"
            )
        given = values[key]
        if isinstance(value, Tensor) and getattr(given, "shape", None) != value.shape:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise InputError(
                f"{name}: {key!r} has shape {shape}, in the model {tuple(value.shape)}; pass state dicts of this model"
            )
        if isinstance(value, Tensor) and not isinstance(given, Tensor):
            raise InputError(f"{name}: {key!r} is of type {type(given).__name__}; pass tensors")
        if isinstance(value, Tensor) and value.is_floating_point() and not given.is_floating_point():
            raise InputError(
                f"{name}: {key!r} holds {str(given.dtype).removeprefix('torch.')} where the model has "
                f"{str(value.dtype).removeprefix('torch.')}: it is quantised, and its numbers are no weights; pass the "
                "checkpoint before it was"
            )
        if isinstance(given, Tensor) and given.is_floating_point() and bool(torch.isnan(given).any()):
            raise InputError(f"{name}: {key!r} holds NaN: training had diverged; leave this checkpoint out")
    for key in values:
        if key not in own:
            raise InputError(f"{name}: it has {key!r}, which the model has not; pass state dicts of this model")


def _nested(values: Mapping[str, Any], key: str) -> str:
    """Where a checkpoint of more than the weights holds them: under the name that has the key, or sounds like it."""
    inner = {str(name): value for name, value in values.items() if isinstance(value, Mapping)}
    found = [name for name, value in inner.items() if key in _unwrapped(value)]
    found += [name for name in inner if "state" in name]
    return f" (it holds one under {found[0]!r}: pass checkpoint[{found[0]!r}])" if found else ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
