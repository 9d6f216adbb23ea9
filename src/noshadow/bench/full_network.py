"""Full-network influence of target models, kept in the store: by far the most expensive of all scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noshadow.bench.setting import Scale, Setting, Source
from noshadow.bench.study import Models


@dataclass(frozen=True, eq=False)
class TargetInfluence:
    """Scores (T, N), NaN where a target was not scored; seconds for one target; how it went."""

    scores: NDArray[np.float64]
    seconds: float
    facts: dict[str, Any]


def influence_of_targets(
    setting: Setting,
    scale: Scale,
    source: Source,
    models: Models,
    store: Path,
    compute: bool,
    progress: bool | None = None,
) -> TargetInfluence | None:
    """Of the targets that the setting asks for; without ``compute`` only what the store has."""
    return None
