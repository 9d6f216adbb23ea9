"""An attack by its name, with the choices that fit the head: one call for commands and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noshadow.attacks.lira import lira
from noshadow.attacks.result import AttackResult
from noshadow.attacks.rmia import rmia
from noshadow.attacks.shokri import shokri
from noshadow.attacks.signal import signal


@dataclass(frozen=True)
class Options:
    """Which attack, and how; what an attack has no use for, it does not look at."""

    name: str
    variant: Any = None
    variance: Any = "auto"
    signal: str | None = None
    folds: int | None = None


def run_attack(outputs: Any, membership: Any, targets: Any, head: str, options: Options) -> AttackResult:
    """An attack on models with outputs (K, N, m) and membership (K, N)."""
    if options.name == "shokri":
        return shokri(outputs, membership, targets, head, folds=options.folds)
    phi = signal(outputs, targets, head, options.signal if options.name == "lira" else None)
    variant: Any = options.variant or "online"
    if options.name == "lira":
        direction: Any = "lower" if head == "squared" else "higher"
        return lira(phi, membership, variant, options.variance, members=direction, constant="tie")
    if head != "squared":
        return rmia(phi, membership, variant=variant)
    variance = float(
        phi[~membership].mean()
    )  # a Gaussian likelihood, as wide as the models err on what they did not see
    return rmia(-phi, membership, variant=variant, scale="log_probability", temperature=2.0 * variance)
