"""Targets: which forms there are, and the one form that each head works with.

Targets come as classes, one-hot rows, several 0/1 labels per record, ±1 labels, soft labels or values. What a head
cannot take is refused with the heads that could: the wrong head gives plausible numbers that mean nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.heads.protocol import Head

__all__ = ["MULTI_LABEL", "SQUARED", "Form", "check_targets", "counted", "form_of", "require_classes"]

Form = Literal["one-hot", "multi-hot", "0/1", "±1", "soft", "shares", "values"]
"""one-hot    rows of 0 and a single 1                       multi-hot  rows of 0 and 1, any number of ones
0/1        one column of 0 and 1                          ±1         −1 and 1 only
soft       rows of shares that add up to 1, not one-hot   shares     numbers within [0, 1], not all of them 0 or 1
values     anything else"""

MULTI_LABEL = "head='logistic' for independent labels (binary cross-entropy)"
SQUARED = "head='squared' for a squared error (MSE)"


def form_of(targets: Tensor) -> Form:
    """The form of targets (n,) or (n, q), by their values alone."""
    y = targets.to(torch.float64)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    if bool(((y == 0) | (y == 1)).all()):
        if y.shape[1] == 1:
            return "0/1"
        return "one-hot" if bool((y.sum(1) == 1).all()) else "multi-hot"
    if bool((y.abs() == 1).all()):
        return "±1"
    if bool(((y >= 0) & (y <= 1)).all()):
        return "soft" if y.shape[1] > 1 and bool(((y.sum(1) - 1).abs() < 1e-3).all()) else "shares"
    return "values"


def check_targets(head: Head, targets: Tensor, n: int, m: int, beside: str = "features") -> Tensor:
    """The targets of n records with m outputs in the form that the head works with; ``beside`` has the n records.

    squared   (n, m) values in float64
    softmax   (n,) classes 0 … m−1; one-hot rows (n, m) are turned into them
    logistic  (n,) 0 or 1 for one output, (n, m) for m labels
    """
    y = targets.unsqueeze(1) if targets.ndim == 1 else targets
    if y.ndim != 2:
        raise InputError(f"targets: expected shape (n,) or (n, m), got {tuple(y.shape)}")
    if y.shape[0] != n:
        raise InputError(f"targets: {y.shape[0]} rows, but {beside} has {n}; they must be the same records")
    if y.is_complex():
        raise InputError(f"targets: expected real numbers, got {y.dtype}")
    return head.read_targets(y, m)


def require_classes(y: Tensor, n_classes: int, what: str = "") -> None:
    """Whole numbers 0 … n_classes − 1 in every entry."""
    if y.dtype == torch.bool:
        return
    if not y.is_floating_point():  # in 8 bits 300 would be 44
        y = y.to(torch.int64)
    inside = torch.isfinite(y) & (y >= 0) & (y < n_classes) & (y == y.floor())
    bad = (~inside).any(1).nonzero().flatten().tolist()
    if bad:
        found = y[bad[0]][~inside[bad[0]]][0].item()
        hint = " (map −1 to 0)" if n_classes == 2 and found == -1 else ""
        ignored = "; torch leaves such records out of training, so leave them out of data" if found == -100 else ""
        raise InputError(
            f"targets: expected classes 0 … {n_classes - 1}{what}{hint}, got {found:g} in {name_rows(bad)} "
            f"(counted from 0){ignored}"
        )


def counted(number: int, what: str) -> str:
    """``1 column`` or ``3 columns``."""
    return f"{number} {what}" + ("" if number == 1 else "s")
