"""Squared error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from noshadow.errors import InputError, name_rows
from noshadow.heads.numerics import floored_log
from noshadow.heads.protocol import Head, Signal, SignalScale
from noshadow.heads.targets import counted
from noshadow.heads.uncoupled import Uncoupled

__all__ = ["SquaredError"]


class SquaredError(Uncoupled):
    """loss = ‖y − z‖² (not halved), g = 2(z − y), W = 2I, φ = loss. z and y: (..., q).

    Other forms of φ are its logarithm and, for one output, the signed residual y − z.
    """

    name: str = "squared"
    loss_name = "squared error"
    classifies = False
    quadratic = True
    signals: ClassVar[Mapping[str, Signal]] = {
        "loss": Signal("lower", squares=True),
        "log_loss": Signal("lower", squares=True),
        "signed_residual": Signal("either"),
    }
    signal_scale: SignalScale = "loss"

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return (z - y).square().sum(-1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (z - y)

    def curvature(self, z: Tensor) -> Tensor:
        identity = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
        return (2.0 * identity).expand(*z.shape, z.shape[-1])

    def curved(self, z: Tensor, v: Tensor) -> Tensor:
        return 2.0 * v

    def packed_curvature(self, z: Tensor) -> Tensor:
        return z.new_full((*z.shape[:-1], 1), 2.0)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return (d * (self.gradient(z, y) + d)).sum(-1)

    def signal(self, z: Tensor, y: Tensor, form: str | None = None) -> Tensor:
        if form == "signed_residual":
            if z.shape[-1] != 1:
                raise InputError(f"variant: 'signed_residual' needs one output per record, got {z.shape[-1]}")
            return (y - z).squeeze(-1)
        return floored_log(self.loss(z, y)) if form == "log_loss" else self.loss(z, y)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self.gradient(z, y)

    def signal_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return self.loss_change(z, y, d)

    def attack_features(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss and its logarithm, the residuals, the predictions, (..., 2 + 2q)."""
        loss = self.loss(z, y).unsqueeze(-1)
        return torch.cat([loss, floored_log(loss), z - y, z], -1)

    def entropy(self, z: Tensor) -> Tensor:
        raise InputError("scores: 'entropy' needs class probabilities; a squared-error head has none")

    def predicted(self, z: Tensor) -> Tensor:
        raise InputError("head: a squared-error head predicts values, its outputs, and no classes")

    def nearest_class(self, z: Tensor, y: Tensor) -> None:
        """Values are no classes."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().sum(-1).mean()

    def for_outputs(self, m: int) -> Head:
        return self

    def read_targets(self, y: Tensor, m: int) -> Tensor:
        """(n, m) finite values in float64."""
        if y.shape[1] != m:
            given, wanted = counted(y.shape[1], "value"), counted(m, "column")
            raise InputError(f"targets: {given} per record, but outputs has {wanted}")
        bad = (~torch.isfinite(y)).any(1).nonzero().flatten().tolist()
        if bad:
            raise InputError(
                f"targets: NaN or infinite in {name_rows(bad)} (counted from 0); drop those records before training "
                "and auditing"
            )
        return y.to(torch.float64)

    def read_class_weight(self, weights: Tensor, m: int) -> NoReturn:
        raise InputError("class_weight: a squared-error head has no classes; pass sample_weight=, a weight per record")

    def n_classes(self, m: int) -> int:
        """None: the targets are values."""
        return 0

    def concern(self, z: Tensor, y: Tensor) -> None:
        """Predictions of any size are as good as others."""
