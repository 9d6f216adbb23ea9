"""The models of a setting: pool, trainer, shadow study and target models, each resumed from its store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.backbones import identity as identity_of
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow import Study, StudyResult, TorchTrainer, load
from noshadow.shadow.content import array_digest
from noshadow.shadow.recording import Recording
from noshadow.shadow.work import Members, RerunsOtherwise, Train, TrainsMany

__all__ = [
    "CHECKPOINTS",
    "ClosedFormRidge",
    "Timed",
    "TrainedModels",
    "load_models",
    "make_pool",
    "make_trainer",
    "train_models",
]

CHECKPOINTS = 4


@dataclass(frozen=True)
class TrainedModels:
    """Shadow models, target models with all that they kept, and the pool they were trained on."""

    pool: Pool
    shadows: StudyResult
    targets: StudyResult
    reruns: StudyResult | None = None
    """The target models trained a second time, on the same members with other seeds."""


def make_pool(setting: Setting, scale: Scale, source: SettingSource, seed: int) -> Pool:
    """The pool: so many records of the training data, drawn with the seed, prepared for the model."""
    raw = setting.load(source, scale.pool)
    rows = np.random.default_rng(seed).permutation(len(raw))[: scale.pool]
    return setting.prepare(raw.rows(np.sort(rows)), source)


def train_models(
    setting: Setting, scale: Scale, source: SettingSource, store: Path, seed: int, **engine: Any
) -> TrainedModels:
    """Train what is missing of the shadow and target models. ``engine``: options of ``Study.run``."""
    pool = make_pool(setting, scale, source, seed)
    results = []
    for role, shadows, targets in (("shadows", scale.shadows, 0), ("targets", 0, scale.targets)):
        train = make_trainer(setting, scale, pool, source, recording=role == "targets")
        study = Study(
            Timed(train),
            len(pool),
            shadows,
            seed,
            store=store / role,
            targets=pool.targets,
            head=setting.head,
            n_target_models=targets,
            reruns=True,
            procedure=_procedure(setting, scale, pool, train),
        )
        results.append(study.run(**engine))
    found = results[1].target_models
    assert found is not None  # a scale has a target or more
    return TrainedModels(pool, results[0], found, results[1].reruns)


def load_models(setting: Setting, scale: Scale, source: SettingSource, store: Path, seed: int) -> TrainedModels:
    """The models that are in the store, none trained."""
    study = load(store / "targets")
    assert study.target_models is not None  # else there would be nothing to load
    return TrainedModels(
        make_pool(setting, scale, source, seed), load(store / "shadows"), study.target_models, study.reruns
    )


def make_trainer(setting: Setting, scale: Scale, pool: Pool, source: SettingSource, recording: bool) -> Train:
    recipe = setting.recipe_at(scale)
    if setting.model is None:
        return ClosedFormRidge(pool.inputs, pool.targets, recipe.weight_decay)
    record = Recording(CHECKPOINTS, weights=setting.network_influence is not None)
    return TorchTrainer(
        setting.model(pool, source, **scale.model),
        (pool.inputs, pool.targets),
        recipe,
        head=setting.head,
        vectorise=setting.stack if setting.stack > 1 else False,
        record=record if recording else None,
    )


class ClosedFormRidge:
    """argmin Σ (y − x̃ᵀθ)² + nλ/2 ‖θ‖² over the members, solved directly; λ is the weight decay on the mean loss."""

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any], weight_decay: float) -> None:
        self.design = np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float64)
        self.targets = targets.astype(np.float64)
        self.weight_decay = weight_decay

    def __call__(self, members: Members, seed: int) -> NDArray[np.float64]:
        x, y = self.design[members], self.targets[members]
        gram = x.T @ x + len(x) * self.weight_decay / 2.0 * np.eye(x.shape[1])
        outputs: NDArray[np.float64] = self.design @ np.linalg.solve(gram, x.T @ y)
        return outputs


class Timed:
    """A trainer whose results also say how many seconds of a core a model took: other work does not count."""

    def __init__(self, train: Train) -> None:
        self.train = train

    def __call__(self, members: Members, seed: int) -> dict[str, Any]:
        return self.train_many([members], [seed])[0]

    def models_at_once(self, most: int) -> int:
        return self.train.models_at_once(most) if isinstance(self.train, TrainsMany) else 1

    def for_reruns(self) -> Timed:
        return Timed(self.train.for_reruns() if isinstance(self.train, RerunsOtherwise) else self.train)

    def train_many(self, members: Sequence[Members], seeds: Sequence[int]) -> list[dict[str, Any]]:
        start = time.process_time()
        if len(members) > 1 and isinstance(self.train, TrainsMany):
            results = list(self.train.train_many(members, seeds))
        else:
            results = [self.train(*one) for one in zip(members, seeds, strict=True)]
        seconds = np.array((time.process_time() - start) / len(members))
        return [{**(r if isinstance(r, dict) else {"outputs": r}), "seconds": seconds} for r in results]


def _procedure(setting: Setting, scale: Scale, pool: Pool, train: Train) -> Any:
    """What makes two runs the same study: data, network, recipe and what is recorded.

    The network is told by what it is, its classes' code included, not by how noshadow's functions build it; and
    the versions of libraries are in the result, not here.
    """
    identity: dict[str, Any] = {
        "setting": setting.name,
        "backbone": None if scale.backbone is None else identity_of(scale.backbone),
    }
    if isinstance(train, TorchTrainer):
        found = train.fingerprint()
        return {**identity, **{name: value for name, value in found.items() if name not in ("model", "libraries")}}
    return {
        **identity,
        "recipe": setting.recipe_at(scale).fingerprint(),
        "inputs": array_digest(pool.inputs),
        "targets": array_digest(pool.targets),
    }
