"""One's own code: ``package.module:name``. It is imported and run, and the user is told so."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer

from noshadow.errors import FileError

__all__ = ["is_code", "load_weights", "made"]

_SPEC = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_code(given: str) -> bool:
    """``package.module:name``, and no file of that name."""
    return _SPEC.fullmatch(given) is not None and not Path(given).exists()


def made(given: str, argument: str) -> Any:
    """What the name stands for; a function is called."""
    module, _, name = given.partition(":")
    typer.echo(f"running code: {given}, imported from {Path.cwd()}", err=True)
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # as python -m does
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found() if inspect.isroutine(found) or inspect.isclass(found) else found
    except Exception as error:  # it is anybody's code
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"{argument}: {given} failed: {type(error).__name__}: {reason}") from error


def load_weights(model: Any, file: Path, argument: str) -> Any:
    """The model with the weights of a safetensors file, all of them."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from noshadow.commands.kinds import kind_of

    if not isinstance(model, torch.nn.Module):
        raise FileError(f"{argument}: weights are for a torch Module, and the code made a {type(model).__name__}")
    if file.suffix != ".safetensors":
        kind_of(file, argument)  # says what a pickle is to become
        raise FileError(f"{argument}: {file} is no .safetensors file of weights")
    try:
        model.load_state_dict(load_file(file))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise FileError(f"{argument}: {file} cannot be loaded into the model ({reason})") from None
    return model
