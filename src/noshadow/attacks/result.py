"""What every attack returns, and the things that all of them compute the same way.

* scores: each model attacked with all the others as references. A log likelihood ratio is cut at 0; a score without a
  natural zero is cut where the *other* models' balanced accuracy is best (``calibrate``). The ROC curve, the balanced
  accuracy and the bound on ε pool all K·N (model, record) pairs. They assume that the splits of the models were drawn
  independently of each other, as those of ``noshadow.shadow`` are: else the other models tell something about the
  target's split. (Splits with each record in exactly half of the models put them below ½ where nothing leaks.)
* decisions: the same with one more model left out, a target's counterpart (see ``counterpart``).
* success rate of a record: ½ (fraction of the models with it that are decided right + the same of the models without),
  a score on the threshold counting half. It is made from the decisions, and nothing is assumed about the splits.
* separation d̂′ of a record: how far apart the attack's statistic lies in the models with and without it.
* a record that too few models have, or lack, for the attack to know anything of it is undecided: its scores lie on
  the thresholds, its success rate is 0.5, its separation 0 ± ∞, and a warning names it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noshadow.attacks.arrays import Bools, Floats, to_numpy
from noshadow.attacks.counterpart import counterparts
from noshadow.attacks.epsilon import epsilon_lower_bound
from noshadow.attacks.metrics import RocCurve, roc
from noshadow.attacks.separation import separations

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CALIBRATION_PAIRS",
    "CANDIDATES",
    "CLEAR",
    "MIXED",
    "AttackResult",
    "balanced_rate",
    "calibrate",
    "conclude",
    "decide",
    "right_by_side",
    "undecided_elsewhere",
]

CANDIDATES = 255  # thresholds tried by calibrate: quantiles of the scores, so 0.4 % of them lie between two
CALIBRATION_PAIRS = 1_000_000  # (model, record) pairs are enough to place a threshold
CLEAR = 3.0  # standard errors from which a separation has a direction
MIXED = 0.25, 0.02  # of the clear separations, and of all records: with more than both against it there is no direction


@dataclass(frozen=True, eq=False, repr=False)
class AttackResult:
    """Each of K models attacked in turn, with the others as references.

    Attributes
    ----------
    attack : str
        The attack and its variant.
    scores : ndarray (K, N)
        Higher: more likely a member.
    membership : ndarray (K, N) of booleans
        The truth.
    thresholds : ndarray (K,)
        "Member" is decided where the score exceeds it.
    decisions : ndarray (K, N)
        What the success rates count, without the counterpart: 1 member, −1 not, 0 undecided.
    success_rate : ndarray (N,)
        ½ (true positive rate + true negative rate) of the decisions about the record, ties half; 0.5 is guessing.
    separation : ndarray (N,)
        d̂′ = (μ_in − μ_out)/√((σ²_in + σ²_out)/2) of the attack's statistic.
    separation_error : ndarray (N,)
        Standard error of d̂′.
    direction : int
        The way members move in the statistic: 1 up, −1 down, 0 either way.

    Notes
    -----
    The ROC curve and what follows from it pool all K·N (model, record) pairs.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((64, 100)) < 0.5
    >>> signal = rng.normal(size=(64, 100)) + np.linspace(0, 3, 100) * membership
    >>> found = attacks.lira(signal, membership)
    >>> found
    AttackResult('lira online, variance per_sample', models=64, records=100, mean success rate 0.7522)
    >>> round(found.auc, 2), round(found.balanced_accuracy, 2), round(found.tpr_at_fpr(0.01), 2)
    (0.85, 0.75, 0.28)
    >>> round(found.epsilon_lower_bound(), 1)
    0.9
    >>> found.table.iloc[[0, -1]].round(2)
        success_rate  separation  separation_error  models_in
    0           0.59       -0.56              0.26         30
    99          0.87        2.51              0.33         31
    >>> bool((found.tiebreak == found.separation).all())  # members move up
    True
    """

    attack: str
    scores: Floats
    membership: Bools
    thresholds: Floats
    decisions: NDArray[np.int8]
    success_rate: Floats
    separation: Floats
    separation_error: Floats
    direction: int

    @cached_property
    def _curve(self) -> RocCurve:
        return roc(self.scores, self.membership)

    def roc(self) -> RocCurve:
        """The ROC curve over all (model, record) pairs.

        Examples
        --------
        >>> import numpy as np
        >>> from noshadow import attacks
        >>> membership = np.arange(32).reshape(8, 4) % 3 > 0
        >>> found = attacks.threshold(2.0 * membership[..., None], membership, [1, 1, 1, 1], "logistic")
        >>> found.roc().tpr.tolist()
        [0.0, 1.0, 1.0]
        """
        return self._curve

    @property
    def auc(self) -> float:
        """Area under the ROC curve, ties counted half."""
        return self._curve.auc

    def tpr_at_fpr(self, fpr: float = 0.01) -> float:
        """Largest true positive rate at a false positive rate of at most ``fpr``.

        Parameters
        ----------
        fpr : float
            Between 0 and 1.

        Returns
        -------
        float
        """
        return self._curve.tpr_at_fpr(fpr)

    @cached_property
    def balanced_accuracy(self) -> float:
        """½ (fraction of members decided right + fraction of non-members decided right), by the scores."""
        scores, inside = torch.from_numpy(self.scores), torch.from_numpy(self.membership)
        right_in, right_out = right_by_side(decide(scores, torch.from_numpy(self.thresholds)), inside)
        n_in = self.membership.sum()
        return float((right_in.sum() / n_in + right_out.sum() / (self.membership.size - n_in)) / 2.0)

    @property
    def tiebreak(self) -> Floats:
        """(N,) d̂′ turned so that positive is the way members move: it orders equal success rates.

        A loss falls on members and a logit rises: ``direction`` is the sign that the exposed records share. A
        statistic without one, such as a signed residual, separates by its size.
        """
        return self.separation * self.direction if self.direction else np.abs(self.separation)

    def epsilon_lower_bound(self, confidence: float = 0.95, delta: float = 0.0) -> float:
        """Lower confidence bound on ε; see ``noshadow.attacks.epsilon`` for what it rests on.

        Parameters
        ----------
        confidence : float
            Of the bound, between 0 and 1.
        delta : float
            δ of (ε, δ)-differential privacy.

        Returns
        -------
        float
            In nats; 0 where nothing can be claimed.
        """
        return epsilon_lower_bound(self.scores, self.membership, confidence, delta)

    @property
    def table(self) -> pd.DataFrame:
        """A row per record."""
        import pandas as pd  # here: the attacks themselves need none of it

        frame: pd.DataFrame = pd.DataFrame(
            {
                "success_rate": self.success_rate,
                "separation": self.separation,
                "separation_error": self.separation_error,
                "models_in": self.membership.sum(0),
            }
        )
        return frame

    def summary(self) -> dict[str, float]:
        """The attack in a few numbers.

        Examples
        --------
        >>> import numpy as np
        >>> from noshadow import attacks
        >>> rng = np.random.default_rng(0)
        >>> membership = rng.random((64, 100)) < 0.5
        >>> signal = rng.normal(size=(64, 100)) + np.linspace(0, 3, 100) * membership
        >>> {name: round(value, 2) for name, value in attacks.lira(signal, membership).summary().items()}
        {'success_rate': 0.75, 'balanced_accuracy': 0.75, 'auc': 0.85, 'tpr_at_1_percent_fpr': 0.28,
         'tpr_at_0.1_percent_fpr': 0.05, 'tpr_at_0.01_percent_fpr': 0.02, 'epsilon_lower_bound': 0.91}
        """
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


def conclude(
    attack: str,
    inside: Tensor,
    statistic: Tensor,
    scores: Tensor,
    fair: Tensor | None = None,
    thresholds: Tensor | None = None,
    signed: bool = False,
) -> AttackResult:
    """The result of an attack; all (K, N) but thresholds (K,), which default to the calibrated ones.

    statistic  the one whose separation is reported
    scores     with all other models as references
    fair       without the counterparts; None: the scores do not depend on references, their thresholds do
    signed     whether members are known to move either way
    """
    fair = scores if fair is None else fair
    cut = calibrate(scores, inside) if thresholds is None else thresholds
    decisions = decide(fair, calibrate(fair, inside, fair=True) if thresholds is None else thresholds)
    difference, error = separations(statistic, inside)
    return AttackResult(
        attack=attack,
        scores=to_numpy(scores),
        membership=to_numpy(inside),
        thresholds=to_numpy(cut),
        decisions=to_numpy(decisions),
        success_rate=balanced_rate(decisions, inside),
        separation=difference,
        separation_error=error,
        direction=0 if signed else _direction(difference, error),
    )


def undecided_elsewhere(found: AttackResult, known: Tensor, inside: Tensor) -> AttackResult:
    """The result for all N records of an attack on the ``known`` (N,) of them; inside (K, N)."""
    at, shape = to_numpy(known), tuple(inside.shape)

    def whole(values: NDArray[Any], default: Any) -> NDArray[Any]:
        spread = np.empty((*values.shape[:-1], shape[1]), dtype=values.dtype)
        spread[...] = default
        spread[..., at] = values
        return spread

    return replace(
        found,
        scores=whole(found.scores, found.thresholds[:, None]),
        membership=to_numpy(inside),
        decisions=whole(found.decisions, 0),
        success_rate=whole(found.success_rate, 0.5),
        separation=whole(found.separation, 0.0),
        separation_error=whole(found.separation_error, np.inf),
    )


def decide(scores: Tensor, thresholds: Tensor) -> Tensor:
    """1 where the score (K, N) exceeds the target's threshold (K,), −1 below it, 0 on it."""
    cut = thresholds.unsqueeze(1)
    return (scores > cut).to(torch.int8) - (scores < cut).to(torch.int8)


