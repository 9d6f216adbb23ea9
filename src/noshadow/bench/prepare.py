"""Preparations that several settings share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.setting import Pool, SettingSource

__all__ = ["image_features", "images", "standardised", "table", "text_features", "tokens"]


def standardised(values: NDArray[Any]) -> NDArray[np.float32]:
    """Each column with mean 0 and standard deviation 1 over the pool; constant columns become 0."""
    spread = values.std(0)
    scaled: NDArray[np.float32] = ((values - values.mean(0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32)
    return scaled


def table(pool: Pool, source: SettingSource) -> Pool:
    """Standardised columns and targets."""
    return replace(pool, inputs=standardised(pool.inputs), targets=standardised(pool.targets))


def images(pool: Pool, source: SettingSource) -> Pool:
    """Images (N, H, W, 3) in 0 … 255 as (N, 3, H, W), each channel standardised over the pool."""
    pixels = np.moveaxis(pool.inputs, 3, 1).astype(np.float32)
    mean, spread = pixels.mean((0, 2, 3), keepdims=True), pixels.std((0, 2, 3), keepdims=True)
    return Pool((pixels - mean) / np.maximum(spread, 1e-6), pool.targets.astype(np.int64), pool.inputs)


def image_features(pool: Pool, source: SettingSource) -> Pool:
    """Features of a frozen image backbone, each standardised over the pool."""
    features = standardised(source.image_features(pool.inputs))
    return Pool(features, pool.targets.astype(np.int64), pool.inputs)


def text_features(pool: Pool, source: SettingSource) -> Pool:
    """Features of a frozen text encoder, as it gives them."""
    return Pool(source.text_features(list(pool.inputs)), pool.targets.astype(np.int64), pool.inputs)


def tokens(pool: Pool, source: SettingSource) -> Pool:
    """Token codes, padded with 0."""
    return Pool(source.tokens(list(pool.inputs)), pool.targets.astype(np.int64), pool.inputs)
