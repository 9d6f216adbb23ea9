"""The Gaussian linear model in closed form: how leverage and structural error alone fix a record's exposure.

A point is given by its population leverage h̄ = xᵀΣ⁻¹x and its structural error ε = y − xᵀθ; n records,
p parameters and the noise σ are the model's. All functions are vectorised over points and broadcast.
"""

from noshadow.theory.curves import auc, epsilon_lower_bound, success_rate, tpr_at_fpr, tradeoff
from noshadow.theory.gap import expected_gap, gap_expansion, influence_ratio, newton_ratio
from noshadow.theory.laws import (
    LeverageLaw,
    Losses,
    leverage_law,
    loss_cdf,
    loss_quantile,
    sample_losses,
)
from noshadow.theory.sample import Sample, from_sample, population_leverage

__all__ = [
    "LeverageLaw",
    "Losses",
    "Sample",
    "auc",
    "epsilon_lower_bound",
    "expected_gap",
    "from_sample",
    "gap_expansion",
    "influence_ratio",
    "leverage_law",
    "loss_cdf",
    "loss_quantile",
    "newton_ratio",
    "population_leverage",
    "sample_losses",
    "success_rate",
    "tpr_at_fpr",
    "tradeoff",
]
