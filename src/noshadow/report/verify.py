"""What an attack with shadow models said of the same model: how much of what it exposes the audit ranks high."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noshadow.errors import InputError

__all__ = ["NEEDED", "checked_verification"]

NEEDED = ("attack", "models", "recall")
_SHARES = {"recall": None, "ceiling": None, "top": 0.01, "keep": 0.05}


def checked_verification(verified: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a check, refused where one is missing or no share.

    attack, models  what was run, with how many shadow models
    recall          ``noshadow.evaluate.recall`` of the audit's ranking against the attack
    ceiling         ``noshadow.evaluate.ceiling``: what the attack finds of its own with other models
    top, keep       the shares that the recall is about
    """
    missing = [name for name in NEEDED if name not in verified]
    unknown = [str(name) for name in verified if name not in (*NEEDED, *_SHARES)]
    if missing or unknown:
        wrong = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is not known"
        raise InputError(f"verified: {wrong}; it takes attack, models, recall, and ceiling, top, keep if known")
    found = {"attack": str(verified["attack"]), "models": verified["models"]}
    if isinstance(found["models"], bool) or not isinstance(found["models"], int) or found["models"] < 1:
        raise InputError(f"verified: models: expected how many shadow models there were, got {found['models']!r}")
    for name, default in _SHARES.items():
        value = verified.get(name, default)
        if value is not None and (isinstance(value, (bool, str)) or not 0.0 <= float(value) <= 1.0):
            raise InputError(f"verified: {name}: expected a share from 0 to 1, got {value!r}")
        found[name] = None if value is None else float(value)
    return found
