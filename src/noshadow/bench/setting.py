"""A setting of the benchmark: data, model, recipe, head and scale, in one small file of ``noshadow.bench.settings``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from noshadow.errors import InputError
from noshadow.shadow.recipe import Recipe

__all__ = ["Pool", "Scale", "Setting", "SettingSource", "all_settings", "find_settings"]


class SettingSource(Protocol):
    """Where a setting gets its data and its frozen features from; see ``noshadow.bench.source``."""

    def arrays(self, name: str, at_least: int) -> dict[str, NDArray[Any]]: ...
    def image_features(self, images: NDArray[Any]) -> NDArray[np.float32]: ...
    def text_features(self, texts: Sequence[str]) -> NDArray[np.float32]: ...
    def tokens(self, texts: Sequence[str]) -> NDArray[np.int64]: ...
    def text_encoder(self) -> Callable[[], nn.Module]: ...


@dataclass(frozen=True)
class Pool:
    """The records that membership splits are drawn from.

    inputs   (N, ...)  what the model is trained on
    targets  (N,)      classes or values
    shown              the records as a person would look at them: images (uint8), sentences, or None
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    shown: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, rows: NDArray[np.int64]) -> Pool:
        """A part of the pool."""
        return Pool(self.inputs[rows], self.targets[rows], None if self.shown is None else self.shown[rows])


@dataclass(frozen=True)
class Scale:
    """How much of a setting is run: models, records and, where a small machine demands it, a shorter recipe."""

    shadows: int
    targets: int
    pool: int
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from the paper's."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Options of the setting's model that differ from the paper's."""
    backbone: str | None = None
    network_targets: int = 1
    """Targets whose full-network influence is computed, where the setting asks for it."""
    network_options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    """What differs from the paper, for the result and the page."""


@dataclass(frozen=True)
class Setting:
    """One experiment of the paper.

    load     raw records: ``inputs`` as they are stored, before any preparation
    prepare  raw records of the pool -> what the model is trained on; frozen features are computed here
    model    (pool, source, **options) -> a function that builds a freshly initialised module, with the options that
             a scale has for it; None: the closed-form ridge
    """

    name: str
    data: str
    model_name: str
    head: str
    recipe: Recipe
    load: Callable[[SettingSource, int], Pool]
    prepare: Callable[[Pool, SettingSource], Pool]
    model: Callable[..., Callable[[], nn.Module]] | None
    scales: Mapping[str, Scale]
    stack: int = 1
    """Models trained in one stack, where that is faster; not tried out, so that a seed gives the same numbers."""
    network_influence: Mapping[str, Any] | None = None
    """Options of ``noshadow.network.network_influence`` where the paper computes it."""
    in_paper: bool = True
    classes: tuple[str, ...] = ()
    """What the classes 0, 1, … are called, for people; none where targets are values."""

    def recipe_at(self, scale: Scale) -> Recipe:
        return replace(self.recipe, **scale.recipe)


def all_settings() -> dict[str, Setting]:
    """Every setting there is, by name: each module of ``noshadow.bench.settings`` holds one as ``SETTING``."""
    package = importlib.import_module("noshadow.bench.settings")
    modules = (info.name for info in pkgutil.iter_modules(package.__path__))
    found = [importlib.import_module(f"{package.__name__}.{name}").SETTING for name in modules]
    return {setting.name: setting for setting in found}


def find_settings(names: Sequence[str]) -> list[Setting]:
    """The settings of those names; ``all`` stands for the paper's eight."""
    known = all_settings()
    chosen: dict[str, Setting] = {}
    for name in names:
        if name == "all":
            chosen |= {key: setting for key, setting in known.items() if setting.in_paper}
        elif name in known:
            chosen[name] = known[name]
        else:
            raise InputError(f"setting: {name!r} is not one of {', '.join([*known, 'all'])}")
    return list(chosen.values())
