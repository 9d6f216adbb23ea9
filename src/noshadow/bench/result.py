"""The result of a setting: all that figures, tables and pages are made from, in one versioned JSON file.

``SCHEMA`` is raised when a number of the same name comes to mean something else; a file of another schema is refused.
A new part of a result is a field that may be None: files from before, which have not got it, stay readable, and the
pages leave out the sections that need it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.paper import SETTINGS
from noshadow.bench.typed_json import NotAsTyped, from_json, to_json
from noshadow.errors import FileError, InputError
from noshadow.evaluate import Summary
from noshadow.files import private_folder, write_text

__all__ = [
    "CURVE",
    "ENDS",
    "HEADLINE",
    "METRICS",
    "NETWORK",
    "RANKINGS",
    "RECALLS",
    "SCHEMA",
    "SPEARMAN",
    "AttackFindings",
    "BudgetFound",
    "Ceiling",
    "FirstTarget",
    "Metrics",
    "RatesFound",
    "RecallCurve",
    "Result",
    "ScoreResult",
    "Seconds",
    "ShownRecord",
    "TargetFit",
    "dump_result",
    "in_order",
    "load_result",
    "load_results",
    "save_result",
]

SCHEMA = 1
HEADLINE = "recall of top 1% at 5%"
RECALLS = {
    HEADLINE: (0.01, 0.05),
    "recall@0.1%": (0.001, 0.001),
    "recall@1%": (0.01, 0.01),
    "recall@5%": (0.05, 0.05),
}
"""The share of the records that is sought, by truth, and the share that is kept, by score."""
SPEARMAN = "spearman"
METRICS = (*RECALLS, SPEARMAN)
CURVE = tuple(float(share) for share in np.logspace(-3, 0, 25))
"""Shares k at which the recall of the top k is taken when the top k by score are kept."""
RANKINGS = ("influence", "newton")
ENDS = ("highest", "lowest")
NETWORK = "network_influence"

Metrics = dict[str, Summary]


@dataclass(frozen=True, eq=False)
class RecallCurve:
    """Recall at each share of ``CURVE``: mean and deviation over targets (None: one target), and the first target."""

    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    first: tuple[float, ...]

    def __post_init__(self) -> None:
        for values in (self.mean, self.std, self.first):
            _require_curve(values)


@dataclass(frozen=True, eq=False)
class ScoreResult:
    """How well a score finds what an attack exposes: every metric over the targets, and the curve."""

    metrics: Metrics
    curve: RecallCurve

    def __post_init__(self) -> None:
        _require_metrics(self.metrics)


@dataclass(frozen=True, eq=False)
class Ceiling:
    """What the attack itself, or a perfect score, reaches: every metric over halvings or simulated studies."""

    metrics: Metrics
    curve: tuple[float, ...]

    def __post_init__(self) -> None:
        _require_metrics(self.metrics)
        _require_curve(self.curve)


@dataclass(frozen=True, eq=False)
class AttackFindings:
    """Scores held against one attack.

    ceiling  the attack again: half of its models against the other half
    oracle   a perfect score; None for an attack that is not simulated
    summary  the attack itself over all records: AUC, success rate, true-positive rates, ε
    seconds  core-seconds of the attack on all shadow models
    """

    scores: dict[str, ScoreResult]
    ceiling: Ceiling
    summary: dict[str, float]
    seconds: float
    oracle: Ceiling | None = None


@dataclass(frozen=True)
class RatesFound:
    """Predicted success rates held against LiRA's: deciles of all targets' members, the error over targets.

    source           what the prediction rests on, as in ``noshadow.predict.Calibration``
    power, distance  predicted d′ and LiRA's separation d̂′, medians of the same records' tenths by predicted d′
    """

    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    error: Summary
    source: str
    power: tuple[float, ...] | None = None
    distance: tuple[float, ...] | None = None


@dataclass(frozen=True)
class BudgetFound:
    """The headline recall by the number of shadow models, against LiRA with the others (``evaluate.budget``).

    models    how many; 0: the score alone
    together  the models with the exposure as their prior
    alone     LiRA with the models alone; None for too few
    errors    standard error of ``together`` over the draws of models
    rerun     the exposure of a rerun, one model more than none; None where there was none
    """

    models: tuple[int, ...]
    together: tuple[float, ...]
    alone: tuple[float | None, ...]
    errors: tuple[float, ...]
    reference: int
    rerun: float | None = None

    def __post_init__(self) -> None:
        for values in (self.together, self.alone, self.errors):
            if len(values) != len(self.models):
                raise InputError(f"budget: {len(values)} numbers for {len(self.models)} numbers of models")


@dataclass(frozen=True)
class TargetFit:
    """Mean loss, and accuracy for classes, of the targets on their members and on the other records of the pool."""

    loss_of_members: float
    loss_of_others: float
    accuracy_on_members: float | None = None
    accuracy_on_others: float | None = None


@dataclass(frozen=True)
class Seconds:
    """Seconds of one core in each phase, as in the paper's Table 4: for ``model`` one shadow model, for ``scores`` and
    ``network_influence`` one target, for the others all of them. ``exposure``: that score alone."""

    model: float
    shadows: float
    targets: float
    attacks: float
    scores: float
    network_influence: float | None = None
    exposure: float | None = None

    @property
    def speedup(self) -> float:
        """How many times longer the shadow models take than the scores."""
        return self.shadows / self.scores


@dataclass(frozen=True, eq=False)
class ShownRecord:
    """A member of the first target as a person would look at it: a sentence, an image (H, W, 3) uint8, or neither."""

    row: int
    target: float
    score: float
    lira_success_rate: float
    text: str | None = None
    image: NDArray[np.uint8] | None = None


@dataclass(frozen=True, eq=False)
class FirstTarget:
    """The members of the first target, a number each: some of their scores and LiRA's success rate, (n,) float32."""

    scores: dict[str, NDArray[np.float32]]
    lira_success_rate: NDArray[np.float32]

    def __post_init__(self) -> None:
        for name, values in self.scores.items():
            if values.shape != self.lira_success_rate.shape or values.ndim != 1:
                raise InputError(f"{name}: shape {values.shape}, expected {self.lira_success_rate.shape}")


