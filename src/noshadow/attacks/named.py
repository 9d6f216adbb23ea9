"""An attack by its name, with the choices that fit the head: one call for commands and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noshadow.attacks.arrays import Floats, require_choice
from noshadow.attacks.lira import lira
from noshadow.attacks.result import AttackResult
from noshadow.attacks.rmia import rmia
from noshadow.attacks.shokri import shokri
from noshadow.attacks.signal import VARIANTS, signal
from noshadow.errors import InputError
from noshadow.heads import get_head
from noshadow.tensors import as_tensor

__all__ = ["OPTIONS", "Options", "run_attack"]

OPTIONS = {"lira": ("variant", "variance", "signal"), "rmia": ("variant",), "shokri": ("folds",)}
"""The attacks, and which options each has."""


@dataclass(frozen=True)
class Options:
    """Which attack, and how; None is the default of the function of that name."""

    name: str
    variant: Any = None
    variance: Any = None
    signal: str | None = None
    folds: int | None = None

    def __post_init__(self) -> None:
        require_choice("attack", self.name, tuple(OPTIONS))
        for option in ("variant", "variance", "signal", "folds"):
            if getattr(self, option) is not None and option not in OPTIONS[self.name]:
                owners = " and ".join(name for name, known in OPTIONS.items() if option in known)
                raise InputError(f"{option}: an option of {owners}, of no use to {self.name}; leave it out")

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named options that were stated."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def run_attack(outputs: Any, membership: Any, targets: Any, head: str, options: Options) -> AttackResult:
    """An attack on models with outputs (K, N, m) and membership (K, N)."""
    kind = get_head(head)
    if options.name == "shokri":
        return shokri(outputs, membership, targets, head, **options.given("folds"))
    if options.signal is not None:
        require_choice("signal", options.signal, VARIANTS[kind.name], f"those of a {kind.name} head")
    phi = signal(outputs, targets, head, options.signal)
    if options.name == "lira":
        direction: Any = "higher" if kind.name != "squared" else "lower"
        direction = "either" if options.signal == "signed_residual" else direction
        how = options.given("variant", "variance")
        return lira(phi, membership, members=direction, constant="tie", **how)
    how = options.given("variant")
    if kind.name == "squared":
        # a Gaussian likelihood, as wide as the models err on what they did not see
        temperature = 2.0 * _mean_of_others(phi, membership)
        return rmia(-phi, membership, scale="log_probability", temperature=temperature, **how)
    return rmia(phi, membership, **how)


def _mean_of_others(loss: Floats, membership: Any) -> float:
    """Mean loss of the records that the models were not trained on."""
    outside = ~as_tensor(membership, "membership").cpu().numpy().astype(bool)
    largest = float(loss.max()) or 1.0
    return float((loss / largest).mean(where=outside)) * largest
