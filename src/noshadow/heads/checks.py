"""What heads check alike: class weights, and probabilities in the place of logits."""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.errors import InputError

__all__ = ["probabilities", "require_class_weight", "within_unit_interval"]


def require_class_weight(weights: Tensor, shape: tuple[int, ...], given: Tensor) -> Tensor:
    """Finite weights ≥ 0 of that shape, or an error in terms of what was ``given``."""
    if tuple(weights.shape) != shape:
        meaning = "a weight per class" if len(shape) == 1 else "the weights of 0 and of 1 for each label"
        raise InputError(f"class_weight: expected {meaning}, shape {shape}, got {tuple(given.shape)}")
    bad = (~torch.isfinite(weights) | (weights < 0)).nonzero()
    if len(bad):
        which = "label" if weights.ndim == 2 else "class"
        found = float(weights[tuple(bad[0])])
        raise InputError(
            f"class_weight: expected finite weights ≥ 0, got {found:g} for {which} {int(bad[0, 0])} (counted from 0)"
        )
    return weights


def within_unit_interval(z: Tensor) -> bool:
    """All outputs within [0, 1], as probabilities are."""
    return not (bool((z < 0).any()) or bool((z > 1).any()))


def probabilities(sign: str = "") -> str:
    """Probabilities in the place of logits give plausible but wrong numbers: the sentence that says so."""
    return (
        f"outputs: these look like probabilities (all within [0, 1]{sign}); noshadow needs logits. Pass the outputs of "
        "the last linear layer, before softmax or sigmoid: probabilities saturate and tie where logits tell records "
        "apart"
    )
