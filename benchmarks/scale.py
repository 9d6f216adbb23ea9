"""Large heads: time, memory and error of each curvature, beside kronfluence's EK-FAC in the same run.

    python benchmarks/scale.py [ROW ...] [--output benchmarks/results/scale.json]

Rows: digits, wide (65 × 100), imagenet (2049 × 1000), text (TF-IDF). Every row runs in a process of its own, so that
peak memory is its own. kronfluence is left out where it is not installed, and the row says so. The exact answers of
imagenet take most of an hour.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import noshadow
from noshadow.curvature import Size, build_curvature, choose
from noshadow.curvature.iterative import Solver
from noshadow.scores import Known, newton
from noshadow.scoring import score_with_diagnostics

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results" / "scale.json"


def structured(n: int, p: int, m: int, confidence: float, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Features of a network with m classes: latent class means and noise behind a ReLU; logits of linear discriminants
    at a temperature that gives that mean confidence; one label in twenty is another one."""
    generator = torch.Generator().manual_seed(seed)
    latent = min(256, p)
    mixing = torch.randn(latent, p, generator=generator) / latent**0.5
    means = 0.35 * torch.randn(m, latent, generator=generator)
    y = torch.randint(0, m, (n,), generator=generator)
    x = torch.empty(n, p)
    for start in range(0, n, 5000):
        inner = means[y[start : start + 5000]]
        inner = inner + torch.randn(inner.shape, generator=generator)
        noise = 0.3 * torch.randn(len(inner), p, generator=generator)
        x[start : start + 5000] = torch.relu(inner @ mixing + noise)
    center = x.mean(0)
    classes = torch.zeros(m, p).index_add_(0, y, x - center) / torch.bincount(y, minlength=m).clamp(min=1)[:, None]
    spread = ((x - center).T @ (x - center) / n - classes.T @ classes / m + 0.05 * torch.eye(p)).double()
    theta = torch.linalg.solve(spread, classes.T.double())
    bias = -0.5 * (classes.double() * theta.T).sum(1) - center.double() @ theta
    z = x.double() @ theta + bias
    low, high = 1e-3, 10.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        mean = float(torch.softmax(middle * z[:4000], 1).amax(1).mean())
        low, high = (middle, high) if mean < confidence else (low, middle)
    other = torch.rand(n, generator=generator) < 0.05
    y = torch.where(other, torch.randint(0, m, (n,), generator=generator), y)
    return x, low * z, y, low * torch.cat([theta, bias[None]])


