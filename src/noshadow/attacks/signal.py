"""From the outputs of K models to one number per model and record: what the attacks look at."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from noshadow.attacks.arrays import (
    Floats,
    column_chunks,
    one_thread,
    require_choice,
    require_finite,
    to_numpy,
)
from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.heads import Head, get_head
from noshadow.targets import require_classes
from noshadow.tensors import as_floats, as_tensor

__all__ = ["SQUARABLE", "VARIANTS", "check_outputs", "outputs_and_targets", "require_squarable", "signal"]

VARIANTS = {
    "softmax": ("logit",),
    "logistic": ("logit",),
    "squared": ("loss", "log_loss", "signed_residual"),
}

SQUARABLE = 1e150  # residuals up to here have squares, and sums of squares, that floats can hold


@one_thread()
def signal(outputs: Any, targets: Any, head: str, variant: str | None = None) -> Floats:
    r"""The attack signal φ: one number per model and record, from the outputs of K models.

    .. math::

        \varphi = z_y - \log \sum_{k \ne y} e^{z_k} \quad\text{(softmax)}, \qquad
        \varphi = \pm z \quad\text{(logistic)}, \qquad
        \varphi = \lVert y - \hat y \rVert^2 \quad\text{(squared)}

    computed from logits, never through probabilities, which saturate. The softmax signal is the scaled confidence of
    Carlini et al. (2022), https://arxiv.org/abs/2112.03570.

    Parameters
    ----------
    outputs : array (K, N, m) or (K, N, A, m)
        Logits or predictions of K models for N records, with A augmented queries per record; (K, N) where there is one
        output (logistic, squared).
    targets : array (N,) or (N, q)
        Classes, or values for squared error.
    head : "softmax", "logistic" or "squared"
        The loss that the models were trained with.
    variant : str, optional
        Squared error: "loss" ‖y − ŷ‖² (the default), "log_loss" its logarithm, "signed_residual" y − ŷ (one output
        only).

    Returns
    -------
    ndarray (K, N) or (K, N, A), float64
        Logit signals, in nats, are higher on members; losses, in squared units of the target, lower. A signed residual
        has no common direction: use it with LiRA online, which learns the direction of every record, and
        ``members="either"``.

    Raises
    ------
    InputError
        Shapes that do not fit, values that are not finite, classes that are none.

    Examples
    --------
    >>> from noshadow import attacks
    >>> attacks.signal([[[2.0, 0.0]], [[-1.0, 1.0]]], [0], "softmax").tolist()
    [[2.0], [-2.0]]
    """
    z, y, kind = check_outputs(outputs, targets, head)
    choice = VARIANTS[kind.name][0] if variant is None else variant
    require_choice("variant", choice, VARIANTS[kind.name])
    if choice == "signed_residual" and z.shape[-1] != 1:
        raise InputError(f"variant: 'signed_residual' needs one output per record, got {z.shape[-1]}")
    if choice != "signed_residual":
        require_squarable(z, y, kind)
    phi = torch.empty(z.shape[:-1], dtype=torch.float64, device=z.device)
    for columns in column_chunks(z.shape[1], z[:, 0].numel()):
        part, truth = outputs_and_targets(z, y, kind, columns)
        phi[:, columns] = _variant(kind, part, truth, choice)
    return to_numpy(phi)


def _variant(kind: Head, z: Tensor, y: Tensor, variant: str) -> Tensor:
    if variant == "signed_residual":
        return (y - z).squeeze(-1)
    phi = kind.signal(z, y)
    # a residual of exactly zero has the smallest loss that has a logarithm
    return phi.clamp_min(torch.finfo(phi.dtype).tiny).log() if variant == "log_loss" else phi


def outputs_and_targets(z: Tensor, y: Tensor, kind: Head, columns: slice) -> tuple[Tensor, Tensor]:
    """Outputs of some records in float64, (K, c, …, m), and their targets spread over models and queries."""
    part = z[:, columns].to(torch.float64)
    truth = y[columns]
    queries = part.ndim - 3
    if kind.classifies:
        return part, truth.reshape(1, -1, *[1] * queries).expand(part.shape[:-1])
    return part, truth.reshape(1, truth.shape[0], *[1] * queries, truth.shape[1])


def require_squarable(z: Tensor, y: Tensor, kind: Head) -> None:
    """Residuals of a squared-error head whose squares neither overflow nor vanish, all of them together."""
    if kind.name != "squared":
        return
    largest = z.new_zeros(z.shape[1], dtype=torch.float64)
    for columns in column_chunks(z.shape[1], z[:, 0].numel()):
        part, truth = outputs_and_targets(z, y, kind, columns)
        largest[columns] = (part / 2.0 - truth / 2.0).abs().flatten(2).amax((0, 2)) * 2.0
    row = int(largest.argmax())
    if not (largest[row] == 0.0 or 1.0 / SQUARABLE < float(largest[row]) < SQUARABLE):
        raise InputError(
            f"outputs: residuals up to {float(largest[row]):g}, in row {row} (counted from 0), cannot be squared; "
            "divide outputs and targets by a number of that size"
        )


def check_outputs(outputs: Any, targets: Any, head: str) -> tuple[Tensor, Tensor, Head]:
    """Outputs (K, N, …, m), targets (N,) classes or (N, q) values, and the head, all fitting each other."""
    kind = get_head(head)
    z = as_floats(outputs, "outputs")
    if z.ndim == 2 and kind.name != "softmax":
        z = z.unsqueeze(-1)
    if z.ndim not in (3, 4) or 0 in z.shape:
        raise InputError(
            f"outputs: expected shape (K, N, m) or (K, N, A, m), models by records by outputs, got {tuple(z.shape)}"
        )
    m = z.shape[-1]
    if kind.name == "logistic" and m != 1:
        raise InputError(
            f"outputs: a logistic head has one logit, got {m}; use head='softmax' for class logits, shape (K, N, A, 1) "
            "for several queries per record, and attack several labels one at a time: outputs[:, :, k], targets[:, k]"
        )
    if kind.name == "softmax" and m < 2:
        raise InputError("outputs: a softmax head has two logits or more, got 1; use head='logistic'")
    require_finite(z, "outputs")
    y = _classes(targets, z, kind) if kind.classifies else _values(targets, z)
    if kind.name == "softmax" and bool((z[0] >= 0).all()) and bool(((z[0].sum(-1) - 1).abs() < 5e-3).all()):
        warnings.warn(
            "outputs: these look like probabilities (rows sum to 1); pass the logits, from before the "
            "softmax: probabilities saturate and tie where the attack needs to tell records apart",
            NoshadowWarning,
            stacklevel=4,  # past the attack and its thread guard, to the caller
        )
    return z, y.to(z.device), kind


def _classes(targets: Any, z: Tensor, kind: Head) -> Tensor:
    y = as_tensor(targets, "targets")
    if y.ndim != 1 or y.shape[0] != z.shape[1]:
        raise InputError(f"targets: expected classes of shape ({z.shape[1]},), got {tuple(y.shape)}")
    n_classes = 2 if kind.name == "logistic" else z.shape[-1]
    require_classes(y.to(torch.float64).unsqueeze(1), n_classes)
    return y.to(torch.int64)


def _values(targets: Any, z: Tensor) -> Tensor:
    y = as_floats(targets, "targets").to(torch.float64)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    if tuple(y.shape) != (z.shape[1], z.shape[-1]):
        raise InputError(
            f"targets: expected values of shape ({z.shape[1]}, {z.shape[-1]}), those of a record's outputs, "
            f"got {tuple(y.shape)}"
        )
    rows = (~torch.isfinite(y)).any(1).nonzero().flatten().tolist()
    if rows:
        raise InputError(f"targets: NaN or infinite in {name_rows(rows)} (counted from 0); drop those records")
    return y
