"""Blocks as tasks of Ray, on a local cluster or on one that exists. Needs the extra ``[ray]``.

The store stays with the driver, which adds up what the tasks give. Each result comes with a digest that was taken where
it was made; a task whose worker is lost is done again elsewhere.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.errors import InputError, missing_extra
from noshadow.layer import LastLayer
from noshadow.passes.blocks import Job, Parts

__all__ = ["RETRIES_OF_LOST_WORKERS", "RayTasks", "Sent"]

RETRIES_OF_LOST_WORKERS = 3
Sent = tuple[dict[str, NDArray[Any]], str]


class RayTasks:
    """Runs blocks as Ray tasks of one core each.

    ``address=None`` starts a local cluster (or uses the one this process is connected to) and stops it at the end; an
    address connects to an existing cluster, whose machines need noshadow and, for layers on disk, the same files under
    the same paths. ``workers`` is the number of cores of a local cluster.
    """

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray") from error
        self._ray: Any = ray
        self._started_here = not ray.is_initialized()
        if self._started_here and address is None:
            home = str(Path(__file__).resolve().parents[2])  # of noshadow: workers import nothing else of ours
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would ask where it runs, and tell its makers
            ray.init(
                address="local",
                num_cpus=workers,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": home}},
            )
        elif self._started_here:
            try:
                ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
            except Exception as error:  # Ray has several
                raise InputError(f"address: no Ray cluster answers at {address} ({_short(error)})") from error
        self._perform = ray.remote(num_cpus=1, max_retries=RETRIES_OF_LOST_WORKERS)(_perform)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self._ahead = 2 * max(1, cores)  # a worker finds its next task waiting

    def __call__(self, layer: LastLayer, job: Job, blocks: Sequence[slice]) -> Iterator[Parts]:
        if not blocks:
            return
        try:
            shared = self._ray.put(layer), self._ray.put(job)
        except TypeError as error:
            raise InputError(
                f"engine: the layer cannot be sent to other processes ({_short(error)}); save it, and score what "
                "LastLayer.load gives"
            ) from None
        running: deque[Any] = deque()
        waiting = iter(blocks)
        try:
            for rows in waiting:
                running.append(self._perform.remote(*shared, rows))
                if len(running) >= self._ahead:
                    yield self._received(running.popleft())
            while running:
                yield self._received(running.popleft())
        finally:
            for left in running:
                self._ray.cancel(left, force=True)

    def close(self) -> None:
        if self._started_here:
            self._ray.shutdown()

    def _received(self, reference: Any) -> Parts:
        try:
            arrays, digest = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, InputError):
                raise InputError(*error.cause.args) from None
            raise
        except self._ray.exceptions.RayError as error:
            raise InputError(
                f"engine: Ray lost a block {RETRIES_OF_LOST_WORKERS + 1} times ({_short(error)}); if workers ran out "
                "of memory, pass a smaller memory=. What is in store= is whole, and run again it goes on"
            ) from error
        if _digest(arrays) != digest:
            raise InputError("engine: what a worker sent does not have its checksum; run again")
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _perform(layer: LastLayer, job: Job, rows: slice) -> Sent:
    """A block, on a worker; one core each, as the number of threads is that of the cores."""
    torch.set_num_threads(1)
    arrays = {name: _numpy(value) for name, value in job(layer.window(rows)).items()}
    return arrays, _digest(arrays)


def _numpy(value: Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(value.detach().cpu().numpy())


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or ['no message'])[0][:200]}"
