"""Work in parts, as tasks of Ray, on a local cluster or on one that exists. Needs the extra ``[ray]``.

What is kept stays with the driver, which puts together what the tasks give. Each result comes with a digest that was
taken where it was made; a task whose worker is lost is done again elsewhere.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.errors import InputError
from noshadow.layer import LastLayer
from noshadow.passes.blocks import Job, Parts
from noshadow.ray_cluster import RETRIES_OF_LOST_WORKERS, RayCluster, first_line

__all__ = ["RayTasks", "Sent"]

Sent = tuple[dict[str, tuple[str, tuple[int, ...], NDArray[np.uint8]]], str]
"""Type, shape and bytes of each tensor, and a digest of all: NumPy has no name for some types of torch."""


class RayTasks:
    """Runs parts of some work as Ray tasks of one core each.

    ``address=None`` starts a local cluster (or uses the one this process is connected to) and stops it at the end; an
    address connects to an existing cluster, whose machines need noshadow, the modules that a model or a data set comes
    from (what is defined in the script itself is sent along) and, for what is on disk, the same files under the same
    paths. ``workers`` is the number of cores of a local cluster.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self._cluster = RayCluster(address, workers)
        self._ray = self._cluster.ray
        self._perform = self._cluster.task(_perform, cores=1)
        self._ahead = 2 * self._cluster.cores  # a worker finds its next task waiting

    def __call__(self, layer: LastLayer, job: Job, blocks: Sequence[slice]) -> Iterator[Parts]:
        if not blocks:
            return
        what, remedy = "engine: the layer", "save it, and score what LastLayer.load gives"
        shared = self.shared(layer, what, remedy), self.shared(job, what, remedy)
        yield from self.each(_of_block, blocks, *shared)

    def shared(self, value: Any, what: str, remedy: str) -> Any:
        """Something that all tasks of some work need, sent once; ``what`` it is and the remedy, where it cannot be."""
        try:
            return self._ray.put(value)
        except self._ray.exceptions.RayError:
            raise
        except Exception as error:  # whatever the value's own code raises on being pickled
            raise InputError(
                f"{what} cannot be sent to other processes ({first_line(error.__cause__ or error)}); {remedy}"
            ) from None

    def each(self, job: Callable[..., Parts], items: Iterable[Any], *shared: Any) -> Iterator[Parts]:
        """``job(item, *shared)`` for each item, in the order of the items."""
        running: deque[Any] = deque()
        try:
            for item in items:
                running.append(self._perform.remote(job, item, *shared))
                if len(running) >= self._ahead:
                    yield self._received(running.popleft())
            while running:
                yield self._received(running.popleft())
        finally:
            for left in running:
                self._ray.cancel(left, force=True)

    def close(self) -> None:
        self._cluster.close()

    def _received(self, reference: Any) -> Parts:
        try:
            arrays, digest = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(*error.cause.args) from None
            if _unread(error):
                raise InputError(
                    f"engine: a worker cannot read what it was sent ({first_line(error.cause or error)}); the modules "
                    "that the model and the data come from must be there on every machine of the cluster"
                ) from error
            raise
        except self._ray.exceptions.RayError as error:
            raise InputError(
                f"engine: Ray lost a block {RETRIES_OF_LOST_WORKERS + 1} times ({first_line(error)}); if workers ran "
                "out of memory, pass a smaller memory=. What is in store= or cache= is whole, and run again it goes on "
                "(blocks that less memory makes smaller are done anew)"
            ) from error
        if _digest(arrays) != digest:
            raise InputError("engine: what a worker sent does not have its checksum; run again")
        return {name: _tensor(*held) for name, held in arrays.items()}


def _perform(job: Callable[..., Parts], item: Any, *shared: Any) -> Sent:
    """A part of the work, on a worker; one core each, as the number of threads is that of the cores."""
    torch.set_num_threads(1)
    arrays = {name: _bytes(value) for name, value in job(item, *shared).items()}
    return arrays, _digest(arrays)


def _of_block(rows: slice, layer: LastLayer, job: Job) -> Parts:
    return job(layer.window(rows))


def _bytes(value: Tensor) -> tuple[str, tuple[int, ...], NDArray[np.uint8]]:
    plain = value.detach().cpu().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    return name, tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy()


def _tensor(name: str, shape: tuple[int, ...], content: NDArray[np.uint8]) -> Tensor:
    dtype = getattr(torch, name)
    plain = torch.from_numpy(np.array(content)).view(dtype) if content.size else torch.empty(0, dtype=dtype)
    return plain.reshape(shape)


def _digest(arrays: dict[str, tuple[str, tuple[int, ...], NDArray[np.uint8]]]) -> str:
    digest = hashlib.sha256()
    for name, (kind, shape, content) in sorted(arrays.items()):
        digest.update(f"{name} {kind} {shape}".encode())
        digest.update(np.ascontiguousarray(content).data)
    return digest.hexdigest()


def _unread(error: BaseException) -> bool:
    """Whether a task failed before it began, on what it was given."""
    return "At least one of the input arguments for this task could not be computed" in str(error)
