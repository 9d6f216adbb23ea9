"""What ``noshadow theory`` tells of one point: its figures and its curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noshadow import theory

__all__ = ["DELTA", "LEVELS", "describe"]

LEVELS = (1e-4, 1e-3, 1e-2, 1e-1)
DELTA = 1e-5


def describe(leverage: float, error: float, n: int, p: int, sigma: float, exact: bool) -> dict[str, Any]:
    """Every figure of one point; what does not exist for these sizes is None."""
    point = (leverage, error, n, p, sigma)
    law = theory.leverage_law(leverage, n, p)
    alpha = np.concatenate([np.geomspace(1e-4, 1e-2, 21)[:-1], np.linspace(0.01, 0.99, 99)])
    levels = np.array(LEVELS)

    def by_test(function: Callable[..., Any], *first: Any) -> dict[str, Any]:
        return {
            test: np.asarray(function(*first, *point, test=test, exact=exact)).tolist()
            for test in ("threshold", "optimal")
        }

    return {
        "leverage": leverage,
        "error": error,
        "n": n,
        "p": p,
        "sigma": sigma,
        "exact": exact,
        "empirical_leverage": {"mean": float(law.mean()), "typical": float(law.typical())},
        "expected_gap": float(theory.expected_gap(*point)) if n - p > 2 else None,
        "gap_expansion": float(theory.gap_expansion(*point)) if n - p > 4 else None,
        "auc": by_test(theory.auc),
        "success_rate": by_test(theory.success_rate),
        "fpr": list(LEVELS),
        "tpr_at_fpr": by_test(theory.tpr_at_fpr, levels),
        "delta": DELTA,
        "epsilon_lower_bound": by_test(theory.epsilon_lower_bound, DELTA),
        "curve": {"alpha": alpha.tolist(), **by_test(theory.tradeoff, alpha)},
    }
