"""Small data and small networks: what the scores find and how far off the rates are, beside the settings of the paper.

    python benchmarks/small_studies.py WORK [STUDY ...] [--output benchmarks/results/small_studies.json]

Data that scikit-learn ships or makes, 128 shadow models on halves, 4 target models with a trace and a rerun. Models are
kept in WORK: a run that was interrupted goes on, and what is there is scored again. A study whose ``looked_at`` is True
was looked at when scores or rates were chosen; the others were run once, afterwards.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

from noshadow import evaluate
from noshadow.attacks.registry import Options, run_attack
from noshadow.bench.architectures import mlp
from noshadow.bench.measure import score_targets
from noshadow.bench.prepare import standardised
from noshadow.bench.setting import Pool, Scale, Setting
from noshadow.bench.training import TrainedModels, train_models
from noshadow.files import write_text
from noshadow.shadow.recipe import Recipe

RESULTS = Path(__file__).resolve().parent / "results" / "small_studies.json"
SHADOWS, TARGETS, SPLITS = 128, 4, 5
TOP, KEEP = 0.05, 0.10  # of some hundred records one in a hundred is one or none
SCORES = ("loss", "newton", "exposure", "mean_trace")


def made(maker: Callable[..., Any], **options: Any) -> Callable[[int], Any]:
    """A data set of so many records, by a function of scikit-learn."""
    return lambda records: maker(n_samples=records, random_state=0, **options)


def shipped(loader: Callable[..., Any]) -> Callable[[int], Any]:
    return lambda records: loader(return_X_y=True)


def diabetes_in_thirds(records: int) -> Any:
    x, y = datasets.load_diabetes(return_X_y=True)
    return x, np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))


def odd_digits(records: int) -> Any:
    x, y = datasets.load_digits(return_X_y=True)
    return x, y % 2


def hastie(records: int) -> Any:
    x, y = datasets.make_hastie_10_2(records, random_state=0)
    return x, (y > 0).astype(np.int64)


thirty = made(
    datasets.make_classification,
    n_features=60,
    n_informative=30,
    n_redundant=10,
    n_classes=30,
    n_clusters_per_class=1,
    flip_y=0.05,
)


def flipped(records: int) -> Any:
    return datasets.make_classification(records, 30, n_informative=10, n_classes=4, flip_y=0.25, random_state=1)


def brief(records: int) -> Any:
    return datasets.make_classification(records, 20, n_informative=8, flip_y=0.1, random_state=2)


@dataclass(frozen=True)
class Study:
    """Data, the widths of a network's hidden layers, its recipe; the outputs are those of the head."""

    data: Callable[[int], Any]
    records: int
    widths: Sequence[int]
    recipe: Recipe
    head: str = "softmax"
    dropout: float = 0.0
    looked_at: bool = True

    def setting(self, name: str) -> Setting:
        return Setting(
            name=name,
            data=name,
            model_name="MLP",
            head=self.head,
            recipe=self.recipe,
            load=lambda source, at_least: Pool(*self.data(self.records)),
            prepare=partial(prepared, classes=self.head != "squared"),
            model=partial(network, widths=tuple(self.widths), dropout=self.dropout, head=self.head),
            scales={"small": Scale(shadows=SHADOWS, targets=TARGETS, pool=self.records)},
            stack=64,
        )


def prepared(pool: Pool, source: Any, classes: bool) -> Pool:
    return Pool(standardised(pool.inputs), pool.targets.astype(np.int64) if classes else standardised(pool.targets))


def network(pool: Pool, source: Any, widths: tuple[int, ...], dropout: float, head: str) -> Callable[[], Any]:
    outputs = int(pool.targets.max()) + 1 if head == "softmax" else 1
    return partial(mlp, pool.inputs.shape[1], widths, outputs, dropout=dropout)


def adam(epochs: int, batch: int, rate: float = 1e-3) -> Recipe:
    return Recipe(epochs=epochs, batch_size=batch, optimizer="adam", learning_rate=rate, weight_decay=0.0)


def sgd(epochs: int, batch: int) -> Recipe:
    return Recipe(epochs=epochs, batch_size=batch, optimizer="sgd", learning_rate=0.05, momentum=0.9, weight_decay=1e-3)


