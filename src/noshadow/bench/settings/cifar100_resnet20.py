"""CIFAR-100, ResNet-20 with dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.architectures import resnet20
from noshadow.bench.prepare import images
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """The training images with their fine labels."""
    arrays = source.arrays("cifar100", at_least)
    return Pool(arrays["x_train"], arrays["y_train"])


def model(pool: Pool, source: SettingSource, width: int = 16) -> Callable[[], nn.Module]:
    """Dropout 0.3 before the last layer."""
    return partial(resnet20, 100, dropout=0.3, width=width)


SETTING = Setting(
    name="cifar100-resnet20",
    data="CIFAR-100",
    model_name="ResNet-20",
    head="softmax",
    recipe=Recipe(epochs=50, batch_size=256, optimizer="sgd", learning_rate=1e-3, momentum=0.9, weight_decay=5e-4),
    load=load,
    prepare=images,
    model=model,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=100, recipe={"epochs": 2, "batch_size": 25}),
        "cpu": Scale(
            shadows=24,
            targets=4,
            pool=1_200,
            recipe={"epochs": 14, "batch_size": 16},
            note="1,200 of 50,000 images, 14 of 50 epochs, batches of 16 in place of 256 so that there are 500 steps",
        ),
        "paper": Scale(shadows=200, targets=16, pool=50_000),
    },
)
