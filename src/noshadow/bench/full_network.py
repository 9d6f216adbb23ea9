"""Full-network influence of target models, kept in the store: by far the most expensive of all scores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.cache import Kept, keep, kept
from noshadow.bench.setting import Scale, Setting, SettingSource
from noshadow.bench.training import TrainedModels
from noshadow.network import network_influence
from noshadow.shadow.recording import restore

__all__ = ["TargetInfluence", "influence_of_targets"]


@dataclass(frozen=True, eq=False)
class TargetInfluence:
    """Scores (T, N), NaN where a target was not scored; seconds for one target; how it was done and how it went."""

    scores: NDArray[np.float64]
    seconds: float
    facts: dict[str, Any]


def influence_of_targets(
    setting: Setting,
    scale: Scale,
    source: SettingSource,
    models: TrainedModels,
    store: Path,
    compute: bool,
    progress: bool | None = None,
) -> TargetInfluence | None:
    """Of the first targets, as many as the scale asks for; without ``compute`` only what the store has."""
    if setting.network_influence is None:
        return None
    members = models.targets.membership
    scores = np.full(members.shape, np.nan)
    facts: list[dict[str, Any]] = []
    options = {**setting.network_influence, **scale.network_options}
    for number in range(min(scale.network_targets, len(members))):
        path = store / "network" / f"{number:06d}.safetensors"
        identity = {"study": models.targets.store.fingerprint, "target": number, "options": options}
        found = kept(path, identity)
        if found is None and compute:
            found = _compute(setting, scale, source, models, number, options, progress)
            keep(path, *found, identity)
        if found is not None:
            scores[number, members[number]] = found[0]["scores"]
            facts.append(found[1])
    if not facts:
        return None
    every = {name: float(np.mean([fact[name] for fact in facts])) for name in facts[0]}
    return TargetInfluence(scores, every["seconds"], {"targets": len(facts), **options, **every})


def _compute(
    setting: Setting,
    scale: Scale,
    source: SettingSource,
    models: TrainedModels,
    number: int,
    options: Mapping[str, Any],
    progress: bool | None,
) -> Kept:
    assert setting.model is not None  # settings without a network do not ask for this
    arrays = models.targets.store.read(models.targets.keys[number])
    module = restore(setting.model(models.pool, source, **scale.model)(), arrays["weights"])
    inside = arrays["membership"]
    start = time.process_time()
    found = network_influence(
        module,
        models.pool.inputs[inside],
        models.pool.targets[inside],
        head=setting.head,
        weight_decay=setting.recipe_at(scale).weight_decay,
        progress=progress,
        **options,
    )
    facts = {
        "seconds": time.process_time() - start,
        "hessian_products": found.products,
        "shared_directions": found.subspace,
        "mean_iterations": float(found.iterations.mean()),
        "unconverged": len(found.unconverged),
        "negative_curvature": len(found.negative_curvature),
    }
    return {"scores": found.scores}, facts