def digits_head(weight_decay: float) -> tuple[Any, Any, Any]:
    """A network of one hidden layer of 128 on scikit-learn's digits."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
    body, head = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU()), torch.nn.Linear(128, 10)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=weight_decay)
    for _ in range(60):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(body(x[batch])), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        features = body(x)
        return features, head(features), y


def against(approximate: np.ndarray, exact: np.ndarray) -> Row:
    """Spearman, relative errors, and the share of the exact top 1 % that the approximation has in its own."""
    error = np.abs(approximate - exact) / np.maximum(np.abs(exact), np.finfo(float).tiny)
    size = max(1, len(exact) // 100)
    top = set(np.argsort(-exact)[:size].tolist())
    return {
        "spearman": float(stats.spearmanr(approximate, exact).statistic),
        "median_error": float(np.median(error)),
        "error_95": float(np.quantile(error, 0.95)),
        "top_1_percent_kept": len(top & set(np.argsort(-approximate)[:size].tolist())) / size,
    }


def methods(layer: Any, names: list[str], truth: np.ndarray | None, memory: float = 6.0) -> Row:
    """NS of each curvature: seconds without the check, error against the exact ones, refinement."""
    row: Row = {"n": layer.n, "columns": layer.n_columns, "outputs": layer.n_outputs, "ridge": layer.ridge}
    row["auto"] = choose("auto", Size.of(layer), memory)._asdict()
    if truth is None:
        start = time.perf_counter()
        truth = noshadow.score(layer, ["newton"], curvature="dense", memory=16.0)["newton"].to_numpy()
        row["dense"] = {"seconds": time.perf_counter() - start}
    for name in names:
        start = time.perf_counter()
        curvature = build_curvature(layer, name, memory)
        found = np.concatenate([newton(Known(chunk.records, chunk)).numpy() for chunk in curvature.chunks()])
        row[name] = {"seconds": time.perf_counter() - start, **against(found, truth)}
        start = time.perf_counter()
        refined, diagnostics = score_with_diagnostics(layer, ["newton"], curvature=name, refine=0.01, memory=memory)
        facts = diagnostics.accuracy.facts() if diagnostics.accuracy else None
        kept = against(refined["newton"].to_numpy(), truth)["top_1_percent_kept"]
        row[name]["refined"] = {"seconds": time.perf_counter() - start, "top_1_percent_kept": kept, "accuracy": facts}
    return row


def kronfluence_scores(layer: Any, rows: np.ndarray, factors_from: int) -> Row:
    """kronfluence's self-influence of a linear head: seconds to fit its EK-FAC factors, and of a record."""
    try:
        from kronfluence.analyzer import Analyzer, prepare_model
        from kronfluence.arguments import FactorArguments, ScoreArguments
        from kronfluence.task import Task
    except ImportError:
        return {"missing": "pip install kronfluence"}
    import tempfile

    class HeadTask(Task):
        def compute_train_loss(self, batch: Any, model: Any, sample: bool = False) -> Any:
            x, y = batch
            z = model(x)
            if sample:
                with torch.no_grad():
                    y = torch.multinomial(torch.softmax(z.detach(), -1), 1).flatten()
            return torch.nn.functional.cross_entropy(z, y, reduction="sum")

        def compute_measurement(self, batch: Any, model: Any) -> Any:
            return self.compute_train_loss(batch, model)

    head = torch.nn.Linear(layer.n_features, layer.n_outputs)
    theta = layer.coefficients
    if theta is None:
        design = layer.records(slice(0, layer.n)).design
        theta = torch.linalg.lstsq(design, layer.outputs).solution
    with torch.no_grad():
        head.weight.copy_(theta[:-1].T)
        head.bias.copy_(theta[-1])
    model = prepare_model(torch.nn.Sequential(head), HeadTask())
    data = torch.utils.data.TensorDataset(layer.features.float(), layer.targets)
    some = torch.utils.data.Subset(data, rows.tolist())
    fitted_on = torch.utils.data.Subset(data, range(min(factors_from, layer.n)))
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer("head", model, HeadTask(), cpu=True, output_dir=folder, disable_tqdm=True)
        start = time.perf_counter()
        analyzer.fit_all_factors(
            factors_name="factors",
            dataset=fitted_on,
            per_device_batch_size=64 if layer.n_outputs > 200 else 512,
            factor_args=FactorArguments(strategy="ekfac", use_empirical_fisher=False),
        )
        fit = time.perf_counter() - start
        damping = layer.ridge / layer.n if layer.ridge else 1e-8
        start = time.perf_counter()
        analyzer.compute_self_scores(
            scores_name="scores",
            factors_name="factors",
            train_dataset=some,
            per_device_train_batch_size=16 if layer.n_outputs > 200 else 256,
            score_args=ScoreArguments(damping_factor=damping),
        )
        seconds = time.perf_counter() - start
        found = analyzer.load_self_scores("scores")["all_modules"].numpy()
    return {
        "fit_seconds": fit,
        "fitted_on": len(fitted_on),
        "seconds_per_record": seconds / len(rows),
        "scores": (found / layer.n).tolist(),
    }


