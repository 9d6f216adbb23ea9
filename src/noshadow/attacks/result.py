"""What every attack returns, and the three things that all of them compute the same way.

* decisions: "member" where the score exceeds the target's threshold. A log likelihood ratio is cut at 0; a
  score without a natural zero is cut where the *other* models' balanced accuracy is best (``calibrate``).
* success rate of a record: the fraction of the K models whose membership was decided right, a score on the
  threshold counting half. The plain mean over models is the usual definition; where a record is in more
  models than it is out of, ``balanced_success_rate`` weighs both halves equally.
* separation d̂′ of a record: how far apart the attack's statistic lies in the models with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noshadow.attacks.arrays import Bools, Floats, column_chunks, to_numpy
from noshadow.attacks.epsilon import epsilon_lower_bound
from noshadow.attacks.metrics import RocCurve, roc
from noshadow.attacks.moments import separations

CANDIDATES = 255  # thresholds tried by calibrate: quantiles of the scores, so 0.4 % of them lie between two
CALIBRATION_PAIRS = 1_000_000  # (model, record) pairs are enough to place a threshold


@dataclass(frozen=True, eq=False, repr=False)
class AttackResult:
    """Each of K models attacked in turn, with the other K − 1 as references.

    attack            the attack and its variant
    scores            (K, N)  higher: more likely a member
    membership        (K, N)  the truth
    thresholds        (K,)    "member" is decided where the score exceeds it
    success_rate      (N,)    fraction of the K models decided right (ASR), ties counting half
    separation        (N,)    d̂′ = (μ_in − μ_out)/√((σ²_in + σ²_out)/2) of the attack's statistic
    separation_error  (N,)    standard error of d̂′

    The ROC curve and what follows from it pool all K·N (model, record) pairs.
    """

    attack: str
    scores: Floats
    membership: Bools
    thresholds: Floats
    success_rate: Floats
    separation: Floats
    separation_error: Floats

    @cached_property
    def _curve(self) -> RocCurve:
        return roc(self.scores, self.membership)

    def roc(self) -> RocCurve:
        """The ROC curve over all (model, record) pairs."""
        return self._curve

    @property
    def auc(self) -> float:
        """Area under the ROC curve, ties counted half."""
        return self._curve.auc

    def tpr_at_fpr(self, fpr: float = 0.01) -> float:
        """Largest true positive rate at a false positive rate of at most ``fpr``."""
        return self._curve.tpr_at_fpr(fpr)

    @cached_property
    def _rates(self) -> tuple[Floats, Floats]:
        right_in, right_out = right_by_side(*self._tensors())
        n_in = self.membership.sum(0)
        return right_in / n_in, right_out / (len(self.membership) - n_in)

    @property
    def balanced_accuracy(self) -> float:
        """½ (fraction of members decided right + fraction of non-members decided right)."""
        n_in = self.membership.sum(0)
        right_in, right_out = self._rates
        n_out = len(self.membership) - n_in
        return float((right_in @ n_in / n_in.sum() + right_out @ n_out / n_out.sum()) / 2.0)

    @property
    def balanced_success_rate(self) -> Floats:
        """(N,) the success rate of a record with its in-models and its out-models weighing the same."""
        right_in, right_out = self._rates
        return (right_in + right_out) / 2.0

    @property
    def tiebreak(self) -> Floats:
        """(N,) d̂′ turned so that positive is the way members move: it orders equal success rates.

        A loss falls on members and a logit rises, so the sign that most exposed records share is the one to
        rank by; it is that of the mean of d̂′ over the records, each d̂′ clipped at ±10.
        """
        return self.separation * (1.0 if np.clip(self.separation, -10.0, 10.0).mean() >= 0 else -1.0)

    def epsilon_lower_bound(self, confidence: float = 0.95, delta: float = 0.0) -> float:
        """Lower confidence bound on ε; see :mod:`noshadow.attacks.epsilon` for what it rests on."""
        return epsilon_lower_bound(self.scores, self.membership, confidence, delta)

    @property
    def table(self) -> pd.DataFrame:
        """A row per record."""
        frame: pd.DataFrame = pd.DataFrame(
            {
                "success_rate": self.success_rate,
                "balanced_success_rate": self.balanced_success_rate,
                "separation": self.separation,
                "separation_error": self.separation_error,
                "models_in": self.membership.sum(0),
            }
        )
        return frame

    def summary(self) -> dict[str, float]:
        """The attack in a few numbers."""
        return {
            "success_rate": float(self.success_rate.mean()),
            "balanced_accuracy": self.balanced_accuracy,
            "auc": self.auc,
            "tpr_at_1_percent_fpr": self.tpr_at_fpr(0.01),
            "tpr_at_0.1_percent_fpr": self.tpr_at_fpr(0.001),
            "tpr_at_0.01_percent_fpr": self.tpr_at_fpr(0.0001),
            "epsilon_lower_bound": self.epsilon_lower_bound(),
        }

    def __repr__(self) -> str:
        n_models, n_records = self.scores.shape
        rate = f"mean success rate {self.success_rate.mean():.4f}"
        return f"AttackResult({self.attack!r}, models={n_models}, records={n_records}, {rate})"

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return (
            torch.from_numpy(self.scores),
            torch.from_numpy(self.membership),
            torch.from_numpy(self.thresholds),
        )


def conclude(
    attack: str, scores: Tensor, inside: Tensor, statistic: Tensor, thresholds: Tensor | None = None
) -> AttackResult:
    """The result of an attack from its scores and the statistic whose separation is reported, both (K, N).

    thresholds (K,) default to the calibrated ones.
    """
    cut = calibrate(scores, inside) if thresholds is None else thresholds
    right_in, right_out = right_by_side(scores, inside, cut)
    difference, error = separations(statistic, inside)
    return AttackResult(
        attack=attack,
        scores=to_numpy(scores),
        membership=to_numpy(inside),
        thresholds=to_numpy(cut),
        success_rate=(right_in + right_out) / inside.shape[0],
        separation=difference,
        separation_error=error,
    )


def right_by_side(scores: Tensor, inside: Tensor, thresholds: Tensor) -> tuple[Floats, Floats]:
    """How many of a record's in-models and out-models are decided right, (N,) each; a tie counts half.

    Whole and half numbers, hence exact: records with equal counts have equal rates, bit for bit.
    """
    n_models, n_records = scores.shape
    right = torch.empty((2, n_records), dtype=torch.float64, device=scores.device)
    for columns in column_chunks(n_records, n_models):
        weight = inside[:, columns].to(torch.float64)
        sign = torch.sign(scores[:, columns] - thresholds.unsqueeze(1))
        n_in, members = weight.sum(0), (sign * weight).sum(0)
        right[0, columns] = 0.5 * (n_in + members)
        right[1, columns] = 0.5 * (n_models - n_in - (sign.sum(0) - members))
    return to_numpy(right[0]), to_numpy(right[1])


def calibrate(scores: Tensor, inside: Tensor) -> Tensor:
    """For each target the threshold (K,) with the best balanced accuracy over the other K − 1 models.

    Candidates are quantiles of the pooled scores (of evenly spaced records where there are very many).
    Counts above each candidate are taken model by model, so that leaving a target out is a subtraction of
    integers: exact. The threshold is the next float above the candidate, since "above" is strict and a
    score equal to the candidate was counted as a non-member.
    """
    n_models, n_records = scores.shape
    stride = max(1, n_models * n_records // CALIBRATION_PAIRS)
    score, member = scores[:, ::stride].contiguous(), inside[:, ::stride]
    flat = score.flatten().sort().values
    at = torch.linspace(0, flat.numel() - 1, CANDIDATES, dtype=torch.float64, device=scores.device)
    edges = torch.unique(flat[at.round().long()])
    counts = torch.empty((n_models, len(edges) + 1, 2), dtype=torch.float64, device=scores.device)
    for k in range(n_models):
        bins = 2 * torch.bucketize(score[k], edges) + member[k]
        counts[k] = torch.bincount(bins, minlength=2 * (len(edges) + 1)).reshape(-1, 2)
    others = counts.sum(0) - counts
    above = others.flip(1).cumsum(1).flip(1)[:, 1:]  # scores > edge
    rates = above / others.sum(1, keepdim=True).clamp_min(1.0)
    best = (rates[..., 1] - rates[..., 0]).argmax(1)
    return torch.nextafter(edges[best], torch.full_like(edges[best], torch.inf))
