"""The theory at work: speed, the expansion, and predicted success rates against LiRA on real data.

    python benchmarks/theory.py --data DIR    run all; write benchmarks/results/theory.json

benchmarks/docs.py writes docs/theory.md from it.

DIR (or the environment variable NOSHADOW_DATA) holds california_housing.npz with X (N, 8) and y (N,).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy import stats

from noshadow import theory
from noshadow.files import write_text
from noshadow.layer import LastLayer
from noshadow.progress import progress_bar

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "theory.json"

POOL = 16_512  # 80 % of California Housing, the paper's training pool
TARGETS = 8
TRIMMED = 80  # records of highest leverage left out to see what they do to the spread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("NOSHADOW_DATA"), help="folder of california_housing.npz")
    parser.add_argument("--models", type=int, default=2000, help="refits of the reference attack")
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("name the data folder with --data or NOSHADOW_DATA")
    results = {
        "speed": speed(),
        "expansion": expansion(),
        "tests": errata(),
        **{
            name: compare(name, *data, n_models=arguments.models)
            for name, data in datasets(Path(arguments.data) / "california_housing.npz").items()
        },
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    write_text(RESULTS, json.dumps(results, indent=2, ensure_ascii=False) + "\n", private=False)
    print(f"wrote {RESULTS}; make pages writes it into the docs")


def speed(points: int = 100_000, levels: int = 200) -> dict[str, object]:
    """Seconds for the curves of many points at once."""
    rng = np.random.default_rng(0)
    h, error = rng.chisquare(9, (points, 1)), rng.standard_normal((points, 1))
    alpha = np.geomspace(1e-6, 0.99, levels)
    seconds = {}
    for test in ("threshold", "optimal"):
        start = time.perf_counter()
        beta = theory.tradeoff(alpha, h, error, 10_000, 9, test=test)
        seconds[test] = round(time.perf_counter() - start, 2)
        assert beta.shape == (points, levels)
        assert np.isfinite(beta).all()
        print(f"{points:,} points × {levels} levels, {test}: {seconds[test]:.1f} s")
    start = time.perf_counter()
    theory.expected_gap(h[:, 0], error[:, 0], 10_000, 9)
    seconds["expected_gap"] = round(time.perf_counter() - start, 2)
    start = time.perf_counter()
    theory.success_rate(h[:, 0], error[:, 0], 10_000, 9)
    seconds["success_rate"] = round(time.perf_counter() - start, 2)
    return {
        "points": points,
        "levels": levels,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "seconds": seconds,
    }


def expansion() -> dict[str, object]:
    """How fast the error of the second-order expansion falls with n − p."""
    k = np.array([50, 100, 200, 400, 800, 1600, 3200])
    h, error, sigma = 2.0, 1.5, 0.7
    exact = np.array([theory.expected_gap(h, error, int(i) + 5, 5, sigma) for i in k])
    series = np.array([theory.gap_expansion(h, error, int(i) + 5, 5, sigma) for i in k])
    miss = np.abs(exact - series)
    slope = float(np.polyfit(np.log(k[3:]), np.log(miss[3:]), 1)[0])
    print(f"slope of the expansion's error: {slope:.3f}")
    return {"k": k.tolist(), "exact": exact.tolist(), "error": miss.tolist(), "slope": slope}


def errata() -> dict[str, float]:
    """The true-positive rates at .001 of the two tests for ε = 1, τ = .5."""
    point = (2.5, 1.0, 15, 5)
    return {test: float(theory.tpr_at_fpr(0.001, *point, test=test)) for test in ("threshold", "optimal")}


def compare(name: str, x: np.ndarray, y: np.ndarray, n_models: int) -> dict[str, object]:
    """Predicted success rates of one model's members against LiRA from refits on random halves."""
    print(name)
    n = len(y) // 2
    rng = np.random.default_rng(2)
    start = time.perf_counter()
    residuals, membership = shadow(x, y, n_models, rng)
    reference = Lira(residuals, membership)
    seconds = time.perf_counter() - start
    spread = residuals.std(axis=0, dtype=np.float64)
    del residuals, membership
    again = Lira(*shadow(x, y, n_models, rng))
    small = Lira(*shadow(x, y, 200, rng))

    rows: list[dict[str, float]] = []
    predicted, observed = [], []
    for _ in range(TARGETS):
        members = np.sort(rng.permutation(len(y))[:n])
        start = time.perf_counter()
        fresh, fixed, shift = predict(x[members], y[members], pool=len(y))
        prediction_seconds = time.perf_counter() - start
        truth = reference.success[members]
        rows.append(
            {
                "prediction": spearman(fixed, truth),
                "prediction, fresh data": spearman(fresh, truth),
                "LiRA 200": spearman(small.success[members], truth),
                "LiRA again": spearman(again.success[members], truth),
                "prediction against separation": spearman(fixed, reference.separation[members]),
                "LiRA 200 separation": spearman(small.separation[members], reference.separation[members]),
                "LiRA again separation": spearman(again.separation[members], reference.separation[members]),
            }
        )
        predicted.append(np.stack([fresh, fixed, shift]))
        observed.append(np.stack([truth, reference.separation[members]]))
    spearmans = {
        name: {
            "mean": float(np.mean([row[name] for row in rows])),
            "std": float(np.std([row[name] for row in rows])),
        }
        for name in rows[0]
    }
    for name, value in spearmans.items():
        print(f"Spearman, {name}: {value['mean']:.3f} ± {value['std']:.3f}")
    return {
        "pool": len(y),
        "n": n,
        "p": x.shape[1] + 1,
        "models": n_models,
        "targets": TARGETS,
        "refit_seconds": round(seconds, 1),
        "prediction_seconds": round(prediction_seconds, 3),
        "spread_ratio": float(np.median(spread / assumed_spread(x, y))),
        "largest_leverage": float(pool_leverage(x).max()),
        "trimmed": TRIMMED,
        "trimmed_spread_ratio": trimmed_spread_ratio(x, y, assumed_spread),
        "trimmed_sandwich_ratio": trimmed_spread_ratio(x, y, sandwich_spread),
        "spearman": spearmans,
        "calibration": calibration(
            np.concatenate(predicted, axis=1), np.concatenate(observed, axis=1), noise=4.0 / n_models
        ),
    }