@dataclass(frozen=True, eq=False)
class Result:
    """One setting, run and measured.

    scale, note    "smoke", "cpu" or "paper", and what differs from the paper
    shadows, targets, pool, members, features   how many models, records, members of a target, inputs of the last layer
    stationarity   mean over targets of how far the head is from a minimum; NaN where it is not known
    attacks        by name; LiRA's is always there
    shown          for each of "highest influence", … the records at that end of the ranking, the first target's
    first_target   what the scatter needs
    rates          how right the predicted success rates are; None where there are none
    budget         what a few shadow models find with the exposure and without; None where there are too few
    network_influence   options of the full-network influence and how it went; None where it was not computed
    notes          warnings that were given while it was made
    """

    setting: str
    data: str
    model: str
    head: str
    scale: str
    note: str
    backbone: str | None
    shadows: int
    targets: int
    pool: int
    members: int
    features: int
    seed: int
    recipe: dict[str, Any]
    fit: TargetFit
    stationarity: float
    attacks: dict[str, AttackFindings]
    seconds: Seconds
    shown: dict[str, tuple[ShownRecord, ...]]
    versions: dict[str, str]
    machine: dict[str, Any]
    network_influence: dict[str, Any] | None = None
    first_target: FirstTarget | None = None
    rates: RatesFound | None = None
    budget: BudgetFound | None = None
    notes: tuple[str, ...] = ()
    schema: int = field(default=SCHEMA)

    def __post_init__(self) -> None:
        if "lira" not in self.attacks:
            raise InputError("attacks: lira is missing")
        for name in ("shadows", "targets", "pool", "members", "features"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}: expected 1 or more, got {getattr(self, name)}")

    @property
    def lira(self) -> AttackFindings:
        return self.attacks["lira"]

    @property
    def title(self) -> str:
        """Data and model."""
        return f"{self.data}, {self.model}"


def save_result(result: Result, folder: Path) -> Path:
    """Write ``folder/SETTING.json``, for its owner alone: it says who was in the training data."""
    path = private_folder(folder) / f"{result.setting}.json"
    write_text(path, dump_result(result))
    return path


def dump_result(result: Result) -> str:
    """The text of a result file; lists of numbers on one line each."""
    return _dumped(to_json(result)) + "\n"


def load_result(path: Path) -> Result:
    """Read a result; refused if it is of another schema, damaged, or changed by hand."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileError(f"results: {path} cannot be read as JSON ({error})") from None
    found = value.get("schema") if isinstance(value, dict) else None
    if found != SCHEMA:
        shown = "no schema number" if found is None else f"schema {found!r}"
        raise FileError(
            f"results: {path} has {shown}, this noshadow reads schema {SCHEMA}; noshadow bench {path.stem} --rescore "
            "writes it anew from the stored models"
        )
    try:
        return from_json(Result, value)
    except NotAsTyped as error:
        raise FileError(f"results: {path} is not a result: {error}") from None


def load_results(paths: Iterable[Path]) -> list[Result]:
    """The results of files, and of folders all their .json files, in the paper's order, then the others by name."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise InputError(f"results: there is no {path}")
        files += sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InputError("results: none was found; noshadow bench SETTING makes them")
    results = [load_result(file) for file in files]
    twice = [result.setting for result in results]
    for name in {name for name in twice if twice.count(name) > 1}:
        raise InputError(f"results: there are {twice.count(name)} of {name}, expected one")
    return in_order(results)


def in_order(results: Sequence[Result]) -> list[Result]:
    """The paper's settings in its order, then the others."""
    order = {name: number for number, name in enumerate(SETTINGS)}
    return sorted(results, key=lambda result: (order.get(result.setting, len(order)), result.setting))


def _dumped(value: Any, depth: int = 0) -> str:
    """JSON that can be read and compared line by line: an object's values on lines of their own, a list on one."""
    if isinstance(value, dict) and value:
        inner = " " * (depth + 1)
        lines = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_dumped(v, depth + 1)}" for key, v in value.items()]
        return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        inner = " " * (depth + 1)
        return "[\n" + ",\n".join(f"{inner}{_dumped(item, depth + 1)}" for item in value) + "\n" + " " * depth + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _require_metrics(metrics: Metrics) -> None:
    if set(metrics) != set(METRICS):
        raise InputError(f"metrics: expected {', '.join(METRICS)}, got {', '.join(metrics) or 'none'}")


def _require_curve(values: Sequence[Any]) -> None:
    if len(values) != len(CURVE):
        raise InputError(f"curve: expected {len(CURVE)} numbers, got {len(values)}")
