"""The training data as batches: every record once, in the data set's order."""

from __future__ import annotations

import copy
import functools
import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data import default_collate as torch_collate

from noshadow.errors import InputError
from noshadow.extract.torch.batches import LABEL_KEYS, Signature
from noshadow.pairing import is_pandas
from noshadow.tensors import as_tensor

__all__ = ["Batched", "Source", "read", "stacked", "told", "undisturbed"]

_LOOKED_AT = 8
"""Records that are read twice to see whether they come out the same; a coin toss in each is missed once in 256."""


@dataclass(frozen=True)
class Batched:
    """A data set cut into batches of one size, any of which can be read, here or in another process."""

    data: Any
    size: int
    collate: Callable[[Any], Any]

    def __len__(self) -> int:
        return -(-len(self.data) // self.size)

    def rows(self, start: int, stop: int) -> slice:
        """The records of some consecutive batches."""
        return slice(start * self.size, min(stop * self.size, len(self.data)))

    def __call__(self, start: int, stop: int) -> Iterator[Any]:
        """Some consecutive batches."""
        rows = self.rows(start, stop)
        if self.is_sliced:  # the same batches as row by row, without the rows
            tensors = self.data.tensors
            places = range(rows.start, rows.stop, self.size)
            return (tuple(t[first : min(first + self.size, rows.stop)] for t in tensors) for first in places)
        return _readable(self._collated(rows), start)

    def _collated(self, rows: slice) -> Iterator[Any]:
        """Batches of records that are read here, as a DataLoader without workers reads them, and quicker."""
        several = getattr(self.data, "__getitems__", None)
        for first in range(rows.start, rows.stop, self.size):
            places = range(first, min(first + self.size, rows.stop))
            yield self.collate(several(list(places)) if several else [self.data[place] for place in places])

    @property
    def is_sliced(self) -> bool:
        """Whether batches are slices of tensors."""
        return type(self.data) is TensorDataset and _is_plain(self.collate)


@dataclass(frozen=True)
class Source:
    """Batches, the number of records where it is known, what to know of them, and the batches one by one where the
    data can be asked for any of them."""

    batches: Iterable[Any]
    total: int | None
    notes: tuple[str, ...] = ()
    shared: Batched | None = None


def read(data: Any, batch_size: int, signature: Signature) -> Source:
    """Batches of a Dataset, a DataLoader or (X, y), in the data set's order, each record once."""
    stack = functools.partial(stacked, names=signature.names)
    if isinstance(data, DataLoader):
        return _from_loader(_plain_loader(data), batch_size, stack)
    if isinstance(data, IterableDataset):
        return _told(DataLoader(data, batch_size=batch_size, collate_fn=stack, generator=torch.Generator()), None)
    if isinstance(data, (tuple, list)) and len(data) == 2 and not isinstance(data, Dataset):
        x, y = as_tensor(data[0], "data[0]"), as_tensor(data[1], "data[1]")
        if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
            raise InputError(f"data: X has the shape {tuple(x.shape)}, y {tuple(y.shape)}; they need a row per record")
        data = TensorDataset(x, y)
    if isinstance(data, Mapping) and data and all(hasattr(part, "__getitem__") for part in data.values()):
        raise InputError(
            f"data: expected a Dataset, a DataLoader or (X, y), got a {type(data).__name__} with the keys "
            f"{', '.join(map(repr, data))}; pass one split of it, or a Dataset of its rows"
        )
    unread = isinstance(data, Mapping) or is_pandas(data)
    if unread or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise InputError(f"data: expected a Dataset, a DataLoader or (X, y), got {type(data).__name__}")
    return _of_dataset(data, batch_size, stack)


def stacked(records: Sequence[Any], names: frozenset[str]) -> Any:
    """torch's own collation, of records whose fields may be lists of numbers.

    ``names`` are the arguments of the model's forward: a column that is none of them may be of a kind that cannot be
    stacked, and then stays a list.
    """
    if isinstance(records[0], (tuple, list)):
        if not any(isinstance(field, list) for field in records[0]):
            return torch_collate(list(records))
        return torch_collate([tuple(_tensor_of_list(field) for field in record) for record in records])
    if not isinstance(records[0], Mapping):
        return torch_collate(list(records))
    columns: dict[str, Any] = {}
    for key in records[0]:
        values = [_tensor_of_list(record[key]) for record in records]
        try:
            columns[key] = torch_collate(values)
        except (RuntimeError, TypeError, ValueError):
            if key in names or key in LABEL_KEYS:
                raise
            columns[key] = values
    return columns


def _is_plain(collate: Callable[[Any], Any]) -> bool:
    """Whether it is ``stacked``."""
    return isinstance(collate, functools.partial) and collate.func is stacked


def _tensor_of_list(value: Any) -> Any:
    """A list of numbers, or of such lists of one length, as a tensor; anything else as it is."""
    if not isinstance(value, list) or not value:
        return value
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return value


def _plain_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The torch loader inside one of accelerate's; other loaders that change what is yielded are refused."""
    while type(loader).__module__.startswith("accelerate."):
        loader = cast(Any, loader).base_dataloader
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InputError(
            f"data: a {type(loader).__name__} yields other batches than a DataLoader would; pass its Dataset, or a "
            "plain DataLoader over a Dataset that yields what the model was trained on"
        )
    return loader


def _from_loader(loader: DataLoader[Any], batch_size: int, stack: Callable[[Sequence[Any]], Any]) -> Source:
    collate = stack if loader.collate_fn is torch_collate else loader.collate_fn
    if isinstance(loader.dataset, IterableDataset):
        if loader.drop_last:
            raise InputError("data: the loader drops the last batch of a stream; make it with drop_last=False")
        # without workers: each of them would read the whole stream, unless the stream shares itself out
        one = DataLoader(loader.dataset, batch_size=loader.batch_size, collate_fn=collate, generator=torch.Generator())
        return _told(one, None)
    _require_every_record_once(loader)
    if loader.batch_size is None and loader.batch_sampler is None:
        return _of_items(loader, batch_size, stack)
    size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    return _of_dataset(loader.dataset, size if isinstance(size, int) else batch_size, collate, loader)


def _of_items(loader: DataLoader[Any], batch_size: int, stack: Callable[[Sequence[Any]], Any]) -> Source:
    """A loader with batch_size=None: its items are records, or batches that the data set makes itself."""
    with undisturbed():
        item = _attempt(lambda: loader.collate_fn(loader.dataset[0]), "record 0") if len(_sized(loader)) else None
    if isinstance(item, Mapping):
        target = next((item[key] for key in LABEL_KEYS if key in item), None)
    else:
        target = item[1] if isinstance(item, (tuple, list)) and len(item) > 1 else None
    if getattr(target, "ndim", 0) == 0:
        convert = loader.collate_fn
        return _of_dataset(
            loader.dataset, batch_size, functools.partial(_converted, convert=convert, stack=stack), loader
        )
    whole = DataLoader(loader.dataset, batch_size=None, collate_fn=loader.collate_fn, generator=torch.Generator())
    return _told(whole, None)


def _converted(records: Sequence[Any], convert: Callable[[Any], Any], stack: Callable[[Sequence[Any]], Any]) -> Any:
    return stack([convert(record) for record in records])


def _of_dataset(data: Any, size: int, collate: Callable[[Any], Any], like: DataLoader[Any] | None = None) -> Source:
    total, shared = len(data), Batched(data, size, collate)
    if shared.is_sliced:
        return Source(shared(0, len(shared)), total, shared=shared)
    notes = _randomness(data, total, collate)
    if like is None or not like.num_workers:
        return Source(shared(0, len(shared)), total, notes, shared)
    ordered: DataLoader[Any] = DataLoader(
        data,
        batch_size=size,
        shuffle=False,
        collate_fn=collate,
        generator=torch.Generator(),
        num_workers=like.num_workers,
        worker_init_fn=like.worker_init_fn,
        multiprocessing_context=like.multiprocessing_context,
    )
    return Source(_readable(ordered), total, notes, shared)


def _told(loader: DataLoader[Any], total: int | None) -> Source:
    return Source(_readable(loader), total)


def _readable(loader: Iterable[Any], k: int = 0) -> Iterator[Any]:
    """Batches, counted from k, whose reading errors are told in a sentence.

    Python looks for cycles of garbage after so many new objects: in the middle of nearly every batch of records that
    are read one by one, where it walks through all of them and finds none. It looks when the batch is made instead.
    """
    iterator = iter(loader)
    while True:
        sweeps = gc.isenabled()
        gc.disable()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        except InputError:
            raise
        except Exception as error:
            raise _unreadable(f"batch {k}", error) from error
        finally:
            if sweeps:
                gc.enable()
        yield batch
        k += 1


def _require_every_record_once(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose sampler leaves records out or repeats them: which were trained on is not ours to guess."""
    n = len(_sized(loader))
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if type(sampler) is BatchSampler:  # its drop_last leaves out other records in each epoch
        sampler = sampler.sampler
    if type(sampler) is SequentialSampler and len(sampler.data_source) == n:
        return
    if type(sampler) is RandomSampler and len(sampler.data_source) == n:
        once = not sampler.replacement and sampler.num_samples == n
    else:
        once = not getattr(sampler, "replacement", False) and _covers_once(sampler, n)
    if not once:
        raise InputError(
            f"data: the loader draws records with a {type(sampler).__name__} that does not give each of the {n} "
            "records of its data set exactly once; pass the Dataset itself, or a torch.utils.data.Subset with the "
            "indices of the records that the model was trained on"
        )


def _covers_once(sampler: Any, n: int) -> bool:
    """Whether one epoch of a sampler, or batch sampler, is a permutation of 0 … n−1. Random state is put back."""
    generator = getattr(sampler, "generator", None)
    state = generator.get_state() if isinstance(generator, torch.Generator) else None
    with undisturbed():
        drawn = _attempt(lambda: list(islice(copy.copy(sampler), n + 1)), "the sampler of the loader")
        if drawn and isinstance(drawn[0], (list, tuple, Tensor)) and np.ndim(drawn[0]):
            drawn = list(islice(chain.from_iterable(drawn), n + 1))
    if generator is not None and state is not None:
        generator.set_state(state)
    try:
        return sorted(int(index) for index in drawn) == list(range(n))
    except (TypeError, ValueError):
        return False


def _randomness(data: Any, n: int, collate: Callable[[Any], Any]) -> tuple[str, ...]:
    """A note where a few records, read and collated twice, come out differently."""
    rows = sorted({k * (n - 1) // (_LOOKED_AT - 1) for k in range(_LOOKED_AT)}) if n else []
    if not rows:
        return ()
    draws = not _is_plain(collate)  # torch's own collation adds nothing random

    def looked_at() -> list[Any]:
        return [collate([data[row]]) if draws else data[row] for row in rows]

    with undisturbed():
        first, second = (_attempt(looked_at, f"records {rows[0]} … {rows[-1]}") for _ in "ab")
    if _same(first, second):
        return ()
    return (
        "data: the same records read twice differ, so these features are of randomly augmented inputs and the scores "
        "change from one audit to the next; pass the data without random transforms",
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
    return not isinstance(a, (int, float, str)) or a == b or a != a  # of other kinds nothing is claimed


@contextmanager
def undisturbed() -> Iterator[None]:
    """The random states of Python, NumPy and torch are afterwards what they were before."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  the global one is meant
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch gives it no types
    on_devices = torch.cuda.get_rng_state_all() if started else []
    try:
        yield
    finally:
        if on_devices:
            torch.cuda.set_rng_state_all(on_devices)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002  as above
        torch.set_rng_state(states[2])


def _attempt(read_records: Callable[[], Any], where: str) -> Any:
    try:
        return read_records()
    except InputError:
        raise
    except Exception as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> InputError:
    hint = ""
    if "stack" in str(error) or "equal size" in str(error) or "batch must contain" in str(error):
        hint = (
            "; pass a DataLoader with a collate_fn that makes tensors of the records (for text of different lengths "
            "transformers' DataCollatorWithPadding)"
        )
    return InputError(f"data: {where} could not be read: {told(error)}{hint}")


def told(error: Exception) -> str:
    """An error in one line: its type and its message; of one from a worker process, the message there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    if "Traceback" in str(error):
        return lines[-1][:300]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _sized(loader: DataLoader[Any]) -> Sized:
    return cast(Sized, loader.dataset)
