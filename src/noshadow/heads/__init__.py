"""The last layers: squared error, logistic (one label or several), softmax (plain or with smoothed labels).

All that depends on the head is here: nothing outside asks what a head is called. Each head knows, for outputs ``z`` of
shape (..., m) and targets ``y``:

* ``loss(z, y)`` (...), the training loss of a record;
* ``gradient(z, y)`` (..., m), g = ∂loss/∂z;
* ``curvature(z)`` (..., m, m), W = ∂²loss/∂z²;
* ``curved(z, v)`` (..., m), the product W v, without W;
* ``signal(z, y)`` (...), φ, the statistic that a membership attack looks at; ``signals`` has its other forms;
* ``signal_gradient(z, y)`` (..., m), ∂φ/∂z;
* ``loss_change(z, y, d)`` (...), loss(z + d) − loss(z) without the cancellation of that difference;
* ``signal_change(z, y, d)`` (...), φ(z + d) − φ(z), in the same way;
* ``attack_features(z, y)`` (..., d), what a classifier that attacks reads of an output;
* ``training_loss(z, y)``, the mean loss of a batch as torch computes it, in the precision of the outputs.

Any leading dimensions are allowed, so that (models, records, m) works as (records, m) does.

The Hessian of a head over the records is Σ x xᵀ ⊗ W. Softmax curvature is singular along the direction in
which all logits move together, so the curvature code works in coordinates of the complement of that
direction: ``reduce`` maps an output-space vector to them and ``packed_curvature`` gives W there, as its upper
triangle. Squared error and logistic need no reduction: their curvature is one number per record. Independent labels
have one number, and one Hessian, each: ``parts`` says how many.

Everything is float64 and accurate in the *relative* sense for saturated outputs: differences like 1 − p are
summed from the small terms, never subtracted, so that logits of ±1e4 lose nothing.

A head also checks what belongs to it: how many outputs, which targets (``noshadow.heads.targets.check_targets``),
which class weights, and outputs that look like something else than logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noshadow.errors import InputError
from noshadow.heads.logistic import Logistic
from noshadow.heads.protocol import Head, Signal, SignalScale, default_signal
from noshadow.heads.softmax import Softmax, complement_basis
from noshadow.heads.squared import SquaredError

__all__ = ["HEADS", "Head", "Signal", "SignalScale", "complement_basis", "default_signal", "get_head", "make_head"]

HEADS: dict[str, Head] = {head.name: head for head in (SquaredError(), Logistic(), Softmax())}


def get_head(name: str) -> Head:
    """The head of that name, or an error that lists the names."""
    if name not in HEADS:
        raise InputError(f"head: {name!r} is not a head; use one of {', '.join(map(repr, HEADS))}")
    return HEADS[name]


def make_head(name: str, outputs: int, label_smoothing: float = 0.0, class_weight: Tensor | None = None) -> Head:
    """The head of that name for so many outputs: one logistic head per label, a softmax of smoothed labels.

    Class weights (m,) tilt the target of smoothed labels (``Softmax.smoothed``). Without smoothing they do not change
    the target, and the head is the plain one.
    """
    head = get_head(name).for_outputs(outputs)
    if label_smoothing == 0.0:
        return head
    w = torch.ones(outputs, dtype=torch.float64) if class_weight is None else class_weight
    return head.smoothed(label_smoothing, w)
