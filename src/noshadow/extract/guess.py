"""Which head the outputs and the targets of a model imply, where they imply one."""

from __future__ import annotations

from torch import Tensor

from noshadow.errors import InputError


def guess_head(outputs: Tensor, targets: Tensor) -> str:
    """ "softmax" or "squared" where outputs (n, m) and targets leave no doubt; otherwise the user is asked.

    m > 1   classes (n,) and one-hot rows (n, m): softmax; other values (n, m): squared
    m = 1   values that are not all 0/1 or ±1: squared
    """
    y = targets.squeeze(1) if targets.ndim == 2 and targets.shape[1] == 1 else targets
    m = outputs.shape[1]
    if m == 1:
        if _within(y, (0, 1)) or _within(y, (-1, 1)):
            raise _unclear(
                f"one output and targets that are all {'0 or 1' if _within(y, (0, 1)) else '−1 or 1'}",
                "'logistic' (a binary classifier, targets 0 and 1) or 'squared' (a least-squares fit)",
            )
        return "squared"
    if y.ndim == 1:
        return "softmax"
    if is_one_hot(y):
        return "softmax"
    if _within(y, (0, 1)):
        raise _unclear(
            f"{m} outputs and a matrix of 0/1 targets",
            "'logistic' (a yes or no for each label) or 'squared' (a least-squares fit)",
        )
    if bool((y >= 0).all()) and bool(((y.double().sum(1) - 1).abs() < 1e-3).all()):
        raise _unclear(
            f"{m} outputs and targets whose rows are probabilities (soft labels)",
            "'squared' for a least-squares fit, or pass the hard labels with 'softmax'",
        )
    return "squared"


def is_one_hot(targets: Tensor) -> bool:
    """Rows of zeros with a single one."""
    return targets.ndim == 2 and _within(targets, (0, 1)) and bool((targets.double().sum(1) == 1).all())


def _within(values: Tensor, allowed: tuple[int, int]) -> bool:
    return bool(((values == allowed[0]) | (values == allowed[1])).all())


def _unclear(found: str, choices: str) -> InputError:
    return InputError(f"head: {found} do not tell how the model was trained; pass head=, {choices}")
