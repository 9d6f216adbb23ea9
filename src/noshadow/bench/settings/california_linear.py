"""California Housing, one linear layer trained with Adam: what the paper's table says of its ridge regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from noshadow.bench.architectures import mlp
from noshadow.bench.setting import Pool, Scale, SettingSource
from noshadow.bench.settings.california_ridge import SETTING as RIDGE

__all__ = ["SETTING", "model"]


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """A linear layer."""
    return partial(mlp, pool.inputs.shape[1], (), 1)


SETTING = replace(
    RIDGE,
    name="california-linear",
    model_name="linear layer, Adam",
    model=model,
    scales={**RIDGE.scales, "smoke": Scale(shadows=16, targets=2, pool=200, recipe={"epochs": 2})},
    in_paper=False,
)
