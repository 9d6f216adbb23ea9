"""UCI Energy Efficiency (heating load), MLP with dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.architectures import mlp
from noshadow.bench.prepare import table
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """All 768 buildings; the pool of 614 is the usual 80 % for training."""
    arrays = source.arrays("energy_efficiency", at_least)
    return Pool(arrays["X"], arrays["y"])


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """Widths 64, 32."""
    return partial(mlp, pool.inputs.shape[1], (64, 32), 1, dropout=0.3)


SETTING = Setting(
    name="energy-mlp",
    data="UCI Energy",
    model_name="MLP",
    head="squared",
    recipe=Recipe(epochs=300, batch_size=32, optimizer="adam", learning_rate=1e-3, weight_decay=1e-3),
    load=load,
    prepare=table,
    model=model,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=120, recipe={"epochs": 4}),
        "cpu": Scale(shadows=200, targets=16, pool=614),
        "paper": Scale(shadows=200, targets=16, pool=614),
    },
    stack=64,
)
