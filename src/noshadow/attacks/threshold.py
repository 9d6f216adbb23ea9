"""Attacks that cut one statistic of the target's output: the baselines.

A member is recognised by a low loss (Yeom et al., 2018), by a loss low for its class (Song and Mittal,
2021), by a confident prediction, or by a small gradient. The score is minus the statistic.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from noshadow.attacks.arrays import (
    as_membership,
    attackable,
    column_chunks,
    one_thread,
    require_choice,
    require_finite,
    require_variety,
)
from noshadow.attacks.result import AttackResult, calibrate, conclude, undecided_elsewhere
from noshadow.attacks.signal import check_outputs, outputs_and_targets, require_squarable
from noshadow.errors import InputError
from noshadow.heads import Head
from noshadow.tensors import as_floats

__all__ = ["Statistic", "threshold"]

Statistic = Literal["loss", "class_loss", "entropy", "gradient_norm", "output_gradient_norm"]


@one_thread()
def threshold(
    outputs: Any,
    membership: Any,
    targets: Any,
    head: str,
    statistic: Statistic = "loss",
    *,
    feature_norms: Any = None,
) -> AttackResult:
    """Attack each of K models by a threshold on one statistic, learnt from the rest: the baselines.

    A low loss is Yeom et al. (2018), https://arxiv.org/abs/1709.01604; a loss low for its class is Song and Mittal
    (2021), https://arxiv.org/abs/2003.10595. The score is minus the statistic.

    Parameters
    ----------
    outputs : array (K, N, m), or (K, N) where there is one output
        Logits or predictions of K models for N records.
    membership : array (K, N) of booleans
        Whether the record was in the model's training set.
    targets : array (N,) or (N, q)
        Classes, or values for squared error.
    head : "softmax", "logistic" or "squared"
        The loss that the models were trained with.
    statistic : str
        "loss": one threshold for all records; "class_loss": one per class, the score being the class's threshold minus
        the loss; "entropy": −Σ p log p of the prediction, classes only; "gradient_norm": ‖∂loss/∂θ‖ of the last layer,
        ‖g‖·‖x̃‖, which needs ``feature_norms``; "output_gradient_norm": ‖g‖, g = ∂loss/∂z.
    feature_norms : array (K, N) or (N,), optional
        ‖x̃‖, the norm of the last layer's input, the constant 1 of a bias included.

    Returns
    -------
    AttackResult
        Thresholds are those with the best balanced accuracy over the other K − 1 models, for the decisions without the
        counterparts. ``separation`` is d̂′ of the score before any threshold.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, a statistic that the head does not have.

    Examples
    --------
    >>> import numpy as np
    >>> from noshadow import attacks
    >>> rng = np.random.default_rng(0)
    >>> membership = rng.random((16, 60)) < 0.5
    >>> outputs = rng.normal(size=(16, 60)) * np.where(membership, 0.2, 1.0)
    >>> attacks.threshold(outputs, membership, np.zeros(60), "squared").auc > 0.8
    True
    """
    require_choice("statistic", statistic, get_args(Statistic))
    z, y, kind = check_outputs(outputs, targets, head)
    if z.ndim == 4:
        raise InputError(f"outputs: expected shape (K, N, m), one query per record, got {tuple(z.shape)}")
    if statistic in ("class_loss", "entropy") and not kind.classifies:
        raise InputError(f"statistic: {statistic!r} needs classes; a squared-error head has none")
    if (statistic == "gradient_norm") != (feature_norms is not None):
        raise InputError("feature_norms: needed for statistic='gradient_norm' and for no other")
    n_models, n_records = z.shape[:2]
    inside = as_membership(membership, n_models, n_records).to(z.device)
    norms = None if feature_norms is None else _feature_norms(feature_norms, n_models, n_records).to(z.device)
    known = attackable(inside)
    if not bool(known.all()):
        of_known = None if norms is None else norms[..., known]
        found = threshold(z[:, known], inside[:, known], y[known], head, statistic, feature_norms=of_known)
        return undecided_elsewhere(found, known, inside)
    require_squarable(z, y, kind)
    score = torch.empty((n_models, n_records), dtype=torch.float64, device=z.device)
    for columns in column_chunks(n_records, z[:, 0].numel()):
        score[:, columns] = -_statistic(kind, *outputs_and_targets(z, y, kind, columns), statistic)
    if norms is not None:
        score *= norms
        require_finite(score, "feature_norms")
    require_variety(score, "outputs", f"the {statistic}")
    if statistic != "class_loss":
        return conclude(f"threshold {statistic}", inside, score, score)
    shifted = score.expand(2, -1, -1).clone()
    for label in torch.unique(y):
        records = (y == label).nonzero().flatten()
        for way, fair in enumerate((False, True)):
            shifted[way][:, records] -= calibrate(score[:, records], inside[:, records], fair).unsqueeze(1)
    return conclude(
        f"threshold {statistic}", inside, score, shifted[0], shifted[1], thresholds=score.new_zeros(n_models)
    )


def _statistic(kind: Head, z: Tensor, y: Tensor, statistic: str) -> Tensor:
    if statistic == "entropy":
        return kind.entropy(z)
    if statistic.endswith("gradient_norm"):
        return kind.gradient(z, y).square().sum(-1).sqrt()
    return kind.loss(z, y)


def _feature_norms(values: Any, n_models: int, n_records: int) -> Tensor:
    norms = as_floats(values, "feature_norms").to(torch.float64)
    if tuple(norms.shape) not in ((n_models, n_records), (n_records,)):
        raise InputError(
            f"feature_norms: expected shape ({n_models}, {n_records}) or ({n_records},), got {tuple(norms.shape)}"
        )
    if not bool((torch.isfinite(norms) & (norms >= 0)).all()):
        raise InputError("feature_norms: norms are finite and at least 0")
    return norms
