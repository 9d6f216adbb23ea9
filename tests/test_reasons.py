"""Reasons in words: which of two ranks stands out."""

from __future__ import annotations

import numpy as np
import pandas as pd

from noshadow.reasons import BOTH, HARD, UNUSUAL, reasons


def test_the_larger_rank_is_the_reason_and_both_needs_both():
    ranks = np.arange(20.0)
    table = pd.DataFrame({"leverage": ranks, "loss": ranks[::-1]})
    assert reasons(table) == [HARD] * 10 + [UNUSUAL] * 10
    table.loc[19, "loss"] = 100.0  # the highest in both
    assert reasons(table)[19] == BOTH
    table.loc[17, "loss"] = 99.0  # 18th of 20 by leverage: not in the highest tenth
    assert reasons(table)[17] == HARD


def test_a_trace_counts_before_the_final_loss():
    table = pd.DataFrame({"leverage": [1.0, 2.0, 3.0], "loss": [9.0, 0.0, 0.0], "mean_trace": [0.0, 0.1, 9.0]})
    assert reasons(table) == [UNUSUAL, UNUSUAL, BOTH]


def test_scale_and_order_do_not_matter():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"leverage": rng.random(50), "loss": rng.random(50)})
    found = reasons(table)
    assert reasons(pd.DataFrame({"leverage": table["leverage"] ** 3, "loss": np.log(table["loss"])})) == found
    order = rng.permutation(50)
    assert reasons(table.iloc[order]) == [found[row] for row in order]
