"""Softmax heads: one class of several, plain or with smoothed labels."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from noshadow.errors import InputError, name_rows
from noshadow.heads.checks import probabilities, require_class_weight, within_unit_interval
from noshadow.heads.numerics import HARMLESS, softplus, softplus_change
from noshadow.heads.protocol import Head, Signal, SignalScale
from noshadow.heads.targets import MULTI_LABEL, SQUARED, form_of, require_classes
from noshadow.triangles import packed_outer, packed_size

__all__ = ["TOP", "SmoothedSoftmax", "Softmax", "complement_basis"]

TOP = 5  # sorted log-probabilities that attacking classifiers read; φ and the entropy sum up the rest


class Softmax:
    """m ≥ 2 logits z (..., m), y ∈ {0, …, m−1} (...), p = softmax(z).

    φ = z_y − logsumexp(z_others), loss = log(1 + exp(−φ)), g = p − e_y, W = diag(p) − p pᵀ.
    With t = argmax z and the small vector d = e_t − p, W = −diag(d) + e_t dᵀ + d e_tᵀ − d dᵀ.
    """

    name: str = "softmax"
    loss_name = "cross-entropy"
    classifies = True
    quadratic = False
    fewest_outputs = 2
    signals: ClassVar[Mapping[str, Signal]] = {"logit": Signal("higher")}
    signal_scale: SignalScale = "logit"
    mean_weighs_classes = True

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return softplus(-self.signal(z, y))

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return -_deficit(torch.softmax(z, -1), y.unsqueeze(-1))

    def curvature(self, z: Tensor) -> Tensor:
        d, top = self._top_deficit(z)
        e = torch.zeros_like(d).scatter_(-1, top, 1.0)
        v = e - 0.5 * d
        outer = v.unsqueeze(-1) * d.unsqueeze(-2)
        return outer + outer.transpose(-1, -2) - torch.diag_embed(d)

    def curved(self, z: Tensor, v: Tensor) -> Tensor:
        d, top = self._top_deficit(z)
        along = (d * v).sum(-1, keepdim=True)
        own = v.gather(-1, top)
        return (d * (own - along - v)).scatter_add(-1, top, along)

    def packed_curvature(self, z: Tensor) -> Tensor:
        """Upper triangle of QᵀWQ, (..., r(r+1)/2): one GEMM with the packed qₖqₖᵀ and one symmetric outer product."""
        basis = complement_basis(z.shape[-1]).to(z)
        d, top = self._top_deficit(z)
        small = d @ basis
        v = basis[top.squeeze(-1)] - 0.5 * small
        table = packed_outer(basis.T).T  # (m, r(r+1)/2)
        r = basis.shape[1]
        flat_v, flat_small = v.reshape(-1, r).T, small.reshape(-1, r).T
        packed = d.new_empty((packed_size(r), flat_v.shape[1]))
        torch.matmul(table.T, d.reshape(-1, z.shape[-1]).T, out=packed).neg_()
        start = 0
        for a in range(r):
            stop = start + r - a
            packed[start:stop].addcmul_(flat_v[a], flat_small[a:]).addcmul_(flat_small[a], flat_v[a:])
            start = stop
        return packed.T.reshape(*z.shape[:-1], -1)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        """Of log(1 + exp(−φ))."""
        margins = self._margins(z, y)
        return softplus_change(torch.logsumexp(margins, -1), self._rise(margins, y, d))

    def signal(self, z: Tensor, y: Tensor, form: str | None = None) -> Tensor:
        return -torch.logsumexp(self._margins(z, y), -1)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        others = torch.softmax(self._margins(z, y), -1)
        return -others.scatter_(-1, y.unsqueeze(-1), -1.0)

    def signal_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return -self._rise(self._margins(z, y), y, d)

    def attack_features(self, z: Tensor, y: Tensor) -> Tensor:
        """The loss, φ, the entropy and the ``TOP`` largest log-probabilities in descending order, (..., 3 + TOP)."""
        top = torch.log_softmax(z, -1).topk(min(TOP, z.shape[-1]), -1).values
        return torch.cat([torch.stack([self.loss(z, y), self.signal(z, y), self.entropy(z)], -1), top], -1)

    def entropy(self, z: Tensor) -> Tensor:
        d, top = self._top_deficit(z)
        log_p = torch.log_softmax(z, -1)
        log_p.scatter_(-1, top, torch.log1p(-d.gather(-1, top)))
        return -(torch.exp(log_p) * log_p).sum(-1)

    def width(self, m: int) -> int:
        """Number of coupled output coordinates: the complement of the all-equal direction."""
        return m - 1

    def parts(self, m: int) -> int:
        """Number of independent Hessians: one, which couples the classes."""
        return 1

    def reduce(self, v: Tensor) -> Tensor:
        return v @ complement_basis(v.shape[-1]).to(v)

    def expand(self, v: Tensor) -> Tensor:
        return v @ complement_basis(v.shape[-1] + 1).to(v).T

    def predicted(self, z: Tensor) -> Tensor:
        return z.argmax(-1)

    def nearest_class(self, z: Tensor, y: Tensor) -> Tensor:
        return self._margins(z, y).argmax(-1)

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def terms(self, m: int) -> int:
        """What torch's mean of the loss counts per record: the record."""
        return 1

    def for_outputs(self, m: int) -> Head:
        return self

    def smoothed(self, label_smoothing: float, class_weight: Tensor) -> Head:
        """Class weights w (m,) tilt the target, as torch's CrossEntropyLoss has it: the loss of a record is that of
        q = (1−ε) w_y e_y + (ε/m) w, which is Σq times the cross-entropy to t = q/Σq. Σq is not part of the head: it is
        a weight of the record."""
        mean = class_weight.mean()
        own = (1.0 - label_smoothing) * class_weight + label_smoothing * mean
        return SmoothedSoftmax(label_smoothing * mean / own, class_weight / class_weight.sum())

    def check_width(self, m: int) -> None:
        if m < self.fewest_outputs:
            raise InputError(
                f"outputs: a softmax head has two logits or more, one for each class, got {m}; use head='logistic'"
            )

    def read_targets(self, y: Tensor, m: int) -> Tensor:
        """(n,) integers 0 … m−1."""
        if y.shape[1] == 1:
            require_classes(y, m)
            return y.squeeze(1).to(torch.int64)
        if y.shape[1] != m:
            raise InputError(f"targets: expected classes of shape (n,), or one-hot (n, {m}), got {tuple(y.shape)}")
        if form_of(y) != "one-hot":
            raise _no_class(y, m)
        return y.to(torch.int64).argmax(1)

    def read_class_weight(self, weights: Tensor, m: int) -> Tensor:
        """(m,) a weight per class in float64."""
        return require_class_weight(weights.to(torch.float64), (m,), weights)

    def n_classes(self, m: int) -> int:
        return m

    def concern(self, z: Tensor, y: Tensor) -> str | None:
        sums_to_one = within_unit_interval(z) and bool(((z.sum(-1) - 1).abs() < 5e-3).all())
        return probabilities(", rows sum to 1") if sums_to_one else None

    @staticmethod
    def _margins(z: Tensor, y: Tensor) -> Tensor:
        """z − z_y with the true class masked out."""
        index = y.unsqueeze(-1)
        return (z - z.gather(-1, index)).scatter_(-1, index, -torch.inf)

    @staticmethod
    def _rise(margins: Tensor, y: Tensor, d: Tensor) -> Tensor:
        """By how much −φ rises: log Σ qₖ exp(dₖ − d_y) over the other classes, q their softmax.

        Beside the strongest rival's own step it is log(1 + Σ qₖ (exp(dₖ − d_rival) − 1)), where log1p is never near −1.
        """
        index, rival = y.unsqueeze(-1), margins.argmax(-1, keepdim=True)
        apart = (d - d.gather(-1, rival)).scatter(-1, index, 0.0)
        q = torch.softmax(margins, -1)
        rises = q * torch.expm1(apart.clamp(max=HARMLESS))
        beside = torch.log1p(rises.sum(-1))
        if bool((apart >= HARMLESS).any()):  # of a rare class: eᵃ may overflow, q eᵃ need not
            grown = torch.log_softmax(margins, -1) + apart
            rises = torch.where(apart < HARMLESS, rises, torch.exp(grown.clamp(max=HARMLESS)) - q)
            near, far = torch.log1p(rises.sum(-1)), torch.logsumexp(grown, -1)
            beside = torch.where(grown.amax(-1) < HARMLESS, near, far)
        return beside + (d.gather(-1, rival) - d.gather(-1, index)).squeeze(-1)

    @staticmethod
    def _top_deficit(z: Tensor) -> tuple[Tensor, Tensor]:
        top = z.argmax(-1, keepdim=True)
        return _deficit(torch.softmax(z, -1), top), top


