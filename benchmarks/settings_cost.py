"""What scoring one target model costs beside 200 shadow models, for every setting of ``noshadow bench``.

    python benchmarks/settings_cost.py WORK [SETTING ...] --data DIR [--cache DIR] [--output results/settings_cost.json]

One target of each setting is trained as ``bench`` trains it, with its run recorded, and kept in WORK. Scored are all
scores with what ``curvature="auto"`` takes, ``exposure`` alone with it, and ``exposure`` alone from ``kronecker``,
whose error is measured against the exact one here; the check that ``score`` would add is not in it. Seconds are those
of the cores (``time.process_time``), as are the seconds of a shadow model in the committed results of the setting.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from noshadow.bench.setting import Setting, all_settings
from noshadow.bench.source import DataSource
from noshadow.bench.training import Timed, make_pool, make_trainer
from noshadow.curvature import build_curvature
from noshadow.layer import LastLayer
from noshadow.optimizers import read_optimizer
from noshadow.scores import Known, exposure
from noshadow.scoring import score_with_diagnostics
from noshadow.trace import Trace

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE / "results" / "experiments"
SHADOWS = 200


def target_of(setting: Setting, work: Path, source: DataSource) -> dict[str, np.ndarray]:
    """One target of the setting at the scale "cpu": features, outputs, targets, and the run if it has epochs."""
    path = work / f"{setting.name}-target.npz"
    if not path.exists():
        scale = setting.scales["cpu"]
        pool = make_pool(setting, scale, source, 0)
        members = np.zeros(len(pool), dtype=bool)
        members[np.random.default_rng(1).permutation(len(pool))[: len(pool) // 2]] = True
        found = Timed(make_trainer(setting, scale, pool, source, recording=True))(np.flatnonzero(members), 0)
        arrays = {"features": np.asarray(found.get("features", pool.inputs))[members]}
        arrays |= {"outputs": np.asarray(found["outputs"])[members], "targets": np.asarray(pool.targets)[members]}
        if "epoch_losses" in found:
            arrays |= {"epoch_losses": np.asarray(found["epoch_losses"])[:, members]}
            arrays |= {"mean_outputs": np.asarray(found["mean_outputs"])[members]}
        temporary = path.with_name(f"making-{path.name}")
        np.savez(temporary, **arrays)
        temporary.rename(path)
    with np.load(path) as arrays:
        return dict(arrays)


def measured(setting: Setting, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    recipe = setting.recipe_at(setting.scales["cpu"])
    decays = setting.model is None or read_optimizer(recipe.optimizer).penalises
    layer = LastLayer(
        arrays["features"],
        arrays["outputs"],
        arrays["targets"],
        head=setting.head,
        ridge=len(arrays["targets"]) * recipe.weight_decay if decays else 0.0,
    )
    trace = None
    if "epoch_losses" in arrays:
        trace = Trace.from_losses(arrays["epoch_losses"], arrays["mean_outputs"])
    committed = json.loads((EXPERIMENTS / f"{setting.name}.json").read_text())
    shadows = committed["seconds"]["model"] * SHADOWS
    row: dict[str, Any] = {
        "n": layer.n,
        "columns": layer.n_columns,
        "outputs": layer.n_outputs,
        "seconds_of_200_shadows": shadows,
        "scores": {},
    }
    for label, scores in (("all scores, auto", None), ("exposure, auto", ["exposure"])):
        start = time.process_time()
        frame, found = score_with_diagnostics(layer, scores, trace, memory=8.0, progress=False)
        row["scores"][label] = _taken(time.process_time() - start, shadows, found.curvature)
        row["scores"][label]["exact"] = found.exact
    exact = frame["exposure"].to_numpy()
    start = time.process_time()
    fast = exposures(layer, trace, "kronecker")
    error = np.abs(fast - exact) / np.maximum(np.abs(exact), np.finfo(float).tiny)
    row["scores"]["exposure, kronecker"] = {
        **_taken(time.process_time() - start, shadows, "kronecker"),
        "spearman": float(stats.spearmanr(fast, exact).statistic),
        "median_error": float(np.median(error)),
    }
    return row


def _taken(seconds: float, shadows: float, curvature: str | None) -> dict[str, Any]:
    return {"curvature": curvature, "seconds": seconds, "of_200_shadows": seconds / shadows}


def exposures(layer: LastLayer, trace: Trace | None, curvature: str) -> np.ndarray:
    """Exposure from a curvature, without the check of its error that ``score`` adds."""
    values = np.empty(layer.n)
    run = trace is not None and trace.mean_outputs is not None
    place = layer.at(trace.mean_outputs) if run and trace is not None else layer
    for chunk in build_curvature(place, curvature, 8.0).chunks():
        rows = chunk.records.rows
        losses = None if trace is None or trace.losses is None else trace.losses.mean(rows)
        values[rows] = exposure(Known(chunk.records, chunk, trace, of_run=run, run_loss=losses)).numpy()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("settings", nargs="*", default=[path.stem for path in sorted(EXPERIMENTS.glob("*.json"))])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--train-only", action="store_true")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "settings_cost.json")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    asked.work.mkdir(parents=True, exist_ok=True)
    for name in asked.settings:
        setting = all_settings()[name]
        source = DataSource(asked.data, asked.cache or asked.work / "cache", setting.scales["cpu"].backbone, False)
        arrays = target_of(setting, asked.work, source)
        if asked.train_only:
            continue
        results = json.loads(asked.output.read_text()) if asked.output.exists() else {}
        results[name] = measured(setting, arrays)
        asked.output.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(results[name]), flush=True)


if __name__ == "__main__":
    main()
