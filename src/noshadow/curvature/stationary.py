"""How the outputs of a layer fit its targets: whether the head is at a stationary point, and if it is not, why not.

The gradient of the objective is G = Σ x̃ᵢgᵢᵀ + DΘ, zero at a stationary point. A network that was stopped early has some
of it left; so has a head that was trained under another ridge, or one that is shown other targets than its own. Three
numbers tell these apart:

    best ridge  Λ̂ = −⟨Θ, Σ x̃ᵢgᵢᵀ⟩ / ‖Θ‖² over the penalised columns: at a stationary point it is Λ. The share of G that
                would be left under Λ̂ is next to nothing if the ridge is all that is wrong.
    halving     the change of the loss, summed over the records, if the outputs were half of what they are (measured
                from their mean), in its standard errors. Training makes it a large positive number, however early it
                stopped; outputs that know nothing of the targets are better halved.
    constant    the same if each output were the mean of the targets (squared error with a bias): negative for targets
                in another unit than the outputs, of which halving sees nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from noshadow.curvature.inverse import psd_inverse
from noshadow.curvature.symmetric import add_gram, mirrored
from noshadow.curvature.whiten import Whitening
from noshadow.layer import LastLayer
from noshadow.passes import Additive
from noshadow.records import Records

__all__ = ["Fit", "Stationarity", "gives_parameters"]

# Least and most weight of the penalty where the parameters are worked out from the outputs; the least is larger where
# coordinates are left that the data do not see at all, so that rounding is all there is to fit
_LEAST_WEIGHT, _LEAST_WEIGHT_UNSEEN, _MOST_WEIGHT = 1e-14, 1e-11, 1e-4
_EXPLAINED = 0.1  # share of the gradient below which a ridge of the other kind, with or without bias, explains it


@dataclass(frozen=True, eq=False)
class Stationarity:
    """What is left of the gradient of the objective, and what it looks like."""

    decrement: float
    """√⟨G, H⁻¹G⟩."""
    best_ridge: float
    """Λ̂ ≥ 0."""
    best_penalizes_bias: bool
    """Whether Λ̂ covers the bias; as the layer says, unless only the other way explains the gradient."""
    share: float
    """‖G‖ under Λ̂ relative to ‖G‖ under Λ, each column in units of its own size."""
    halving: float
    constant: float | None
    """None where the head is not that of squared error, or cannot give a constant."""
    unit: float
    """What the decrement is rounded in: the length of all targets for squared error, 1 for others."""

    def in_records(self, typical: float) -> float:
        """The decrement in units of one record's, whose root mean square is ``typical``; 0 where it is rounding."""
        if self.decrement <= 1e-10 * self.unit:
            return 0.0
        return self.decrement / typical if typical > 0 else math.inf


