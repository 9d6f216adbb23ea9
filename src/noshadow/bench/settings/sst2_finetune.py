"""SST-2, a small BERT, all of it fine-tuned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from torch import nn

from noshadow.bench.backbones import TextClassifier
from noshadow.bench.prepare import tokens
from noshadow.bench.setting import Pool, Scale, Setting, SettingSource
from noshadow.bench.settings.sst2_probe import SETTING as PROBE
from noshadow.bench.settings.sst2_probe import load
from noshadow.shadow.recipe import Recipe

__all__ = ["SETTING", "model"]


def model(pool: Pool, source: SettingSource) -> Callable[[], nn.Module]:
    """A linear layer on the mean of the encoder's last states over the tokens."""
    return partial(TextClassifier, source.text_encoder(), 2, vocabulary=np.unique(pool.inputs))


SETTING = Setting(
    name="sst2-finetune",
    data="SST-2",
    model_name="BERT, fine-tuned",
    head="softmax",
    recipe=Recipe(epochs=10, batch_size=32, optimizer="adamw", learning_rate=1e-4, weight_decay=1e-2),
    load=load,
    prepare=tokens,
    model=model,
    scales={
        "smoke": Scale(shadows=16, targets=2, pool=80, recipe={"epochs": 2}, backbone="minilm-2"),
        "cpu": Scale(
            shadows=48,
            targets=6,
            pool=1_600,
            recipe={"epochs": 5},
            backbone="minilm-2",
            note="1,600 of 67,349 sentences, 5 of 10 epochs; the first two layers of MiniLM (H=384) in place of "
            "BERT-tiny (L=2, H=128)",
        ),
        "paper": Scale(shadows=200, targets=16, pool=67_349, backbone="google/bert_uncased_L-2_H-128_A-2"),
    },
    classes=PROBE.classes,
)
