"""What a study gives: outputs and membership of its models, read from the store when asked for."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.artefact import Arrays
from noshadow.errors import InputError, name_rows
from noshadow.shadow.plan import ROLES, ModelKey, Plan, Role
from noshadow.shadow.store import Store, StoreError

__all__ = ["MOST_MODELS", "StudyResult", "load", "wanted_keys"]

MOST_MODELS = 10**6  # more can only be a damaged manifest


@dataclass(frozen=True, eq=False, repr=False)
class StudyResult:
    """The models of a study, in the order of their numbers: K models, N records, m outputs per record.

    Attributes
    ----------
    outputs : ndarray (K, N, m)
        As ``train`` gave them, for members and others alike.
    membership : ndarray (K, N) of booleans
        True where the record was in the model's training half.
    seeds : ndarray (K,)
        The seed each model was trained with.
    targets : ndarray (N, ...) or None
        The true targets, if the study was given them.
    head : str or None
        The head's name, likewise.
    target_models : StudyResult or None
        The same for the models kept out of the reference set.
    reruns : StudyResult or None
        The same for target models trained a second time, with another seed; their ``keys`` have the numbers of their
        target models.

    Notes
    -----
    ``extra(name)`` gives any other array that ``train`` returned, (K, ...).

    Examples
    --------
    >>> import tempfile
    >>> from noshadow import shadow
    >>> def train(members, seed):
    ...     return {"outputs": [float(len(members))] * 6, "seconds": 0.1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     known = {"targets": [1.0] * 6, "head": "squared"}
    ...     study = shadow.Study(train, 6, n_models=2, n_target_models=1, store=folder, **known)
    ...     result = study.run("serial", progress=False)
    ...     shapes = result.outputs.shape, result.membership.shape, result.target_models.outputs.shape
    ...     shapes, result.head, result.extra("seconds").tolist()
    (((2, 6, 1), (2, 6), (1, 6, 1)), 'squared', [0.1, 0.1])
    """

    store: Store
    keys: tuple[ModelKey, ...]
    target_keys: tuple[ModelKey, ...] = ()
    rerun_keys: tuple[ModelKey, ...] = ()

    def __repr__(self) -> str:
        records = self.store.study["n_samples"]
        return f"StudyResult({len(self.keys)} models, {records} records, {self.store.directory})"

    @functools.cached_property
    def outputs(self) -> NDArray[Any]:
        return self.extra("outputs")

    @functools.cached_property
    def membership(self) -> NDArray[np.bool_]:
        return self.extra("membership")

    @functools.cached_property
    def seeds(self) -> NDArray[np.int64]:
        plan = Plan(self.store.study["n_samples"], self.store.study["seed"])
        return np.array([plan.seed_of(key) for key in self.keys], dtype=np.int64)

    @functools.cached_property
    def targets(self) -> NDArray[Any] | None:
        return self.store.targets()

    @property
    def head(self) -> str | None:
        head: str | None = self.store.manifest.get("head")
        return head

    @functools.cached_property
    def target_models(self) -> StudyResult | None:
        return StudyResult(self.store, self.target_keys) if self.target_keys else None

    @functools.cached_property
    def reruns(self) -> StudyResult | None:
        return StudyResult(self.store, self.rerun_keys) if self.rerun_keys else None

    def extra(self, name: str) -> NDArray[Any]:
        """The array of that name of every model, stacked: (K, ...)."""
        stacked: NDArray[Any] | None = None
        for row, key in enumerate(self.keys):
            array = _named(self.store.read(key), name, key)
            if stacked is None:
                stacked = np.empty((len(self.keys), *array.shape), dtype=array.dtype)
            if array.shape != stacked.shape[1:]:
                raise InputError(f"{name}: {key} has shape {array.shape}, the models before it {stacked.shape[1:]}")
            stacked[row] = array
        assert stacked is not None  # a result has at least one model
        return stacked


def wanted_keys(store: Store, role: Role) -> tuple[ModelKey, ...]:
    """The models that were asked of a study."""
    count = store.manifest.get({"shadow": "n_models", "target": "n_target_models", "rerun": "n_reruns"}[role], 0)
    if not isinstance(count, int) or not 0 <= count <= MOST_MODELS:
        raise StoreError(f"store: {store.directory / 'manifest.json'} is damaged: it asks for {count!r} {role} models")
    return tuple(ModelKey(role, number) for number in range(count))


def load(directory: str | os.PathLike[str], partial: bool = False) -> StudyResult:
    """The result of a study that has been run.

    Parameters
    ----------
    directory : str or path
        The store of the study.
    partial : bool
        Take what is whole of an unfinished one.

    Returns
    -------
    StudyResult

    Raises
    ------
    InputError
        No study there.
    StoreError
        One that is unfinished or damaged; the message says what to do.

    Examples
    --------
    >>> import tempfile
    >>> from noshadow import shadow
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     study = shadow.Study(lambda members, seed: [0.0] * 6, 6, n_models=2, store=folder)
    ...     _ = study.run("serial", progress=False)
    ...     shadow.load(folder).outputs.shape
    (2, 6, 1)
    """
    store = Store.open(directory)
    keys = wanted_keys(store, "shadow")
    whole, whole_targets, whole_reruns = (
        tuple(key for key in wanted_keys(store, role) if store.is_whole(key)) for role in ROLES
    )
    if not whole and not (whole_targets and not keys):
        raise StoreError(f"store: {store.directory} holds no finished model yet")
    if len(whole) < len(keys) and not partial:
        missing = [key.number for key in keys if key not in set(whole)]
        models = name_rows(missing).replace("row", "model", 1)
        raise StoreError(
            f"store: {len(missing)} of {len(keys)} models in {store.directory} are missing or damaged "
            f"({models}); run the study again to finish it, or ask for the partial result"
        )
    return StudyResult(store, whole, whole_targets, whole_reruns)


def _named(arrays: Arrays, name: str, key: ModelKey) -> NDArray[Any]:
    if name not in arrays:
        raise InputError(f"extra: {key} has no array {name!r}; it has {', '.join(sorted(arrays))}")
    return arrays[name]
