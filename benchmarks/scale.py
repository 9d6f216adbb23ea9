"""Large heads: time, memory and error of each curvature, beside kronfluence's EK-FAC in the same run.

    python benchmarks/scale.py WORK [ROW ...] [--data DIR] [--again] [--output benchmarks/results/scale.json]

    digits     129 × 10    scikit-learn's digits, one hidden layer; without and with weight decay
    network    513 × 100   CIFAR-100, a hidden layer on frozen features of a backbone (--data, the extra [bench])
    probe      1281 × 100  CIFAR-100, a linear layer on them
    wide       65 × 100    25,000 records of a made head, all of them by kronfluence too
    imagenet   2049 × 1000 50,000 records of a made head
    text       50,001 × 1  TF-IDF of 20,000 texts, a logistic regression

A row has stages, each a process of its own, so that peak memory is its own; a stage is kept as soon as it is whole and
is not done again without --again, but for what says of itself that it is not whole. Heads, scores and single exact
answers are kept in WORK: a stage that was killed goes on. ``ROW:STAGE`` names one of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import noshadow
from noshadow.curvature import Size, build_curvature, choose
from noshadow.curvature.blocks import BlocksCurvature
from noshadow.curvature.kronecker import KroneckerCurvature
from noshadow.scoring import score_with_diagnostics
from scale_exact import ExactAnswers
from scale_heads import Head, cifar100_network, cifar100_probe, digits, kept, structured
from scale_peers import Kronfluence

Row = dict[str, Any]
RESULTS = Path(__file__).resolve().parent / "results" / "scale.json"
IMAGES = 5000  # of CIFAR-100
MEMORY = 6.0  # GiB that a curvature may use


@dataclass(frozen=True)
class Case:
    """A row of the results: a head, and what is measured of it, by the name of the stage."""

    name: str
    work: Path
    data: Path

    @cached_property
    def head(self) -> Head:
        return kept(self.name, self.work, lambda: HEADS[self.name](self))

    def array(self, name: str) -> Path:
        return self.work / f"{self.name}-{name}.npy"


HEADS: dict[str, Callable[[Case], Head]] = {
    "digits": lambda case: digits(0.0),
    "digits, weight decay": lambda case: digits(1e-3),
    "network": lambda case: cifar100_network(case.data, IMAGES, case.work),
    "probe": lambda case: cifar100_probe(case.data, IMAGES, case.work),
    "wide": lambda case: structured(25_000, 64, 100, 0.75, 2.5),
    "imagenet": lambda case: structured(50_000, 2048, 1000, 0.8, 5.0),
}


def against(approximate: np.ndarray, exact: np.ndarray) -> Row:
    """Spearman, relative errors, and the share of the exact top 1 % that the approximation has in its own."""
    error = np.abs(approximate - exact) / np.maximum(np.abs(exact), np.finfo(float).tiny)
    size = max(1, round(len(exact) / 100))
    top = set(np.argsort(-exact)[:size].tolist())
    return {
        "records": len(exact),
        "spearman": float(stats.spearmanr(approximate, exact).statistic),
        "median_error": float(np.median(error)),
        "error_95": float(np.quantile(error, 0.95)),
        "top_1_percent_kept": len(top & set(np.argsort(-approximate)[:size].tolist())) / size,
    }


def facts(case: Case) -> Row:
    """The head, and what ``auto`` takes for it."""
    chosen = choose("auto", Size.of(case.head.layer), MEMORY)
    return {**case.head.facts(), "auto": chosen.name, "why": chosen.why}


def timed(case: Case, name: str, influence: bool = True) -> Row:
    """Newton scores of all records, and influences, from one curvature, without the check of its error: seconds by the
    clock, and those of the cores, which other work on the machine hardly changes."""
    layer = case.head.layer
    start, of_cores = time.perf_counter(), time.process_time()
    curvature = build_curvature(layer, name, MEMORY)
    row: Row = {"build_seconds": time.perf_counter() - start}
    of_cores -= time.process_time()  # what is kept for later stages does not count
    if isinstance(curvature, KroneckerCurvature):
        save_basis(case, curvature)
    if isinstance(curvature, BlocksCurvature):
        save_blocks(case, curvature)
    of_cores += time.process_time()
    for score in ("newton", "influence")[: 1 + influence]:
        start, values = time.perf_counter(), np.empty(layer.n)
        for chunk in curvature.chunks():
            pull = chunk.records.pull
            shift = chunk.removal(pull).shift if score == "newton" else chunk.first_order_shift(pull)
            values[chunk.records.rows] = (chunk.records.gradient * shift).sum(1).numpy()
        row[f"{score}_seconds"] = time.perf_counter() - start
        np.save(case.array(f"{name}-{score}"), values)
    row["seconds"] = row["build_seconds"] + row["newton_seconds"] + row.get("influence_seconds", 0.0)
    row["core_seconds"] = time.process_time() - of_cores
    row["peak_gib"] = peak()
    return row


def side_by_side(case: Case, fitted_on: int | None, scored: int | None) -> Row:
    """All records by ``kronecker``; then factors and self-influences of some records, or of all, by kronfluence."""
    ours = timed(case, "kronecker")
    n = len(case.head.features)
    peer = Kronfluence(case.head)
    fit = peer.fit(fitted_on or n, fitted_on or n)
    rows = np.arange(n) if scored is None else np.sort(np.random.default_rng(1).choice(n, scored, replace=False))
    found, seconds = peer.score(rows)
    np.save(case.array("kronfluence-timed"), np.stack([rows, found]))
    each = seconds / len(rows)
    return {
        "kronecker": ours,
        "kronfluence": {
            "fitted_on": fitted_on or n,
            "fit_seconds": fit,
            "scored": len(rows),
            "seconds_per_record": each,
            "times_our_newton_per_record": each / (ours["newton_seconds"] / n),
            "times_our_influence_per_record": each / (ours["influence_seconds"] / n),
            "times_ours_in_all": (fit * n / (fitted_on or n) + each * n)
            / (ours["build_seconds"] + ours["influence_seconds"]),
        },
    }


def sample(case: Case, size: int) -> np.ndarray:
    return np.sort(np.random.default_rng(2).choice(len(case.head.features), size, replace=False))


def peer_on_sample(case: Case, size: int, eigenvalues_from: int) -> Row:
    """kronfluence for the sampled records, its bases from all records and its eigenvalues from as many as time allows:
    they take a gradient of the size of the head each."""
    peer = Kronfluence(case.head)
    seconds = peer.fit(len(case.head.features), eigenvalues_from)
    found, _ = peer.score(sample(case, size))
    np.save(case.array("kronfluence-sample"), found)
    return {"eigenvalues_from": eigenvalues_from, "fit_seconds": seconds}


def save_basis(case: Case, curvature: KroneckerCurvature) -> None:
    """What preconditions the systems of exact answers."""
    basis = curvature.basis
    assert basis.frame is not None
    np.savez(
        case.array("basis").with_suffix(".npz"), *(one.float() for one in (basis.vectors, basis.frame, basis.values))
    )


def save_blocks(case: Case, curvature: BlocksCurvature) -> None:
    """The inverse Hessians of the classes, where all of them fit, in their own basis: they precondition better."""
    kept_blocks, vectors = curvature.kept, curvature.beside.basis.vectors
    if kept_blocks is not None:
        np.savez(case.array("blocks-basis").with_suffix(".npz"), vectors.float(), kept_blocks.inverses.float())


def exact_answers(case: Case, tolerance: float = 1e-3, blocks: bool = False) -> ExactAnswers:
    with np.load(case.array("basis").with_suffix(".npz")) as kept_basis:
        basis = [torch.from_numpy(kept_basis[name]) for name in ("arr_0", "arr_1", "arr_2")]
    inverses, path = None, case.array("blocks-basis").with_suffix(".npz")
    if blocks and path.exists():
        with np.load(path) as kept_blocks:
            basis[0], inverses = (torch.from_numpy(kept_blocks[name]) for name in ("arr_0", "arr_1"))
    return ExactAnswers(case.head, basis, case.work / f"{case.name}-exact.jsonl", tolerance, inverses)


def errors_on_sample(case: Case, size: int, batch: int, tolerance: float, known: int) -> Row:
    """Influences of both against converged answers for the first of the sampled records."""
    exact, rows = exact_answers(case, tolerance), sample(case, size)[:known]
    influence = exact("influence", rows, batch)
    ours, theirs = np.load(case.array("kronecker-influence")), np.load(case.array("kronfluence-sample"))
    return {
        "exact": exact.effort("influence"),
        "kronecker influence": against(ours[rows], influence),
        "kronfluence influence": against(theirs[:known], influence),
    }


def newton_on_sample(case: Case, size: int, batch: int, tolerance: float, known: int) -> Row:
    """Newton scores against converged answers for fewer of them."""
    exact, rows = exact_answers(case, tolerance), sample(case, size)[:known]
    found = against(np.load(case.array("kronecker-newton"))[rows], exact("newton", rows, batch))
    return {"exact": exact.effort("newton"), "kronecker newton": found}


def dense_truth(case: Case) -> Row:
    """The exact Hessian: Newton scores and influences of all records."""
    start = time.perf_counter()
    frame = noshadow.score(case.head.layer, ["newton", "influence"], curvature="dense", memory=16.0, progress=False)
    for score in frame:
        np.save(case.array(f"exact-{score}"), frame[score].to_numpy())
    return {"by": "dense", "records": len(frame), "seconds": time.perf_counter() - start, "peak_gib": peak()}


def iterative_truth(case: Case, share: float = 1.0, others: int = 0, batch: int = 64) -> Row:
    """Converged Newton scores: of all records, or of those that ``blocks`` or ``kronecker`` has among its highest, that
    share of all, and of some others, drawn at random; NaN where it was not worked out.

    Of every other record it is then shown that it is not among the highest 1 %: by a bound (``scale_exact``), or, where
    no bound does, by its converged score, which is kept too."""
    n = len(case.head.features)
    rows = np.arange(n)
    if share < 1.0:
        highest = [
            np.argsort(-np.load(case.array(f"{name}-newton")))[: int(share * n)] for name in ("blocks", "kronecker")
        ]
        rows = np.union1d(np.concatenate(highest), sample(case, others))
    exact = exact_answers(case, blocks=True)
    values = np.full(n, np.nan)
    values[rows] = exact("newton", rows, batch)
    row: Row = {"by": "conjugate gradients"}
    if share < 1.0:
        row |= established_top(exact, values, batch)
    np.save(case.array("exact-newton"), values)
    return {**row, **exact.effort("newton")}


def established_top(exact: ExactAnswers, values: np.ndarray, batch: int) -> Row:
    """What says that no other record belongs to the highest 1 %; scores that were needed for it are put into values.

    The edge, the lowest score of the top, only rises as scores come in: a bound below it stays below it."""
    size = max(1, round(len(values) / 100))
    others = np.flatnonzero(np.isnan(values))
    edge = float(np.sort(values[~np.isnan(values)])[-size])
    bounds, scores = exact.excluded(others, edge, batch)
    values[others] = scores
    known = values[~np.isnan(values)]
    final = float(np.sort(known)[-size])
    left = bounds[~np.isnan(bounds)]
    unsettled = sum(one["residual"] > exact.tolerance for one in exact.known["newton"].values())
    return {
        "top": {
            "size": size,
            "edge": final,
            "excluded_by_bound": len(left),
            "of_them_without_a_step": sum(not one["steps"] for one in exact.known["newton bound"].values()),
            "largest_bound": float(left.max()) if len(left) else None,
            "converged_to_exclude": int((~np.isnan(scores)).sum()),
            "unconverged": int(unsettled),
            "established": unsettled == 0 and bool((left < final).all()) and len(known) + len(left) == len(values),
            "why": "every record has a converged score, or bᵀu + uᵀr + ‖r‖²/Λ, which its score cannot exceed, is "
            "below the lowest of the top",
        }
    }


def errors(case: Case, name: str, others: int = 0) -> Row:
    """Newton scores of one curvature against the exact ones; rank correlation and errors on all records, or on a random
    sample where not all are known, the top of those that are."""
    exact, found = np.load(case.array("exact-newton")), np.load(case.array(f"{name}-newton"))
    known = ~np.isnan(exact)
    rows = np.arange(len(exact)) if known.all() else sample(case, others)
    row = against(found[rows], exact[rows])
    row["top_1_percent_kept"] = top_kept(found, exact)
    return row


def top_kept(found: np.ndarray, exact: np.ndarray) -> float:
    """Share of the exact top 1 % of all records that is in the top 1 % of ``found``; unknown ones are not in it."""
    size = max(1, round(len(exact) / 100))
    top = set(np.argsort(-np.where(np.isnan(exact), -np.inf, exact))[:size].tolist())
    return len(top & set(np.argsort(-found)[:size].tolist())) / size


def refined(case: Case, name: str) -> Row:
    """``score(refine=0.01)``, as a user calls it: seconds, what it says of itself, and the top that it reaches."""
    layer, start, of_cores = case.head.layer, time.perf_counter(), time.process_time()
    frame, found = score_with_diagnostics(layer, ["newton"], curvature=name, refine=0.01, memory=MEMORY, progress=False)
    taken = {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - of_cores}
    exact = np.load(case.array("exact-newton"))
    kept_of_top = top_kept(frame["newton"].to_numpy(), exact)
    said = found.accuracy.facts() if found.accuracy else None
    return {**taken, "top_1_percent_kept": kept_of_top, "said": said, "peak_gib": peak()}


def text_row(case: Case) -> Row:
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
        start, of_cores = time.perf_counter(), time.process_time()
        found = noshadow.audit(model, (x, y), memory=6.0, refine=refine, progress=False)
        taken = {"seconds": time.perf_counter() - start, "core_seconds": time.process_time() - of_cores}
        key = "audit" if refine is None else "refined"
        row[key] = {**taken, "accuracy": found.metadata["accuracy"]}
        row["curvature"] = [found.metadata["curvature"], found.metadata["curvature_chosen"]]
    return {**row, "peak_gib": peak()}


def peak() -> float:
    """GiB that this process had resident at most, imports and the head included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


