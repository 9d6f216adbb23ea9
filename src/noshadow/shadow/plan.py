"""Who is a member of which model, and with what seed each is trained: all of it from one seed.

Every model is trained on an independent random half of the records. Nothing about model k depends on how many models
there are, who trains them, or in which order they finish: its split and seed are functions of (seed, role, k) alone.
Target models, the ones an attack is aimed at, are drawn from a stream of their own. A rerun of a target model has its
members and another seed.

Why independent halves. Given all the other models, the target's split is then a fair draw: whatever an attack makes of
the others, it is right half of the time where nothing leaks. Splits that are balanced over models (complementary pairs,
or every record in exactly half of a block) let the others tell which side the target was on; the attack leans away
from it, and its rates under the null fall below ½ by percents (blocks of 16: Shokri's classifiers .44 to .48, class
thresholds .48). Balanced halves of a pool also err in opposite directions, which makes differences between in-models
and out-models noisier, and two sets of models that share a block are not independent of each other.

The price is that a record is not in exactly half of the models. Success rates weigh both sides the same and do not
follow that number (``noshadow.attacks.counterpart``); of 16 models one record in 2,000 is in fewer than two, or in all
but one or none, and is left undecided; of 32 none in a million.

The draws use only what NumPy promises never to change (``SeedSequence`` and the raw words of ``Philox``), so
a study can be taken up again under another version of NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError

__all__ = ["ROLES", "SPLITS", "ModelKey", "Plan", "Role"]

Role = Literal["shadow", "target", "rerun"]
ROLES: tuple[Role, ...] = ("shadow", "target", "rerun")
_STREAM: dict[Role, int] = {role: number for number, role in enumerate(ROLES)}
_SPLIT, _TRAINING = 0, 1
SPLITS = "independent halves"
"""How the splits are drawn. It is part of a study's identity: a store with other splits is another study."""


@dataclass(frozen=True, order=True)
class ModelKey:
    """One model of a study: its role and its number within the role.

    Examples
    --------
    >>> from noshadow import shadow
    >>> print(shadow.ModelKey("target", 3))
    target model 3
    """

    role: Role
    number: int

    def __str__(self) -> str:
        names: dict[Role, str] = {"shadow": "model", "target": "target model", "rerun": "rerun of target model"}
        return f"{names[self.role]} {self.number}"


@dataclass(frozen=True)
class Plan:
    """The splits and seeds of every model that a study may ever have.

    ``members(key)`` are the sorted row numbers that a model trains on, ``seed_of(key)`` is the 32-bit seed of its
    training; both are pure functions of (seed, key).

    Examples
    --------
    >>> from noshadow import shadow
    >>> plan = shadow.Plan(n_samples=10, seed=0)
    >>> len(plan.members(shadow.ModelKey("shadow", 0)))
    5
    """

    n_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_samples < 2:
            raise InputError(f"n_samples: a half-split needs at least 2 records, got {self.n_samples}")
        if self.seed < 0:
            raise InputError(f"seed: must not be negative, got {self.seed}")

    def members(self, key: ModelKey) -> NDArray[np.int64]:
        """Sorted rows, ⌊n/2⌋ of them, that the model is trained on; those of its target model for a rerun.

        Examples
        --------
        >>> from noshadow import shadow
        >>> shadow.Plan(n_samples=6).members(shadow.ModelKey("shadow", 0)).tolist()
        [1, 2, 4]
        """
        role: Role = "target" if key.role == "rerun" else key.role
        words = np.random.Philox(self._sequence(role, _SPLIT, key.number)).random_raw(self.n_samples)
        return np.sort(np.argsort(words, kind="stable")[: self.n_samples // 2]).astype(np.int64)

    def seed_of(self, key: ModelKey) -> int:
        """The seed handed to ``train``: 32 bits, which every framework takes.

        Examples
        --------
        >>> from noshadow import shadow
        >>> plan = shadow.Plan(n_samples=6)
        >>> plan.seed_of(shadow.ModelKey("target", 0)) == plan.seed_of(shadow.ModelKey("rerun", 0))
        False
        """
        return int(self._sequence(key.role, _TRAINING, key.number).generate_state(1, np.uint32)[0])

    def mask(self, key: ModelKey) -> NDArray[np.bool_]:
        """The same as ``members``, as a row of the membership matrix.

        Examples
        --------
        >>> from noshadow import shadow
        >>> shadow.Plan(n_samples=6).mask(shadow.ModelKey("shadow", 0)).tolist()
        [False, True, True, False, True, False]
        """
        mask = np.zeros(self.n_samples, dtype=np.bool_)
        mask[self.members(key)] = True
        return mask

    def _sequence(self, role: Role, purpose: int, number: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(_STREAM[role], purpose, number))
