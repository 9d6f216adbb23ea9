"""What the rest of noshadow asks of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from torch import Tensor

__all__ = ["Head", "Signal", "SignalScale", "default_signal"]

SignalScale = Literal["logit", "loss"]


@dataclass(frozen=True)
class Signal:
    """A form of the attack statistic φ.

    members  which way members lie: their φ is "higher", "lower", or, where each record has a direction of its own,
             "either"
    squares  it squares residuals, whose size must allow it
    """

    members: Literal["higher", "lower", "either"]
    squares: bool = False

    def toward_members(self, change: Tensor) -> Tensor:
        """A change of φ, positive the way members move."""
        return -change if self.members == "lower" else change


class Head(Protocol):
    """All that depends on the head; shapes and formulas are in the docstring of the package.

    name                 what users call it; several may share one, as logistic heads of one label and of several do
    loss_name            what its loss is called
    classifies           targets are classes, and there are probabilities
    quadratic            its loss is a square: W is the same at all outputs, and targets are of the outputs' scale
    fewest_outputs       the smallest m
    signals              the forms of φ by name, the default first; empty: no single statistic tells of membership
    signal_scale         "logit": φ is the logit of a probability, about normal over models; "loss": φ is the squared
                         error, and normal are the outputs; a head of another scale has rates once ``LAWS`` has its law
    mean_weighs_classes  torch's mean of this loss divides by the sum of the records' class weights
    """

    name: str
    loss_name: str
    classifies: bool
    quadratic: bool
    fewest_outputs: int
    signals: ClassVar[Mapping[str, Signal]]
    signal_scale: SignalScale
    mean_weighs_classes: bool

    # the loss and its derivatives
    def loss(self, z: Tensor, y: Tensor) -> Tensor: ...
    def gradient(self, z: Tensor, y: Tensor) -> Tensor: ...
    def curvature(self, z: Tensor) -> Tensor: ...
    def curved(self, z: Tensor, v: Tensor) -> Tensor: ...
    def loss_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor: ...

    # coordinates for the Hessian over records
    def width(self, m: int) -> int:
        """Number r of coupled output coordinates."""
        ...

    def parts(self, m: int) -> int:
        """Number of independent Hessians."""
        ...

    def reduce(self, v: Tensor) -> Tensor:
        """Vectors (..., m) in coordinates of the Hessian, (..., r) where outputs are coupled."""
        ...

    def expand(self, v: Tensor) -> Tensor:
        """The way back."""
        ...

    def packed_curvature(self, z: Tensor) -> Tensor:
        """W in these coordinates: upper triangles (..., r(r+1)/2), or a number per label."""
        ...

    # what an attacker looks at
    def signal(self, z: Tensor, y: Tensor, form: str | None = None) -> Tensor: ...
    def signal_gradient(self, z: Tensor, y: Tensor) -> Tensor: ...
    def signal_change(self, z: Tensor, y: Tensor, d: Tensor) -> Tensor: ...
    def attack_features(self, z: Tensor, y: Tensor) -> Tensor: ...
    def entropy(self, z: Tensor) -> Tensor:
        """−Σ p log p of the predicted probabilities, (...); values have none and are refused."""
        ...

    def predicted(self, z: Tensor) -> Tensor:
        """The likeliest classes, in the shape of the targets; values have none and are refused."""
        ...

    def nearest_class(self, z: Tensor, y: Tensor) -> Tensor | None:
        """The likeliest class other than a record's own, (...); None where a record has no class of its own."""
        ...

    # training
    def training_loss(self, outputs: Tensor, targets: Tensor) -> Tensor: ...
    def terms(self, m: int) -> int:
        """What torch's mean of this loss counts per record."""
        ...

    def for_outputs(self, m: int) -> Head:
        """The head of this name with so many outputs."""
        ...

    def smoothed(self, label_smoothing: float, class_weight: Tensor) -> Head:
        """The same trained on smoothed labels; refused where that is not known."""
        ...

    # checks: what passes can be worked with, what does not is refused in a sentence
    def check_width(self, m: int) -> None:
        """Refuse a number of outputs that the head cannot have."""
        ...

    def read_targets(self, y: Tensor, m: int) -> Tensor:
        """Targets (n, q) of records with m outputs in the head's form; see ``noshadow.heads.targets``."""
        ...

    def read_class_weight(self, weights: Tensor, m: int) -> Tensor:
        """Class weights in the head's layout, finite and ≥ 0, in float64."""
        ...

    def n_classes(self, m: int) -> int:
        """How many classes the target of an output, or of all together, is one of; 0 for values."""
        ...

    def concern(self, z: Tensor, y: Tensor) -> str | None:
        """A sentence where outputs (n, ..., m) look like something else than what the head works with."""
        ...


def default_signal(head: Head) -> Signal:
    """The form of φ that is taken where none is named."""
    return next(iter(head.signals.values()))