Stage = Callable[[Case], Row]


def of_methods(names: tuple[str, ...], others: int = 0) -> dict[str, Stage]:
    """Errors of curvatures that were timed, and refinement."""
    found: dict[str, Stage] = {}
    for name in names:
        found[f"{name} errors"] = lambda case, name=name: errors(case, name, others)
        found[f"{name} refined"] = lambda case, name=name: refined(case, name)
    return found


BOTH = ("blocks", "kronecker")
LIKELY = 0.02  # share of the records, from either method, that are solved first; the rest is excluded by its bound
OTHERS = 200  # random records with converged answers, beside those at the top
TIMED: dict[str, Stage] = {name: lambda case, name=name: timed(case, name, influence=False) for name in BOTH}
SAMPLED = 16  # records of the largest head; half of them get converged answers, of minutes each
STAGES: dict[str, dict[str, Stage]] = {
    "digits": {"head": facts, **TIMED, "exact": dense_truth, **of_methods(BOTH)},
    "digits, weight decay": {"head": facts, **TIMED, "exact": dense_truth, **of_methods(BOTH)},
    **{
        name: {
            "head": facts,
            **TIMED,
            "exact": lambda case: iterative_truth(case, LIKELY, OTHERS),
            **of_methods(BOTH, OTHERS),
        }
        for name in ("network", "probe")
    },
    "wide": {
        "head": facts,
        "side by side": lambda case: side_by_side(case, None, None),
        "blocks": TIMED["blocks"],
        "exact": dense_truth,
        "kronfluence errors": lambda case: whole_peer(case),
        **of_methods(BOTH),
    },
    "imagenet": {
        "head": facts,
        "side by side": lambda case: side_by_side(case, 128, 48),
        "kronfluence": lambda case: peer_on_sample(case, SAMPLED, 2048),
        "errors": lambda case: errors_on_sample(case, SAMPLED, 6, 2e-2, 8),
        "newton errors": lambda case: newton_on_sample(case, SAMPLED, 4, 2e-2, 4),
    },
    "text": {"text": text_row},
}
"""In their order: a later one uses the arrays of those before it."""


