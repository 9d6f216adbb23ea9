"""CIFAR-10, a CNN with three convolution blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.architectures import small_cnn
from noshadow.bench.prepare import images
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """The training images."""
    arrays = source.arrays("cifar10", at_least)
    return Pool(arrays["x_train"], arrays["y_train"])


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """16, 32 and 64 channels, 256 features."""
    return partial(small_cnn, 10, image_size=pool.inputs.shape[-1])


SETTING = Setting(
    name="cifar10-cnn",
    data="CIFAR-10",
    model_name="CNN",
    head="softmax",
    recipe=Recipe(epochs=25, batch_size=256, optimizer="adamw", learning_rate=1e-3, weight_decay=5e-4),
    load=load,
    prepare=images,
    model=model,
    scales={
        "smoke": Scale(
            shadows=16,
            targets=2,
            pool=160,
            recipe={"epochs": 4, "batch_size": 32},
            network_options={"hessian_records": 8, "tolerance": 0.1, "subspace": 0},
        ),
        "cpu": Scale(
            shadows=48,
            targets=8,
            pool=10_000,
            network_options={"hessian_records": 128},
            note="10,000 of 50,000 images",
        ),
        "paper": Scale(
            shadows=200, targets=16, pool=50_000, network_targets=16, network_options={"hessian_records": 256}
        ),
    },
    network_influence={"damping": 10.0, "tolerance": 1e-2},
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
)
