"""What a model was trained to minimise, as far as its owner says so.

A front door reads the rest off the model. What is stated wins where the model says nothing, and is refused where the
two contradict each other.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from noshadow.errors import InputError
from noshadow.heads import get_head, make_head
from noshadow.heads.targets import check_targets
from noshadow.layer import read_class_weight
from noshadow.losses import Loss, read_loss
from noshadow.optimizers import read_optimizer
from noshadow.tensors import as_tensor

__all__ = ["Objective", "ridge_of_weight_decay"]


@dataclass(frozen=True, eq=False)
class Objective:
    """The user's statements about the training objective  Σᵢ wᵢ ℓ(zᵢ, yᵢ) + Λ/2 ‖θ‖²; None: not stated.

    head             "squared", "logistic" or "softmax"
    loss             the loss by name, or the loss object itself (a torch criterion)
    ridge            Λ itself
    weight_decay     an optimiser's λ on a mean loss
    optimizer        its name, or the torch optimiser itself, whose λ is read: whether λ is part of an objective
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
    optimizer: Any = None

    def stated(self) -> dict[str, Any]:
        """What was stated, by argument name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def resolved(self) -> Objective:
        """The same with the loss read: its head, class weights and smoothing stand in their own fields, and ``loss``
        is a :class:`noshadow.losses.Loss`. What is stated twice in two ways is refused.

        ``head`` stays None where a log loss leaves open which of its two heads it is.
        """
        if self.head is not None:
            get_head(self.head)
        if self.ridge is not None and self.weight_decay is not None:
            raise InputError("ridge, weight_decay: give one of them, Λ itself or the optimizer's λ")
        if self.optimizer is not None:
            read_optimizer(self.optimizer)
        if self.loss is None or isinstance(self.loss, Loss):
            return self
        loss = read_loss(self.loss)
        if self.head is not None and self.head not in loss.heads:
            raise InputError(
                f"head, loss: {loss.name!r} is the loss of a {' or '.join(loss.heads)} head, not of a {self.head} one; "
                "leave one of them out"
            )
        if self.class_weight is not None and loss.class_weight is not None:
            raise InputError(f"class_weight: {loss.name} carries its own weights; leave one of them out")
        if self.label_smoothing and loss.label_smoothing and self.label_smoothing != loss.label_smoothing:
            raise InputError(
                f"label_smoothing: {loss.name} has label_smoothing={loss.label_smoothing:g}, not "
                f"{self.label_smoothing:g}; leave one of them out"
            )
        return replace(
            self,
            head=loss.heads[0] if self.head is None and len(loss.heads) == 1 else self.head,
            loss=loss,
            class_weight=loss.class_weight if self.class_weight is None else self.class_weight,
            label_smoothing=self.label_smoothing or loss.label_smoothing,
        )

    def with_decay(self, weight_decay: float | None) -> Objective:
        """The same with the λ that was read off the optimiser; one that was stated otherwise is refused."""
        if weight_decay is None:
            return self
        if self.weight_decay is not None and self.weight_decay != weight_decay:
            raise InputError(
                f"weight_decay: {self.weight_decay:g}, but the optimizer has {weight_decay:g} for the weights of the "
                "last layer; leave weight_decay out"
            )
        return replace(self, weight_decay=weight_decay)

    def require(self, head: str) -> None:
        """Refuse a head that the stated head or loss rules out."""
        if self.head is not None and head != self.head:
            raise InputError(f"head: the model has a {head} head, not a {self.head} one; leave head out")
        if self.loss is not None and head not in read_loss(self.loss).heads:
            loss = read_loss(self.loss)
            raise InputError(f"loss: {loss.name!r} is not the loss of a {head} head, which the model has; leave it out")


def ridge_of_weight_decay(objective: Objective, head: str, outputs: Tensor, targets: Any) -> float:
    """Λ of an optimiser's weight decay λ: the objective is a mean loss + λ/2 ‖θ‖², so Λ is λ times what the mean
    divides the sum of the losses by. outputs (n, m) and targets are those of the data; the objective is a resolved one.

        MSELoss             n m      it averages over outputs
        BCEWithLogitsLoss   n m      it averages over labels; weight= and pos_weight= do not count in its mean
        CrossEntropyLoss    n        with class weights Σᵢ w_{yᵢ}, with or without label smoothing

    Sample weights are applied by hand, to a loss with reduction="none", as the mean of wᵢ ℓᵢ: they do not count in the
    mean, and neither do class weights inside such a loss. Class weights count in every batch by themselves; that the
    batches' sums are alike is assumed here. λ with a summed loss depends on the batch size and is refused.
    """
    if objective.weight_decay is None:
        return 0.0
    if objective.optimizer is not None and not read_optimizer(objective.optimizer).penalises:
        return 0.0  # no Λ: see noshadow.optimizers
    decay = objective.weight_decay
    reduction = objective.loss.reduction if isinstance(objective.loss, Loss) else "mean"
    if reduction == "sum":
        raise InputError(
            f"weight_decay: {objective.loss.name} has reduction='sum', whose Λ depends on the batch size b; pass "
            "ridge= n/b times the weight decay instead"
        )
    kind = make_head(head, outputs.shape[1])
    by_hand = objective.sample_weight is not None or reduction == "none"
    if objective.class_weight is None or by_hand or not kind.mean_weighs_classes:
        return float(decay * (kind.terms(outputs.shape[1]) * len(outputs)))
    classes = check_targets(kind, as_tensor(targets, "targets"), *outputs.shape).to(outputs.device)
    return float(decay * read_class_weight(objective.class_weight, kind, outputs)[classes].sum())