def whole_peer(case: Case) -> Row:
    """Influences of all records, kronfluence's and those of ``kronecker``, against the exact Hessian's."""
    exact = np.load(case.array("exact-influence"))
    rows, found = np.load(case.array("kronfluence-timed"))
    return {
        "kronfluence influence": against(found, exact[rows.astype(int)]),
        "kronecker influence": against(np.load(case.array("kronecker-influence")), exact),
    }


def _run(case: Case, stage: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    pipe.send({**STAGES[case.name][stage](case), "threads": torch.get_num_threads()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "rows", nargs="*", default=list(STAGES), help=f"of {', '.join(STAGES)}; ROW:STAGE for one stage"
    )
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    for row in asked.rows:
        name, _, stage = row.partition(":")
        if name not in STAGES or (stage and stage not in STAGES[name]):
            parser.error(f"no such row: {row}")
        for one in [stage] if stage else list(STAGES[name]):
            results: Row = json.loads(asked.output.read_text()) if asked.output.exists() else {}
            if results.get(name, {}).get(one, {}).get("whole", one in results.get(name, {})) and not asked.again:
                continue
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(Case(name, asked.work, asked.data), one, theirs))
            process.start()
            theirs.close()
            try:
                found = ours.recv()
            except EOFError:
                raise SystemExit(f"{name}: {one}: the process ended without a result") from None
            process.join()
            results = json.loads(asked.output.read_text()) if asked.output.exists() else {}  # others write to it too
            results["torch"] = torch.__version__
            results.setdefault(name, {})[one] = found
            temporary = asked.output.with_suffix(".making")
            temporary.write_text(json.dumps(results, indent=1) + "\n")
            temporary.rename(asked.output)
            print(name, one, json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
