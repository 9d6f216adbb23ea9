"""How fast shadow models are trained: in stacks, one by one, and on two processes.

    python benchmarks/shadow.py --data DIR        (or NOSHADOW_DATA=DIR)

DIR holds energy_efficiency.csv and california_housing.npz. The settings are the paper's; all ratios are
measured in one run, the alternatives in turns, so that other work on the machine hits them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import joblib
import numpy as np
import pandas as pd
import torch
from torch import nn

from noshadow import shadow
from noshadow.files import write_text
from noshadow.shadow import ModelKey, Plan, Recipe, TorchTrainer
from noshadow.shadow.train import STACK_SIZES
from noshadow.shadow.work import limited_threads

RESULTS = Path(__file__).parent / "results" / "shadow.json"


def mlp(widths: list[int], dropout: float = 0.0) -> nn.Sequential:
    """Blocks of linear, ReLU and dropout, and a linear output."""
    layers: list[nn.Module] = []
    size = 8
    for width in widths:
        layers += [nn.Linear(size, width), nn.ReLU(), *([nn.Dropout(dropout)] if dropout else [])]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, 1))


def standardised(x: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0)) / x.std(0)).astype(np.float32)


def energy(folder: Path) -> TorchTrainer:
    """UCI Energy: 614 records, MLP [64, 32] with dropout 0.3, 300 epochs of batches of 32."""
    table = pd.read_csv(folder / "energy_efficiency.csv").to_numpy()
    rows = np.random.default_rng(0).permutation(len(table))[:614]
    x, y = standardised(table[rows, :8]), standardised(table[rows, 8])
    return TorchTrainer(lambda: mlp([64, 32], 0.3), (x, y), Recipe(300, 32, weight_decay=1e-3), head="squared")


def california(folder: Path) -> TorchTrainer:
    """California Housing: 16,512 records, MLP [128, 128, 128], 200 epochs of batches of 256."""
    with np.load(folder / "california_housing.npz", allow_pickle=False) as data:
        rows = np.random.default_rng(0).permutation(len(data["X"]))[:16_512]
        x, y = standardised(data["X"][rows]), standardised(data["y"][rows])
    return TorchTrainer(lambda: mlp([128] * 3), (x, y), Recipe(200, 256, weight_decay=5e-4), head="squared")


def planned(trainer: TorchTrainer, count: int) -> tuple[list[np.ndarray], list[int]]:
    plan = Plan(len(trainer.inputs))
    keys = [ModelKey("shadow", number) for number in range(count)]
    return [plan.members(key) for key in keys], [plan.seed_of(key) for key in keys]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def train_in_stacks(trainer: TorchTrainer, count: int, size: int) -> list[np.ndarray]:
    """``count`` models, ``size`` at once; ``size`` 1 is one by one."""
    members, seeds = planned(trainer, count)
    if size == 1:
        return [trainer(*pair) for pair in zip(members, seeds, strict=True)]
    parts = [slice(start, start + size) for start in range(0, count, size)]
    return [outputs for part in parts for outputs in trainer.train_many(members[part], seeds[part])]


def shorter(trainer: TorchTrainer, epochs: int) -> TorchTrainer:
    return TorchTrainer(
        trainer.model,
        (trainer.inputs, trainer.targets),
        replace(trainer.recipe, epochs=epochs),
        head="squared",
    )


def stacked_against_single(trainer: TorchTrainer, count: int, rounds: int, epochs: int) -> dict[str, object]:
    """Seconds per model on one thread: one by one and in stacks, and which of them the trainer chooses."""
    trainer = shorter(trainer, epochs)
    sizes = [1, *STACK_SIZES]
    times: dict[int, list[float]] = {size: [] for size in sizes}
    with limited_threads(1):
        train_in_stacks(shorter(trainer, 1), 8, 8)  # torch loads its parts on first use
        chosen = trainer.models_at_once(most=count)
        for _ in range(rounds):
            for size in sizes:
                times[size].append(seconds(lambda size=size: train_in_stacks(trainer, count, size)) / count)
    a_model = {size: median(values) for size, values in times.items()}
    best = min(a_model, key=lambda size: a_model[size])
    return {
        "models": count,
        "epochs": epochs,
        "rounds": rounds,
        "seconds_a_model": {"one by one" if size == 1 else f"{size} at once": a_model[size] for size in sizes},
        "chosen_at_once": chosen,
        "chosen_speedup_over_one_by_one": a_model[1] / a_model[chosen],
        "best_speedup_over_one_by_one": a_model[1] / a_model[best],
        "chosen_time_over_best": a_model[chosen] / a_model[best],
    }


def energy_full(trainer: TorchTrainer, count: int) -> dict[str, object]:
    """The whole setting once: all epochs, as chosen against one by one, and how far they differ."""
    with limited_threads(1):
        chosen = trainer.models_at_once(most=count)
        start = time.perf_counter()
        stacked = train_in_stacks(trainer, count, chosen)
        middle = time.perf_counter()
        single = train_in_stacks(trainer, count, 1)
        end = time.perf_counter()
    differences = [float(np.abs(a - b).max()) for a, b in zip(stacked, single, strict=True)]
    return {
        "models": count,
        "epochs": trainer.recipe.epochs,
        "at_once": chosen,
        "seconds_stacked": middle - start,
        "seconds_one_by_one": end - middle,
        "speedup": (end - middle) / (middle - start),
        "largest_difference_of_outputs": max(differences),
        "median_largest_difference_of_a_model": median(differences),
        "models_that_differ_by_less_than_1e-4": sum(difference < 1e-4 for difference in differences),
        "spread_of_outputs_between_models": float(np.std(single, axis=0).mean()),
    }


def cores_to_be_had() -> float:
    """How many cores two busy processes get at the moment: 2 on a quiet machine, less where others work."""
    spin = [sys.executable, "-S", "-c", "for _ in range(10**8): pass"]
    alone = seconds(lambda: subprocess.run(spin, check=True))

    def both() -> None:
        for process in [subprocess.Popen(spin) for _ in range(2)]:
            process.wait()

    return 2.0 * alone / seconds(both)


def workers_against_one(trainer: TorchTrainer, count: int, rounds: int) -> dict[str, object]:
    """A study one by one on one worker process and on two, start of the workers included."""
    alone = TorchTrainer(
        trainer.model, (trainer.inputs, trainer.targets), trainer.recipe, head="squared", vectorise=False
    )
    times: dict[int, list[float]] = {1: [], 2: []}
    cores = []
    for _ in range(rounds):
        cores.append(cores_to_be_had())
        for workers in times:
            with tempfile.TemporaryDirectory() as folder:
                study = shadow.Study(alone, len(alone.inputs), n_models=count, store=folder)
                times[workers].append(seconds(lambda study=study, n=workers: study.run("processes", workers=n)))
    ratios = [one / two for one, two in zip(times[1], times[2], strict=True)]
    return {
        "models": count,
        "seconds": times,
        "cores_to_be_had": cores,
        "speedups": ratios,
        "speedup": median(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("NOSHADOW_DATA"))
    parser.add_argument("--only", choices=["energy", "stacks", "workers"], help="one part of the report")
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give --data DIR or set NOSHADOW_DATA")
    energy_trainer, california_trainer = energy(Path(arguments.data)), california(Path(arguments.data))
    parts: dict[str, Callable[[], object]] = {
        "energy": lambda: energy_full(energy_trainer, 64),
        "stacks": lambda: {
            "energy": stacked_against_single(energy_trainer, 64, rounds=3, epochs=10),
            "california": stacked_against_single(california_trainer, 64, rounds=2, epochs=3),
        },
        "workers": lambda: workers_against_one(energy_trainer, 24, rounds=2),
    }
    report: dict[str, object] = json.loads(RESULTS.read_text()) if arguments.only and RESULTS.exists() else {}
    report["machine"] = {"cores": joblib.cpu_count(), "processor": platform.machine(), "torch": torch.__version__}
    for name, part in parts.items():
        if arguments.only in (None, name):
            report[name] = part()
            print(name, json.dumps(report[name], indent=2), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    write_text(RESULTS, json.dumps(report, indent=2) + "\n", private=False)


if __name__ == "__main__":
    main()
