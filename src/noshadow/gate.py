"""A policy on predicted success rates, and whether an audit is within it."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noshadow.errors import FileError, InputError
from noshadow.spread_sources import SPREAD_SOURCES

if TYPE_CHECKING:
    from noshadow.findings import Audit

__all__ = ["Policy", "Verdict", "count", "policy_key", "rate"]

_LARGEST = 2**20  # bytes of a policy file
_HOW_TO_GET_RATES = (
    "audit again with held_out=, records that the model was not trained on, and rerun=, a second model trained with "
    "another seed"
)


def policy_key(
    default: Any, read: Callable[[Any], Any], says: str, allows: Callable[[Any, int], int] | None = None
) -> Any:
    """A key of a policy: in a TOML file, as an option of the commands and in their JSON, by the name of its field.

    default  where it is not given
    read     what a value means; raises ``ValueError`` with what was expected where it is none
    says     what the option says of itself; the default is added
    allows   how many of n records it lets be over the rate; the least of all keys counts. None: it limits no number
    """
    return field(default=default, metadata={"read": read, "says": says, "allows": allows})


def rate(value: Any) -> float:
    """A success rate."""
    found = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0.5 <= found <= 1:
        raise ValueError("a success rate from 0.5 (guessing) to 1")
    return found


def count(value: Any) -> int:
    """A number of records."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
        raise ValueError("a whole number of records, 0 or more")
    return int(value)


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

    fail_above: float = policy_key(0.9, rate, "Fail if records have a predicted success rate above this.")
    max_records: int = policy_key(0, count, "How many records may be above it.", allows=lambda most, n: most)

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            try:
                object.__setattr__(self, key.name, key.metadata["read"](value))
            except ValueError as error:
                raise InputError(f"{key.name}: expected {error}, got {value!r}") from None

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

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from noshadow.gate import Policy
        >>> path = pathlib.Path(tempfile.mkdtemp(), "policy.toml")
        >>> _ = path.write_text("fail_above = 0.8")
        >>> Policy.read(path)
        Policy(fail_above=0.8, max_records=0)
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

        Examples
        --------
        >>> import noshadow
        >>> from noshadow.gate import Policy
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn.linear_model import LinearRegression
        >>> x, y = load_diabetes(return_X_y=True)
        >>> audit = noshadow.audit(LinearRegression().fit(x, y), (x, y))
        >>> print(Policy(fail_above=0.6).judge(audit).sentence)
        13 of 442 records have a predicted success rate above 0.6 or are fully exposed; the policy allows 0: not met.
        """
        if "attack_accuracy" not in audit.table:
            raise InputError(f"policy: this audit has no predicted rates to hold against it; {_HOW_TO_GET_RATES}")
        rates, flagged = audit.table["attack_accuracy"], audit.table["flagged"].astype(bool)
        over = int(((rates > self.fail_above) | flagged).sum())
        unknown = int((rates.isna() & ~flagged).sum())
        allowed = self.allowed(len(rates))
        if over <= allowed < over + unknown:
            raise InputError(
                f"policy: {unknown:,} of {len(rates):,} records have no predicted rate, and it depends on them; "
                f"{_HOW_TO_GET_RATES}"
            )
        met = over <= allowed
        calibration = audit.metadata.get("calibration") or {}
        source = SPREAD_SOURCES.get(str(calibration.get("source")))
        rough = "" if source is None else source.rough
        sentence = (
            f"{over:,} of {len(rates):,} records {'has' if over == 1 else 'have'} a predicted success rate above "
            f"{self.fail_above:.12g} or {'is' if over == 1 else 'are'} fully exposed; the policy allows "
            f"{allowed:,}: {'met' if met else 'not met'}{rough}."
        )
        return Verdict(met, over, self, sentence, rough, allowed)

    def allowed(self, n: int) -> int:
        """How many of n records may be over the rate, or flagged.

        Examples
        --------
        >>> from noshadow.gate import Policy
        >>> Policy(max_records=10).allowed(1000)
        10
        """
        limits = [(key.metadata["allows"], getattr(self, key.name)) for key in fields(self)]
        return min(int(allows(value, n)) for allows, value in limits if allows is not None)


@dataclass(frozen=True)
class Verdict:
    """What a policy says of an audit.

    met       whether it is within the policy
    over      how many records are over the rate, or flagged
    policy    which policy
    sentence  the same for a reader
    rough     what a reader is to know of rates that nothing calibrated; empty where they are
    allowed   how many may be over the rate, or flagged

    Examples
    --------
    >>> import noshadow
    >>> from noshadow.gate import Policy
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import LinearRegression
    >>> x, y = load_diabetes(return_X_y=True)
    >>> verdict = Policy(fail_above=0.9).judge(noshadow.audit(LinearRegression().fit(x, y), (x, y)))
    >>> verdict.met, verdict.over, verdict.allowed
    (True, 0, 0)
    """

    met: bool
    over: int
    policy: Policy
    sentence: str
    rough: str = ""
    allowed: int = 0
