"""One network, or a stack of networks of the same architecture, behind the same three calls.

A stack holds each parameter of G models as one tensor with a leading axis of length G. ``torch.func`` maps
the module's forward over that axis, and the gradient of the *sum* of the G losses is, for each model's slice,
the gradient of its own loss. An optimiser that works number by number then trains all of them in one step.

Randomness is the one thing that could tell stacked from single training. Dropout modules are therefore
replaced by ``SeededDropout``, whose masks come from a generator that each model owns; a module that draws
random numbers in any other way cannot be stacked, and ``torch.func`` says so.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from noshadow.shadow.recipe import Loss

__all__ = [
    "DropoutSite",
    "Network",
    "SeededDropout",
    "SingleNetwork",
    "StackedNetwork",
    "draw_masks",
    "find_dropouts",
    "seed_dropouts",
]


class Network(Protocol):
    """What the training loop asks: G models, inputs (G, B, ...), targets (G, B, ...)."""

    def parameters(self) -> list[Tensor]: ...
    def loss(self, x: Tensor, y: Tensor, masks: dict[str, Tensor]) -> Tensor: ...
    def outputs(self, x: Tensor) -> Tensor: ...


class SingleNetwork:
    """One module (G = 1), trained as anyone would."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        self._module = module
        self._loss = loss
        self._dropouts = {n: m for n, m in module.named_modules() if isinstance(m, SeededDropout)}

    def parameters(self) -> list[Tensor]:
        return [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def loss(self, x: Tensor, y: Tensor, masks: dict[str, Tensor]) -> Tensor:
        self._module.train()
        for name, mask in masks.items():
            self._dropouts[name].mask = mask[0]
        return self._loss(self._module(x[0]), y[0])

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """(1, rows, m) for inputs (rows, ...)."""
        self._module.eval()
        outputs: Tensor = self._module(x)
        return outputs[None]


class StackedNetwork:
    """G modules of one architecture, their parameters and buffers stacked."""

    def __init__(self, modules: Sequence[nn.Module], loss: Loss) -> None:
        self._module = copy.deepcopy(modules[0])
        trained = {name for name, parameter in modules[0].named_parameters() if parameter.requires_grad}
        self._parameters = _stack([dict(module.named_parameters()) for module in modules])
        for name in trained:
            self._parameters[name].requires_grad_()
        self._buffers = _stack([dict(module.named_buffers()) for module in modules])

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(self._module, (parameters, buffers), (x,))
            return outputs

        def loss_of(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(forward(parameters, buffers, x), y)

        self._losses = vmap(loss_of, randomness="error")
        self._forward = vmap(forward, in_dims=(0, 0, None), randomness="error")

    def parameters(self) -> list[Tensor]:
        return [parameter for parameter in self._parameters.values() if parameter.requires_grad]

    def loss(self, x: Tensor, y: Tensor, masks: dict[str, Tensor]) -> Tensor:
        self._module.train()
        buffers = {**self._buffers, **{f"{name}.mask": mask for name, mask in masks.items()}}
        losses: Tensor = self._losses(self._parameters, buffers, x, y)
        return losses.sum()

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Tensor:
        """(G, rows, m) for inputs (rows, ...), the same for every model."""
        self._module.eval()
        outputs: Tensor = self._forward(self._parameters, self._buffers, x)
        return outputs


def _stack(states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}


class SeededDropout(nn.Module):
    """Dropout whose mask (0 or 1/(1 − p)) is handed in, so that its randomness belongs to the model."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask if self.training else x


@dataclass(frozen=True)
class DropoutSite:
    """A dropout module: where it is, how much it drops, and the shape of a record when it gets there."""

    name: str
    p: float
    shape: tuple[int, ...]


def find_dropouts(module: nn.Module, x: Tensor) -> tuple[tuple[DropoutSite, ...], Tensor]:
    """The ``nn.Dropout`` modules that can be seeded: called once, on a tensor with a row for each of ``x``.

    Found by running the module on ``x`` (a few rows) in evaluation mode; its outputs are given back too.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    hooks = []
    for name, inner in module.named_modules():
        if type(inner) is nn.Dropout:
            calls = shapes.setdefault(name, [])
            hooks.append(
                inner.register_forward_pre_hook(lambda _, given, calls=calls: calls.append(tuple(given[0].shape)))
            )
    was_training = module.training
    with torch.no_grad():
        outputs: Tensor = module.eval()(x)
    module.train(was_training)
    for hook in hooks:
        hook.remove()
    sites = tuple(
        DropoutSite(name, float(cast(Any, module.get_submodule(name)).p), calls[0][1:])
        for name, calls in shapes.items()
        if name and len(calls) == 1 and calls[0][0] == len(x)
    )
    return sites, outputs


def seed_dropouts(module: nn.Module, sites: Iterable[DropoutSite]) -> nn.Module:
    """The same module with its dropouts at ``sites`` replaced by seeded ones."""
    for site in sites:
        parent, _, child = site.name.rpartition(".")
        setattr(module.get_submodule(parent), child, SeededDropout().to(_device(module)))
    return module


def draw_masks(
    sites: Sequence[DropoutSite], rows: int, generators: Sequence[torch.Generator], device: str
) -> dict[str, Tensor]:
    """A mask (G, rows, *shape) for every site, each model's part from its own generator."""
    masks = {}
    for site in sites:
        keep = 1.0 - site.p
        drawn = torch.empty((len(generators), rows, *site.shape))
        for part, generator in zip(drawn, generators, strict=True):
            part.bernoulli_(keep, generator=generator)
        masks[site.name] = (drawn.div_(keep) if keep > 0.0 else drawn).to(device)
    return masks


def _device(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
