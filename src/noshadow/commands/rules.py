"""The policy that a command was given, in a file or by options, and what it says of an audit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from noshadow.errors import FileError, InputError

if TYPE_CHECKING:
    from noshadow.audit import Audit
    from noshadow.gate import Policy, Verdict

__all__ = ["judged", "read_policy"]


def read_policy(file: Path | None, **options: Any) -> Policy | None:
    """The policy of the file, or of the options by their names; None where neither was given."""
    from noshadow.gate import Policy

    stated = {name: value for name, value in options.items() if value is not None}
    if file is None:
        return Policy(**stated) if stated else None
    if stated:
        raise InputError(f"policy, {next(iter(stated))}: give one of them, a file or the options")
    return Policy.read(file)


def judged(rule: Policy, audit: Audit) -> Verdict:
    """What the policy says; where it can say nothing, what was typed is right and the audit does not say enough."""
    try:
        return rule.judge(audit)
    except InputError as error:
        raise FileError(str(error)) from None
