"""Results made by hand, for the tests of files, figures and pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from noshadow.bench.result import (
    CURVE,
    ENDS,
    METRICS,
    RANKINGS,
    AttackFindings,
    Ceiling,
    FirstTarget,
    RecallCurve,
    Result,
    ScoreResult,
    Seconds,
    ShownRecord,
    TargetFit,
)
from noshadow.evaluate import Summary

SCORES = ("loss", "gradient_norm", "entropy", "influence", "newton", "leave_one_out")


def ceiling(mean=0.5, curve=CURVE):
    return Ceiling({name: Summary(np.array([mean, mean])) for name in METRICS}, tuple(curve))


def score_result(values=(0.25, 0.75), deviation=0.05):
    """Curves from 0 on; without a deviation it is that of one target."""
    rising = tuple(0.0 if share < 0.003 else share**0.5 for share in CURVE)
    std = tuple(None if deviation is None else min(deviation, value) for value in rising)
    metrics = {name: Summary(np.array(values, dtype=float)) for name in METRICS}
    return ScoreResult(metrics, RecallCurve(rising, std, (0.0,) * 24 + (1.0,)))


def toy_result(texts=None, images=None, oracle=None, attacks=("lira", "rmia", "shokri"), points=True, **changes):
    rng = np.random.default_rng(0)
    loss = rng.exponential(size=400).astype(np.float32)
    loss[:3] = 0.0
    influence = np.where(rng.random(400) < 0.1, 0.0, loss**2).astype(np.float32)
    first = FirstTarget({"loss": loss, "influence": influence}, rng.uniform(0.4, 1.0, 400).astype(np.float32))
    records = tuple(
        ShownRecord(
            row=2 * row,
            target=3.0,
            score=1.0,
            lira_success_rate=0.975,
            text=None if texts is None else texts[row % len(texts)],
            image=None if images is None else images[row],
        )
        for row in range(10)
    )
    findings = AttackFindings(
        scores={name: score_result() for name in SCORES},
        ceiling=ceiling(),
        summary={"auc": 0.6, "success_rate": 0.55},
        seconds=1.0,
        oracle=oracle,
    )
    result = Result(
        setting="toy-net",
        data="Toy",
        model="net",
        head="softmax",
        scale="smoke",
        note="",
        backbone=None,
        shadows=16,
        targets=2,
        pool=800,
        members=400,
        features=8,
        seed=0,
        recipe={
            "epochs": 3,
            "batch_size": 32,
            "optimizer": "sgd",
            "learning_rate": 0.1,
            "weight_decay": 0.0,
            "momentum": 0.9,
            "schedule": "cosine",
            "augment": None,
        },
        fit=TargetFit(0.5, 0.75),
        stationarity=1.5,
        attacks=dict.fromkeys(attacks, findings),
        seconds=Seconds(0.5, 8.0, 1.0, 3.0, 0.002),
        shown={f"{end} {name}": records for end in ENDS for name in RANKINGS},
        versions={"noshadow": "0", "python": "3"},
        machine={"cores": 2, "processor": "x", "system": "y"},
        first_target=first if points else None,
    )
    return replace(result, **changes)
