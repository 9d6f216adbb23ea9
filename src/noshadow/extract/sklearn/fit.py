"""What a fitted estimator says of its last layer: read off it without a look at X."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Fit", "linear_parameters"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Fit:
    """The minimiser of  Σᵢ wᵢ ℓ(zᵢ, yᵢ) + Λ/2 ‖θ‖²  with z = features · weights + intercept.

    head           "squared", "logistic" (several columns: one problem per column) or "softmax"
    targets        as the head counts them: values (n,) or (n, m), classes (n,), 0/1 labels (n, m)
    weights        (p, m) one column per output
    intercept      (m,) never penalised; None: there is none
    ridge          Λ
    constant       the value of a constant feature that the estimator appends itself; its weights are the last row
    hidden         the layers below, X → features; None: the features are X itself
    sample_weight  (n,) wᵢ; None: all 1
    class_weight   (m, 2) the weights of 0 and of 1 in each problem of a logistic head; None: all 1
    labels         the targets as the user knows them, where they are not those of the head
    classes        the classes that the head counts 0, 1, …, as the user knows them, where targets are classes
    layer          what the parameters are called
    notes          what to know before trusting the numbers
    """

    head: str
    targets: Array
    weights: Array
    intercept: Array | None
    ridge: float = 0.0
    constant: float | None = None
    hidden: Callable[[Any], Array] | None = None
    sample_weight: Array | None = None
    class_weight: Array | None = None
    labels: Any = None
    classes: Any = None
    layer: str = "coef_"
    notes: tuple[str, ...] = ()

    @property
    def n_columns(self) -> int:
        """Columns of the design matrix."""
        return int(self.weights.shape[0]) + (self.intercept is not None)

    @property
    def coefficients(self) -> Array:
        """(n_columns, m) the weights and, below them, the intercept."""
        return self.weights if self.intercept is None else np.vstack([self.weights, self.intercept])


def linear_parameters(model: Any) -> tuple[Array, Array | None]:
    """``coef_`` and ``intercept_`` of a linear model as weights (p, m) and intercept (m,) or None."""
    coef = model.coef_.toarray() if hasattr(model.coef_, "toarray") else model.coef_  # sparse after sparsify()
    weights = np.atleast_2d(np.asarray(coef, dtype=np.float64)).T
    if not model.fit_intercept:
        return weights, None
    return weights, np.broadcast_to(np.asarray(model.intercept_, dtype=np.float64).reshape(-1), weights.shape[1:])
