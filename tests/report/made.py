"""Audits made up for the tests: a table with all that a report may show, as large as it takes, in no time."""

from __future__ import annotations

import numpy as np
import pandas as pd

from noshadow.attacks.gaussians import best_accuracy
from noshadow.audit import Audit


def made_audit(n=600, classes=6, rates=True, seed=0, groups=True, **facts):
    """An audit of n records. The rates are those of a shift that grows with leverage and loss."""
    rng = np.random.default_rng(seed)
    target = rng.integers(0, classes, n)
    leverage = rng.lognormal(-3.0, 1.0, n)
    loss = rng.lognormal(-2.0, 1.3, n)
    exposure = leverage * loss * rng.lognormal(0.0, 0.2, n)
    columns = {"id": np.array([f"record {i}" for i in range(n)], dtype=object), "target": target}
    columns["nearest_class"] = (target + 1) % classes
    if groups:
        columns["group_site"] = np.where(rng.random(n) < 0.3, "north", "south").astype(object)
    columns |= {
        "loss": loss,
        "leverage": leverage,
        "mean_trace": loss * rng.lognormal(0.3, 0.3, n),
        "exposure": exposure,
    }
    calibration = None
    if rates:
        shift = 12.0 * np.sqrt(exposure)
        columns["attack_accuracy"] = best_accuracy(shift, np.ones(n), np.ones(n))
        columns["attack_tpr"] = np.clip(columns["attack_accuracy"] * 2 - 1, 0, 1)
        calibration = {"source": "rerun", "held_out": 300, "scale": 1.0, "spread_in": 1.0, "spread_out": 1.0}
    metadata = {
        "noshadow": "0.1.0",
        "date": "2026-01-02T03:04:05+00:00",
        "model": "Net",
        "head": "softmax",
        "records": n,
        "features": 64,
        "outputs": classes,
        "curvature": "dense",
        "curvature_exact": True,
        "accuracy": None,
        "stationarity": 0.4,
        "linearity": 0.0,
        "flagged": 0,
        "ranked_by": "exposure",
        "trace": "mean outputs",
        "calibration": calibration,
        "class_names": None,
        "provenance": {
            "weights_sha256": "a" * 64,
            "data_sha256": "d" * 64,
            "versions": {"noshadow": "0.1.0", "torch": "2.9"},
            "command": "noshadow audit layer.safetensors",
        },
        **facts,
    }
    return Audit(pd.DataFrame(columns).assign(flagged=False), metadata, ("ridge: a note of the audit",))
