"""LastLayer: what every front door produces and everything else starts from."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import InputError, NoshadowWarning, name_rows
from noshadow.heads import Head, get_head, make_head
from noshadow.heads.targets import check_targets
from noshadow.records import Records
from noshadow.sparse import SparseRows, as_csr
from noshadow.tensors import as_floats, as_tensor
from noshadow.weights import check_sample_weight, record_weights, weights_of_classes

__all__ = ["LastLayer", "read_class_weight"]


@dataclass(frozen=True, eq=False, repr=False)
class LastLayer:
    r"""The last, linear layer of a trained model, seen through its n training records.

    .. math::

        \sum_i w_i\, \ell(z_i, y_i) + \tfrac{\Lambda}{2} \lVert \theta \rVert^2, \qquad z_i = \theta^\top \tilde x_i

    is the objective it was trained on, x̃ᵢ being the features of a record and, with a bias, the constant 1.

    Parameters
    ----------
    features : array (n, p)
        Inputs of the layer, without the constant column; any float dtype, kept as given; SciPy's or torch's sparse ones
        as torch CSR.
    outputs : array (n, m)
        Predictions (squared) or logits (softmax: one per class; logistic: one, or one per label).
    targets : array (n,) or (n, m)
        softmax: classes 0 … m−1 (n,), or one-hot (n, m); logistic: 0/1 (n,), or (n, m) for m labels; squared: values
        (n,) or (n, m).
    head : "squared", "logistic" or "softmax"
        Several logistic outputs are independent labels. Squared error is (y − z)², not halved.
    ridge : float
        Λ of the objective.
    bias : bool
        The layer has a bias: a constant column is appended to the features.
    penalize_bias : bool
        The ridge covers the bias too.
    coefficients : array (n_columns, m), optional
        The layer's own parameters, one column per output, the bias last, where they are at hand: outputs = design ·
        coefficients. None: worked out from the outputs where they are needed.
    sample_weight : array (n,), optional
        wᵢ ≥ 0 that the loss of each record was multiplied by; 0: it took no part. None: all 1.
    class_weight : array or mapping, optional
        A weight per class: (m,) for softmax, (2,) for one logistic output, (m, 2) for m labels (of 0 and of 1), or a
        mapping from class to weight, 1 where it names none.
    label_smoothing : float
        ε of a softmax trained on (1 − ε)·e_y + ε/m. With class weights, as in torch's CrossEntropyLoss
        (``noshadow.weights``).

    Attributes
    ----------
    notes : tuple of str
        What was noticed about the arrays: a sentence each, with the remedy.

    Raises
    ------
    InputError
        Names the argument, the row and the remedy: shapes that do not fit, values that are not finite, classes that are
        none.

    Notes
    -----
    Weights say how a record took part in training. What an attacker sees is its loss without them: ``kind``.

    Arrays may be NumPy, torch (any device, any strides), pandas or nested lists. They are checked here, once: whatever
    passes can be scored.

    Examples
    --------
    >>> import noshadow
    >>> noshadow.LastLayer([[1.0, 2.0], [3.0, 4.0]], [[0.5, -0.5], [-1.0, 1.0]], [0, 1], ridge=1.0)
    LastLayer(n=2, p=2, m=2, head='softmax', ridge=1, bias=True, penalize_bias=True)
    """

    features: Tensor
    outputs: Tensor
    targets: Tensor
    head: str = "softmax"
    ridge: float = 0.0
    bias: bool = True
    penalize_bias: bool = True
    coefficients: Tensor | None = None
    sample_weight: Tensor | None = None
    class_weight: Tensor | None = None
    label_smoothing: float = 0.0
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
        sample_weight: Any = None,
        class_weight: Any = None,
        label_smoothing: float = 0.0,
    ) -> None:
        get_head(head)
        x = as_csr(features)
        x = as_floats(features, "features") if x is None else x
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
        if z.shape[1] == 0:
            raise InputError("outputs: there are no columns")
        plain = make_head(head, z.shape[1])
        plain.check_width(z.shape[1])
        y = check_targets(plain, as_tensor(targets, "targets"), *z.shape).to(z.device)
        if not (isinstance(ridge, (int, float, np.floating, np.integer)) and 0 <= ridge < math.inf):
            raise InputError(f"ridge: expected a finite number ≥ 0, got {ridge!r}")
        concern = plain.concern(z, y)
        notes = () if concern is None else (concern,)
        theta = None if coefficients is None else _parameters(coefficients, p + int(bias), z)
        fields = {
            "features": x,
            "outputs": z,
            "targets": y,
            "head": head,
            "ridge": float(ridge),
            "bias": bool(bias),
            "penalize_bias": bool(penalize_bias),
            "coefficients": theta,
            "sample_weight": _sample_weight(sample_weight, x),
            "class_weight": None if class_weight is None else read_class_weight(class_weight, plain, z),
            "label_smoothing": _smoothing(label_smoothing),
            "notes": notes,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        _ = self.kind, self.weights  # refused here: a head without smoothed labels, weights that are all 0
        for note in notes:
            warnings.warn(note, NoshadowWarning, stacklevel=2)

    @cached_property
    def kind(self) -> Head:
        """The loss of a record as an attacker sees it: with smoothed labels, without weights."""
        return make_head(self.head, self.n_outputs, self.label_smoothing)

    @cached_property
    def trained(self) -> Head:
        """The loss that ``weights`` multiply in the objective; class weights tilt the targets of smoothed labels."""
        tilted = self.class_weight is not None and self.label_smoothing > 0
        return make_head(self.head, self.n_outputs, self.label_smoothing, self.class_weight) if tilted else self.kind

    @cached_property
    def weights(self) -> Tensor | None:
        """(n, 1), or (n, m) for m labels: the objective is Σᵢ weightᵢ · trained.loss(zᵢ, yᵢ) + penalty; None: all 1."""
        return record_weights(self.targets, self.sample_weight, self.class_weight, self.label_smoothing)

    @property
    def n(self) -> int:
        """Number of records."""
        return self.features.shape[0]

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix: the features and, with a bias, the constant."""
        return self.n_features + int(self.bias)

    @property
    def n_outputs(self) -> int:
        """Columns of the outputs."""
        return self.outputs.shape[1]

    @property
    def n_features(self) -> int:
        """Columns of the features."""
        return self.features.shape[1]

    @property
    def precision(self) -> torch.dtype:
        """What the features are stored in."""
        return self.features.dtype

    @property
    def sparse(self) -> bool:
        """Whether the features are sparse; they stay so."""
        return self.features.layout == torch.sparse_csr

    @property
    def device(self) -> torch.device:
        """Where the records are read to."""
        return self.features.device

    def at(self, outputs: Tensor) -> LastLayer:
        """The same layer and records with other outputs (n, m), such as the mean over the epochs of training."""
        other = copy.copy(self)
        object.__setattr__(other, "outputs", outputs.to(self.outputs))
        object.__setattr__(other, "coefficients", None)  # those of the final outputs
        return other

    def records(self, rows: slice) -> Records:
        """Some consecutive records. All that looks at records outside this module reads them here, chunk by chunk."""
        rows = slice(*rows.indices(self.n)[:2])
        weights = None if self.weights is None else self.weights[rows]
        facts = (self.outputs[rows], self.targets[rows], weights, self.kind, self.trained)
        if self.sparse:
            return Records(rows, SparseRows.of(self.features, rows, self.bias), *facts)
        x = self.features[rows]
        design = torch.empty((x.shape[0], self.n_columns), dtype=torch.float64, device=x.device)
        design[:, : x.shape[1]] = x
        if self.bias:
            design[:, -1] = 1.0
        return Records(rows, design, *facts)

    def penalty(self) -> Tensor:
        """Diagonal of the penalty, Λ or 0 for each column of the design matrix."""
        diagonal = torch.full((self.n_columns,), self.ridge, dtype=torch.float64, device=self.device)
        if self.bias and not self.penalize_bias:
            diagonal[-1] = 0.0
        return diagonal

    def chunks(self, size: int) -> Iterator[slice]:
        """Slices of at most ``size`` rows that cover all records in order."""
        for start in range(0, self.n, size):
            yield slice(start, min(start + size, self.n))

    def __repr__(self) -> str:
        return (
            f"LastLayer(n={self.n}, p={self.n_features}, m={self.n_outputs}, head={self.head!r}, "
            f"ridge={self.ridge:g}, bias={self.bias}, penalize_bias={self.penalize_bias}"
            + (", sample_weight" if self.sample_weight is not None else "")
            + (", class_weight" if self.class_weight is not None else "")
            + (f", label_smoothing={self.label_smoothing:g}" if self.label_smoothing else "")
            + ")"
        )


