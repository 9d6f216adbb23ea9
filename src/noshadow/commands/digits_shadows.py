"""Shadow models of the network that ``noshadow demo`` audits: LiRA's verdict on every digit, and how far it agrees.

128 models were trained by ``digits.train`` on random halves of the digits, by a ``shadow.Study``; what they say of each
digit, the attack's statistic φ, comes with the package, in thousandths of a nat. Who was a member of which model is in
the study's plan. ``python tools/demo_shadows.py --write`` makes the file again, ``noshadow demo --retrain`` the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from noshadow import attacks, evaluate
from noshadow.artefact import UnusableArtefact, read_artefact, write_artefact
from noshadow.attacks import AttackResult
from noshadow.commands.digits import RECIPE, load, plan, train
from noshadow.errors import FileError
from noshadow.findings import Audit
from noshadow.progress import Progress
from noshadow.shadow import ModelKey, Study

__all__ = [
    "N_MODELS",
    "RECALLS",
    "SHIPPED",
    "Agreement",
    "Floats",
    "Found",
    "Shadows",
    "agreement",
    "retrained",
    "shipped",
    "write_shipped",
]

N_MODELS = 128
SHIPPED = Path(__file__).with_name("digits_shadows.safetensors")
RECALLS = ((0.01, 0.05), (0.05, 0.05))
"""Shares of the members: the most exposed by LiRA, sought among the most exposed by the audit."""
_UNITS = 1000.0  # per nat
_TIMES = 3  # a ceiling is the mean of so many halvings, or simulated studies

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shadows:
    """φ (K, N) of shadow models 0 … K − 1 for all digits, and whether they came with the package."""

    signal: Floats
    came_with_package: bool

    @property
    def membership(self) -> NDArray[np.bool_]:
        """(K, N), from the plan."""
        drawn = plan()
        return np.stack([drawn.mask(ModelKey("shadow", number)) for number in range(len(self.signal))])

    def lira(self, models: Any = slice(None)) -> AttackResult:
        """The attack, each of the models left out in turn; ``models``: on some of them alone."""
        return _lira(self.signal[models], self.membership[models])


def shipped() -> Shadows:
    """What came with the package; a file of another recipe is refused."""
    try:
        found = read_artefact(SHIPPED, _identity()).arrays["signal"]
    except (UnusableArtefact, OSError) as error:
        raise FileError(f"shadows: {SHIPPED} cannot be used ({error}); --retrain does without it") from None
    return Shadows(found / _UNITS, True)


def write_shipped(shadows: Shadows, path: Path = SHIPPED) -> None:
    """Keep them as the package has them."""
    thousandths = np.rint(shadows.signal * _UNITS)
    if np.abs(thousandths).max() > np.iinfo(np.int16).max:
        raise ValueError("a statistic does not fit into 16 bits")
    write_artefact(path, {"signal": thousandths.astype(np.int16)}, _identity())


def retrained(store: Path, n_models: int = N_MODELS, progress: Progress = None) -> Shadows:
    """Train the models, or those that the store does not hold yet."""
    labels = load().labels.numpy()
    study = Study(_Outputs(), len(labels), n_models, plan().seed, store=store, targets=labels, head="softmax")
    outputs = study.run(progress=progress).outputs
    return Shadows(np.asarray(attacks.signal(outputs, labels, "softmax"), dtype=np.float64), False)


class _Outputs:
    """Train on some of the digits, give the logits of all."""

    def __call__(self, members: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
        model = train(members, seed)
        with torch.no_grad():
            found: NDArray[np.float64] = model(load().images).numpy()
        return found

    def fingerprint(self) -> dict[str, Any]:
        return _identity()


def _identity() -> dict[str, Any]:
    """What the models are a function of."""
    return {"data": "scikit-learn's digits", "seed": plan().seed, "version": 1, **RECIPE}


def _lira(signal: Floats, membership: NDArray[np.bool_]) -> AttackResult:
    return attacks.lira(signal, membership, variance=attacks.lira_variance(N_MODELS), progress=False)


@dataclass(frozen=True)
class Found:
    """How many of LiRA's most exposed records an audit has among its own.

    top, keep        shares that are sought, and looked at; sought, kept: the same in records
    recall           of the audit
    again            of LiRA itself, one half of its models against the other
    perfect          of a score that knows how exposed each record is, against so noisy a truth
    """

    top: float
    keep: float
    sought: int
    kept: int
    recall: float
    again: float
    perfect: float


@dataclass(frozen=True)
class Agreement:
    """An audit beside LiRA with shadow models.

    models             how many; came_with_package: whether they were trained before
    recalls            by share sought
    calibration_error  mean distance of predicted from measured success rates, by tenths of the records
    predicted, measured  means of the tenths, in ascending order of the prediction
    """

    models: int
    came_with_package: bool
    recalls: tuple[Found, ...]
    calibration_error: float
    predicted: tuple[float, ...]
    measured: tuple[float, ...]


def agreement(audit: Audit, shadows: Shadows, progress: Progress = None) -> Agreement:
    """What the audit found beside what LiRA finds, over the records of the audit, whose ids are rows of the digits."""
    rows = audit.table["id"].to_numpy()
    members = np.zeros((1, shadows.signal.shape[1]), dtype=bool)
    members[0, rows] = True
    verdict = shadows.lira()
    truth = evaluate.ordering(verdict.success_rate, verdict.tiebreak)[rows]
    place = {row: -place for place, row in enumerate(audit.top(len(rows)).index)}
    rank = np.array([place[row] for row in audit.table.index], dtype=np.float64)
    again = evaluate.halves(shadows.lira, len(shadows.signal), _TIMES, progress=progress)
    perfect = evaluate.oracle(_lira, shadows.signal, shadows.membership, _TIMES, progress=progress)

    def found(top: float, keep: float) -> Found:
        how: Mapping[str, float] = {"top": top, "keep": keep}
        return Found(
            top,
            keep,
            evaluate.share_size(top, len(rows)),
            evaluate.share_size(keep, len(rows)),
            evaluate.recall(rank, truth, **how),
            evaluate.over_predictions(evaluate.recall, again, members, **how).mean,
            evaluate.over_predictions(evaluate.recall, perfect, members, **how).mean,
        )

    rates = evaluate.reliability(audit.table["attack_accuracy"], verdict.success_rate[rows])
    return Agreement(
        len(shadows.signal),
        shadows.came_with_package,
        tuple(found(*shares) for shares in RECALLS),
        rates.error,
        rates.predicted,
        rates.measured,
    )
