"""Speed of the exact scores: seconds, memory, the ratio to one GEMM, and other libraries on the same head.

    python benchmarks/core.py              run what is missing, write benchmarks/results/core.json, print it
    python benchmarks/core.py --redo       measure everything again
    python benchmarks/core.py --quick      leave the other libraries out

Every measurement runs in a process of its own, so that its peak memory is its own, and is kept as soon as it is
whole. The unit of time is one float64 GEMM of 2·n·((p+1)·m)² operations on the same machine, measured in the same
process right after the scores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "core.json"
PAPER_SHAPES = [
    {"n": 25000, "columns": 257, "m": 10, "head": "softmax", "goal": 2.0},
    {"n": 25000, "columns": 65, "m": 100, "head": "softmax", "goal": 1.2},
    {"n": 4000, "columns": 385, "m": 8, "head": "softmax", "goal": None},
    {"n": 33674, "columns": 769, "m": 2, "head": "softmax", "goal": None},
    {"n": 8256, "columns": 129, "m": 1, "head": "squared", "goal": None},
]
GROWTH = [{"n": n, "columns": 65, "m": 10, "head": "softmax", "goal": None} for n in (10_000, 100_000, 1_000_000)]
PEERS = ("kronfluence", "laplace-torch", "captum")


def name(shape: dict) -> str:
    return f"n={shape['n']} p+1={shape['columns']} m={shape['m']} {shape['head']}"


def make(shape: dict):
    """Positive features, as after a ReLU, and labels drawn from the head's own predictions."""
    import torch

    n, p, m = shape["n"], shape["columns"] - 1, shape["m"]
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(n, p, generator=generator).relu_()
    weight = torch.randn(m, p, generator=generator) * 2.0 / p**0.5
    outputs = features.double() @ weight.double().T
    if shape["head"] == "squared":
        return features, weight, outputs, outputs.float() + torch.randn(n, m, generator=generator)
    targets = torch.multinomial(torch.softmax(outputs, 1), 1, generator=generator).squeeze(1)
    return features, weight, outputs, targets


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_ours(shape: dict) -> dict:
    import torch

    from noshadow import LastLayer
    from noshadow.scoring import score_with_diagnostics

    features, _, outputs, targets = make(shape)
    layer = LastLayer(features, outputs, targets, head=shape["head"])
    base = peak_gib()
    seconds, gemms = [], []
    for _ in range(2 if shape["n"] * (shape["columns"] * shape["m"]) ** 2 < 2e12 else 1):
        start = time.perf_counter()
        score_with_diagnostics(layer, progress=False)
        seconds.append(time.perf_counter() - start)
    peak = peak_gib()
    size = shape["columns"] * shape["m"]
    rows = min(shape["n"], max(1, 2**28 // (8 * size)))
    a = torch.randn(rows, size, dtype=torch.float64)
    out = torch.empty(size, size, dtype=torch.float64)
    torch.matmul(a[:64].T, a[:64], out=out)
    for _ in range(2):
        start = time.perf_counter()
        torch.matmul(a.T, a, out=out)
        gemms.append((time.perf_counter() - start) * shape["n"] / rows)
    return {
        "seconds": min(seconds),
        "gemm_seconds": min(gemms),
        "ratio": min(seconds) / min(gemms),
        "peak_gib": peak,
        "data_gib": base,
        "goal": shape["goal"],
    }


def exact_influence(shape: dict):
    from noshadow import LastLayer
    from noshadow.scoring import score_with_diagnostics

    features, _, outputs, targets = make(shape)
    layer = LastLayer(features, outputs, targets, head=shape["head"])
    return score_with_diagnostics(layer, ["influence"], progress=False)[0]["influence"].to_numpy()


def module_and_data(shape: dict):
    import torch

    features, weight, _, targets = make(shape)
    model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(features.shape[1], shape["m"]))
    with torch.no_grad():
        model[1].weight.copy_(weight)
        model[1].bias.zero_()
    return model, torch.utils.data.TensorDataset(features, targets)


def run_kronfluence(shape: dict):
    """EK-FAC self-influence; an approximation of the Hessian, n times the influence score."""
    import tempfile

    import torch
    from kronfluence.analyzer import Analyzer, prepare_model
    from kronfluence.arguments import FactorArguments, ScoreArguments
    from kronfluence.task import Task

    squared = shape["head"] == "squared"

    class Head(Task):
        def compute_train_loss(self, batch, model, sample=False):
            x, y = batch
            z = model(x)
            if squared:
                target = z.detach() + torch.randn_like(z) * 0.5**0.5 if sample else y
                return torch.nn.functional.mse_loss(z, target, reduction="sum")
            target = torch.multinomial(torch.softmax(z.detach(), -1), 1).squeeze(-1) if sample else y
            return torch.nn.functional.cross_entropy(z, target, reduction="sum")

        def compute_measurement(self, batch, model):
            return self.compute_train_loss(batch, model)

    model, data = module_and_data(shape)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        task = Head()
        analyzer = Analyzer("head", prepare_model(model, task), task, cpu=True, output_dir=folder, disable_tqdm=True)
        analyzer.fit_all_factors("f", data, per_device_batch_size=2048, factor_args=FactorArguments(strategy="ekfac"))
        analyzer.compute_self_scores(
            "s", "f", data, per_device_train_batch_size=2048, score_args=ScoreArguments(damping_factor=1e-8)
        )
        scores = analyzer.load_self_scores("s")["all_modules"]
        seconds = time.perf_counter() - start
    return seconds, scores.double().numpy() / shape["n"]


def run_laplace(shape: dict):
    """The full last-layer posterior: leverage blocks J P⁻¹ Jᵀ, and the influence from them."""
    import torch
    from laplace import Laplace

    model, data = module_and_data(shape)
    squared = shape["head"] == "squared"
    batch = max(16, min(1024, 2**27 // (8 * shape["m"] ** 2 * shape["columns"])))
    loader = torch.utils.data.DataLoader(data, batch_size=batch)
    start = time.perf_counter()
    posterior = Laplace(
        model,
        "regression" if squared else "classification",
        subset_of_weights="last_layer",
        hessian_structure="full",
        prior_precision=1e-2,  # in its float32, less leaves the singular softmax Hessian without a factor
    )
    posterior.fit(loader)
    scores = []
    for x, y in loader:
        jacobian, z = posterior.backend.last_layer_jacobians(x)
        block = posterior.functional_variance(jacobian)
        z = z.detach()
        gradient = 2 * (z - y) if squared else torch.softmax(z, 1) - torch.nn.functional.one_hot(y, shape["m"])
        # laplace-torch's regression likelihood has the halved squared error
        scores.append(torch.einsum("na,nab,nb->n", gradient, block, gradient).detach() / (2 if squared else 1))
    return time.perf_counter() - start, torch.cat(scores).double().numpy()


def run_captum(shape: dict):
    """NaiveInfluenceFunction: the explicit Hessian of the layer, inverted."""
    import tempfile

    import torch
    from captum.influence import NaiveInfluenceFunction

    model, data = module_and_data(shape)
    loss = (
        (lambda z, y: (z - y).square().sum(1))
        if shape["head"] == "squared"
        else torch.nn.CrossEntropyLoss(reduction="none")
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = f"{folder}/model.pt"
        torch.save(model.state_dict(), checkpoint)
        start = time.perf_counter()
        influence = NaiveInfluenceFunction(
            model,
            data,
            checkpoint,
            checkpoints_load_func=lambda net, path: net.load_state_dict(torch.load(path, weights_only=True)) and 0.0,
            layers=["1"],
            loss_fn=loss,
            batch_size=2048,
            projection_dim=None,
            show_progress=False,
        )
        loader = torch.utils.data.DataLoader(data, batch_size=2048)
        scores = influence.self_influence(loader)
        seconds = time.perf_counter() - start
    return seconds, scores.detach().double().numpy()


def measure_peer(shape: dict, peer: str) -> dict:
    import numpy as np

    seconds, scores = {"kronfluence": run_kronfluence, "laplace-torch": run_laplace, "captum": run_captum}[peer](shape)
    peak = peak_gib()
    exact = exact_influence(shape)
    error = np.abs(np.asarray(scores).reshape(-1) / exact - 1)
    return {"seconds": seconds, "peak_gib": peak, "median_relative_error": float(np.median(error))}


def in_own_process(kind: str, shape: dict, limit: float) -> dict:
    """Run one measurement in a fresh interpreter; a time limit or a failure is a result too."""
    command = [sys.executable, __file__, "--one", kind, json.dumps(shape)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"seconds": None, "over_seconds": limit}
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return {"seconds": None, "failed": lines[-1] if lines else f"ended by signal {-done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> dict:
    import torch

    from noshadow import __version__

    return {
        "noshadow": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def show(results: dict) -> None:
    for key, entry in results["ours"].items():
        goal = f" (goal ≤ {entry['goal']})" if entry.get("goal") else ""
        print(f"{key}: {entry['seconds']:.2f} s, {entry['ratio']:.2f} GEMMs{goal}, peak {entry['peak_gib']:.2f} GiB")
        for peer, other in results["peers"].get(key, {}).items():
            if other["seconds"] is None:
                print(f"    {peer}: " + (other.get("failed") or f"over {other['over_seconds']:.0f} s"))
            else:
                times = other["seconds"] / entry["seconds"]
                error = other["median_relative_error"]
                print(
                    f"    {peer}: {other['seconds']:.2f} s, {times:.1f} × ours, influence off by {error:.2g} (median)"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redo", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "SHAPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, shape = options.one[0], json.loads(options.one[1])
        print(json.dumps(measure_ours(shape) if kind == "ours" else measure_peer(shape, kind)))
        return
    from noshadow.files import write_text

    RESULTS.parent.mkdir(exist_ok=True)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() and not options.redo else {}
    results = {"ours": {}, "peers": {}, **results, "machine": machine()}
    for shape in PAPER_SHAPES + GROWTH:
        key = name(shape)
        if key not in results["ours"]:
            print(f"measuring {key}", file=sys.stderr)
            entry = in_own_process("ours", shape, limit=3600)
            if entry["seconds"] is None:
                sys.exit(f"{key}: {entry}")
            results["ours"][key] = entry
            write_text(RESULTS, json.dumps(results, indent=1) + "\n", private=False)
        for peer in () if options.quick or shape in GROWTH else PEERS:
            if peer not in results["peers"].setdefault(key, {}):
                print(f"measuring {key}, {peer}", file=sys.stderr)
                limit = max(45.0, 3 * results["ours"][key]["seconds"])
                results["peers"][key][peer] = in_own_process(peer, shape, limit)
                write_text(RESULTS, json.dumps(results, indent=1) + "\n", private=False)
    show(results)


if __name__ == "__main__":
    main()