@dataclass(frozen=True, eq=False)
class SmoothedSoftmax(Softmax):
    """Cross-entropy to t = (1 − ε_y) e_y + ε_y u instead of e_y, with a distribution u over the m classes.

    That adds a function to the loss which is linear in the outputs, (e_y − t)ᵀz = ε_y (z_y − uᵀz); W and φ stay.

    smoothing  (m,) ε of each class
    base       (m,) u
    """

    smoothing: Tensor
    base: Tensor

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return super().loss(z, y) + self._tilt(z, y)

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        own = torch.zeros_like(z).scatter_(-1, y.unsqueeze(-1), 1.0)
        return super().gradient(z, y) + self.smoothing.to(z)[y].unsqueeze(-1) * (own - self.base.to(z))

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return super().loss_change(z, y, d) + self._tilt(d, y)

    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().training_loss(outputs, targets) + self._tilt(outputs, targets).mean()

    def _tilt(self, v: Tensor, y: Tensor) -> Tensor:
        """ε_y (v_y − uᵀv)."""
        own = v.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return self.smoothing.to(v)[y] * (own - v @ self.base.to(v))


def _no_class(y: Tensor, m: int) -> InputError:
    """Why rows (n, m) that are not all one-hot name no class each."""
    wrong = (~(((y == 0) | (y == 1)).all(1) & (y.to(torch.float64).sum(1) == 1))).nonzero().flatten().tolist()
    where, form = f"{name_rows(wrong)} (counted from 0)", form_of(y)
    if form == "multi-hot":
        return InputError(
            f"targets: no label or several in {where}, but head='softmax' takes one class per record; pass "
            f"{MULTI_LABEL}, or {SQUARED}"
        )
    if form == "soft":
        return InputError(
            f"targets: soft labels in {where}, but head='softmax' takes one class per record; pass the classes, with "
            f"label_smoothing= if these are smoothed ones, or {SQUARED}"
        )
    return InputError(
        f"targets: neither classes nor one-hot in {where}, as head='softmax' takes them; pass classes 0 … {m - 1} of "
        f"shape (n,), or {SQUARED}"
    )


def _deficit(p: Tensor, index: Tensor) -> Tensor:
    """e_index − p, with 1 − p_index summed from the other probabilities."""
    others = p.scatter(-1, index, 0.0)
    return (-others).scatter_(-1, index, others.sum(-1, keepdim=True))


@functools.lru_cache(maxsize=32)
def complement_basis(m: int) -> Tensor:
    """Orthonormal Q (m, m−1) whose columns are orthogonal to the all-ones vector (Helmert's contrasts)."""
    k = torch.arange(1, m, dtype=torch.float64)
    rows = torch.arange(m).unsqueeze(1)
    columns = torch.arange(m - 1).unsqueeze(0)
    contrast = (rows <= columns).to(torch.float64) - k * (rows == columns + 1)
    return contrast / torch.sqrt(k * (k + 1.0))
