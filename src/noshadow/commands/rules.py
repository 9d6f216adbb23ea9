"""The policy that a command was given, in a file or by options, and what it says of an audit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noshadow import gate
from noshadow.errors import FileError, InputError

if TYPE_CHECKING:
    from noshadow.findings import Audit
    from noshadow.gate import Policy, Verdict

__all__ = ["judged", "policy_options", "read_policy", "takes_policy"]


def policy_options() -> dict[str, str]:
    """What the keys of a policy are called on the command line."""
    return {key.name: f"--{key.name.replace('_', '-')}" for key in fields(gate.Policy)}


def takes_policy(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each key of a policy, before ``policy``; it gets them by name as ``rules``."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        rules = {name: given.pop(name) for name in policy_options()}
        command(**given, rules=rules)

    found: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if parameter.name == "policy":
            found += map(_option, fields(gate.Policy))
        found += [parameter] if parameter.name != "rules" else []
    with_options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # where inspect, and typer, look
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in found]
    )
    return with_options


def _option(key: Any) -> inspect.Parameter:
    text = f"{key.metadata['says']} Default: {key.default}."
    kind: Any = type(key.default) | None
    kind = Annotated[kind, typer.Option(help=text)]
    return inspect.Parameter(key.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def read_policy(file: Path | None, **options: Any) -> Policy | None:
    """The policy of the file, or of the options by their names; None where neither was given."""
    stated = {name: value for name, value in options.items() if value is not None}
    if file is None:
        return gate.Policy(**stated) if stated else None
    if stated:
        raise InputError(f"policy, {next(iter(stated))}: give one of them, a file or the options")
    return gate.Policy.read(file)


def judged(rule: Policy, audit: Audit) -> Verdict:
    """What the policy says; where it can say nothing, what was typed is right and the audit does not say enough."""
    try:
        return rule.judge(audit)
    except InputError as error:
        raise FileError(str(error)) from None
