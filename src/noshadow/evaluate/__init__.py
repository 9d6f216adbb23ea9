"""How well a score finds the records that an attack exposes, and how well anything could.

A ``score`` ranks records by predicted risk, ``truth`` is what an attack measured (its success rate a record).
Rankings are over the members of a target model: pass arrays of its members, or use ``over_targets``.

``ceiling`` and ``oracle_ceiling`` say what the attack itself, run again, and a perfect score would reach.
"""

from noshadow.evaluate.ceilings import (
    Measured,
    Prediction,
    ceiling,
    halves,
    oracle,
    oracle_ceiling,
    over_predictions,
)
from noshadow.evaluate.ranking import ndcg, ordering, precision_at_k, recall, spearman
from noshadow.evaluate.targets import Comparison, Metric, Summary, over_targets, paired_bootstrap

__all__ = [
    "Comparison",
    "Measured",
    "Metric",
    "Prediction",
    "Summary",
    "ceiling",
    "halves",
    "ndcg",
    "oracle",
    "oracle_ceiling",
    "ordering",
    "over_predictions",
    "over_targets",
    "paired_bootstrap",
    "precision_at_k",
    "recall",
    "spearman",
]