def beside_kronfluence(
    layer: Any, sample: int, factors_from: int, memory: float = 6.0, with_newton: bool = True
) -> Row:
    """NS of the Kronecker curvature for all records, and its IF and kronfluence's against exact ones on a sample."""
    row: Row = {"n": layer.n, "columns": layer.n_columns, "outputs": layer.n_outputs, "ridge": layer.ridge}
    row["auto"] = choose("auto", Size.of(layer), memory)._asdict()
    p = torch.softmax(layer.outputs, 1)
    row["mean_confidence"] = float(p.amax(1).mean())
    row["accuracy"] = float((p.argmax(1) == layer.targets).double().mean())
    del p
    rows = np.sort(np.random.default_rng(0).choice(layer.n, sample, replace=False))
    start = time.perf_counter()
    curvature = build_curvature(layer, "kronecker", memory)
    built = time.perf_counter() - start
    influence, ns = np.empty(layer.n), np.empty(layer.n)
    for chunk in curvature.chunks():
        where = chunk.records.rows
        shift = chunk.removal(chunk.records.pull).shift
        ns[where] = (chunk.records.gradient * shift).sum(1).numpy()
    passed = time.perf_counter() - start - built
    row["kronecker"] = {"build_seconds": built, "newton_seconds": passed, "seconds": built + passed}
    start = time.perf_counter()
    for chunk in curvature.chunks():
        where = chunk.records.rows
        influence[where] = (chunk.records.gradient * chunk.first_order_shift(chunk.records.pull)).sum(1).numpy()
    row["kronecker"]["influence_seconds"] = time.perf_counter() - start
    row["kronecker"]["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(row, file=sys.stderr, flush=True)
    solver = Solver.of(curvature, memory, 1e-4)
    start = time.perf_counter()
    records = solver.gather(torch.from_numpy(rows))
    asked = solver.leverages(records)
    exact_ns = (records.gradient * asked.removal(records.pull).shift).sum(1).numpy() if with_newton else None
    exact_if = (records.gradient * asked.first_order_shift(records.pull)).sum(1).numpy()
    row["exact_on_sample"] = {
        "records": len(rows),
        "seconds": time.perf_counter() - start,
        "residual": solver.effort.residual,
        "steps": solver.effort.steps / solver.effort.systems,
    }
    if exact_ns is not None:
        row["kronecker"]["newton"] = against(ns[rows], exact_ns)
    row["kronecker"]["influence"] = against(influence[rows], exact_if)
    theirs = kronfluence_scores(layer, rows, factors_from)
    if "scores" in theirs:
        found = np.array(theirs.pop("scores"))
        theirs["influence"] = against(found, exact_if)
        ours = (row["kronecker"]["influence_seconds"]) / layer.n
        theirs["times_ours_per_record"] = theirs["seconds_per_record"] / ours
        theirs["times_ours_in_all"] = (
            theirs["fit_seconds"] * layer.n / theirs["fitted_on"] + theirs["seconds_per_record"] * layer.n
        ) / (row["kronecker"]["build_seconds"] + row["kronecker"]["influence_seconds"])
    row["kronfluence"] = theirs
    return row


def text_row() -> Row:
    """TF-IDF of 20,000 texts of 100 words, 50,000 columns, a logistic regression."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    n, p, words = 20_000, 50_000, 100
    y = rng.integers(0, 2, n)
    common = 1.0 / np.arange(1, p + 1) ** 1.05
    drawn = rng.choice(p, size=(n, words), p=common / common.sum())
    for label in (0, 1):
        own = np.flatnonzero(y == label)
        topical = rng.random((len(own), words)) < 0.15
        part = drawn[own]
        part[topical] = rng.choice(rng.permutation(p)[:2000], size=int(topical.sum()))
        drawn[own] = part
    x = sparse.csr_matrix((np.ones(n * words), drawn.ravel(), np.arange(0, n * words + 1, words)), (n, p))
    x = TfidfTransformer().fit_transform(x)
    model = LogisticRegression(max_iter=300).fit(x, y)
    row: Row = {"n": n, "columns": p + 1, "outputs": 1}
    for refine in (None, 0.01):
        start = time.perf_counter()
        found = noshadow.audit(model, (x, y), memory=6.0, refine=refine)
        key = "audit" if refine is None else "refined"
        row[key] = {"seconds": time.perf_counter() - start, "accuracy": found.metadata["accuracy"]}
        row["curvature"] = [found.metadata["curvature"], found.metadata["curvature_chosen"]]
    return row


def digits_row() -> Row:
    rows = {}
    for name, decay in (("without ridge", 0.0), ("weight decay 1e-3", 1e-3)):
        x, z, y = digits_head(decay)
        layer = noshadow.LastLayer(x, z, y, ridge=decay * len(x))
        rows[name] = methods(layer, ["blocks", "kronecker"], None)
    return rows


def wide_row() -> Row:
    x, z, y, theta = structured(25_000, 64, 100, 0.7)
    layer = noshadow.LastLayer(x, z, y, ridge=2.5, coefficients=theta)
    return {**beside_kronfluence(layer, 500, layer.n), "methods": methods(layer, ["blocks", "kronecker"], None)}


def imagenet_row() -> Row:
    x, z, y, theta = structured(50_000, 2048, 1000, 0.8)
    return beside_kronfluence(noshadow.LastLayer(x, z, y, ridge=5.0, coefficients=theta), 4, 256, 5.0, False)


ROWS: dict[str, Callable[[], Row]] = {
    "digits": digits_row,
    "wide": wide_row,
    "imagenet": imagenet_row,
    "text": text_row,
}


def _run(name: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    row = ROWS[name]()
    row["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    pipe.send(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", default=list(ROWS), help=f"of {', '.join(ROWS)}")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if unknown := set(asked.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    results: Row = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    context = multiprocessing.get_context("spawn")
    for name in asked.rows:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(name, theirs))
        process.start()
        theirs.close()
        try:
            row = ours.recv()
        except EOFError:
            raise SystemExit(f"{name}: the process ended without a result") from None
        process.join()
        results[name] = {**row, "threads": torch.get_num_threads(), "torch": torch.__version__}
        asked.output.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
