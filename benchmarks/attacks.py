"""Speed and memory of the attacks at full size, and how LiRA converges to the theoretical optimum.

    python benchmarks/attacks.py

Each timed case runs in a process of its own: its peak memory is the operating system's count for that
process, imports and input arrays included. Results go to benchmarks/results/attacks.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from noshadow import attacks
from noshadow.files import write_text

RESULTS = Path(__file__).parent / "results" / "attacks.json"
RECORDS, POPULATION = 50_000, 10_000


# --- speed ---


def inputs(n_models: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signals (K, N), membership (K, N), population (K, Z), built row by row to leave no copies."""
    rng = np.random.default_rng(0)
    signal, membership = np.empty((n_models, RECORDS)), np.empty((n_models, RECORDS), dtype=bool)
    for k in range(n_models):
        membership[k] = rng.random(RECORDS) < 0.5
        signal[k] = rng.standard_normal(RECORDS) + 0.5 * membership[k]
    return signal, membership, rng.standard_normal((n_models, POPULATION))


def run_case(name: str, n_models: int, repeats: int = 3) -> dict[str, float]:
    """Best of some repeats of one attack, in seconds, and the peak memory of this process in MB."""
    signal, membership, population = inputs(n_models)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    calls = {
        "lira online": lambda: attacks.lira(signal, membership),
        "lira online, fixed variance": lambda: attacks.lira(signal, membership, variance="fixed"),
        "lira online, median": lambda: attacks.lira(signal, membership, center="median"),
        "lira offline": lambda: attacks.lira(signal, membership, "offline"),
        "rmia online": lambda: attacks.rmia(signal, membership, population),
        "rmia offline": lambda: attacks.rmia(signal, membership, population, "offline"),
    }
    wall, processor = [], []
    for _ in range(repeats):
        started = time.perf_counter(), time.process_time()
        calls[name]()
        wall.append(time.perf_counter() - started[0])
        processor.append(time.process_time() - started[1])
    return {
        "seconds": round(min(wall), 3),
        "processor_seconds": round(min(processor), 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "of_which_imports_and_inputs_mb": round(before, 1),
    }


def speed(threads: int) -> list[dict[str, object]]:
    """Every case in a fresh process."""
    table: list[dict[str, object]] = []
    for name, n_models in (
        ("lira online", 256),
        ("lira online, fixed variance", 256),
        ("lira online, median", 256),
        ("lira offline", 256),
        ("rmia online", 256),
        ("rmia online", 64),
        ("rmia offline", 256),
    ):
        command = [sys.executable, __file__, "--case", name, "--models", str(n_models)]
        # no thread of ours may spin on a core that the rest of the machine uses
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        row: dict[str, object] = {"attack": name, "models": n_models, "records": RECORDS}
        if name.startswith("rmia"):
            row["population"] = POPULATION
        table.append({**row, "threads": threads, **json.loads(done.stdout)})
        print(table[-1], flush=True)
    return table


# --- convergence on the Gaussian linear model ---
#
# A record (x, y) is fixed, n − 1 others are drawn from x' ~ N(0, I_p), y' = noise of variance 1, and least
# squares is fitted with the record (in) or without (out). With h = ‖x‖², ε = y and independent
# V ~ χ²_{n−p} and Z ~ N(0, 1),
#     residual out = ε + √(h/V) Z,        residual in = residual out · V/(V + h).
# An attacker who sees the signed residual is right with probability at most ½ + ½ TV(in, out): the optimum.


def simulate(leverage: np.ndarray, error: np.ndarray, n_models: int, block: int, n: int, p: int, seed: int):
    """Signed residuals (M, N) of least-squares fits and membership (M, N): half of every block.

    Each model draws its own n − 1 background points; a record is added to them, alone, where it is a
    member, so that every column has exactly the law above (rank-one update of the fit: divide by 1 + xᵀG⁻¹x).
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((len(leverage), p))
    x *= np.sqrt(leverage)[:, None] / np.linalg.norm(x, axis=1, keepdims=True)
    records = torch.from_numpy(x)
    order = rng.random((n_models // block, block, len(leverage))).argsort(1)
    membership = (order < block // 2).reshape(n_models, -1)
    residual = np.empty((n_models, len(leverage)))
    for start in range(0, n_models, 256):
        count = min(256, n_models - start)
        background = torch.from_numpy(rng.standard_normal((count, n - 1, p)))
        noise = torch.from_numpy(rng.standard_normal((count, n - 1, 1)))
        factor = torch.linalg.cholesky(background.mT @ background)
        fit = torch.cholesky_solve(background.mT @ noise, factor).squeeze(2)
        whitened = torch.linalg.solve_triangular(factor, records.T.expand(count, -1, -1), upper=False)
        out = error - (fit @ records.T).numpy()
        rows = slice(start, start + count)
        residual[rows] = np.where(membership[rows], out / (1.0 + whitened.square().sum(1).numpy()), out)
    return residual, membership


def optimum(leverage: float, error: float, n: int, p: int) -> tuple[float, float]:
    """The best possible accuracy, and that of a Gaussian likelihood ratio (LiRA's limit), by quadrature.

    Both laws are integrals over V of Gaussian densities in closed form: Gauss–Legendre in V, trapezoids in e.
    """
    law = stats.chi2(n - p)
    low, high = law.ppf(1e-13), law.isf(1e-13)
    nodes, weights = np.polynomial.legendre.leggauss(80)
    v = 0.5 * (high - low) * nodes + 0.5 * (high + low)
    weights = 0.5 * (high - low) * weights * law.pdf(v)
    scale, shrink = np.sqrt(leverage / v), v / (v + leverage)
    reach = 12.0 * np.sqrt(leverage / (n - p))
    e = np.linspace(min(error, error * shrink.min()) - reach, max(error, error * shrink.max()) + reach, 6001)
    out = stats.norm.pdf(e[:, None], error, scale) @ weights
    inside = stats.norm.pdf(e[:, None], error * shrink, scale * shrink) @ weights
    step = e[1] - e[0]

    def gaussian(density: np.ndarray) -> np.ndarray:
        mean = (density * e).sum() * step
        return stats.norm.logpdf(e, mean, np.sqrt((density * (e - mean) ** 2).sum() * step))

    decided = np.sign(gaussian(inside) - gaussian(out))
    advantage = np.abs(inside - out).sum(), (decided * (inside - out)).sum()
    return float(0.5 + 0.25 * step * advantage[0]), float(0.5 + 0.25 * step * advantage[1])


def convergence(
    total: int = 8192, sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256, 512, 1024)
) -> list[dict[str, float]]:
    """LiRA's success rate against the optimum, a row for each K; every row spends ``total`` models."""
    n, p = 120, 20
    leverage, error = (grid.ravel() for grid in np.meshgrid(np.geomspace(4.0, 80.0, 8), np.linspace(0.0, 3.0, 7)))
    best, limit = np.mean([optimum(h, e, n, p) for h, e in zip(leverage, error, strict=True)], axis=0).tolist()
    table = []
    for k in sizes:
        residual, membership = simulate(leverage, error, total, k, n, p, seed=k)
        row: dict[str, float] = {"models": k, "optimum": round(best, 5), "gaussian_limit": round(limit, 5)}
        for variance in ("per_sample", "fixed", "auto"):
            rates = [
                attacks.lira(residual[s : s + k], membership[s : s + k], variance=variance).success_rate.mean()
                for s in range(0, total, k)
            ]
            row[variance] = round(float(np.mean(rates)), 5)
        row["gap"] = round(best - row["per_sample"], 5)
        row["standard_error"] = round(float(0.5 / np.sqrt(total * len(leverage))), 5)
        table.append(row)
        print(row, flush=True)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--models", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help="threads of the timed cases (default 1)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_case(options.case, options.models)))
        return
    results = {"speed": speed(options.threads), "convergence": convergence()}
    write_text(options.output, json.dumps(results, indent=2) + "\n", private=False)


if __name__ == "__main__":
    main()
