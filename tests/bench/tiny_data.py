"""Tiny data in the formats of the benchmark's data sets, and tiny backbones, made on the spot."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from noshadow.bench.data import ENERGY_RANGES

RANGES = list(ENERGY_RANGES.items())
WORDS = ("a", "bad", "bright", "dull", "film", "fine", "funny", "good", "is", "of", "plot", "sad", "the", "very")


def write_data(folder: Path, rows: int = 260) -> Path:
    """Every data set, with something to learn in it."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    x = rng.standard_normal((rows, 8))
    y = x @ rng.standard_normal(8) + 0.5 * rng.standard_normal(rows)
    np.savez(folder / "california_housing.npz", X=x, y=y)
    _energy(rng).to_csv(folder / "energy_efficiency.csv", index=False)
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        labels = np.arange(rows) % classes
        images = _images(rng, labels, 32)
        kept = {"x_train": images, "y_train": labels.astype(np.uint8)}
        np.savez(folder / f"{name}_10k.npz", **kept, x_test=images[:2], y_test=labels[:2].astype(np.uint8))
    labels = np.arange(rows) % 8
    np.savez(folder / "bloodmnist_train.npz", x=_images(rng, labels, 28), y=labels.astype(np.uint8))
    sentences = [" ".join(rng.choice(WORDS, rng.integers(2, 9))) for _ in range(rows)]
    frame = pd.DataFrame({"sentence": sentences, "label": [int("good" in s or "fine" in s) for s in sentences]})
    frame.to_csv(folder / "sst2_train.tsv.gz", sep="\t", index=False)
    return folder


def _energy(rng: np.random.Generator) -> pd.DataFrame:
    """As many rows as the real file, within its ranges, which is what it is recognised by."""
    shares = rng.random((768, 10))
    shares[:, 8:] = (shares[:, :2] + shares[:, 2:4] ** 2) / 2 + 0.05 * rng.random((768, 2))
    shares = (shares - shares.min(0)) / (shares.max(0) - shares.min(0))
    return pd.DataFrame({name: low + (high - low) * shares[:, i] for i, (name, (low, high)) in enumerate(RANGES)})


def _images(rng: np.random.Generator, labels: np.ndarray, size: int) -> np.ndarray:
    base = rng.integers(40, 216, (int(labels.max()) + 1, 1, 1, 3))
    noise = rng.integers(-40, 40, (len(labels), size, size, 3))
    return (base[labels] + noise).astype(np.uint8)


def write_image_backbone(folder: Path) -> str:
    """A DINOv2 of two layers with random weights."""
    import torch
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    Dinov2Model(Dinov2Config(**sizes)).save_pretrained(folder)
    return str(folder)


def write_text_backbone(folder: Path) -> str:
    """A BERT of two layers with random weights and a vocabulary of a few words."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
    return str(folder)