def right_by_side(decisions: Tensor, inside: Tensor) -> tuple[Floats, Floats]:
    """How many of a record's in-models and out-models are decided right, (N,) each; a tie counts half."""
    sign, member = to_numpy(decisions), to_numpy(inside)
    of_members = np.where(member, sign, 0).sum(0, dtype=np.int64)
    n_in = member.sum(0)
    right_in = 0.5 * (n_in + of_members)
    right_out = 0.5 * (len(member) - n_in - (sign.sum(0, dtype=np.int64) - of_members))
    return right_in, right_out


def balanced_rate(decisions: Tensor, inside: Tensor) -> Floats:
    """½ (right_in/n_in + right_out/n_out) of each record, (N,).

    As one quotient of whole and half numbers: records with equal rates have equal bits.
    """
    right_in, right_out = right_by_side(decisions, inside)
    n_in = to_numpy(inside).sum(0)
    n_out = len(inside) - n_in
    rate: Floats = (right_in * n_out + right_out * n_in) / (2.0 * n_in * n_out)
    return rate


def calibrate(scores: Tensor, inside: Tensor, fair: bool = False) -> Tensor:
    """For each target the threshold (K,) with the best balanced accuracy over the other models.

    fair leaves the target's counterparts out too, one model per record.

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

    def count(values: Tensor, side: Tensor) -> Tensor:
        bins = 2 * torch.bucketize(values, edges) + side
        return torch.bincount(bins, minlength=2 * (len(edges) + 1)).reshape(-1, 2).to(torch.float64)

    counts = torch.stack([count(*row) for row in zip(score, member, strict=True)])
    others = counts.sum(0) - counts
    if fair:
        beside = counterparts(member)
        of_beside = score.gather(0, beside), member.gather(0, beside)
        others -= torch.stack([count(*row) for row in zip(*of_beside, strict=True)])
    above = others.flip(1).cumsum(1).flip(1)[:, 1:]  # scores > edge
    rates = above / others.sum(1, keepdim=True).clamp_min(1.0)
    best = (rates[..., 1] - rates[..., 0]).argmax(1)
    return torch.nextafter(edges[best], torch.full_like(edges[best], torch.inf))


def _direction(separation: Floats, error: Floats) -> int:
    """The sign of the mean of d̂′, each clipped at ±10; 0 if many records clearly go against it."""
    sign = 1 if np.clip(separation, -10.0, 10.0).mean() >= 0 else -1
    clear = np.abs(separation) > CLEAR * np.where(np.isfinite(separation), error, 0.0)
    against = clear & (separation * sign < 0)
    return 0 if against.sum() > max(MIXED[0] * clear.sum(), MIXED[1] * len(clear)) else sign
