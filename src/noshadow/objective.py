"""What a model was trained to minimise, as far as its owner says so.

A front door reads the rest off the model. What is stated wins where the model says nothing, and is refused where the
two contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, eq=False)
class Objective:
    """The user's statements about the training objective  Σᵢ wᵢ ℓ(zᵢ, yᵢ) + Λ/2 ‖θ‖²; None: not stated.

    head             "squared", "logistic" or "softmax"
    loss             the loss by name, or the loss object itself (a torch criterion)
    ridge            Λ itself
    weight_decay     an optimiser's λ on a mean loss
    sample_weight    (n,) wᵢ, a weight per record in the data's order
    class_weight     a weight per class: (m,), or a mapping from label to weight
    label_smoothing  ε: the target is (1 − ε)·e_y + ε/m
    """

    head: str | None = None
    loss: Any = None
    ridge: float | None = None
    weight_decay: float | None = None
    sample_weight: Any = None
    class_weight: Any = None
    label_smoothing: float | None = None

    def stated(self) -> dict[str, Any]:
        """What was stated, by argument name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
