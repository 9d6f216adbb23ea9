"""A policy on predicted success rates, and whether an audit is within it."""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noshadow.errors import FileError, InputError

if TYPE_CHECKING:
    from noshadow.audit import Audit

__all__ = ["Policy", "Verdict"]

_LARGEST = 2**20  # bytes of a policy file
_HOW_TO_GET_RATES = (
    "audit again with held_out=, records that the model was not trained on, and rerun=, a second model trained with "
    "another seed"
)


@dataclass(frozen=True)
class Policy:
    """How many records may have how high a predicted success rate.

    Parameters
    ----------
    fail_above : float
        A record is over the policy when its ``attack_accuracy`` is above this (½ to 1), or when it is flagged.
    max_records : int
        So many records over it are still within the policy.

    Examples
    --------
    >>> from noshadow.gate import Policy
    >>> Policy(fail_above=0.75, max_records=10)
    Policy(fail_above=0.75, max_records=10)
    """

    fail_above: float = 0.9
    max_records: int = 0

    def __post_init__(self) -> None:
        rate, count = self.fail_above, self.max_records
        numeric = isinstance(rate, (int, float, np.floating, np.integer)) and not isinstance(rate, bool)
        if not (numeric and math.isfinite(rate) and 0.5 <= rate <= 1):
            raise InputError(f"fail_above: expected a success rate from 0.5 (guessing) to 1, got {rate!r}")
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise InputError(f"max_records: expected a whole number of records, 0 or more, got {count!r}")
        object.__setattr__(self, "fail_above", float(rate))
        object.__setattr__(self, "max_records", int(count))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Policy:
        """The policy of a TOML file with ``fail_above`` and ``max_records``; what it leaves out is the default.

        Parameters
        ----------
        path : str or Path
            For example ``fail_above = 0.9`` on one line and ``max_records = 0`` on the next.

        Returns
        -------
        Policy

        Raises
        ------
        InputError
            A file that cannot be read or is no TOML, keys that are not known, values that are no policy.
        """
        try:
            content = Path(path).read_bytes()[: _LARGEST + 1]
            if len(content) > _LARGEST:
                raise ValueError("it is too large for one")
            found: dict[str, Any] = tomllib.loads(content.decode("utf-8"))
        except OSError as error:
            raise FileError(f"policy: {path} cannot be read ({error.strerror or error})") from None
        except (ValueError, RecursionError) as error:  # TOML's errors and UTF-8's are among them
            reason = " ".join(str(error).split())[:200]
            raise FileError(f"policy: {path} is no TOML file ({reason})") from None
        known = [field.name for field in fields(cls)]
        unknown = [key for key in found if key not in known]
        if unknown:
            raise FileError(f"policy: {path} has {unknown[0]!r}, which is not known; it may have {', '.join(known)}")
        try:
            return cls(**found)
        except InputError as error:
            raise FileError(f"policy: {path}: {error}") from None

    def judge(self, audit: Audit) -> Verdict:
        """Whether an audit is within the policy.

        Parameters
        ----------
        audit : Audit
            With predicted rates.

        Returns
        -------
        Verdict

        Raises
        ------
        InputError
            Without predicted rates: nothing is then known of how often an attack succeeds. Also where so many records
            are without one that they decide.
        """
        if "attack_accuracy" not in audit.table:
            raise InputError(f"policy: this audit has no predicted rates to hold against it; {_HOW_TO_GET_RATES}")
        rates = audit.table["attack_accuracy"].to_numpy(dtype=np.float64)
        flagged = audit.table["flagged"].to_numpy(dtype=bool)
        over = int(((rates > self.fail_above) | flagged).sum())
        unknown = int((np.isnan(rates) & ~flagged).sum())
        if over <= self.max_records < over + unknown:
            raise InputError(
                f"policy: {unknown:,} of {len(rates):,} records have no predicted rate, and it depends on them; "
                f"{_HOW_TO_GET_RATES}"
            )
        met = over <= self.max_records
        calibration = audit.metadata.get("calibration") or {}
        rough = ", by rates that no rerun calibrated" if calibration.get("source") == "gap" else ""
        sentence = (
            f"{over:,} of {len(rates):,} records {'has' if over == 1 else 'have'} a predicted success rate above "
            f"{self.fail_above:.12g} or {'is' if over == 1 else 'are'} fully exposed; the policy allows "
            f"{self.max_records:,}: {'met' if met else 'not met'}{rough}."
        )
        return Verdict(met, over, self, sentence, rough)


@dataclass(frozen=True)
class Verdict:
    """What a policy says of an audit.

    met       whether it is within the policy
    over      how many records are over the rate, or flagged
    policy    which policy
    sentence  the same for a reader
    rough     what a reader is to know of rates that nothing calibrated; empty where they are
    """

    met: bool
    over: int
    policy: Policy
    sentence: str
    rough: str = ""
