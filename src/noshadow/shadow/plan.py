"""Who is a member of which model, and with what seed each is trained: all of it from one seed.

Shadow models come in blocks of 16. Within a block every record is a member of exactly 8 models, chosen at random, and
every model has half of the records: the records are paired at random, and what one of a pair is in, the other is out
of. Nothing about model k depends on how many models there are, who trains them, or in which order they finish: its
split and seed are functions of (seed, k) alone.

Why blocks. Independent halves leave some records in hardly any of a few dozen models. Complementary pairs of models
balance every record exactly, but two halves of a pool err in opposite directions: a model's partner then tells an
attack that leaves the model out on which side it was, and success rates under the null are off by percents (24 models:
.46, 200 models: .48 in place of .50). In a block of 16 that dependence is a fifteenth as large and lost in the noise.

Target models, the ones an attack is aimed at, are drawn from a stream of their own: independent halves,
independent of the shadow models and of each other, however many there are of either. A rerun of a target model has
its members and another seed.

The draws use only what NumPy promises never to change (``SeedSequence`` and the raw words of ``Philox``), so
a study can be taken up again under another version of NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from noshadow.errors import InputError

Role = Literal["shadow", "target", "rerun"]
ROLES: tuple[Role, ...] = ("shadow", "target", "rerun")
_STREAM: dict[Role, int] = {role: number for number, role in enumerate(ROLES)}
_SPLIT, _TRAINING, _PATTERN = 0, 1, 2
BLOCK = 16
"""Models in which every record is a member of exactly half."""


@dataclass(frozen=True, order=True)
class ModelKey:
    """One model of a study: its role and its number within the role."""

    role: Role
    number: int

    def __str__(self) -> str:
        names: dict[Role, str] = {"shadow": "model", "target": "target model", "rerun": "rerun of target model"}
        return f"{names[self.role]} {self.number}"


@dataclass(frozen=True)
class Plan:
    """The splits and seeds of every model that a study may ever have.

    ``members(key)`` are the sorted row numbers that a model trains on, ``seed_of(key)`` is the 32-bit seed of
    its training; both are pure functions of (seed, key).
    """

    n_samples: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_samples < 2:
            raise InputError(f"n_samples: a half-split needs at least 2 records, got {self.n_samples}")
        if self.seed < 0:
            raise InputError(f"seed: must not be negative, got {self.seed}")

    def members(self, key: ModelKey) -> NDArray[np.int64]:
        """Sorted rows (⌊n/2⌋ or ⌈n/2⌉ of them) that the model is trained on."""
        if key.role != "shadow":
            return np.sort(self._shuffled("target", key.number)[: self.n_samples // 2])
        return np.flatnonzero(self._block(key.number // BLOCK)[key.number % BLOCK])

    def seed_of(self, key: ModelKey) -> int:
        """The seed handed to ``train``: 32 bits, which every framework takes."""
        return int(self._sequence(key.role, _TRAINING, key.number).generate_state(1, np.uint32)[0])

    def mask(self, key: ModelKey) -> NDArray[np.bool_]:
        """The same as ``members``, as a row of the membership matrix."""
        mask = np.zeros(self.n_samples, dtype=np.bool_)
        mask[self.members(key)] = True
        return mask

    def _block(self, number: int) -> NDArray[np.bool_]:
        """Membership (BLOCK, n) of the models of a block."""
        order = self._shuffled("shadow", number)
        half = (self.n_samples + 1) // 2
        words = self._words("shadow", _PATTERN, number, half * BLOCK).reshape(half, BLOCK)
        patterns = np.argsort(np.argsort(words, axis=1, kind="stable"), axis=1) < BLOCK // 2
        block = np.empty((BLOCK, self.n_samples), dtype=np.bool_)
        block[:, order[:half]] = patterns.T
        block[:, order[half:]] = ~patterns[: self.n_samples - half].T
        return block

    def _shuffled(self, role: Role, number: int) -> NDArray[np.int64]:
        return np.argsort(self._words(role, _SPLIT, number, self.n_samples), kind="stable").astype(np.int64)

    def _words(self, role: Role, purpose: int, number: int, count: int) -> NDArray[np.uint64]:
        return np.random.Philox(self._sequence(role, purpose, number)).random_raw(count)

    def _sequence(self, role: Role, purpose: int, number: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self.seed, spawn_key=(_STREAM[role], purpose, number))
