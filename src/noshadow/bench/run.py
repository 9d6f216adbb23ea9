"""One setting from data to result: train what is missing, attack, score, compare."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from noshadow._version import __version__
from noshadow.bench.full_network import influence_of_targets
from noshadow.bench.measure import (
    Scored,
    Truth,
    budget_found,
    compare,
    find_truths,
    fit_of_targets,
    rates_found,
    score_targets,
)
from noshadow.bench.result import ENDS, RANKINGS, FirstTarget, Result, Seconds, ShownRecord
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.bench.training import TrainedModels, load_models, train_models

__all__ = ["SCATTERED", "TOP", "run_setting", "versions"]

TOP = 10  # records shown at each end of a ranking
SCATTERED = ("loss", "influence")


def run_setting(
    setting: Setting,
    scale: Scale,
    source: SettingSource,
    store: Path,
    *,
    scale_name: str,
    seed: int = 0,
    rescore: bool = False,
    progress: bool | None = None,
    engine: Mapping[str, Any] | None = None,
) -> Result:
    """``rescore``: train nothing, take the models as they are in the store. ``engine``: options of ``Study.run``."""
    if rescore:
        models = load_models(setting, scale, source, store, seed)
    else:
        models = train_models(setting, scale, source, store, seed, progress=progress, **(engine or {}))
    truths = find_truths(setting, models, store, progress)
    scored = score_targets(setting, scale, models, progress)
    network = influence_of_targets(setting, scale, source, models, store, not rescore, progress)
    if network is not None:
        scored.scores["network_influence"] = network.scores
    return Result(
        setting=setting.name,
        data=setting.data,
        model=setting.model_name,
        head=setting.head,
        scale=scale_name,
        note=scale.note,
        backbone=scale.backbone,
        shadows=len(models.shadows.keys),
        targets=len(models.targets.keys),
        pool=len(models.pool),
        members=int(scored.members[0].sum()),
        features=_width(models),
        seed=seed,
        recipe=setting.recipe_at(scale).fingerprint(),
        fit=fit_of_targets(setting, models),
        stationarity=scored.stationarity,
        attacks={name: compare(scored, truth) for name, truth in truths.items()},
        seconds=_seconds(models, truths, scored, None if network is None else network.seconds),
        shown=_shown_records(models.pool, scored, truths["lira"]),
        versions=versions(),
        machine={"cores": joblib.cpu_count(), "processor": platform.machine(), "system": platform.system()},
        network_influence=None if network is None else network.facts,
        first_target=_first_target(scored, truths["lira"]),
        rates=rates_found(scored, truths["lira"]),
        budget=budget_found(setting, models, scored, progress),
    )


def versions() -> dict[str, str]:
    """Of noshadow, Python and the libraries that numbers depend on."""
    import pandas
    import scipy
    import sklearn
    import torch

    libraries = {module.__name__: str(module.__version__) for module in (np, scipy, sklearn, pandas, torch)}
    return {"noshadow": __version__, "python": platform.python_version(), **libraries}


def _width(models: TrainedModels) -> int:
    arrays = models.targets.store.read(models.targets.keys[0])
    return int((arrays.get("features", models.pool.inputs)).shape[1])


def _seconds(models: TrainedModels, truths: Mapping[str, Truth], scored: Scored, network: float | None) -> Seconds:
    """Seconds of one core in each phase, as in the paper's Table 4; ``scores`` and ``network`` for one target.

    A model's seconds are the mean of those that were timed; NaN in the store stands for one that was not.
    """
    model, target = (float(np.nanmean(found.extra("seconds"))) for found in (models.shadows, models.targets))
    return Seconds(
        model=model,
        shadows=model * len(models.shadows.keys),
        targets=target * len(models.targets.keys),
        attacks=sum(truth.seconds for truth in truths.values()),
        scores=scored.seconds,
        exposure=scored.exposure,
        network_influence=network,
    )


def _first_target(scored: Scored, truth: Truth) -> FirstTarget:
    inside = scored.members[0]
    values = {name: scored.scores[name][0, inside].astype(np.float32) for name in SCATTERED}
    return FirstTarget(values, truth.success_rate[inside].astype(np.float32))


def _shown_records(pool: Pool, scored: Scored, truth: Truth) -> dict[str, tuple[ShownRecord, ...]]:
    """The members of the first target at both ends of the rankings by influence and by newton."""
    inside = np.flatnonzero(scored.members[0])
    found = {}
    for name in RANKINGS:
        order = inside[np.argsort(-scored.scores[name][0, inside], kind="stable")]
        for end, rows in zip(ENDS, (order[:TOP], order[::-1][:TOP]), strict=True):
            found[f"{end} {name}"] = tuple(
                ShownRecord(
                    row=int(row),
                    target=float(pool.targets[row]),
                    score=float(scored.scores[name][0, row]),
                    lira_success_rate=float(truth.success_rate[row]),
                    **_as_shown(pool, row),
                )
                for row in rows
            )
    return found


def _as_shown(pool: Pool, row: np.intp) -> dict[str, Any]:
    """The record as a sentence or as an image (H, W, 3), if it is one."""
    if pool.shown is None:
        return {}
    if pool.shown.ndim == 1:
        return {"text": str(pool.shown[row])}
    image = pool.shown.ndim == 4 and pool.shown.shape[3] == 3 and pool.shown.dtype == np.uint8
    return {"image": pool.shown[row]} if image else {}
