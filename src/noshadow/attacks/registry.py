"""The attacks, a line of one table each: one call for commands and benchmarks.

A new attack is its own module with a function (outputs, membership, targets, head, **options) -> AttackResult, and its
line in ``ATTACKS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from noshadow.attacks.arrays import require_choice
from noshadow.attacks.lira import lira_on_outputs, lira_variance
from noshadow.attacks.result import AttackResult
from noshadow.attacks.rmia import rmia_on_outputs
from noshadow.attacks.shokri import shokri
from noshadow.errors import InputError

__all__ = ["ATTACKS", "Attack", "Options", "run_attack"]


@dataclass(frozen=True)
class Attack:
    """An attack, and how benchmarks measure it.

    label           what it is called in tables and figures
    run             (outputs (K, N, m), membership (K, N), targets, head, **options) -> AttackResult
    options         the options that ``run`` takes
    for_models      those of them that benchmarks fix, by the number of models; half of the models are attacked with
                    the same
    ceiling_splits  how often the models are split into two halves, to see what the attack finds again
    simulated       it is a function of the signal alone, so that studies of it can be simulated for a perfect score
    oracle_draws    how many are; None: enough
    """

    label: str
    run: Callable[..., AttackResult]
    options: tuple[str, ...]
    for_models: Callable[[int], Mapping[str, Any]]
    ceiling_splits: int
    simulated: bool = True
    oracle_draws: int | None = None


ATTACKS: dict[str, Attack] = {
    "lira": Attack(
        "LiRA", lira_on_outputs, ("variant", "variance", "signal"), lambda n: {"variance": lira_variance(n)}, 10
    ),
    "rmia": Attack("RMIA", rmia_on_outputs, ("variant",), lambda n: {}, 4, oracle_draws=4),
    "shokri": Attack("Shokri", shokri, ("folds",), lambda n: {"folds": 8}, 1, simulated=False),
}


@dataclass(frozen=True)
class Options:
    """Which attack, and how; None is the default of the function of that name."""

    name: str
    variant: Any = None
    variance: Any = None
    signal: str | None = None
    folds: int | None = None

    def __post_init__(self) -> None:
        require_choice("attack", self.name, tuple(ATTACKS))
        for option in self.given():
            if option not in ATTACKS[self.name].options:
                owners = " and ".join(name for name, attack in ATTACKS.items() if option in attack.options)
                raise InputError(f"{option}: an option of {owners}, of no use to {self.name}; leave it out")

    @classmethod
    def for_models(cls, name: str, n_models: int) -> Options:
        """Those of the benchmarks, for so many models."""
        return cls(name, **ATTACKS[name].for_models(n_models))

    def given(self) -> dict[str, Any]:
        """What was stated, by the name of the option."""
        return {name: value for name, value in vars(self).items() if name != "name" and value is not None}


def run_attack(outputs: Any, membership: Any, targets: Any, head: str, options: Options) -> AttackResult:
    """An attack on models with outputs (K, N, m) and membership (K, N)."""
    return ATTACKS[options.name].run(outputs, membership, targets, head, **options.given())
