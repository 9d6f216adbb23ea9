"""What the loss of each record was multiplied by in training.

The objective is Σᵢ sᵢ ℓ_w(zᵢ, yᵢ) + Λ/2 ‖θ‖², with a weight sᵢ per record and class weights w inside the loss:

    softmax      −Σₖ qₖ log pₖ,  q = (1−ε) w_y e_y + (ε/m) w   torch's CrossEntropyLoss(weight=w, label_smoothing=ε)
    logistic     w_y log(1 + exp(−s z))                        w = (weight of 0, weight of 1)
    multi-label  Σₖ w[k, yₖ] log(1 + exp(−sₖ zₖ))              BCEWithLogitsLoss: w[k] = weightₖ · (1, pos_weightₖ)
    squared      no classes, no class weights

so that the curvature of a record is its plain W times one number, its weight: sᵢ Σq, sᵢ w_y, or sᵢ w[k, yₖ] per label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows

__all__ = ["check_sample_weight", "no_weight", "record_weights", "weights_of_classes"]


def check_sample_weight(weights: Tensor, n: int) -> Tensor:
    """(n,) finite weights ≥ 0 in float64; a record of weight 0 took no part in training."""
    w = weights.squeeze(1) if weights.ndim == 2 and weights.shape[1] == 1 else weights
    if tuple(w.shape) != (n,):
        raise InputError(f"sample_weight: expected a weight per record, shape ({n},), got {tuple(weights.shape)}")
    w = w.to(torch.float64)
    bad = (~torch.isfinite(w)).nonzero().flatten().tolist()
    if bad:
        raise InputError(f"sample_weight: NaN or infinite in {name_rows(bad)} (counted from 0); pass finite weights")
    bad = (w < 0).nonzero().flatten().tolist()
    if bad:
        raise InputError(
            f"sample_weight: negative in {name_rows(bad)} (counted from 0); weights are ≥ 0, and 0 for a record that "
            "took no part in training"
        )
    return w


def weights_of_classes(class_weight: Mapping[Any, Any], classes: Any) -> list[float]:
    """A mapping from label to weight as a list in the order of the classes; a class that is not named has weight 1."""
    order = list(classes)
    unknown = [label for label in class_weight if label not in order]
    if unknown:
        raise InputError(f"class_weight: {unknown[0]!r} is not a class of the model; its classes are {order}")
    return [float(class_weight.get(label, 1.0)) for label in order]


def record_weights(
    targets: Tensor, sample_weight: Tensor | None, class_weight: Tensor | None, label_smoothing: float
) -> Tensor | None:
    """What the curvature of each record, or of each of its labels, is multiplied by: (n, 1) or (n, m); None: by 1.

    targets are those of a LastLayer: classes (n,), labels (n, m) or values.
    """
    weight: Tensor | None = None
    if class_weight is not None:
        w = class_weight.to(targets.device)
        if w.ndim == 2:
            labels = torch.arange(len(w), device=targets.device)
            weight = w[labels, targets]
        else:
            weight = ((1.0 - label_smoothing) * w[targets] + label_smoothing * w.mean()).unsqueeze(1)
    if sample_weight is not None:
        own = sample_weight.to(targets.device).unsqueeze(1)
        weight = own if weight is None else own * weight
    return weight


def no_weight() -> InputError:
    """The error for weights of which none is positive."""
    return InputError("sample_weight, class_weight: they are 0 for every record, so that none took part in training")
