"""Study: train many models on half-splits of the same records and keep what they say about every record.

    study = Study(train, n_samples, n_models=200, seed=0, store="dir")
    result = study.run()                 # killed half-way? run it again: it goes on where it was
    result.outputs, result.membership    # (K, N, m), (K, N)

``train(members, seed) -> outputs`` may use any framework: ``members`` are the sorted row numbers to train on,
``seed`` drives everything random in it, and the result has a row for every one of the ``n_samples`` records,
or is a dict of named arrays with that array under "outputs".
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter, deque
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.progress import Progress, progress_bar
from noshadow.shadow.claims import Claims
from noshadow.shadow.engines import Engine, ProcessEngine, SerialEngine, TaskHeard, share_cores
from noshadow.shadow.fingerprint import describe_procedure, describe_value
from noshadow.shadow.plan import ROLES, SPLITS, ModelKey, Plan, Role
from noshadow.shadow.ray_engine import RayEngine
from noshadow.shadow.result import StudyResult
from noshadow.shadow.store import DamagedFile, Store
from noshadow.shadow.work import Failure, Outcome, Task, Train, TrainsMany, to_numpy

__all__ = [
    "ATTEMPTS_AFTER_DEATH",
    "ATTEMPTS_AFTER_ERROR",
    "POLL_SECONDS",
    "EngineName",
    "Study",
    "StudyError",
    "StudyInterrupted",
]

EngineName = Literal["processes", "ray", "serial"]
ATTEMPTS_AFTER_ERROR = 2  # an exception in train is retried once
ATTEMPTS_AFTER_DEATH = 3  # a lost worker is often another process's fault (memory, a restart)
POLL_SECONDS = 0.5


class StudyError(RuntimeError):
    """Some models could not be trained. ``failures`` maps each to the reason; the others are in the store.

    Examples
    --------
    >>> import tempfile
    >>> from noshadow import shadow
    >>> def train(members, seed):
    ...     return [float("nan") if 0 in members else 0.0] * 6
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = shadow.Study(train, 6, n_models=4, store=folder, procedure="breaks")
    ...     try:
    ...         study.run("serial", progress=False)
    ...     except shadow.StudyError as error:
    ...         print([str(model) for model in error.failures])
    ['model 2']
    """

    def __init__(self, message: str, failures: dict[ModelKey, Failure]) -> None:
        super().__init__(message)
        self.failures = failures


class StudyInterrupted(KeyboardInterrupt):
    """Ctrl-C during a study; the message says how many of its models are kept."""


class Study:
    """Many models on half-splits of the same records.

    Parameters
    ----------
    train : callable
        ``train(members, seed)`` trains on the rows ``members`` and gives the outputs of all N records, (N, m) or (N,),
        or a dict of arrays with "outputs" among them; see the module's docstring. ``TorchTrainer`` makes one.
    n_samples : int
        Number of records N.
    n_models : int
        Number of shadow models K; raising it later only adds models; 0: target models only.
    seed : int
        The one seed that all splits and training seeds come from.
    store : str or path
        Directory that holds the study; it is created, or continued if it holds this very study.
    targets : array (N, ...), optional
        The true targets, kept for the attacks.
    head : "squared", "logistic" or "softmax", optional
        The head's name, likewise.
    n_target_models : int
        Further models, outside the reference set, for attacks to be aimed at.
    reruns : bool
        Train each target model a second time, on the same members with another seed.
    data : array, tuple or str, optional
        What the models are trained on (arrays, or a name of your own), for the fingerprint.
    procedure : str, optional
        A name for the training procedure in place of the fingerprint of ``train``.

    Raises
    ------
    InputError
        Sizes out of range, targets that do not fit, a ``train`` whose content cannot be told.

    Notes
    -----
    A store belongs to one procedure: the code of ``train`` and the content of all that it refers to. After a change of
    either the store is refused, never continued with models of two kinds.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from noshadow import shadow
    >>> x = np.random.default_rng(0).normal(size=40)
    >>> def train(members, seed):
    ...     return np.full(40, x[members].mean())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = shadow.Study(train, n_samples=40, n_models=4, store=folder, procedure="mean")
    ...     result = study.run("serial", progress=False)
    ...     result.outputs.shape, result.membership.sum(1).tolist()
    ((4, 40, 1), [20, 20, 20, 20])
    """

    def __init__(
        self,
        train: Train,
        n_samples: int,
        n_models: int = 200,
        seed: int = 0,
        *,
        store: str | os.PathLike[str],
        targets: Any = None,
        head: str | None = None,
        n_target_models: int = 0,
        reruns: bool = False,
        data: Any = None,
        procedure: Any = None,
    ) -> None:
        if not callable(train):
            raise InputError(f"train: expected a callable (members, seed) -> outputs, got {type(train).__name__}")
        if min(n_models, n_target_models) < 0 or n_models + n_target_models < 1:
            raise InputError(f"n_models: need at least one model, got {n_models} and {n_target_models} target models")
        if head is not None:
            _check_head(head)
        self.plan = Plan(n_samples, seed)
        self.train = train
        self.n_models = n_models
        self.n_target_models = n_target_models
        self.n_reruns = n_target_models if reruns else 0
        self.directory = store
        self.head = head
        self.targets = None if targets is None else _checked_targets(targets, n_samples)
        self._identity = {
            "n_samples": n_samples,
            "seed": seed,
            "splits": SPLITS,
            "data": describe_value(data),
            "procedure": describe_procedure(train) if procedure is None else procedure,
        }

    def run(
        self,
        engine: EngineName = "processes",
        *,
        workers: int | None = None,
        threads: int | None = None,
        address: str | None = None,
        progress: Progress = None,
    ) -> StudyResult:
        """Train what is missing or damaged and give the result of all models.

        Parameters
        ----------
        engine : "processes", "ray" or "serial"
            Worker processes here, a Ray cluster (``address`` for an existing one), or this process.
        workers, threads : int, optional
            How many train side by side, on how many threads each; chosen for the machine.
        address : str, optional
            Of a Ray cluster.
        progress : Progress, optional
            A bar or none, or a function that is told; None: a bar where stderr is a terminal.

        Returns
        -------
        StudyResult

        Raises
        ------
        StoreError
            A store of another study, or one that is damaged beyond repair.
        StudyError
            Models that could not be trained; the others are in the store.

        Examples
        --------
        >>> import tempfile
        >>> from noshadow import shadow
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     study = shadow.Study(lambda members, seed: [0.0] * 6, 6, n_models=3, store=folder)
        ...     _ = study.run("serial", progress=False)
        ...     more = shadow.Study(lambda members, seed: [0.0] * 6, 6, n_models=4, store=folder)  # one is trained
        ...     more.run("serial", progress=False).outputs.shape
        (4, 6, 1)
        """
        store = self._open_store()
        tasks = self._tasks(store)
        workers_used, threads = share_cores(len(tasks), workers, threads)
        pending = [task for task in tasks if _missing(store, task)]
        _warn_of_damage(store, pending)
        if pending:
            with store.claims() as claims, _Run(store, claims, tasks, pending, progress) as run:
                running_on = self._engine(engine, workers, min(workers_used, len(pending)), threads, address, run.heard)
                try:
                    run.complete(running_on)
                except KeyboardInterrupt:
                    raise _interrupted(store, tasks) from None
                finally:
                    running_on.close()
            if run.failures:
                raise _study_error(store, run.failures, self.n_models + self.n_target_models + self.n_reruns)
        return StudyResult(store, *(self._keys(role) for role in ROLES))

    def _open_store(self) -> Store:
        store = Store.open_for(self.directory, self._identity)
        with store.deciding():
            if self.targets is not None and store.keep_targets(self.targets):
                warnings.warn(
                    f"the targets in {store.directory} were damaged and are written again", NoshadowWarning, 3
                )
            kept = store.manifest.get("head")
            if self.head is not None and kept not in (None, self.head):
                raise InputError(f"head: {store.directory} holds a study of head {kept!r}, not {self.head!r}")
            store.note(
                n_models=max(self.n_models, store.manifest.get("n_models", 0)),
                n_target_models=max(self.n_target_models, store.manifest.get("n_target_models", 0)),
                n_reruns=max(self.n_reruns, store.manifest.get("n_reruns", 0)),
                head=self.head or kept,
            )
            if "models_at_once" not in store.manifest:  # decided once: other groups would change the last bits
                store.note(models_at_once=self._models_at_once())
        return store

    def _models_at_once(self) -> int:
        """As many as the trainer likes, but few enough that every core gets a share."""
        if not isinstance(self.train, TrainsMany):
            return 1
        models = max(self.n_models, self.n_target_models)
        workers, _ = share_cores(models, None, None)
        return max(1, self.train.models_at_once(most=-(-models // workers)))

    def _keys(self, role: Role) -> tuple[ModelKey, ...]:
        count = {"shadow": self.n_models, "target": self.n_target_models, "rerun": self.n_reruns}[role]
        return tuple(ModelKey(role, number) for number in range(count))

    def _tasks(self, store: Store) -> list[Task]:
        """All models in consecutive groups, done or not: a group is always trained as a whole."""
        at_once = int(store.manifest["models_at_once"])
        tasks = []
        for role in ROLES:
            keys = self._keys(role)
            for start in range(0, len(keys), at_once):
                group = keys[start : start + at_once]
                members = tuple(self.plan.members(key) for key in group)
                tasks.append(Task(group, members, tuple(map(self.plan.seed_of, group)), self.plan.n_samples))
        return tasks

    def _engine(
        self, name: str, asked: int | None, workers: int, threads: int, address: str | None, heard: TaskHeard
    ) -> Engine:
        if address is not None and name != "ray":
            raise InputError(f"address: is for engine='ray', not {name!r}")
        if name == "processes":
            return ProcessEngine(self.train, workers, threads, heard)
        if name == "serial":
            return SerialEngine(self.train, threads, heard)
        if name == "ray":
            return RayEngine(self.train, asked, threads, address)
        raise InputError(f"engine: {name!r} is not an engine; use 'processes', 'ray' or 'serial'")


class _Run:
    """One pass over the pending tasks: claims, hands out, keeps results, tries again, collects failures."""

    def __init__(
        self, store: Store, claims: Claims, tasks: list[Task], pending: list[Task], progress: Progress
    ) -> None:
        self.failures: dict[ModelKey, Failure] = {}
        self._store = store
        self._claims = claims
        self._pending = deque(pending)
        self._held: set[ModelKey] = set()
        self._errors: Counter[ModelKey] = Counter()
        self._deaths: Counter[ModelKey] = Counter()
        self._partly: dict[ModelKey, float] = {}  # by task, how much of it the bar shows before it is done
        total, left = (sum(len(task.keys) for task in some) for some in (tasks, pending))
        title = f"training models ({total - left} resumed)" if left < total else "training models"
        self._bar = progress_bar(title, total, progress, done=total - left)

    def __enter__(self) -> _Run:
        self._advance = self._bar.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        self._bar.__exit__(*reason)

    def complete(self, engine: Engine) -> None:
        running = 0
        while self._pending or running:
            while running < engine.slots and (task := self._next()) is not None:
                engine.submit(task)
                running += 1
            if running:
                for outcome in engine.wait(POLL_SECONDS):
                    running -= 1
                    self._settle(outcome)
            elif self._pending:  # all that is left is in the hands of another run
                time.sleep(POLL_SECONDS)

    def heard(self, task: Task, models: float) -> None:
        """So many models more of a task are done. A task is with one worker at a time, and so is its entry."""
        key = task.keys[0]
        models = min(models, len(task.keys) - self._partly.get(key, 0.0))
        self._partly[key] = self._partly.get(key, 0.0) + models
        self._advance(models)

    def _next(self) -> Task | None:
        """The first pending task that no other run has; those finished elsewhere meanwhile drop out."""
        for _ in range(len(self._pending)):
            task = self._pending.popleft()
            key = task.keys[0]
            if key not in self._held and not self._claims.take(key):
                self._pending.append(task)
                continue
            self._held.add(key)
            if _missing(self._store, task):
                return task
            self._done(task)
        return None

    def _settle(self, outcome: Outcome) -> None:
        task = outcome.task
        failed: dict[ModelKey, Failure] = {}
        missing = set(_missing(self._store, task))
        for key, seed, members, result in zip(task.keys, task.seeds, task.members, outcome.results, strict=True):
            if isinstance(result, Failure):
                failed[key] = result
            elif key in missing:
                membership = np.zeros(task.n_samples, dtype=np.bool_)
                membership[members] = True
                self._store.write(key, seed, {**result, "membership": membership})
        if not failed:
            self._done(task)
        elif self._may_retry(task.keys[0], any(failure.died for failure in failed.values())):
            self._pending.appendleft(task)
            self._advance(-self._partly.pop(task.keys[0], 0.0))
        else:
            self.failures |= {key: failure for key, failure in failed.items() if key in missing}
            self._done(task)

    def _may_retry(self, key: ModelKey, died: bool) -> bool:
        counter, most = (self._deaths, ATTEMPTS_AFTER_DEATH) if died else (self._errors, ATTEMPTS_AFTER_ERROR)
        counter[key] += 1
        return counter[key] < most

    def _done(self, task: Task) -> None:
        self._held.discard(task.keys[0])
        self._claims.release(task.keys[0])
        self._advance(len(task.keys) - self._partly.pop(task.keys[0], 0.0))


def _checked_targets(targets: Any, n_samples: int) -> NDArray[Any]:
    """The true targets as an array of numbers, a row per record."""
    values = np.asarray(to_numpy(targets))
    if values.ndim == 0 or len(values) != n_samples:
        raise InputError(f"targets: expected {n_samples} rows, got shape {values.shape}")
    if values.dtype.kind not in "fiub":
        raise InputError(
            f"targets: must be numbers, got {values.dtype} (row 0: {str(values.reshape(n_samples, -1)[0, 0])!r}); give "
            "classes as 0, 1, 2, ... in the order of the model's outputs, such as "
            "numpy.unique(targets, return_inverse=True)[1]"
        )
    bad = np.flatnonzero(~np.isfinite(values.reshape(n_samples, -1)).all(axis=1))
    if len(bad):
        raise InputError(f"targets: NaN or infinite in {name_rows(bad.tolist())}; leave such records out of the study")
    return values


def _check_head(name: str) -> None:
    from noshadow.heads import get_head  # here, as it imports torch and worker processes may do without

    get_head(name)


def _missing(store: Store, task: Task) -> list[ModelKey]:
    return [key for key in task.keys if not store.is_whole(key)]


def _warn_of_damage(store: Store, pending: list[Task]) -> None:
    damaged = []
    for key in (key for task in pending for key in task.keys if store.path(key).exists()):
        try:
            store.read(key)
        except DamagedFile as error:
            damaged.append(f"{key}: {error}")
        except FileNotFoundError:
            pass
    if damaged:
        warnings.warn("trained again, as their files are damaged:\n  " + "\n  ".join(damaged), NoshadowWarning, 3)


def _interrupted(store: Store, tasks: list[Task]) -> StudyInterrupted:
    keys = [key for task in tasks for key in task.keys]
    kept = sum(store.is_whole(key) for key in keys)
    return StudyInterrupted(
        f"interrupted, {kept} of {len(keys)} models kept in {store.directory}; run the same again to continue"
    )


def _study_error(store: Store, failures: dict[ModelKey, Failure], total: int) -> StudyError:
    seeds = Plan(store.study["n_samples"], store.study["seed"])
    lines = [f"  {key} (seed {seeds.seed_of(key)}): {failures[key].reason}" for key in sorted(failures)]
    trace = next((failure.trace for failure in failures.values() if failure.trace), "")
    return StudyError(
        f"{len(failures)} of {total} models could not be trained; all others are kept in {store.directory}, "
        "and a new run trains only these:\n"
        + "\n".join(lines)
        + (f"\nThe first failure in full:\n{trace}" if trace else ""),
        failures,
    )
