"""SST-2, a linear probe on the frozen features of a text encoder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.prepare import text_features
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """The training sentences."""
    arrays = source.arrays("sst2", at_least)
    return Pool(arrays["sentence"], arrays["label"])


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """A linear layer."""
    return partial(nn.Linear, pool.inputs.shape[1], 2)


SETTING = Setting(
    name="sst2-probe",
    data="SST-2",
    model_name="linear probe",
    head="softmax",
    recipe=Recipe(epochs=10, batch_size=32, optimizer="adamw", learning_rate=1e-3, weight_decay=1e-2),
    load=load,
    prepare=text_features,
    model=model,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=120, recipe={"epochs": 2}, backbone="minilm"),
        "cpu": Scale(
            shadows=200,
            targets=16,
            pool=67_349,
            backbone="minilm",
            note="MiniLM features (384) in place of BERT-base (768)",
        ),
        "paper": Scale(shadows=200, targets=16, pool=67_349, backbone="google-bert/bert-base-uncased"),
    },
    stack=64,
    classes=("negative", "positive"),
)