STUDIES = {
    "wine": Study(shipped(datasets.load_wine), 178, (32,), adam(60, 16)),
    "iris": Study(shipped(datasets.load_iris), 150, (16,), adam(100, 16, 3e-3)),
    "moons": Study(made(datasets.make_moons, noise=0.3), 400, (64, 64), adam(100, 32, 3e-3)),
    "circles-sgd": Study(made(datasets.make_circles, noise=0.2, factor=0.5), 400, (64,), sgd(60, 32)),
    "cancer": Study(shipped(datasets.load_breast_cancer), 569, (64,), adam(40, 32)),
    "cancer-logistic": Study(shipped(datasets.load_breast_cancer), 569, (64,), adam(60, 32), "logistic"),
    "cancer-wide": Study(shipped(datasets.load_breast_cancer), 569, (256,), adam(100, 32)),
    "digits": Study(shipped(datasets.load_digits), 1797, (64,), adam(30, 32)),
    "digits-small": Study(shipped(datasets.load_digits), 600, (128,), adam(60, 32)),
    "digits-sgd": Study(shipped(datasets.load_digits), 1200, (64,), sgd(40, 32)),
    "thirty": Study(thirty, 2000, (64,), adam(40, 32)),
    "flipped": Study(flipped, 1200, (64,), adam(40, 32)),
    "flipped-drop": Study(flipped, 1200, (64,), adam(40, 32), dropout=0.3),
    "diabetes": Study(shipped(datasets.load_diabetes), 442, (64,), adam(60, 32), "squared"),
    "friedman": Study(made(datasets.make_friedman1, noise=1.0), 600, (64, 32), adam(100, 32), "squared"),
    "hastie": Study(hastie, 1000, (64,), adam(30, 32), "logistic"),
    "quantiles": Study(made(datasets.make_gaussian_quantiles, n_features=8, n_classes=3), 900, (128,), adam(50, 32)),
    "diabetes-thirds": Study(diabetes_in_thirds, 442, (32, 32), sgd(40, 16)),
    "odd-digits": Study(odd_digits, 1500, (32,), adam(25, 64, 3e-3), "logistic"),
    "friedman3": Study(made(datasets.make_friedman3, noise=0.1), 800, (64,), adam(80, 32, 3e-3), "squared"),
    "blobs": Study(made(datasets.make_blobs, centers=6, cluster_std=4.0), 1000, (32,), adam(20, 32), looked_at=False),
    "short": Study(brief, 800, (64,), adam(8, 32), "logistic", looked_at=False),
    "digits-deep": Study(shipped(datasets.load_digits), 1000, (64, 64, 64), sgd(30, 32), looked_at=False),
    "swiss-roll": Study(
        made(datasets.make_swiss_roll, noise=1.0), 700, (64, 64), adam(60, 32, 3e-3), "squared", looked_at=False
    ),
    "friedman2": Study(
        made(datasets.make_friedman2, noise=100.0), 500, (64,), adam(100, 16, 3e-3), "squared", looked_at=False
    ),
}


def measured(study: Study, name: str, models: TrainedModels) -> dict[str, Any]:
    """Recalls beside what LiRA finds again, and the rates by tenths."""
    setting = study.setting(name)
    outputs, inside, targets = models.shadows.outputs, models.shadows.membership, models.pool.targets
    options = Options.for_models("lira", len(inside))
    truth = run_attack(outputs, inside, targets, study.head, options)
    scored = score_targets(setting, setting.scales["small"], models, progress=False)
    order = evaluate.ordering(truth.success_rate, truth.tiebreak)

    def again(rows: Any) -> Any:
        return run_attack(outputs[rows], inside[rows], targets, study.head, options)

    halves = evaluate.halves(again, len(inside), SPLITS)
    how = {"top": TOP, "keep": KEEP}
    ceiling = evaluate.over_predictions(evaluate.recall, halves, scored.members, **how)
    found = {
        score: evaluate.over_targets(
            evaluate.recall, np.where(scored.members, scored.scores[score], 0.0), order, scored.members, **how
        ).mean
        for score in (*SCORES, "exposure, rerun")
    }
    sides = [(scored.scores["attack_accuracy"][t, m], truth.success_rate[m]) for t, m in enumerate(scored.members)]
    each = [evaluate.reliability(*pair) for pair in sides]
    whole = evaluate.reliability(*(np.concatenate(side) for side in zip(*sides, strict=True)))
    return {
        "records": len(models.pool),
        "head": study.head,
        "widths": list(study.widths),
        "looked_at": study.looked_at,
        "recall": found,
        "lira_again": ceiling.mean,
        "error": float(np.mean([one.error for one in each])),
        "predicted": [float(value) for value in whole.predicted],
        "measured": [float(value) for value in whole.measured],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; all")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    results = json.loads(asked.output.read_text(encoding="utf-8")) if asked.output.exists() else {}
    warnings.simplefilter("ignore")
    for name in asked.studies or STUDIES:
        study = STUDIES[name]
        setting = study.setting(name)
        models = train_models(setting, setting.scales["small"], None, asked.work / name, 0, engine="serial")
        results[name] = measured(study, name, models)
        print(f"{name}: rates off by {results[name]['error']:.3f}", flush=True)
        ordered = {key: results[key] for key in STUDIES if key in results}
        write_text(asked.output, json.dumps(ordered, indent=1) + "\n", private=False)


if __name__ == "__main__":
    main()
