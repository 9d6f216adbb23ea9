"""Eval mode, and a record of what the layers of a model saw and gave in a forward pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noshadow.errors import InputError

__all__ = ["Call", "evaluating", "reading", "require_readable", "running_eagerly", "unwrapped", "watch"]

_KEPT_BYTES = 2**30
"""What the record of a batch may hold. The largest tensors go first: a head's are small, a transformer's are not."""


@dataclass
class Call:
    """One call of a layer: its first input and its output, both None where they were too large to keep."""

    name: str
    module: nn.Module
    input: Tensor | None
    output: Tensor | None

    @property
    def size(self) -> int:
        """Bytes that the call keeps alive."""
        return sum(tensor.nbytes for tensor in (self.input, self.output) if tensor is not None)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module itself, without torch.compile or data parallelism around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if isinstance(inner, nn.Module):
            model = inner
        elif isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        else:
            return model


def require_readable(model: nn.Module) -> None:
    """Refuse modules that cannot be watched, and those whose parameters are not numbers."""
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError(
            "model: a TorchScript module does not show what its layers see; pass the nn.Module that it was made from"
        )
    for name, value in model.named_parameters():
        if isinstance(value, nn.parameter.UninitializedParameter):
            raise InputError(f"model: parameter {name!r} is lazy and has no values yet; load the trained weights first")
        if value.is_meta:
            raise InputError(
                f"model: parameter {name!r} is on the meta device and has no values; load the trained weights first"
            )
        if value.is_floating_point() and value.element_size() > 1 and bool(torch.isnan(value).any()):
            raise InputError(f"model: parameter {name!r} holds NaN: training diverged; pass a model that did not")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for every submodule; each gets its own mode back, whatever happens."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
    except NotImplementedError:  # torch's own answer for an exported program
        raise InputError(
            "model: an exported program has no eval mode and no layers to watch; pass the nn.Module that it was made "
            "from"
        ) from None
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def running_eagerly() -> Iterator[None]:
    """Compiled submodules run as they were written: compiled code does not call hooks."""
    with ExitStack() as stack:
        if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):  # else nothing is compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """How a model is run to be read: in eval mode, as it was written, without gradients."""
    with evaluating(model), running_eagerly(), torch.no_grad():
        yield


@contextmanager
def watch(model: nn.Module, only: nn.Module | None = None) -> Iterator[list[Call]]:
    """Record the calls, in order, of one layer or of all that have parameters or are called linear."""
    calls: list[Call] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if (module is only) if only is not None else _is_layer(module):
                handle = module.register_forward_hook(_recorder(name, calls), with_kwargs=True)
                stack.callback(handle.remove)
        yield calls


def _is_layer(module: nn.Module) -> bool:
    if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
        return False
    return "linear" in type(module).__name__.lower() or any(True for _ in module.parameters(recurse=False))


def _recorder(name: str, calls: list[Call]) -> Any:
    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        if given is not None and isinstance(output, Tensor):
            calls.append(Call(name, module, given.detach(), output.detach()))
            _forget_largest(calls)

    return note


def _forget_largest(calls: list[Call]) -> None:
    while sum(call.size for call in calls) > _KEPT_BYTES and len(calls) > 1:
        largest = max(calls[:-1], key=lambda call: call.size)  # of equal ones the first
        if not largest.size:
            return
        largest.input = largest.output = None