def datasets(path: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """California Housing, standardised (POOL, 8), and a Gaussian control with its moments."""
    with np.load(path) as data:
        x, y = data["X"].astype(np.float64), data["y"].astype(np.float64)
    chosen = np.sort(np.random.default_rng(1).permutation(len(y))[:POOL])
    x, y = x[chosen], y[chosen]
    x = (x - x.mean(0)) / x.std(0)
    design = np.column_stack([x, np.ones(len(x))])
    theta = np.linalg.lstsq(design, y, rcond=None)[0]
    rng = np.random.default_rng(3)
    normal = rng.standard_normal(x.shape) @ np.linalg.cholesky(np.cov(x.T)).T
    response = np.column_stack([normal, np.ones(len(x))]) @ theta + (y - design @ theta).std() * rng.standard_normal(
        len(y)
    )
    return {"california": (x, y), "control": (normal, response)}


def assumed_spread(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """σ √h of the whole pool: a residual's spread over half-splits if features and noise were Gaussian."""
    design = np.column_stack([x, np.ones(len(x))])
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    return np.sqrt((residual**2).sum() / (len(y) - design.shape[1]) * pool_leverage(x))


def pool_leverage(x: np.ndarray) -> np.ndarray:
    """Leverages h of a fit to the whole pool, bias included."""
    q, _ = np.linalg.qr(np.column_stack([x, np.ones(len(x))]))
    return (q**2).sum(1)


def sandwich_spread(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same with noise that may differ from record to record: xᵀ(XᵀX)⁻¹ Xᵀdiag(e²)X (XᵀX)⁻¹x."""
    design = np.column_stack([x, np.ones(len(x))])
    residual = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    pull = design @ np.linalg.inv(design.T @ design)
    meat = (design * residual[:, None] ** 2).T @ design
    return np.sqrt(np.einsum("ij,jk,ik->i", pull, meat, pull, optimize=True))


def trimmed_spread_ratio(x: np.ndarray, y: np.ndarray, spread: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    """Observed over assumed spread once the records of highest leverage have left the pool."""
    kept = np.argsort(pool_leverage(x))[:-TRIMMED]
    residuals, _ = shadow(x[kept], y[kept], 400, np.random.default_rng(4))
    return float(np.median(residuals.std(axis=0, dtype=np.float64) / spread(x[kept], y[kept])))


def predict(x: np.ndarray, y: np.ndarray, pool: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """From one least-squares fit of the members: success rates for fresh data and for halves of a fixed pool,
    and for the latter the separation d′ = |mean_in − mean_out| / √((var_in + var_out)/2) of the residuals.

    Half-splits of a fixed pool vary less than fresh samples: drawing n of N without replacement leaves a
    share 1 − n/N of the variance of the fit. The predictions for the pool take it into account through σ.
    """
    design = np.column_stack([x, np.ones(len(x))])
    fitted = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    s = theory.from_sample(LastLayer(x, fitted, y, head="squared"))
    sigma = np.sqrt(1.0 - len(y) / pool) * s.sigma
    fresh, fixed = (theory.success_rate(s.leverage, s.error, s.n, s.p, noise) for noise in (s.sigma, sigma))
    ratio = s.leverage / (s.n - s.p)
    shift = np.abs(s.error) * np.sqrt(ratio) / sigma / np.sqrt(0.5 * (1.0 + (1.0 + ratio) ** 2))
    return fresh, fixed, shift


def shadow(x: np.ndarray, y: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Signed residuals (count, N) of least-squares fits on random halves, and who was in (count, N)."""
    design = np.column_stack([x, np.ones(len(x))])
    size, p = design.shape
    upper = np.triu_indices(p)
    outer = np.column_stack([design[:, upper[0]] * design[:, upper[1]], design * y[:, None]])
    residuals = np.empty((count, size), dtype=np.float32)
    membership = np.empty((count, size), dtype=bool)
    with progress_bar("refits", count) as advance:
        for rows in chunks(count, 100):
            order = rng.random((rows.stop - rows.start, size)).argsort(axis=1)
            inside = np.zeros(order.shape)
            np.put_along_axis(inside, order[:, : size // 2], 1.0, axis=1)
            sums = inside @ outer
            gram = np.empty((len(sums), p, p))
            gram[:, upper[0], upper[1]] = gram[:, upper[1], upper[0]] = sums[:, : len(upper[0])]
            theta = np.linalg.solve(gram, sums[:, len(upper[0]) :, None])[:, :, 0]
            residuals[rows] = y - theta @ design.T
            membership[rows] = inside > 0
            advance(len(sums))
    return residuals, membership


class Lira:
    """Online LiRA with per-sample normals: leave-one-model-out success rate and separation, each (N,)."""

    def __init__(self, signal: np.ndarray, membership: np.ndarray) -> None:
        count = len(signal)
        success, separation = np.empty(signal.shape[1]), np.empty(signal.shape[1])
        for columns in chunks(signal.shape[1], 1024):
            s, inside = signal[:, columns].astype(np.float64), membership[:, columns]
            s = s - s.mean(0)
            scores, moments = [], []
            for group in (inside, ~inside):
                total, first, second = group.sum(0), (group * s).sum(0), (group * s * s).sum(0)
                moments.append((first / total, second / total - (first / total) ** 2))
                left = total - group  # without the model that is attacked
                mean = (first - group * s) / left
                variance = (second - group * s * s) / left - mean**2
                scores.append(-0.5 * np.log(variance) - 0.5 * (s - mean) ** 2 / variance)
            success[columns] = ((scores[0] > scores[1]) == inside).sum(0) / count
            (mean_in, var_in), (mean_out, var_out) = moments
            separation[columns] = np.abs(mean_in - mean_out) / np.sqrt(0.5 * (var_in + var_out))
        self.success, self.separation = success, separation


def chunks(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return float(stats.spearmanr(a, b).statistic)


def calibration(predicted: np.ndarray, observed: np.ndarray, noise: float) -> list[dict[str, float | int]]:
    """Predicted and observed success rates and separations by quantile of the prediction.

    predicted  (3, M)  success rate for fresh data, for the pool, and separation for the pool
    observed   (2, M)  LiRA's success rate and separation
    noise              mean square of the separation that refits alone would show for a record without any
    """
    borders = [0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 0.999, 1.0]
    rank = (stats.rankdata(predicted[1], method="ordinal") - 0.5) / predicted.shape[1]
    table: list[dict[str, float | int]] = []
    for low, high in pairwise(borders):
        chosen = (rank >= low) & (rank < high)
        real = max(float((observed[1][chosen] ** 2).mean()) - noise, 0.0)
        row = {
            "from": low,
            "to": high,
            "records": int(chosen.sum()),
            "predicted_fresh": float(predicted[0][chosen].mean()),
            "predicted": float(predicted[1][chosen].mean()),
            "observed": float(observed[0][chosen].mean()),
            "predicted_separation": float(np.sqrt((predicted[2][chosen] ** 2).mean())),
            "observed_separation": float(np.sqrt(real)),
        }
        table.append(row)
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    return table


if __name__ == "__main__":
    main()
