"""Linear and logistic regressions: the predicted success rate of every record against LiRA on thousands of refits.

    python benchmarks/refits.py [STUDY ...] [--refits 4000] [--output benchmarks/results/refits.json]

A converged model on features that nobody trained needs neither a rerun nor held-out records: its rates come from itself
alone. Each study fits scikit-learn's own estimator to so many random halves of a pool; LiRA, leave-one-model-out, gives
the measured rate of every record. Eight further halves are audited. A study is kept as soon as it is whole. One whose
``looked_at`` is True was looked at when the rates of converged models were chosen; the others were run afterwards.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track
from sklearn import datasets
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import noshadow
from noshadow import attacks, evaluate
from noshadow.files import write_text

RESULTS = Path(__file__).resolve().parent / "results" / "refits.json"
REFITS, TARGETS = 4000, 8
Data = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Study:
    """A pool of records, what is fitted to its halves, and whether it was looked at when rates were chosen."""

    data: Callable[[], Data]
    model: Any
    looked_at: bool = True

    @property
    def head(self) -> str:
        if not isinstance(self.model, LogisticRegression):
            return "squared"
        return "softmax" if len(np.unique(self.data()[1])) > 2 else "logistic"


def shipped(loader: Callable[..., Any], records: int | None = None) -> Callable[[], Data]:
    """Data that scikit-learn ships, standardised; its first records in a random order."""

    def load() -> Data:
        x, y = loader(return_X_y=True)
        rows = np.random.default_rng(0).permutation(len(y))[:records]
        return StandardScaler().fit_transform(x[rows]), y[rows]

    return load


def two_digits() -> Data:
    """Threes and eights."""
    x, y = shipped(datasets.load_digits)()
    kept = np.isin(y, (3, 8))
    return x[kept], (y[kept] == 8).astype(int)


def quadratic_diabetes() -> Data:
    """Ten columns, their squares and products."""
    x, y = shipped(datasets.load_diabetes)()
    return StandardScaler().fit_transform(PolynomialFeatures(include_bias=False).fit_transform(x)), y


def gaussian(classes: int, columns: int, records: int, noise: float = 1.0) -> Callable[[], Data]:
    """Normal columns; of one class a linear mean with normal noise, of two or more the likeliest of noisy scores."""

    def make() -> Data:
        rng = np.random.default_rng(1)
        x = rng.normal(size=(records, columns))
        scores = x @ rng.normal(size=(columns, classes)) / np.sqrt(columns)
        if classes == 1:
            return x, scores[:, 0] + noise * rng.normal(size=records)
        return x, np.argmax(scores + noise * rng.gumbel(size=scores.shape), axis=1)

    return make


def uneven(what: str) -> Callable[[], Data]:
    """Regressions whose variance does not go with the curvature."""

    def make() -> Data:
        rng = np.random.default_rng(2)
        x = rng.normal(size=(500, 12))
        grows = np.exp(1.5 * x[:, 0]) if what == "noise that grows" else 1.0
        if what == "heavy tails":
            grows = 1.0 / np.sqrt(rng.chisquare(3, size=500) / 3)
        if what == "outliers":
            x[:3] *= 30.0
        return x, x @ rng.normal(size=12) * 0.3 + rng.normal(size=500) * grows

    return make


def rare_levels(classes: int) -> Callable[[], Data]:
    """Five numbers, and sixty levels of which each has a handful of records."""

    def make() -> Data:
        rng = np.random.default_rng(3)
        level = rng.integers(0, 300, 1000)
        x = np.concatenate([rng.normal(size=(1000, 5)), level[:, None] == np.arange(60)], axis=1).astype(float)
        mean = x @ rng.normal(size=65) * 0.5
        return x, mean + rng.normal(size=1000) if classes == 1 else (mean + rng.logistic(size=1000) > 0).astype(int)

    return make


def logistic(strength: float) -> LogisticRegression:
    return LogisticRegression(C=strength, tol=1e-8, max_iter=5000)


cancer, wine, iris = (shipped(getattr(datasets, f"load_{name}")) for name in ("breast_cancer", "wine", "iris"))
diabetes = shipped(datasets.load_diabetes)
STUDIES: dict[str, Study] = {
    "normal columns, least squares": Study(gaussian(1, 10, 400), LinearRegression()),
    "diabetes, least squares": Study(diabetes, LinearRegression()),
    "diabetes, ridge 300": Study(diabetes, Ridge(300.0)),
    "outliers, least squares": Study(uneven("outliers"), LinearRegression()),
    "noise that grows, least squares": Study(uneven("noise that grows"), LinearRegression()),
    "rare levels, ridge 0.01": Study(rare_levels(1), Ridge(0.01)),
    "normal columns, logistic C = 1": Study(gaussian(2, 10, 400), logistic(1.0)),
    "breast cancer, logistic C = 0.1": Study(cancer, logistic(0.1)),
    "breast cancer, logistic C = 1": Study(cancer, logistic(1.0)),
    "breast cancer, logistic C = 10,000": Study(cancer, logistic(1e4)),
    "rare levels, logistic C = 1": Study(rare_levels(2), logistic(1.0)),
    "iris, softmax C = 1": Study(iris, logistic(1.0)),
    "wine, softmax C = 0.1": Study(wine, logistic(0.1)),
    "wine, softmax C = 1": Study(wine, logistic(1.0)),
    "heavy tails, least squares": Study(uneven("heavy tails"), LinearRegression(), looked_at=False),
    "diabetes with products, ridge 10": Study(quadratic_diabetes, Ridge(10.0), looked_at=False),
    "threes and eights, logistic C = 0.1": Study(two_digits, logistic(0.1), looked_at=False),
    "ten digits, softmax C = 0.01": Study(shipped(datasets.load_digits, 600), logistic(0.01), looked_at=False),
    "normal columns, five classes, softmax C = 1": Study(gaussian(5, 8, 600), logistic(1.0), looked_at=False),
}


def run(study: Study, refits: int, name: str) -> dict[str, Any]:
    """Deciles of the members by predicted rate, predicted and measured, averaged over the audited halves."""
    x, y = study.data()
    n, head, rng = len(y), study.head, np.random.default_rng(7)
    halves = np.zeros((refits + TARGETS, n), dtype=bool)
    for half in halves:
        half[rng.permutation(n)[: n // 2]] = True
    outputs, start = [], time.process_time()
    for half in track(halves[TARGETS:], name):
        fitted = study.model.fit(x[half], y[half])
        outputs.append((fitted.predict(x) if head == "squared" else fitted.decision_function(x)).reshape(n, -1))
    took = time.process_time() - start
    signal = attacks.signal(np.stack(outputs), y, head)
    members = "lower" if head == "squared" else "higher"
    truth = attacks.lira(signal, halves[TARGETS:], members=members).success_rate
    found, start = [], time.process_time()
    for half in halves[:TARGETS]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            audit = noshadow.audit(study.model.fit(x[half], y[half]), (x[half], y[half]), progress=False)
        if audit.metadata["calibration"]["source"] != "converged":
            raise RuntimeError(f"{name}: the model has not converged")
        found.append(evaluate.reliability(audit.table["attack_accuracy"].to_numpy(), truth[half]))
    return {
        "records": n,
        "columns": x.shape[1],
        "head": head,
        "refits": refits,
        "looked_at": study.looked_at,
        "error": float(np.mean([one.error for one in found])),
        "predicted": np.mean([one.predicted for one in found], axis=0).tolist(),
        "measured": np.mean([one.measured for one in found], axis=0).tolist(),
        "refit_seconds": took / refits,
        "audit_seconds": (time.process_time() - start) / TARGETS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("studies", nargs="*", default=list(STUDIES), help="by name; all of them")
    parser.add_argument("--refits", type=int, default=REFITS)
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if unknown := set(asked.studies) - set(STUDIES):
        parser.error(f"no such study: {', '.join(sorted(unknown))}")
    for name in asked.studies:
        row = run(STUDIES[name], asked.refits, name)
        kept = json.loads(asked.output.read_text(encoding="utf-8")) if asked.output.exists() else {}
        kept[name] = row
        write_text(
            asked.output, json.dumps({key: kept[key] for key in STUDIES if key in kept}, indent=1) + "\n", private=False
        )
        print(name, f"off by {row['error']:.4f}", [round(row[key][-1], 3) for key in ("predicted", "measured")])


if __name__ == "__main__":
    main()
