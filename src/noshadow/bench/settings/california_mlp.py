"""California Housing, MLP with three hidden layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.architectures import mlp
from noshadow.bench.prepare import table
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.bench.settings.california_ridge import load
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "model"]


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """Widths 128, 128, 128."""
    return partial(mlp, pool.inputs.shape[1], (128, 128, 128), 1)


SETTING = Setting(
    name="california-mlp",
    data="California Housing",
    model_name="MLP",
    head="squared",
    recipe=Recipe(epochs=200, batch_size=256, optimizer="adam", learning_rate=1e-3, weight_decay=5e-4),
    load=load,
    prepare=table,
    model=model,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=200, recipe={"epochs": 4}),
        "cpu": Scale(shadows=200, targets=16, pool=16_512, network_targets=2),
        "paper": Scale(shadows=200, targets=16, pool=16_512, network_targets=16),
    },
    stack=64,
    network_influence={"damping": 10.0, "tolerance": 1e-2},
)
