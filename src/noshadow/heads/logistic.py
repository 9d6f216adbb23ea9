"""Logistic heads: one label, or several independent ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from noshadow.errors import InputError
from noshadow.heads.checks import probabilities, require_class_weight, within_unit_interval
from noshadow.heads.numerics import softplus, softplus_change
from noshadow.heads.protocol import Head, Signal, SignalScale
from noshadow.heads.targets import counted, require_classes
from noshadow.heads.uncoupled import Uncoupled

__all__ = ["Logistic", "MultiLabel"]


class _Binary(Uncoupled):
    """What one label and several have in common: targets are 0 or 1, outputs are logits of 1."""

    name: str = "logistic"
    loss_name = "logistic loss"
    classifies = True
    signal_scale: SignalScale = "logit"

    def for_outputs(self, m: int) -> Head:
        return MultiLabel() if m > 1 else Logistic()

    def n_classes(self, m: int) -> int:
        """Those of each label: 0 and 1."""
        return 2

    def concern(self, z: Tensor, y: Tensor) -> str | None:
        both = bool((y == 0).any()) and bool((y == 1).any())
        return probabilities() if within_unit_interval(z) and both else None

    @staticmethod
    def _labels(y: Tensor, m: int, what: str = "") -> Tensor:
        """(n, m) integers 0 and 1."""
        if y.shape[1] != m:
            several = f"; for one class per record of {m} use head='softmax'" if m > 1 else ""
            raise InputError(
                f"targets: {counted(m, 'logistic output')} need 0/1 targets of shape (n, {m}), got "
                f"{tuple(y.shape)}{several}"
            )
        require_classes(y, 2, what)
        return y.to(torch.int64)


class Logistic(_Binary):
    """One logit z (..., 1), y ∈ {0, 1} (...), s = 2y − 1.

    loss = log(1 + exp(−s z)), g = −s σ(−s z), W = σ(z) σ(−z), φ = s z.
    """

    signals: ClassVar[Mapping[str, Signal]] = {"logit": Signal("higher")}

    @staticmethod
    def _sign(y: Tensor, z: Tensor) -> Tensor:
        return 2.0 * y.to(z.dtype) - 1.0

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return softplus(-self.signal(z, y))

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        s = self._sign(y, z).unsqueeze(-1)
        return -s * torch.sigmoid(-s * z)

    def curvature(self, z: Tensor) -> Tensor:
        return self.packed_curvature(z).unsqueeze(-1)

    def curved(self, z: Tensor, v: Tensor) -> Tensor:
        return self.packed_curvature(z) * v

    def packed_curvature(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return softplus_change(-self.signal(z, y), -self.signal(d, y))

    def signal(self, z: Tensor, y: Tensor, form: str | None = None) -> Tensor:
        return self._sign(y, z) * z.squeeze(-1)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self._sign(y, z).unsqueeze(-1).expand_as(z)

    def signal_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        """s d: φ is linear in z."""
        return self.signal(d, y)

    def attack_features(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss and φ, (..., 2)."""
        return torch.stack([self.loss(z, y), self.signal(z, y)], -1)

    def entropy(self, z: Tensor) -> Tensor:
        return (torch.sigmoid(z) * softplus(-z) + torch.sigmoid(-z) * softplus(z)).squeeze(-1)

    def predicted(self, z: Tensor) -> Tensor:
        return (z > 0).to(torch.int64).squeeze(-1)

    def nearest_class(self, z: Tensor, y: Tensor) -> Tensor:
        """Of two there is one."""
        return 1 - y

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets.to(outputs.dtype))

    def read_targets(self, y: Tensor, m: int) -> Tensor:
        """(n,) integers 0 and 1."""
        return self._labels(y, m).squeeze(1)

    def read_class_weight(self, weights: Tensor, m: int) -> Tensor:
        """(2,) the weights of 0 and of 1 in float64."""
        w = weights.to(torch.float64)
        return require_class_weight(w.reshape(-1) if w.ndim == 2 else w, (2,), weights)


class MultiLabel(_Binary):
    """Several labels per record, each a logistic head of its own: logits z (..., m), y ∈ {0, 1} (..., m).

    loss = Σₖ log(1 + exp(−sₖ zₖ)), gₖ = −sₖ σ(−sₖ zₖ), W = diag(σ(zₖ) σ(−zₖ)).
    """

    signals: ClassVar[Mapping[str, Signal]] = {}
    _label = Logistic()

    def parts(self, m: int) -> int:
        """Number of independent Hessians: one per label."""
        return m

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return self._label.loss(z.unsqueeze(-1), y).sum(-1)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self._label.gradient(z.unsqueeze(-1), y).squeeze(-1)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.diag_embed(self.packed_curvature(z))

    def curved(self, z: Tensor, v: Tensor) -> Tensor:
        return self._label.curved(z, v)

    def packed_curvature(self, z: Tensor) -> Tensor:
        """One number per label, (..., m)."""
        return self._label.packed_curvature(z)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return self._label.loss_change(z.unsqueeze(-1), y, d.unsqueeze(-1)).sum(-1)

    def signal(self, z: Tensor, y: Tensor, form: str | None = None) -> NoReturn:
        raise InputError("head: a multi-label head has no single attack statistic; attack its labels one at a time")

    def signal_gradient(self, z: Tensor, y: Tensor) -> NoReturn:
        self.signal(z, y)

    def signal_change(self, z: Tensor, y: Tensor, d: Tensor) -> NoReturn:
        self.signal(z, y)

    def attack_features(self, z: Tensor, y: Tensor) -> NoReturn:
        self.signal(z, y)

    def entropy(self, z: Tensor) -> Tensor:
        return self._label.entropy(z.unsqueeze(-1)).sum(-1)

    def predicted(self, z: Tensor) -> Tensor:
        return self._label.predicted(z.unsqueeze(-1))

    def nearest_class(self, z: Tensor, y: Tensor) -> None:
        """Labels are independent of each other."""

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none")
        return each.sum(-1).mean()

    def read_targets(self, y: Tensor, m: int) -> Tensor:
        """(n, m) integers 0 and 1."""
        return self._labels(y, m, f" for each of {m} labels (head='logistic' with several outputs)")

    def read_class_weight(self, weights: Tensor, m: int) -> Tensor:
        """(m, 2) the weights of 0 and of 1 of each label in float64; a single pair is that of every label."""
        w = weights.to(torch.float64)
        return require_class_weight(w.expand(m, -1) if w.ndim == 2 and len(w) == 1 else w, (m, 2), weights)
