"""LastLayer: what every front door produces and everything else starts from."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.heads import Head, get_head


@dataclass(frozen=True, eq=False, repr=False)
class LastLayer:
    """The last, linear layer of a trained model, seen through its training records.

    features  (n, p)  inputs of the layer, without the constant column; any float dtype, kept as given
    outputs   (n, m)  predictions (squared) or logits (logistic: one column, softmax: one per class)
    targets           classes (n,) for logistic (0/1) and softmax (0 … m−1); values (n,) or (n, q) for squared
    head              "squared", "logistic" or "softmax"
    ridge             Λ of the training objective  Σ loss + Λ/2 ‖θ‖²
    bias              the layer has a bias: a constant column is appended to the features
    penalize_bias     the ridge covers the bias too
    coefficients      (n_columns, m) the layer's own parameters, one column an output, the bias last, where they are at
                      hand: outputs = design · coefficients. None: worked out from the outputs where they are needed
    notes             what was noticed about the arrays: a sentence each, with the remedy

    Arrays may be NumPy, torch (any device, any strides), pandas or nested lists. They are checked here, once:
    whatever passes can be scored.
    """

    features: Tensor
    outputs: Tensor
    targets: Tensor
    head: str = "softmax"
    ridge: float = 0.0
    bias: bool = True
    penalize_bias: bool = True
    coefficients: Tensor | None = None
    notes: tuple[str, ...] = ()

    def __init__(
        self,
        features: Any,
        outputs: Any,
        targets: Any,
        head: str = "softmax",
        ridge: float = 0.0,
        *,
        bias: bool = True,
        penalize_bias: bool = True,
        coefficients: Any = None,
    ) -> None:
        kind = get_head(head)
        x = as_floats(features, "features")
        if x.ndim != 2:
            raise InputError(f"features: expected shape (n, p), got {tuple(x.shape)}")
        n, p = x.shape
        if n == 0:
            raise InputError("features: there are no rows")
        if p == 0 and not bias:
            raise InputError("features: there are no columns and no bias, so the layer has no parameters")
        _require_finite(x, "features", "drop or impute those records before training and auditing")
        z = as_floats(outputs, "outputs").to(device=x.device, dtype=torch.float64)
        z = z.unsqueeze(1) if z.ndim == 1 else z
        _require_rows(z, "outputs", n)
        _require_finite(z, "outputs", "the model diverged on them, or the outputs are not raw logits")
        _require_width(z, kind)
        y = _values(targets, n, z, x) if kind.name == "squared" else _classes(targets, n, z, kind)
        if not (isinstance(ridge, (int, float, np.floating, np.integer)) and 0 <= ridge < math.inf):
            raise InputError(f"ridge: expected a finite number ≥ 0, got {ridge!r}")
        notes = _concerns(z, y, kind)
        theta = None if coefficients is None else _parameters(coefficients, p + int(bias), z)
        fields = {
            "features": x,
            "outputs": z,
            "targets": y.to(x.device),
            "head": head,
            "ridge": float(ridge),
            "bias": bool(bias),
            "penalize_bias": bool(penalize_bias),
            "coefficients": theta,
            "notes": notes,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        for note in notes:
            warnings.warn(note, NoshadowWarning, stacklevel=2)

    @property
    def kind(self) -> Head:
        """The head's functions."""
        return get_head(self.head)

    @property
    def n(self) -> int:
        """Number of records."""
        return self.features.shape[0]

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix: the features and, with a bias, the constant."""
        return self.features.shape[1] + int(self.bias)

    @property
    def n_outputs(self) -> int:
        """Columns of the outputs."""
        return self.outputs.shape[1]

    def design(self, rows: slice) -> Tensor:
        """Rows of the design matrix X̃ in float64, (c, n_columns)."""
        x = self.features[rows]
        design = torch.empty((x.shape[0], self.n_columns), dtype=torch.float64, device=x.device)
        design[:, : x.shape[1]] = x
        if self.bias:
            design[:, -1] = 1.0
        return design

    def penalty(self) -> Tensor:
        """Diagonal of the penalty, Λ or 0 for each column of the design matrix."""
        diagonal = torch.full((self.n_columns,), self.ridge, dtype=torch.float64, device=self.features.device)
        if self.bias and not self.penalize_bias:
            diagonal[-1] = 0.0
        return diagonal

    def chunks(self, size: int) -> Iterator[slice]:
        """Slices of at most ``size`` rows that cover all records in order."""
        for start in range(0, self.n, size):
            yield slice(start, min(start + size, self.n))

    def __repr__(self) -> str:
        return (
            f"LastLayer(n={self.n}, p={self.features.shape[1]}, m={self.n_outputs}, head={self.head!r}, "
            f"ridge={self.ridge:g}, bias={self.bias}, penalize_bias={self.penalize_bias})"
        )


def as_tensor(values: Any, name: str) -> Tensor:
    """NumPy, pandas, torch or nested lists as a detached tensor on the CPU or a CUDA device."""
    if isinstance(values, Tensor):
        tensor = values.detach()
        return tensor if tensor.device.type in ("cpu", "cuda") else tensor.cpu()
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = array.astype(np.float64)
        # a copy where torch could not share the memory: reversed strides, read-only or foreign byte order
        return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected numbers, got {type(values).__name__} ({error})") from None


def as_floats(values: Any, name: str) -> Tensor:
    """A real floating-point tensor of the given precision; integers and booleans become float64."""
    tensor = as_tensor(values, name)
    if tensor.is_complex():
        raise InputError(f"{name}: expected real numbers, got {tensor.dtype}")
    return tensor if tensor.is_floating_point() else tensor.to(torch.float64)


def _require_rows(values: Tensor, name: str, n: int) -> None:
    if values.ndim != 2:
        raise InputError(f"{name}: expected shape (n,) or (n, m), got {tuple(values.shape)}")
    if values.shape[0] != n:
        raise InputError(f"{name}: {values.shape[0]} rows, but features has {n}; they must be the same records")


def _require_finite(values: Tensor, name: str, remedy: str) -> None:
    bad = (~torch.isfinite(values)).any(dim=1).nonzero().flatten()
    if len(bad):
        raise InputError(f"{name}: NaN or infinite in {name_rows(bad.tolist())} (counted from 0); {remedy}")


def _require_width(z: Tensor, kind: Head) -> None:
    m = z.shape[1]
    if m == 0:
        raise InputError("outputs: there are no columns")
    if kind.name == "logistic" and m != 1:
        raise InputError(
            f"outputs: a logistic head has one logit a record, got {m} columns; use head='softmax' for class logits"
        )
    if kind.name == "softmax" and m < 2:
        raise InputError(
            "outputs: a softmax head has a logit for each of two or more classes, got 1 column; use head='logistic'"
        )


def _values(targets: Any, n: int, z: Tensor, x: Tensor) -> Tensor:
    y = as_floats(targets, "targets").to(device=x.device, dtype=torch.float64)
    y = y.unsqueeze(1) if y.ndim == 1 else y
    _require_rows(y, "targets", n)
    if y.shape[1] != z.shape[1]:
        raise InputError(f"targets: {y.shape[1]} values a record, but outputs has {z.shape[1]} columns")
    _require_finite(y, "targets", "drop those records before training and auditing")
    return y


def _classes(targets: Any, n: int, z: Tensor, kind: Head) -> Tensor:
    y = as_tensor(targets, "targets")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y.squeeze(1)
    if y.ndim != 1:
        hint = "; they look one-hot: pass targets.argmax(1)" if y.ndim == 2 and y.shape[1] == z.shape[1] else ""
        raise InputError(f"targets: expected classes of shape (n,), got {tuple(y.shape)}{hint}")
    _require_rows(y.unsqueeze(1), "targets", n)
    n_classes = 2 if kind.name == "logistic" else z.shape[1]
    inside = torch.isfinite(y) & (y >= 0) & (y < n_classes) & (y == y.floor()) if y.dtype != torch.bool else y | ~y
    bad = (~inside).nonzero().flatten().tolist()
    if bad:
        found = y[bad[0]].item()
        hint = " (map −1 to 0)" if n_classes == 2 and found == -1 else ""
        raise InputError(
            f"targets: expected classes 0 … {n_classes - 1}{hint}, got {found:g} in {name_rows(bad)} (counted from 0)"
        )
    return y.to(torch.int64)


def _parameters(coefficients: Any, columns: int, z: Tensor) -> Tensor:
    theta = as_floats(coefficients, "coefficients").to(device=z.device, dtype=torch.float64)
    theta = theta.unsqueeze(1) if theta.ndim == 1 else theta
    if tuple(theta.shape) != (columns, z.shape[1]):
        raise InputError(
            f"coefficients: expected shape ({columns}, {z.shape[1]}), a row per column of the design matrix (the bias "
            f"last) and a column per output, got {tuple(theta.shape)}"
        )
    _require_finite(theta, "coefficients", "the model diverged")
    return theta


def _concerns(z: Tensor, y: Tensor, kind: Head) -> tuple[str, ...]:
    """Probabilities in the place of logits give plausible but wrong scores: say so."""
    if not kind.classifies or bool((z < 0).any()) or bool((z > 1).any()):
        return ()
    sums_to_one = kind.name == "softmax" and bool(((z.sum(1) - 1).abs() < 5e-3).all())
    both_classes = kind.name == "logistic" and bool((y == 0).any()) and bool((y == 1).any())
    if not (sums_to_one or both_classes):
        return ()
    return (
        "outputs: these look like probabilities (all within [0, 1]"
        + (", rows sum to 1" if sums_to_one else "")
        + "); noshadow needs logits. Pass the outputs of the last linear layer, before softmax or sigmoid",
    )
