"""What heads share whose outputs are not coupled."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from noshadow.errors import InputError

__all__ = ["Uncoupled"]


class Uncoupled:
    """Their curvature is a number per record (and label), and no reduction of the outputs is needed."""

    name: str
    quadratic = False
    fewest_outputs = 1
    mean_weighs_classes = False

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

    def terms(self, m: int) -> int:
        """What torch's mean of the loss counts per record: each output."""
        return m

    def check_width(self, m: int) -> None:
        """Any number of outputs will do."""

    def smoothed(self, label_smoothing: float, class_weight: Tensor) -> NoReturn:
        raise InputError(
            f"label_smoothing: it is for head='softmax'; a {self.name} head with smoothed labels is not known"
        )
