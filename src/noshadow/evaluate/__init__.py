"""How well a score finds the records that an attack exposes, and how well anything could.

A ``score`` ranks records by predicted risk, ``truth`` is what an attack measured (its success rate per record).
Rankings are over the members of a target model: pass arrays of its members, or use ``over_targets``.

``ceiling`` and ``oracle_ceiling`` say what the attack itself, run again, and a perfect score would reach;
``best_scores``, ``is_ahead`` and ``paired_bootstrap`` whether scores differ; ``budget`` what each number of trained
models finds, with a prediction and without.
"""

from noshadow.evaluate.budget import Budget, budget
from noshadow.evaluate.ceilings import (
    Measured,
    Prediction,
    ceiling,
    halves,
    oracle,
    oracle_ceiling,
    over_predictions,
)
from noshadow.evaluate.differences import best_scores, deviations_apart, is_ahead, noiseless_correlation
from noshadow.evaluate.ranking import ndcg, ordering, precision_at_k, recall, share_size, spearman
from noshadow.evaluate.reliability import Reliability, reliability
from noshadow.evaluate.targets import Comparison, Metric, Summary, over_targets, paired_bootstrap, paired_difference

__all__ = [
    "Budget",
    "Comparison",
    "Measured",
    "Metric",
    "Prediction",
    "Reliability",
    "Summary",
    "best_scores",
    "budget",
    "ceiling",
    "deviations_apart",
    "halves",
    "is_ahead",
    "ndcg",
    "noiseless_correlation",
    "oracle",
    "oracle_ceiling",
    "ordering",
    "over_predictions",
    "over_targets",
    "paired_bootstrap",
    "paired_difference",
    "precision_at_k",
    "recall",
    "reliability",
    "share_size",
    "spearman",
]
