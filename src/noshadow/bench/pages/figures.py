"""The figures of results: what of a result each drawing is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.pages.beside_paper import known_setting
from noshadow.bench.pages.markdown import ATTACK_NAMES
from noshadow.bench.pages.section import Figure
from noshadow.bench.result import CURVE, NETWORK, Result, ShownRecord
from noshadow.drawing.budget import BudgetPanel, budget_curves
from noshadow.drawing.images import image_rows
from noshadow.drawing.recall import RecallLine, RecallPanel, recall_curves
from noshadow.drawing.reliability import ReliabilityPanel, reliability_diagrams
from noshadow.drawing.scatter import log_scatter
from noshadow.heads import get_head

__all__ = [
    "BUDGET",
    "BUDGET_OF_ALL",
    "DRAWN",
    "IMAGES",
    "RECALL",
    "RECALL_OF_ALL",
    "RELIABILITY",
    "RELIABILITY_OF_ALL",
    "SCATTER",
    "distinct_shares",
    "has_images",
    "recall_panel",
    "target_name",
]

DRAWN = (
    "exposure",
    "newton",
    "leave_one_out",
    "influence",
    "loss",
    "gradient_norm",
    "mean_trace",
    "trace_iqr",
)
"""The scores of the recall curves, those of them that a result has; the one to rank by first."""
_CURVES = (
    "Means over the targets; the thick black line is `exposure`, the score to rank by, where it was measured. Shaded: "
    "± 1 standard deviation of `exposure` and `newton`. Grey: the attack again (dash-dotted) and, where it was "
    "measured, a perfect score (solid); dotted: a random order."
)


def recall_panel(result: Result, attack: str, title: str, scores: Sequence[str] = DRAWN) -> RecallPanel:
    """The recall curves of a result against an attack, at the shares that differ in whole records."""
    found = result.attacks[attack]
    where, shares = distinct_shares(result.members)

    def part(values: Sequence[float]) -> list[float]:
        return [values[index] for index in where]

    lines = {}
    for name in (name for name in scores if name in found.scores):
        curve = found.scores[name].curve
        known = [0.0 if value is None else value for value in curve.std]
        std = None if None in curve.std else part(known)
        lines[name] = RecallLine(part(curve.mean), std)
    perfect = None if found.oracle is None else part(found.oracle.curve)
    return RecallPanel(title, shares.tolist(), lines, part(found.ceiling.curve), perfect)


def distinct_shares(members: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Where the curve keeps another number of records than before, and these as shares: few of few members."""
    kept = np.maximum(1, np.floor(np.array(CURVE) * members * (1.0 + 1e-12)))
    numbers, where = np.unique(kept, return_index=True)
    return where, numbers / members


def _recall(result: Result, path: Path) -> list[Path]:
    contents = [recall_panel(result, name, ATTACK_NAMES[name], (*DRAWN, NETWORK)) for name in result.attacks]
    return recall_curves(contents, path, columns=3)


def _recall_of_all(results: Sequence[Result], path: Path) -> list[Path]:
    return recall_curves([recall_panel(result, "lira", result.title) for result in results], path, "LiRA")


def _reliability(result: Result, path: Path) -> list[Path]:
    return reliability_diagrams(_reliability_panels([result]), path)


def _reliability_of_all(results: Sequence[Result], path: Path) -> list[Path]:
    return reliability_diagrams(_reliability_panels(results), path)


def _reliability_panels(results: Sequence[Result]) -> list[ReliabilityPanel]:
    rated = [(result.title.replace(", ", ",\n"), result.rates) for result in results]
    return [(title, rates.predicted, rates.measured) for title, rates in rated if rates is not None]


def _budget(result: Result, path: Path) -> list[Path]:
    return budget_curves(_budget_panels([result]), path)


def _budget_of_all(results: Sequence[Result], path: Path) -> list[Path]:
    return budget_curves(_budget_panels(results), path)


def _budget_panels(results: Sequence[Result]) -> list[BudgetPanel]:
    found = [(result.title, result.budget) for result in results]
    return [BudgetPanel(title, b.models, b.together, b.errors, b.alone, b.rerun) for title, b in found if b is not None]


def _scatter(result: Result, path: Path) -> list[Path]:
    first = result.first_target
    assert first is not None  # drawn only where it is there
    rate = ("LiRA's success rate, %", 100.0 * first.lira_success_rate)
    x, y = ((f"{name}, {_unit(result)}", first.scores[name]) for name in ("loss", "influence"))
    return log_scatter(x, y, rate, (50.0, 100.0), result.title, path)


def _unit(result: Result) -> str:
    """What a loss is measured in, and with it the influence, ∇ℓᵀH⁻¹∇ℓ: the curvature has the same unit."""
    return "nats" if get_head(result.head).classifies else "squared units of the target"


def _images(result: Result, path: Path) -> list[Path]:
    rows = {
        ranking: [(record.image, _caption(result, record)) for record in records if record.image is not None]
        for ranking, records in sorted(result.shown.items())  # the highest of every ranking, then the lowest
    }
    return image_rows(rows, f"{result.title}: class and LiRA's success rate", path)


def _caption(result: Result, record: ShownRecord) -> str:
    return f"{target_name(result, record.target)}\n{100 * record.lira_success_rate:.1f} %"


def target_name(result: Result, target: float) -> str:
    """What the target is called: the name of its class where the setting has names."""
    setting = known_setting(result)
    if setting is not None and setting.classes:
        return setting.classes[int(target)]
    return f"class {target:.0f}" if get_head(result.head).classifies else f"{target:.3g}"


def has_images(result: Result) -> bool:
    return any(record.image is not None for records in result.shown.values() for record in records)


RECALL: Figure[Result] = Figure("recall", f"Recall of each attack's top k among a score's top k. {_CURVES}", _recall)
RECALL_OF_ALL: Figure[Sequence[Result]] = Figure(
    "recall-lira", f"Recall of LiRA's top k among a score's top k (Figure 2 of the paper). {_CURVES}", _recall_of_all
)
RELIABILITY: Figure[Result] = Figure(
    "reliability",
    "Predicted against measured success rates. A point for each tenth of the members, by prediction; on the dashed "
    "line the prediction is right.",
    _reliability,
    lambda result: result.rates is not None,
)
RELIABILITY_OF_ALL: Figure[Sequence[Result]] = Figure(
    "reliability-all",
    RELIABILITY.caption,
    _reliability_of_all,
    lambda results: any(result.rates is not None for result in results),
)
_BUDGETS = (
    "Recall against the number of shadow models. Solid: the models with the exposure as their prior, shaded ± 1 "
    "standard error over draws of the models; dashed: LiRA with these models alone; diamond: the exposure of one rerun."
)
BUDGET: Figure[Result] = Figure("budget", _BUDGETS, _budget, lambda result: result.budget is not None)
BUDGET_OF_ALL: Figure[Sequence[Result]] = Figure(
    "budget-all", _BUDGETS, _budget_of_all, lambda results: any(result.budget is not None for result in results)
)
SCATTER: Figure[Result] = Figure(
    "scatter",
    "Loss against influence of the first target's members, log-log, coloured by LiRA's success rate (Figure 8 of the "
    "paper). What is too small for the axes lies on their edge.",
    _scatter,
    lambda result: result.first_target is not None,
)
IMAGES: Figure[Result] = Figure(
    "images",
    "The most and the least exposed images among the first target's members, by influence and by newton (Figure 7 of "
    "the paper).",
    _images,
    has_images,
)
