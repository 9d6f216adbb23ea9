"""Where a setting's data and frozen features come from: a folder, the public source, a cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from noshadow.bench import backbones
from noshadow.bench.cache import keep, kept
from noshadow.bench.data import Arrays, load_arrays
from noshadow.errors import InputError
from noshadow.shadow.content import array_digest

__all__ = ["DataSource"]


@dataclass(frozen=True)
class DataSource:
    """A folder with data (None: the public sources only), a cache, and the backbone for frozen features."""

    folder: Path | None
    cache: Path
    backbone: str | None = None
    progress: bool | None = None

    def arrays(self, name: str, at_least: int) -> Arrays:
        return load_arrays(name, self.folder, self.cache, at_least, self.progress)

    def image_features(self, images: NDArray[Any]) -> NDArray[np.float32]:
        return self._cached(
            f"{array_digest(images)} {backbones.EFFICIENTNET_PIXELS}",
            {"pixels": [backbones.EFFICIENTNET_PIXELS, backbones.TRANSFORMER_PIXELS]},
            lambda: backbones.image_features(self._backbone, images, self.progress),
        )

    def text_features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        lines = "\n".join(texts)
        shown = json.dumps(list(texts)) if lines.count("\n") >= len(texts) > 0 else lines  # a text of several lines
        return self._cached(
            hashlib.sha256(shown.encode()).hexdigest(),
            {"longest text": backbones.LONGEST_TEXT},
            lambda: backbones.text_features(self._backbone, texts, self.progress),
        )

    def tokens(self, texts: Sequence[str]) -> NDArray[np.int64]:
        return backbones.tokens(self._backbone, texts)

    def text_encoder(self) -> Callable[[], nn.Module]:
        return backbones.text_encoder(self._backbone)

    @property
    def _backbone(self) -> str:
        if self.backbone is None:
            raise InputError("backbone: this setting needs one")
        return self.backbone

    def _cached(
        self, shown: str, options: Mapping[str, Any], compute: Callable[[], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Frozen features are computed once: kept under the digest of the backbone and of what it was shown."""
        backbone = backbones.identity(self._backbone)
        key = hashlib.sha256(f"{backbone} {shown}".encode()).hexdigest()[:32]
        path = self.cache / "features" / f"{key}.safetensors"
        identity = {"backbone": backbone, "package": backbones.package_version(backbone), "shown": shown, **options}
        found = kept(path, identity)
        if found is None:
            found = {"features": compute()}, None
            keep(path, *found, identity)
        features: NDArray[np.float32] = found[0]["features"]
        return features
