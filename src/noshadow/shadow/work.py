"""One task of a study, as any engine performs it: train a model, or several at once, and check the result."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from noshadow.errors import InputError, name_rows
from noshadow.shadow.plan import ModelKey

if TYPE_CHECKING:
    from noshadow.artefact import Arrays

__all__ = [
    "Failure",
    "Heard",
    "Members",
    "Outcome",
    "RerunsOtherwise",
    "Task",
    "Train",
    "TrainsMany",
    "advance",
    "as_arrays",
    "limited_threads",
    "perform",
    "to_numpy",
]

Members = NDArray[np.int64]
Train = Callable[[Members, int], Any]
Heard = Callable[[float], None]
"""Is told how many models more are done; a part of one counts as such."""

_listening: Heard | None = None


@runtime_checkable
class TrainsMany(Protocol):
    """A ``train`` callable that can also train several models in one go, such as ``TorchTrainer``."""

    def __call__(self, members: Members, seed: int) -> Any: ...
    def models_at_once(self, most: int) -> int: ...
    def train_many(self, members: Sequence[Members], seeds: Sequence[int]) -> Sequence[Any]: ...


@runtime_checkable
class RerunsOtherwise(Protocol):
    """A ``train`` callable that keeps less of models that are trained a second time, such as ``TorchTrainer``."""

    def __call__(self, members: Members, seed: int) -> Any: ...
    def for_reruns(self) -> Train: ...


@dataclass(frozen=True)
class Task:
    """Models of one role that are trained together (one, unless the trainer takes several), splits and seeds."""

    keys: tuple[ModelKey, ...]
    members: tuple[Members, ...]
    seeds: tuple[int, ...]
    n_samples: int


@dataclass(frozen=True)
class Failure:
    """Why a model was not trained. ``died``: its worker was lost, which is no fault of ``train`` as such."""

    reason: str
    trace: str = ""
    died: bool = False


@dataclass(frozen=True)
class Outcome:
    """What became of a task: arrays or a failure for each of its models, in their order."""

    task: Task
    results: tuple[Arrays | Failure, ...]

    @classmethod
    def lost(cls, task: Task, reason: str) -> Outcome:
        return cls(task, (Failure(reason, died=True),) * len(task.keys))


def advance(models: float) -> None:
    """For trainers: so many models more are done. A stack of G models on epoch e of E has done G·e/E of them."""
    if _listening is not None:
        _listening(models)


def perform(train: Train, task: Task, threads: int, heard: Heard | None = None) -> Outcome:
    """Train the models of a task. Never raises for what ``train`` does: that becomes a ``Failure``."""
    try:
        if task.keys[0].role == "rerun" and isinstance(train, RerunsOtherwise):
            train = train.for_reruns()
        with limited_threads(threads), _telling(heard):
            if len(task.keys) > 1 and isinstance(train, TrainsMany):
                given = list(train.train_many(task.members, task.seeds))
            else:
                given = [train(*pair) for pair in zip(task.members, task.seeds, strict=True)]
        if len(given) != len(task.keys):
            raise InputError(f"train_many: gave {len(given)} results for {len(task.keys)} models")
    except (Exception, SystemExit) as error:
        return Outcome(task, (_failure(error),) * len(task.keys))
    return Outcome(task, tuple(_checked(result, task.n_samples) for result in given))


@contextmanager
def _telling(heard: Heard | None) -> Iterator[None]:
    global _listening
    before, _listening = _listening, heard
    try:
        yield
    finally:
        _listening = before


@contextmanager
def limited_threads(threads: int) -> Iterator[None]:
    """Caps BLAS, OpenMP and torch: models side by side are faster on a thread each than sharing all."""
    torch = sys.modules.get("torch")  # not imported for a train that does without it: workers start faster
    before = torch.get_num_threads() if torch else threads
    try:
        if torch:
            torch.set_num_threads(threads)
        with threadpool_limits(limits=threads):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


def _checked(result: Any, n_samples: int) -> Arrays | Failure:
    try:
        return as_arrays(result, n_samples)
    except (Exception, SystemExit) as error:
        return _failure(error)


def _failure(error: BaseException) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def as_arrays(result: Any, n_samples: int) -> Arrays:
    """The result of ``train`` as named NumPy arrays: ``outputs`` (n_samples, m) and whatever else it gave."""
    named = dict(result) if isinstance(result, Mapping) else {"outputs": result}
    if "outputs" not in named:
        raise InputError(f"train: its dict must have the key 'outputs'; it has {sorted(map(str, named))}")
    if "membership" in named:
        raise InputError("train: 'membership' is the study's own name; call that array something else")
    arrays = {str(name): _as_array(value, str(name)) for name, value in named.items()}
    outputs = arrays["outputs"]
    if outputs.ndim == 0 or len(outputs) != n_samples:
        raise InputError(
            f"train: must give outputs for all {n_samples} records, members and others; got shape {outputs.shape}"
        )
    if outputs.dtype.kind not in "fiu":
        raise InputError(f"train: outputs must be real numbers, got {outputs.dtype}")
    bad = np.flatnonzero(~np.isfinite(outputs.reshape(n_samples, -1)).all(axis=1))
    if len(bad):
        raise InputError(f"train: outputs are NaN or infinite in {name_rows(bad.tolist())}; did training diverge?")
    arrays["outputs"] = outputs[:, None] if outputs.ndim == 1 else outputs
    return arrays


def to_numpy(value: Any) -> Any:
    """A torch tensor as a NumPy array; anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _as_array(value: Any, name: str) -> NDArray[Any]:
    array = np.asarray(to_numpy(value))
    if array.dtype.kind not in "fiub":
        raise InputError(f"train: {name!r} must be a numeric array, got {array.dtype}")
    return array
