"""What an audit says of itself: the facts that go with its table, and what would make its answer sharper."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from noshadow._version import __version__
from noshadow.diagnostics import Diagnostics
from noshadow.extract import Extracted
from noshadow.layer import LastLayer
from noshadow.rating import has_law
from noshadow.spread_sources import SPREAD_SOURCES

__all__ = ["advice_of", "metadata_of"]


def metadata_of(
    found: Extracted, diagnostics: Diagnostics, trace: Any, *, ranked_by: str, full_step: bool
) -> dict[str, Any]:
    """Version, date, model, head, sizes, ridge, and what the numbers rest on."""
    layer = found.layer
    return {
        "noshadow": __version__,
        "torch": torch.__version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": found.source,
        **found.facts,
        "head": layer.head,
        "records": layer.n,
        "features": layer.n_features,
        "outputs": layer.n_outputs,
        "bias": layer.bias,
        "ridge": layer.ridge,
        "penalize_bias": layer.penalize_bias,
        "sample_weight": layer.source.weighted,
        "class_weight": None if layer.class_weight is None else layer.class_weight.tolist(),
        "label_smoothing": layer.label_smoothing,
        "curvature": diagnostics.curvature,
        "curvature_chosen": diagnostics.chosen,
        "curvature_exact": diagnostics.exact,
        "accuracy": None if diagnostics.accuracy is None else diagnostics.accuracy.facts(),
        "rank": diagnostics.rank,
        "stationarity": diagnostics.stationarity,
        "best_ridge": diagnostics.best_ridge,
        "linearity": diagnostics.linearity,
        "flagged": len(diagnostics.certain),
        "full_step": full_step,
        "ranked_by": ranked_by,
        "trace": _remembered(trace),
        "run_share": diagnostics.run_share,
        "calibration": None if diagnostics.calibration is None else asdict(diagnostics.calibration),
    }


def advice_of(facts: dict[str, Any], layer: LastLayer, untrained: bool) -> list[str]:
    """What would make the answer sharper, and how to get it."""
    hints = []
    linear = facts["linearity"] is not None and facts.get("stationarity") is not None and facts["stationarity"] < 0.1
    if untrained and facts["calibration"] is None and facts.get("stationarity") is not None and not linear:
        return [
            "the fit stopped short of its optimum, so that its own law says nothing of success rates; fit it with a "
            "smaller tol= and more iterations, pass the sample_weight= that it was fitted with, if any, or pass "
            "held_out= and rerun="
        ]
    if facts["trace"] != "mean outputs" and not linear:
        hints.append(
            "ranked from the final model alone; a network that has memorised a record hides it. Record a "
            "noshadow.Trace while training, or make one of a few checkpoints (Trace.from_checkpoints) or of one more "
            "run of the same recipe, and pass it as trace="
        )
    if facts["calibration"] is None and has_law(layer):
        hints.append(
            "for a predicted success rate per record pass held_out=, records that the model was not trained on, and "
            "rerun=, a second model trained with another seed"
        )
    elif facts["calibration"] is not None:
        source = SPREAD_SOURCES[facts["calibration"]["source"]]
        if source.hint and not (source.of_head and untrained):
            hints.append(source.hint)
    return hints


def _remembered(trace: Any) -> str:
    """What the trace held: mean outputs, losses alone, or nothing."""
    if trace is None:
        return "none"
    return "mean outputs" if getattr(trace, "mean_outputs", None) is not None else "losses"
