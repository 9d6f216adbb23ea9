"""The last layers: squared error, logistic (one label or several), softmax (plain or with smoothed labels).

Each head knows, for outputs ``z`` of shape (..., m) and targets ``y``:

* ``loss(z, y)`` (...), the training loss of a record;
* ``gradient(z, y)`` (..., m), g = ∂loss/∂z;
* ``curvature(z)`` (..., m, m), W = ∂²loss/∂z²;
* ``curved(z, v)`` (..., m), the product W v, without W;
* ``signal(z, y)`` (...), φ, the statistic that a membership attack looks at;
* ``signal_gradient(z, y)`` (..., m), ∂φ/∂z;
* ``loss_change(z, y, d)`` (...), loss(z + d) − loss(z) without the cancellation of that difference.

Any leading dimensions are allowed, so that (models, records, m) works as (records, m) does.

The Hessian of a head over the records is Σ x xᵀ ⊗ W. Softmax curvature is singular along the direction in
which all logits move together, so the curvature code works in coordinates of the complement of that
direction: ``reduce`` maps an output-space vector to them and ``packed_curvature`` gives W there, as its upper
triangle. Squared error and logistic need no reduction: their curvature is one number per record. Independent labels
have one number, and one Hessian, each: ``parts`` says how many.

Everything is float64 and accurate in the *relative* sense for saturated outputs: differences like 1 − p are
summed from the small terms, never subtracted, so that logits of ±1e4 lose nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from noshadow.errors import InputError
from noshadow.triangles import packed_outer, packed_size

__all__ = [
    "HEADS",
    "Head",
    "HeadName",
    "Logistic",
    "MultiLabel",
    "SmoothedSoftmax",
    "Softmax",
    "SquaredError",
    "complement_basis",
    "get_head",
    "make_head",
]

_HARMLESS = 30.0  # exp of this is far from overflow
HeadName = Literal["squared", "logistic", "softmax"]


class Head(Protocol):
    """What the curvature and the scores ask of a last layer."""

    name: HeadName
    classifies: bool

    def loss(self, z: Tensor, y: Tensor) -> Tensor: ...
    def gradient(self, z: Tensor, y: Tensor) -> Tensor: ...
    def curvature(self, z: Tensor) -> Tensor: ...
    def curved(self, z: Tensor, v: Tensor) -> Tensor: ...
    def signal(self, z: Tensor, y: Tensor) -> Tensor: ...
    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor: ...
    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor: ...
    def entropy(self, z: Tensor) -> Tensor: ...
    def width(self, m: int) -> int: ...
    def parts(self, m: int) -> int: ...
    def reduce(self, v: Tensor) -> Tensor: ...
    def expand(self, v: Tensor) -> Tensor: ...
    def packed_curvature(self, z: Tensor) -> Tensor: ...


class _OneCurvature:
    """Heads whose outputs are not coupled: their curvature is a number, and no reduction is needed."""

    def width(self, m: int) -> int:
        """Number of coupled output coordinates."""
        return 1

    def parts(self, m: int) -> int:
        """Number of independent Hessians: one, shared by all outputs."""
        return 1

    def reduce(self, v: Tensor) -> Tensor:
        return v

    def expand(self, v: Tensor) -> Tensor:
        return v


class SquaredError(_OneCurvature):
    """loss = ‖y − z‖² (not halved), g = 2(z − y), W = 2I, φ = loss. z and y: (..., q)."""

    name: HeadName = "squared"
    classifies = False

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

    def signal(self, z: Tensor, y: Tensor) -> Tensor:
        return self.loss(z, y)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self.gradient(z, y)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return (d * (self.gradient(z, y) + d)).sum(-1)

    def entropy(self, z: Tensor) -> Tensor:
        raise InputError("scores: 'entropy' needs class probabilities; a squared-error head has none")


class Logistic(_OneCurvature):
    """One logit z (..., 1), y ∈ {0, 1} (...), s = 2y − 1.

    loss = log(1 + exp(−s z)), g = −s σ(−s z), W = σ(z) σ(−z), φ = s z.
    """

    name: HeadName = "logistic"
    classifies = True

    @staticmethod
    def _sign(y: Tensor, z: Tensor) -> Tensor:
        return 2.0 * y.to(z.dtype) - 1.0

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return _softplus(-self.signal(z, y))

    def gradient(self, z: Tensor, y: Tensor) -> Tensor:
        s = self._sign(y, z).unsqueeze(-1)
        return -s * torch.sigmoid(-s * z)

    def curvature(self, z: Tensor) -> Tensor:
        return self.packed_curvature(z).unsqueeze(-1)

    def curved(self, z: Tensor, v: Tensor) -> Tensor:
        return self.packed_curvature(z) * v

    def packed_curvature(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z) * torch.sigmoid(-z)

    def signal(self, z: Tensor, y: Tensor) -> Tensor:
        return self._sign(y, z) * z.squeeze(-1)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self._sign(y, z).unsqueeze(-1).expand_as(z)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return _softplus_change(-self.signal(z, y), -self.signal(d, y))

    def entropy(self, z: Tensor) -> Tensor:
        return (torch.sigmoid(z) * _softplus(-z) + torch.sigmoid(-z) * _softplus(z)).squeeze(-1)


class MultiLabel(_OneCurvature):
    """Several labels per record, each a logistic head of its own: logits z (..., m), y ∈ {0, 1} (..., m).

    loss = Σₖ log(1 + exp(−sₖ zₖ)), gₖ = −sₖ σ(−sₖ zₖ), W = diag(σ(zₖ) σ(−zₖ)).
    """

    name: HeadName = "logistic"
    classifies = True
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

    def signal(self, z: Tensor, y: Tensor) -> Tensor:
        raise InputError("head: a multi-label head has no single attack statistic; attack its labels one at a time")

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        return self.signal(z, y)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        return self._label.loss_change(z.unsqueeze(-1), y, d.unsqueeze(-1)).sum(-1)

    def entropy(self, z: Tensor) -> Tensor:
        return self._label.entropy(z.unsqueeze(-1)).sum(-1)


class Softmax:
    """m ≥ 2 logits z (..., m), y ∈ {0, …, m−1} (...), p = softmax(z).

    φ = z_y − logsumexp(z_others), loss = log(1 + exp(−φ)), g = p − e_y, W = diag(p) − p pᵀ.
    With t = argmax z and the small vector d = e_t − p, W = −diag(d) + e_t dᵀ + d e_tᵀ − d dᵀ.
    """

    name: HeadName = "softmax"
    classifies = True

    def loss(self, z: Tensor, y: Tensor) -> Tensor:
        return _softplus(-self.signal(z, y))

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

    def signal(self, z: Tensor, y: Tensor) -> Tensor:
        return -torch.logsumexp(self._margins(z, y), -1)

    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor:
        others = torch.softmax(self._margins(z, y), -1)
        return -others.scatter_(-1, y.unsqueeze(-1), -1.0)

    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor:
        """Of log(1 + exp(−φ)), where −φ changes by log Σ qₖ exp(dₖ − d_y) over the other classes, q their softmax."""
        margins, index = self._margins(z, y), y.unsqueeze(-1)
        rival = margins.argmax(-1, keepdim=True)
        apart = (d - d.gather(-1, rival)).scatter(-1, index, 0.0)
        near = torch.log1p((torch.softmax(margins, -1) * torch.expm1(apart.clamp(max=_HARMLESS))).sum(-1))
        far = torch.logsumexp(torch.log_softmax(margins, -1) + apart, -1)
        change = torch.where(apart.amax(-1) < _HARMLESS, near, far) + (
            d.gather(-1, rival) - d.gather(-1, index)
        ).squeeze(-1)
        return _softplus_change(torch.logsumexp(margins, -1), change)

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

    @staticmethod
    def _margins(z: Tensor, y: Tensor) -> Tensor:
        """z − z_y with the true class masked out."""
        index = y.unsqueeze(-1)
        return (z - z.gather(-1, index)).scatter(-1, index, -torch.inf)

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

    def _tilt(self, v: Tensor, y: Tensor) -> Tensor:
        """ε_y (v_y − uᵀv)."""
        own = v.gather(-1, y.unsqueeze(-1)).squeeze(-1)
        return self.smoothing.to(v)[y] * (own - v @ self.base.to(v))


def _softplus(u: Tensor) -> Tensor:
    """log(1 + exp(u)) to full relative accuracy at both ends (torch's softplus switches to u at 20)."""
    return torch.logaddexp(u, torch.zeros((), dtype=u.dtype, device=u.device))


def _softplus_change(u: Tensor, d: Tensor) -> Tensor:
    """softplus(u + d) − softplus(u) to full relative accuracy.

    Left of zero it is log(1 + σ(u)(eᵈ − 1)), where log1p is never near −1. Right of zero softplus(u) is
    u + softplus(−u), which leads back there, but for a large step down across zero, where the plain difference loses
    nothing.
    """
    right = u > 0
    step = torch.where(right, -d, d)
    small = torch.log1p(torch.sigmoid(-u.abs()) * torch.expm1(step.clamp(max=_HARMLESS)))
    large = _softplus(step - u.abs()) - _softplus(-u.abs())  # the first term outweighs the second
    left = torch.where(step < _HARMLESS, small, large)
    across = _softplus(u + d) - _softplus(u)
    return torch.where(right, torch.where((d < -1.0) & (u + d < 0), across, d + left), left)


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


HEADS: dict[str, Head] = {head.name: head for head in (SquaredError(), Logistic(), Softmax())}


def get_head(name: str) -> Head:
    """The head of that name, or an error that lists the names."""
    if name not in HEADS:
        raise InputError(f"head: {name!r} is not a head; use one of {', '.join(map(repr, HEADS))}")
    return HEADS[name]


def make_head(name: str, outputs: int, label_smoothing: float = 0.0, class_weight: Tensor | None = None) -> Head:
    """The head of that name for so many outputs: one logistic head per label, a softmax of smoothed labels.

    Class weights w (m,) tilt the target of smoothed labels, as torch's CrossEntropyLoss has it: the loss of a record is
    that of q = (1−ε) w_y e_y + (ε/m) w, which is Σq times the cross-entropy to t = q/Σq. Without smoothing they do not
    change the target, and the head is the plain one. Σq is not part of the head: it is a weight of the record.
    """
    head = get_head(name)
    if name == "logistic" and outputs > 1:
        return MultiLabel()
    if name != "softmax" or label_smoothing == 0.0:
        return head
    w = torch.ones(outputs, dtype=torch.float64) if class_weight is None else class_weight
    mean = w.mean()
    return SmoothedSoftmax(label_smoothing * mean / ((1.0 - label_smoothing) * w + label_smoothing * mean), w / w.sum())
