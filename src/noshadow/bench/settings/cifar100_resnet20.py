"""CIFAR-100, ResNet-20 with dropout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from noshadow.bench.architectures import resnet20
from noshadow.bench.prepare import images
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.shadow.recipe import Recipe

__all__ = ["CLASSES", "SETTING", "load", "model"]


def load(source: SettingSource, at_least: int) -> Pool:
    """The training images with their fine labels."""
    arrays = source.arrays("cifar100", at_least)
    return Pool(arrays["x_train"], arrays["y_train"])


def model(pool: Pool, source: SettingSource, shrink: int = 1) -> Callable[[], nn.Module]:
    """Dropout 0.3 before the last layer; ``shrink``: images are averaged over squares of so many pixels a side."""
    return partial(resnet20, 100, dropout=0.3, shrink=shrink)


CLASSES = """
    apple, aquarium fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy, bridge, bus,
    butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock, cloud, cockroach, couch, crab,
    crocodile, cup, dinosaur, dolphin, elephant, flatfish, forest, fox, girl, hamster, house, kangaroo, keyboard,
    lamp, lawn mower, leopard, lion, lizard, lobster, man, maple tree, motorcycle, mountain, mouse, mushroom, oak
    tree, orange, orchid, otter, palm tree, pear, pickup truck, pine tree, plain, plate, poppy, porcupine, possum,
    rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark, shrew, skunk, skyscraper, snail, snake, spider,
    squirrel, streetcar, sunflower, sweet pepper, table, tank, telephone, television, tiger, tractor, train,
    trout, tulip, turtle, wardrobe, whale, willow tree, wolf, woman, worm
"""

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
            shadows=128,
            targets=6,
            pool=2_000,
            recipe={"epochs": 28, "batch_size": 32, "optimizer": "adam", "learning_rate": 3e-3, "weight_decay": 0.0},
            model={"shrink": 2},
            note="2,000 of 50,000 images, averaged to 16 × 16 pixels, 28 of 50 epochs of Adam in place of SGD, batches "
            "of 32 in place of 256, so that the network fits its members and LiRA agrees with itself",
        ),
        "paper": Scale(shadows=200, targets=16, pool=50_000),
    },
    classes=tuple(" ".join(name.split()) for name in CLASSES.split(",")),
)
