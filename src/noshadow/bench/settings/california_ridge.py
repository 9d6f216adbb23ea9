"""California Housing, ridge regression in closed form."""

from __future__ import annotations

from noshadow.bench.prepare import table
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load"]


def load(source: SettingSource, at_least: int) -> Pool:
    """All 20,640 districts; the pool of 16,512 is the usual 80 % for training."""
    arrays = source.arrays("california_housing", at_least)
    return Pool(arrays["X"], arrays["y"])


SETTING = Setting(
    name="california-ridge",
    data="California Housing",
    model_name="ridge regression",
    head="squared",
    recipe=Recipe(epochs=200, batch_size=256, optimizer="adam", learning_rate=1e-2, weight_decay=1e-3),
    load=load,
    prepare=table,
    model=None,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=200),
        "cpu": Scale(shadows=200, targets=16, pool=16_512),
        "paper": Scale(shadows=200, targets=16, pool=16_512),
    },
    stack=64,
)
