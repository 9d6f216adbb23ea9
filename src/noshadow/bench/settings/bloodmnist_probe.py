"""BloodMNIST, a linear probe on the frozen features of an image backbone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.prepare import image_features
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """The training images, 28 × 28."""
    arrays = source.arrays("bloodmnist", at_least)
    return Pool(arrays["x"], arrays["y"])


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """A linear layer."""
    return partial(nn.Linear, pool.inputs.shape[1], 8)


SETTING = Setting(
    name="bloodmnist-probe",
    data="BloodMNIST",
    model_name="linear probe",
    head="softmax",
    recipe=Recipe(epochs=100, batch_size=512, optimizer="sgd", learning_rate=1e-2, momentum=0.9, weight_decay=1e-6),
    load=load,
    prepare=image_features,
    model=model,
    scales={
        "smoke": Scale(
            shadows=16, targets=2, pool=160, recipe={"epochs": 4, "batch_size": 32}, backbone="efficientnet-lite0"
        ),
        "cpu": Scale(
            shadows=200,
            targets=16,
            pool=8_000,
            backbone="efficientnet-lite0",
            note="EfficientNet-Lite0 features (1280) in place of DINOv2 ViT-S/14 (384)",
        ),
        "paper": Scale(shadows=200, targets=16, pool=8_000, backbone="facebook/dinov2-small"),
    },
    classes=(
        "basophil",
        "eosinophil",
        "erythroblast",
        "immature granulocyte",
        "lymphocyte",
        "monocyte",
        "neutrophil",
        "platelet",
    ),
)
