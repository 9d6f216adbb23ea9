"""One setting from data to result: train what is missing, attack, score, compare, write JSON and figures."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import numpy as np
from numpy.typing import NDArray

from noshadow._version import __version__
from noshadow.bench.full_network import influence_of_targets
from noshadow.bench.measure import Scored, Truth, compare, find_truths, fit_of_targets, score_targets
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.bench.training import TrainedModels, load_models, train_models
from noshadow.files import private_folder, write_text

TOP = 10  # records shown in figures and tables


@dataclass(frozen=True, eq=False)
class Outcome:
    """A setting's result, a JSON value, and what its figures need of the records: those of the first target.

    rows    (n,)  rows of the pool that the first target was trained on
    scores        its scores of them, by name, (n,) each
    truth         what LiRA found out about all records of the pool
    """

    result: dict[str, Any]
    pool: Pool
    rows: NDArray[np.int64]
    scores: dict[str, NDArray[np.float64]]
    truth: Truth


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
) -> Outcome:
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
    result = {
        "setting": setting.name,
        "data": setting.data,
        "model": setting.model_name,
        "head": setting.head,
        "scale": scale_name,
        "note": scale.note,
        "backbone": scale.backbone,
        "shadows": len(models.shadows.keys),
        "targets": len(models.targets.keys),
        "pool": len(models.pool),
        "members": int(scored.members[0].sum()),
        "features": int(_width(models)),
        "seed": seed,
        "recipe": setting.recipe_at(scale).fingerprint(),
        "fit": fit_of_targets(setting, models),
        **scored.notes,
        "attacks": {name: compare(scored, truth) for name, truth in truths.items()},
        "seconds": _seconds(models, truths, scored, None if network is None else network.seconds),
        "top": _top_records(models.pool, scored, truths["lira"]),
        "network_influence": None if network is None else network.facts,
        "versions": versions(),
        "machine": {"cores": joblib.cpu_count(), "processor": platform.machine(), "system": platform.system()},
    }
    inside = scored.members[0]
    first = {name: values[0, inside] for name, values in scored.scores.items()}
    return Outcome(result, models.pool, np.flatnonzero(inside), first, truths["lira"])


def save_result(outcome: Outcome, folder: Path) -> Path:
    """Write the result as ``folder/SETTING.json``."""
    path = private_folder(folder) / f"{outcome.result['setting']}.json"
    write_text(path, json.dumps(outcome.result, indent=1, ensure_ascii=False) + "\n")
    return path


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


def _seconds(
    models: TrainedModels, truths: Mapping[str, Truth], scored: Scored, network: float | None
) -> dict[str, Any]:
    """Seconds of one core in each phase, as in the paper's Table 4; ``scores`` and ``network`` for one target.

    A model's seconds are the mean of those that were timed; NaN in the store stands for one that was not.
    """
    model, target = (float(np.nanmean(found.extra("seconds"))) for found in (models.shadows, models.targets))
    shadows = model * len(models.shadows.keys)
    return {
        "model": model,
        "shadows": shadows,
        "targets": target * len(models.targets.keys),
        "attacks": sum(truth.seconds for truth in truths.values()),
        "scores": scored.seconds,
        "network_influence": network,
        "speedup": shadows / scored.seconds,
    }


def _top_records(pool: Pool, scored: Scored, truth: Truth) -> dict[str, list[dict[str, Any]]]:
    """The most and the least exposed members of the first target by influence and by newton."""
    inside = np.flatnonzero(scored.members[0])
    found = {}
    for name in ("newton", "influence"):
        order = inside[np.argsort(-scored.scores[name][0, inside], kind="stable")]
        for end, rows in (("highest", order[:TOP]), ("lowest", order[::-1][:TOP])):
            found[f"{end} {name}"] = [
                {
                    "row": int(row),
                    "target": float(pool.targets[row]),
                    "score": float(scored.scores[name][0, row]),
                    "lira_success_rate": float(truth.success_rate[row]),
                    **({"text": str(pool.shown[row])} if _is_text(pool) and pool.shown is not None else {}),
                }
                for row in rows
            ]
    return found


def _is_text(pool: Pool) -> bool:
    return pool.shown is not None and pool.shown.ndim == 1
