"""How the outputs of a layer fit its targets: whether the head is at a stationary point, and if not, why not.

The gradient of the objective, in the coordinates of ``noshadow.curvature.whiten``, is G = Σ x̃ᵢgᵢᵀ + DΘ. It is zero at a
stationary point. A network stopped early has some of it left; so has a head that was trained under another ridge, or
one that is shown other targets than it was trained on. Two numbers tell these apart:

    Λ̂        the ridge, in the place of the given one, that leaves the least of G, and what it leaves: nearly nothing if
             the ridge is all that is wrong;
    halving  how much the loss of each record changes when the outputs are halved (towards their mean), summed over the
             records, in its standard errors. Training on the targets makes that a large positive number, however early
             it stopped; outputs that know nothing of the targets are better halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from noshadow.curvature.whiten import Whitening
from noshadow.layer import LastLayer

_LEAST_WEIGHT = 1e-12  # of the penalty against the outputs, where the parameters are worked out from the outputs
_MOST_WEIGHT = 1e-4


@dataclass(frozen=True, eq=False)
class Stationarity:
    """What is left of the gradient of the objective."""

    newton: Tensor
    """H⁻¹G, (k, r)."""
    decrement: float
    """√⟨G, H⁻¹G⟩."""
    ridge: float
    """Λ̂ ≥ 0, under which the decrement would be smallest."""
    decrement_there: float
    halving: float


class Fit:
    """Sums over the records that say how the outputs fit features and targets."""

    def __init__(self, size: int, mean: Tensor) -> None:
        """size k of the coordinates, mean (r,) of the reduced outputs."""
        self._mean = mean
        self._gradient, self._projection = (mean.new_zeros((size, len(mean))) for _ in range(2))
        self._count = 0
        self._misfit = self._spread = self._slope = self._change = self._change_squared = 0.0

    def add(self, x: Tensor, outputs: Tensor, gradient: Tensor, residual: Tensor, halving: Tensor) -> None:
        """x (c, k), outputs, gradient and residual (c, r), halving (c,) the change of the loss at halved outputs."""
        self._gradient.addmm_(x.T, gradient)
        self._projection.addmm_(x.T, outputs)
        self._misfit += float(residual.square().sum())
        self._spread += float((outputs - self._mean).square().sum())
        self._slope += float(gradient.square().sum())
        self._change += float(halving.sum())
        self._change_squared += float(halving.square().sum())
        self._count += len(x)

    @property
    def linearity(self) -> float:
        """‖outputs − best linear function of the features‖ / ‖outputs − mean‖."""
        return math.sqrt(self._misfit / self._spread) if self._spread > 0 else 0.0

    def stationarity(self, layer: LastLayer, whitening: Whitening, solve: Callable[[Tensor], Tensor]) -> Stationarity:
        """``solve`` applies H⁻¹ to (k, r)."""
        data, pull = self._gradient, self._pull(layer, whitening)

        def newton(ridge: float) -> tuple[Tensor, float]:
            gradient = data + ridge * pull
            step = solve(gradient)
            return step, math.sqrt(max(0.0, float((gradient * step).sum())))

        against = solve(pull)
        strength = float((pull * against).sum())
        best = max(0.0, -float((data * against).sum()) / strength) if strength > 0 else layer.ridge
        step, decrement = newton(layer.ridge)
        return Stationarity(
            newton=step,
            decrement=decrement,
            ridge=best,
            decrement_there=newton(best)[1],
            halving=self._change / math.sqrt(self._change_squared) if self._change_squared > 0 else 0.0,
        )

    def _pull(self, layer: LastLayer, whitening: Whitening) -> Tensor:
        """DΘ/Λ in whitened coordinates: what a ridge of 1 would add to the gradient, (k, r).

        Without the layer's own parameters, those that give the outputs at the least penalty,

            φ = lim μ → 0 of argmin ‖X̃Tφ − Z‖² + μ φᵀD_φφ,

        but with μ as large as the rounding of the outputs calls for: an error ε of an output becomes ε/√m in a direction
        of which the data see the share m, where the parameters of a stationary point are at most √m‖g‖.
        """
        if layer.coefficients is not None:
            return whitening.transform.T @ (_penalised(layer).unsqueeze(1) * layer.kind.reduce(layer.coefficients))
        if not layer.ridge:
            return whitening.transform.T @ (_penalised(layer).unsqueeze(1) * whitening.fitted)
        noise = math.sqrt(self._misfit / self._count)
        weight = min(max(noise / math.sqrt(self._slope), _LEAST_WEIGHT), _MOST_WEIGHT) if self._slope else _LEAST_WEIGHT
        system = (weight - 1.0) * whitening.penalty
        system.diagonal().add_(1.0)
        return whitening.penalty @ torch.linalg.solve(system, self._projection) / layer.ridge


def _penalised(layer: LastLayer) -> Tensor:
    """1 for the columns of the design matrix that a ridge covers, 0 for a free bias, (P,)."""
    columns = torch.ones(layer.n_columns, dtype=torch.float64, device=layer.features.device)
    if layer.bias and not layer.penalize_bias:
        columns[-1] = 0.0
    return columns
