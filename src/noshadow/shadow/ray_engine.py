"""The Ray engine: a task per model, on a local cluster or on one that exists. Needs the extra ``[ray]``."""

from __future__ import annotations

from typing import Any

from noshadow.ray_cluster import RayCluster
from noshadow.shadow.work import Outcome, Task, Train, perform

__all__ = ["RayEngine"]


class RayEngine:
    """Ray tasks. The store stays with the driver, so the cluster's machines need no shared file system.

    ``address=None`` starts a local cluster (or uses the one this process is already connected to) and stops
    it again at the end; an address connects to an existing cluster, whose machines need noshadow and the
    modules that ``train`` comes from (what is defined in the script itself is sent along). Ray lets its workers
    import from the current folder, whatever it is told, and it does not say how far a task is.
    """

    def __init__(self, train: Train, workers: int | None, threads: int, address: str | None = None) -> None:
        self._cluster = RayCluster(address, None if workers is None else workers * threads)
        self._ray = self._cluster.ray
        self._threads = threads
        self._train = self._ray.put(train)
        self._perform = self._cluster.task(perform, cores=threads)
        # Twice what runs at a time, so that a worker finds its next task waiting.
        self.slots = workers or max(1, 2 * self._cluster.cores // threads)
        self._running: dict[Any, Task] = {}

    def submit(self, task: Task) -> None:
        self._running[self._perform.remote(self._train, task, self._threads)] = task

    def wait(self, seconds: float) -> list[Outcome]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [self._outcome(reference) for reference in ready]

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        self._cluster.close()

    def _outcome(self, reference: Any) -> Outcome:
        task = self._running.pop(reference)
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome.lost(task, f"Ray could not perform it: {type(error).__name__}: {error}")
        return outcome