class Fit(Additive):
    """Sums over the records that say how the outputs fit features and targets."""

    additive = (
        *("_gradient", "_projection", "_plain_gradient", "_gram", "_misfit", "_spread", "_slope", "_targets"),
        *("_halved.total", "_halved.squares", "_constant.total", "_constant.squares"),
    )

    def __init__(self, layer: LastLayer, whitening: Whitening, plain: bool = False) -> None:
        """``plain``: records come without their design in whitened coordinates, which makes no difference to them."""
        self._layer, self._whitening, self._plain = layer, whitening, plain
        self._gives_parameters = gives_parameters(layer, whitening)
        self._mean = whitening.mean_output
        r = len(layer.kind.reduce(self._mean))
        k = whitening.transform.shape[1]
        self._gradient, self._projection = (self._mean.new_zeros((k, r)) for _ in range(2))
        self._plain_gradient = self._mean.new_zeros((layer.n_columns, r))
        self._gram = self._mean.new_zeros((k, k))
        self._misfit = self._spread = self._slope = self._targets = 0.0
        self._halved = _Total()
        self._has_constant = whitening.mean_target is not None and layer.bias
        self._constant = _Total()

    def add(self, records: Records, x: Tensor | None) -> None:
        """Some records, and their design in whitened coordinates, x (c, k); None: those of the records will do."""
        head, gradient = records.head, records.pull
        z, y = records.outputs, records.targets
        outputs = head.reduce(z)
        self._plain_gradient += records.gathered(gradient)
        if x is not None:
            self._gradient.addmm_(x.T, gradient)
        self._slope += float(gradient.square().sum())
        self._targets += float(y.square().sum()) if head.quadratic else 0.0
        if self._gives_parameters and x is not None:
            self._projection.addmm_(x.T, outputs)
            add_gram(self._gram, x)
        self._misfit += float((outputs - records.times(self._whitening.fitted)).square().sum())
        self._spread += float(head.reduce(z - self._mean).square().sum())
        weights = None if records.weights is None else records.weights.mean(1)
        self._halved.add(head.loss_change(z, y, 0.5 * (self._mean - z)), weights)
        if self._has_constant and self._whitening.mean_target is not None:
            self._constant.add(head.loss_change(z, y, self._whitening.mean_target - z), weights)

    @property
    def linearity(self) -> float:
        """‖outputs − best linear function of the features‖ / ‖outputs − mean‖."""
        return math.sqrt(self._misfit / self._spread) if self._spread > 0 else 0.0

    def gradient(self) -> Tensor:
        """G in the parameters themselves, (P, r)."""
        return self._plain_gradient + self._layer.penalty().unsqueeze(1) * self._theta

    def whitened_gradient(self) -> Tensor:
        """G in whitened coordinates, (k, r)."""
        if self._plain:
            return self._whitening.transform.T @ self.gradient()
        return self._gradient + self._whitening.transform.T @ (self._layer.penalty().unsqueeze(1) * self._theta)

    def described(self, decrement: float) -> Stationarity:
        """What is left of a gradient of that size, √⟨G, H⁻¹G⟩."""
        best, share, covers_bias = self._best_ridge(self._theta)
        return Stationarity(
            decrement=decrement,
            best_ridge=best,
            best_penalizes_bias=covers_bias,
            share=share,
            halving=self._halved.in_standard_errors,
            constant=self._constant.in_standard_errors if self._has_constant else None,
            unit=math.sqrt(self._targets) if self._layer.kind.quadratic else 1.0,
        )

    @cached_property
    def _theta(self) -> Tensor:
        """Θ, (P, r): the layer's own, or those that give the outputs at the least penalty, θ = Tφ with

            φ = lim μ → 0 of argmin ‖X̃Tφ − Z‖² + μ φᵀD_φφ,

        but with μ as large as the rounding of the outputs calls for: an error ε of an output becomes ε/√s in a
        direction of which the data see the share s, where the parameters of a stationary point are at most √s‖g‖.
        """
        layer, whitening = self._layer, self._whitening
        if layer.coefficients is not None:
            return layer.kind.reduce(layer.coefficients)
        if not self._gives_parameters:
            return whitening.fitted
        noise = math.sqrt(self._misfit / layer.n)
        least = _LEAST_WEIGHT if whitening.rank == whitening.transform.shape[1] else _LEAST_WEIGHT_UNSEEN
        weight = min(max(noise / math.sqrt(self._slope), least), _MOST_WEIGHT) if self._slope > 0 else least
        inverse = psd_inverse(mirrored(self._gram) + weight * whitening.penalty).matrix
        return whitening.transform @ (inverse @ self._projection)

    def _best_ridge(self, theta: Tensor) -> tuple[float, float, bool]:
        """Λ̂, the share of the gradient left under it, and whether Λ̂ covers the bias.

        Estimators leave the bias out of the penalty and torch's weight decay does not, so a ridge of the one kind never
        explains a fit of the other: where the layer's own kind leaves much and the other next to nothing, it is that.
        """
        layer = self._layer
        best, share = self._ridge_of_kind(theta, layer.penalize_bias)
        if layer.bias:
            other, left = self._ridge_of_kind(theta, not layer.penalize_bias)
            if left < min(_EXPLAINED, 0.5 * share):
                return other, left, not layer.penalize_bias
        return best, share, layer.penalize_bias

    def _ridge_of_kind(self, theta: Tensor, penalize_bias: bool) -> tuple[float, float]:
        """Λ̂ and the share of the gradient left under it; column j in units of √(‖x_j‖² + the larger ridge)."""
        layer = self._layer
        own, pull = (self._penalised(theta, covered) for covered in (layer.penalize_bias, penalize_bias))
        size = float(pull.square().sum())
        if not 0 < size < math.inf:
            return layer.ridge, 1.0
        best = max(0.0, -float((pull * self._plain_gradient).sum()) / size)
        unit = torch.hypot(self._whitening.norms, torch.full_like(self._whitening.norms, max(best, layer.ridge) ** 0.5))
        unit = torch.where(unit > 0, unit, math.inf).unsqueeze(1)
        given, other = (
            float(torch.linalg.norm((self._plain_gradient + ridge) / unit))
            for ridge in (layer.ridge * own, best * pull)
        )
        return best, other / given if given > 0 else 1.0

    def _penalised(self, theta: Tensor, bias: bool) -> Tensor:
        """Θ with 0 for a bias that the ridge does not cover."""
        if bias or not self._layer.bias:
            return theta
        return torch.cat([theta[:-1], torch.zeros_like(theta[-1:])])


def gives_parameters(layer: LastLayer, whitening: Whitening) -> bool:
    """Whether Θ is to be worked out from the outputs in coordinates that know the penalty.

    Not where the layer has it, where there is no penalty, and at the mean outputs of a run, where nobody asks for it.
    """
    return bool(layer.ridge) and layer.coefficients is None and not layer.of_run and not whitening.partial


class _Total:
    """A weighted sum over the records, and how sure it is."""

    def __init__(self) -> None:
        self.total = self.squares = 0.0

    def add(self, values: Tensor, weights: Tensor | None) -> None:
        values = values if weights is None else weights * values
        self.total += float(values.sum())
        self.squares += float(values.square().sum())

    @property
    def in_standard_errors(self) -> float:
        return self.total / math.sqrt(self.squares) if self.squares > 0 else 0.0