def _require_rows(values: Tensor, name: str, n: int) -> None:
    if values.ndim != 2:
        raise InputError(f"{name}: expected shape (n,) or (n, m), got {tuple(values.shape)}")
    if values.shape[0] != n:
        raise InputError(f"{name}: {values.shape[0]} rows, but features has {n}; they must be the same records")


def _require_finite(values: Tensor, name: str, remedy: str) -> None:
    if values.layout == torch.sparse_csr:
        entries = (~torch.isfinite(values.values())).nonzero().flatten()
        bad = torch.unique(torch.searchsorted(values.crow_indices(), entries, right=True) - 1)
    else:
        bad = (~torch.isfinite(values)).any(dim=1).nonzero().flatten()
    if len(bad):
        raise InputError(f"{name}: NaN or infinite in {name_rows(bad.tolist())} (counted from 0); {remedy}")


def _smoothing(value: Any) -> float:
    if not (isinstance(value, (int, float, np.floating, np.integer)) and 0 <= value <= 1):
        raise InputError(f"label_smoothing: expected a number from 0 to 1, got {value!r}")
    return float(value)


def _sample_weight(weights: Any, x: Tensor) -> Tensor | None:
    if weights is None:
        return None
    return check_sample_weight(as_floats(weights, "sample_weight"), len(x)).to(x.device)


def read_class_weight(weights: Any, head: Head, z: Tensor) -> Tensor:
    """Class weights as arrays, nested lists or a mapping from class to weight, as the head of outputs z takes them."""
    m = z.shape[1]
    if isinstance(weights, Mapping) and head.classifies:
        weights = weights_of_classes(weights, range(head.n_classes(m)))
    return head.read_class_weight(as_floats(weights, "class_weight"), m).to(z.device)


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
