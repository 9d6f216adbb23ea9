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
from noshadow.errors import InputError, NoshadowWarning
from noshadow.heads import Head, get_head, make_head
from noshadow.heads.targets import check_targets
from noshadow.tensors import as_floats, as_tensor

__all__ = ["SQUARABLE", "check_outputs", "outputs_and_targets", "require_squarable", "signal"]

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
    targets : array (N,), (N, m) or (N, q)
        Classes, or one-hot rows; values for squared error.
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
    choice = next(iter(kind.signals)) if variant is None else variant
    require_choice("variant", choice, tuple(kind.signals))
    if kind.signals[choice].squares:
        require_squarable(z, y, kind)
    phi = torch.empty(z.shape[:-1], dtype=torch.float64, device=z.device)
    for columns in column_chunks(z.shape[1], z[:, 0].numel()):
        part, truth = outputs_and_targets(z, y, kind, columns)
        phi[:, columns] = kind.signal(part, truth, choice)
    return to_numpy(phi)


def outputs_and_targets(z: Tensor, y: Tensor, kind: Head, columns: slice) -> tuple[Tensor, Tensor]:
    """Outputs of some records in float64, (K, c, …, m), and their targets spread over models and queries."""
    part = z[:, columns].to(torch.float64)
    truth = y[columns]
    queries = part.ndim - 3
    if kind.classifies:
        return part, truth.reshape(1, -1, *[1] * queries).expand(part.shape[:-1])
    return part, truth.reshape(1, truth.shape[0], *[1] * queries, truth.shape[1])


def require_squarable(z: Tensor, y: Tensor, kind: Head) -> None:
    """Residuals of values whose squares neither overflow nor vanish, all of them together; classes have none."""
    if kind.classifies:
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
    z = as_floats(outputs, "outputs")
    if z.ndim == 2 and get_head(head).fewest_outputs == 1:
        z = z.unsqueeze(-1)
    if z.ndim not in (3, 4) or 0 in z.shape:
        raise InputError(
            f"outputs: expected shape (K, N, m) or (K, N, A, m), models by records by outputs, got {tuple(z.shape)}"
        )
    m = z.shape[-1]
    kind = make_head(head, m)
    if not kind.signals:
        raise InputError(
            f"outputs: a {kind.name} head has one logit, got {m}; use head='softmax' for class logits, shape "
            "(K, N, A, 1) for several queries per record, and attack several labels one at a time: outputs[:, :, k], "
            "targets[:, k]"
        )
    kind.check_width(m)
    require_finite(z, "outputs")
    y = check_targets(kind, as_tensor(targets, "targets"), z.shape[1], m, "outputs").to(z.device)
    concern = kind.concern(z[0], y)
    if concern is not None:
        warnings.warn(concern, NoshadowWarning, stacklevel=4)  # past the attack and its thread guard, to the caller
    return z, y, kind
