"""How good a membership score is: ROC, AUC, true positives at few false positives, balanced accuracy.

``scores`` and ``membership`` have any one shape; higher means "member". Equal scores are one point of the ROC
curve: no threshold can part them, and any other treatment would reward the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial import ConvexHull
from torch import Tensor

from noshadow.attacks.arrays import Floats, to_numpy
from noshadow.errors import InputError
from noshadow.tensors import as_floats, as_tensor

__all__ = ["RocCurve", "auc", "roc", "tpr_at_fpr"]


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Points of the ROC curve, from (0, 0) to (1, 1), one for each distinct score.

    Attributes
    ----------
    fpr, tpr : ndarray (P,)
        Fractions of non-members and of members with a score ≥ the threshold.
    thresholds : ndarray (P,)
        Descending, the first is +∞.

    Examples
    --------
    >>> from noshadow import attacks
    >>> curve = attacks.roc([0.9, 0.7, 0.7, 0.1], [True, False, True, False])
    >>> curve.fpr.tolist(), curve.tpr.tolist(), curve.thresholds.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0], [inf, 0.9, 0.7, 0.1])
    >>> curve.auc, curve.hull_auc, curve.tpr_at_fpr(0.0)
    (0.875, 0.875, 0.5)
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats

    @property
    def auc(self) -> float:
        """Area under the curve: P(member > non-member) + ½ P(equal)."""
        return float(np.sum(np.diff(self.fpr) * (self.tpr[1:] + self.tpr[:-1])) / 2.0)

    @property
    def hull_auc(self) -> float:
        """Area under the concave hull: what an attacker who tosses between two thresholds attains.

        Never below ``auc``, and above ½ even by chance: for comparison with tools that report it as the AUC.
        """
        corner = [[1.0, 0.0]]  # with it the lower edges are the axes, and the area is that below the curve
        return float(ConvexHull(np.r_[np.c_[self.fpr, self.tpr], corner]).volume)

    def tpr_at_fpr(self, fpr: float) -> float:
        """Largest true positive rate among the thresholds whose false positive rate is at most ``fpr``."""
        if not 0.0 <= fpr <= 1.0:
            raise InputError(f"fpr: expected a rate between 0 and 1, got {fpr!r}")
        # the rates are ratios of counts: the slack admits 0.01 where 1 of 100 was counted, and no count more
        last = int(np.searchsorted(self.fpr, fpr * (1.0 + 1e-12), side="right")) - 1
        return float(self.tpr[last])


def roc(scores: Any, membership: Any) -> RocCurve:
    """The ROC curve of scores against membership, equal scores taken together.

    Parameters
    ----------
    scores : array of any shape
        Higher: more likely a member.
    membership : array of booleans, of the same shape
        The truth.

    Returns
    -------
    RocCurve

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, members alone or non-members alone.

    Examples
    --------
    >>> from noshadow import attacks
    >>> curve = attacks.roc([3.0, 2.0, 2.0, 1.0], [True, True, False, False])
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    score, inside = _flat(scores, membership)
    ordered, order = torch.sort(score, descending=True)
    hits = inside[order].to(torch.int64).cumsum(0)
    last = torch.cat([(ordered[1:] != ordered[:-1]).nonzero().flatten(), hits.new_tensor([len(hits) - 1])])
    true_positives = hits[last].to(torch.float64)
    false_positives = (last + 1).to(torch.float64) - true_positives
    return RocCurve(
        fpr=np.r_[0.0, to_numpy(false_positives / false_positives[-1])],
        tpr=np.r_[0.0, to_numpy(true_positives / true_positives[-1])],
        thresholds=np.r_[np.inf, to_numpy(ordered[last])],
    )


def auc(scores: Any, membership: Any) -> float:
    """Area under the ROC curve, P(member > non-member) + ½ P(equal).

    Parameters
    ----------
    scores : array of any shape
        Higher: more likely a member.
    membership : array of booleans, of the same shape
        The truth.

    Returns
    -------
    float
        0.5 is guessing.

    Examples
    --------
    >>> from noshadow import attacks
    >>> attacks.auc([3.0, 2.0, 2.0, 1.0], [True, True, False, False])
    0.875
    """
    return roc(scores, membership).auc


def tpr_at_fpr(scores: Any, membership: Any, fpr: float = 0.01) -> float:
    """Largest true positive rate at a false positive rate of at most ``fpr``.

    Parameters
    ----------
    scores : array of any shape
        Higher: more likely a member.
    membership : array of booleans, of the same shape
        The truth.
    fpr : float
        Between 0 and 1.

    Returns
    -------
    float

    Examples
    --------
    >>> from noshadow import attacks
    >>> attacks.tpr_at_fpr([3.0, 2.0, 2.0, 1.0], [True, True, False, False], fpr=0.1)
    0.5
    """
    return roc(scores, membership).tpr_at_fpr(fpr)


def _flat(scores: Any, membership: Any) -> tuple[Tensor, Tensor]:
    score = as_floats(scores, "scores")
    inside = as_tensor(membership, "membership").to(score.device)
    if score.shape != inside.shape:
        raise InputError(f"membership: shape {tuple(inside.shape)}, but scores has {tuple(score.shape)}")
    if bool(torch.isnan(score).any()):
        raise InputError("scores: NaN cannot be ranked")
    inside = inside.flatten().to(torch.bool)
    if not 0 < int(inside.sum()) < inside.numel():
        raise InputError("membership: a ROC curve needs both members and non-members")
    return score.flatten().to(torch.float64), inside
