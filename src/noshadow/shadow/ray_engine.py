"""The Ray engine: a task per model, on a local cluster or on one that exists. Needs the extra ``[ray]``."""

from __future__ import annotations

import logging
import os
from typing import Any

from noshadow.errors import missing_extra
from noshadow.import_paths import import_path
from noshadow.shadow.work import Outcome, Task, Train, perform

__all__ = ["RETRIES_OF_LOST_WORKERS", "RayEngine"]

RETRIES_OF_LOST_WORKERS = 3


class RayEngine:
    """Ray tasks. The store stays with the driver, so the cluster's machines need no shared file system.

    ``address=None`` starts a local cluster (or uses the one this process is already connected to) and stops
    it again at the end; an address connects to an existing cluster, whose machines need noshadow and the
    modules that ``train`` comes from (what is defined in the script itself is sent along). Ray lets its workers
    import from the current folder, whatever it is told, and it does not say how far a task is.
    """

    def __init__(self, train: Train, workers: int | None, threads: int, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise missing_extra("ray", "ray") from error
        self._ray: Any = ray
        self._threads = threads
        self._started_here = not ray.is_initialized()
        if self._started_here and address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would ask where it runs, and tell its makers
            ray.init(
                address="local",
                num_cpus=None if workers is None else workers * threads,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                runtime_env={"env_vars": {"PYTHONPATH": import_path()}},
            )
        elif self._started_here:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        self._train = ray.put(train)
        self._perform = ray.remote(num_cpus=threads, max_retries=RETRIES_OF_LOST_WORKERS)(perform)
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        # Twice what runs at a time, so that a worker finds its next task waiting.
        self.slots = workers or max(1, 2 * cores // threads)
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
        if self._started_here:
            self._ray.shutdown()

    def _outcome(self, reference: Any) -> Outcome:
        task = self._running.pop(reference)
        try:
            outcome: Outcome = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return Outcome.lost(task, f"Ray could not perform it: {type(error).__name__}: {error}")
        return outcome
