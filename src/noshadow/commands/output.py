"""What all commands share: JSON on stdout for machines; for people see ``render``."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from noshadow.commands.policy import COULD_NOT, USAGE, Command, explained_errors

__all__ = ["COULD_NOT", "USAGE", "Command", "explained_errors", "print_json"]


def print_json(value: Any) -> None:
    """One JSON document on stdout; numbers that JSON has no word for become null."""
    json.dump(_plain(value), sys.stdout, indent=2, ensure_ascii=False, default=str)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
