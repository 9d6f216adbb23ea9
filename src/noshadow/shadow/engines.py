"""Engines: where the tasks of a study are performed. None of them touches the store.

An engine takes tasks with ``submit`` while it has free ``slots`` and hands back outcomes from ``wait``. A
worker that dies is an outcome too. Whatever the engine, a task is performed by the same function on the same
threads. ``heard``, where an engine takes it, is told on the way how many models of a task are done.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import cloudpickle
import joblib

from noshadow.errors import InputError
from noshadow.import_paths import worker_path
from noshadow.shadow.work import Outcome, Task, Train, perform
from noshadow.shadow.worker import receive, send

__all__ = [
    "MOST_THREADS",
    "START_WORKER",
    "Engine",
    "ProcessEngine",
    "SerialEngine",
    "TaskHeard",
    "share_cores",
]

TaskHeard = Callable[[Task, float], None]
MOST_THREADS = 8  # a small model does not gain from more
START_WORKER = "import sys; sys.path[:] = sys.argv[1:]; from noshadow.shadow.worker import main; main()"
"""Before anything else is imported the parent's path replaces the worker's, whose first entry is the current folder."""
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


class Engine(Protocol):
    """What a study asks of an engine."""

    slots: int

    def submit(self, task: Task) -> None: ...
    def wait(self, seconds: float) -> list[Outcome]: ...
    def close(self) -> None: ...


def share_cores(n_tasks: int, workers: int | None, threads: int | None) -> tuple[int, int]:
    """Workers and threads of each: a core per worker, and more threads only where there are fewer tasks than
    cores.

    The threads depend on the whole study and the machine, never on ``workers`` or on what is left to do,
    because the last bits of a matrix product can depend on them.
    """
    cores = max(1, int(joblib.cpu_count()))
    for name, value in (("workers", workers), ("threads", threads)):
        if value is not None and value < 1:
            raise InputError(f"{name}: must be at least 1, got {value}")
    if threads is None:
        threads = min(max(1, cores // max(1, n_tasks)), MOST_THREADS)
    if workers is None:
        workers = min(max(1, cores // threads), max(1, n_tasks))
    return workers, threads


class SerialEngine:
    """Performs tasks in this process, one after another: for debugging and for a device that is held here.

    Only one at a time in the whole process, as global generators and the number of threads belong to all of it.
    """

    slots = 1
    _one_at_a_time = threading.Lock()

    def __init__(self, train: Train, threads: int, heard: TaskHeard = lambda task, models: None) -> None:
        self._train = train
        self._threads = threads
        self._heard = heard
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self, seconds: float) -> list[Outcome]:
        if not self._tasks:
            return []
        task = self._tasks.popleft()
        with self._one_at_a_time:
            return [perform(self._train, task, self._threads, partial(self._heard, task))]

    def close(self) -> None:
        self._tasks.clear()


class ProcessEngine:
    """Fresh Python processes, each looked after by a thread that feeds it and notices when it dies."""

    def __init__(self, train: Train, workers: int, threads: int, heard: TaskHeard = lambda task, models: None) -> None:
        self.slots = workers
        self._threads = threads
        self._heard = heard  # called from the keepers' threads
        try:
            self._train: bytes = cloudpickle.dumps(train)
        except Exception as error:
            raise InputError(
                f"train: cannot be sent to worker processes ({type(error).__name__}: {error}); "
                "keep open files, locks and the like out of it, or use engine='serial'"
            ) from error
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closing = False
        self._lock = threading.Lock()
        self._keepers = [threading.Thread(target=self._keep_worker, daemon=True) for _ in range(workers)]
        for keeper in self._keepers:
            keeper.start()

    def submit(self, task: Task) -> None:
        self._tasks.put(task)

    def wait(self, seconds: float) -> list[Outcome]:
        try:
            outcomes = [self._outcomes.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._outcomes.empty():
            outcomes.append(self._outcomes.get())
        return outcomes

    def close(self) -> None:
        """End the workers. They hold nothing that is not in the store or still to be done."""
        with self._lock:
            self._closing = True
            for process in self._processes:
                process.kill()
        for _ in self._keepers:
            self._tasks.put(None)
        for keeper in self._keepers:
            keeper.join()

    def _keep_worker(self) -> None:
        if hasattr(signal, "pthread_sigmask"):  # workers inherit it: Ctrl-C cannot end them with a traceback
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        process: subprocess.Popen[bytes] | None = None
        while (task := self._tasks.get()) is not None and not self._closing:
            try:
                if process is None:
                    process = self._start_worker()
                assert process.stdin is not None  # both are pipes
                assert process.stdout is not None
                send(process.stdin, pickle.dumps(task, protocol=5))
                while not isinstance(news := pickle.loads(receive(process.stdout)), Outcome):
                    self._heard(task, news)
                self._outcomes.put(news)
            except (EOFError, OSError) as error:
                reason = f"no worker could be started: {error}"
                if process is not None:
                    reason = f"its worker process ended ({_end_of(process)})"
                    self._forget(process)
                    process = None
                self._outcomes.put(Outcome.lost(task, reason))
        if process is not None:
            self._forget(process)

    def _start_worker(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **dict.fromkeys(_THREAD_VARIABLES, str(self._threads))}
        command = [sys.executable, "-c", START_WORKER, *worker_path()]
        with self._lock:
            if self._closing:
                raise OSError("the study is ending")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=-1
            )
            self._processes.add(process)
        assert process.stdin is not None
        send(process.stdin, self._threads.to_bytes(2, "big"))
        send(process.stdin, self._train)
        return process

    def _forget(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close_quietly(pipe)
        with self._lock:
            self._processes.discard(process)


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        return "it no longer answered"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _close_quietly(pipe: Any) -> None:
    with suppress(OSError):  # what was left in the buffer cannot reach a dead worker
        pipe.close()
