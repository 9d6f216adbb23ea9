"""Reasons in words, from where a record stands among all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from noshadow.report.reasons import Standing, difficulty, reason, standings


def test_standings_are_shares_of_records_below():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"leverage": rng.permutation(200.0 * np.arange(200)), "loss": rng.random(200)})
    rows = np.array([3, 17, 150])
    for row, found in zip(rows, standings(table, rows), strict=True):
        assert found.leverage == pytest.approx(np.mean(table["leverage"] < table["leverage"][row]))
        assert found.error == pytest.approx(np.mean(table["loss"] < table["loss"][row]))


def test_a_trace_knows_better_what_was_hard_to_fit():
    table = pd.DataFrame({"loss": [0.0, 1.0], "mean_trace": [2.0, 1.0], "leverage": [1.0, 1.0]})
    assert difficulty(table) == "mean_trace"
    assert standings(table, np.array([0]))[0].error == 0.5
    assert difficulty(table[["loss"]]) == "loss"
    assert standings(table[["loss"]], np.array([1])) == [Standing(None, 0.5)]


@pytest.mark.parametrize(
    ("standing", "said"),
    [
        (Standing(0.991, 0.3), "Unusual features: more than those of 99.1 % of the records."),
        (Standing(0.2, 0.97), "Hard to fit: more than 97 % of the records."),
        (Standing(0.9999, 0.96), "Unusual features (above 99.9 %) and hard to fit (above 96 %)."),
        (Standing(0.9, 0.8), "Neither stands out alone, together they do: features above 90 %, error above 80 %."),
        (Standing(None, 0.8), "Not known: this audit has no leverage or no loss."),
    ],
)
def test_words(standing, said):
    assert reason(standing, flagged=False) == said
    assert reason(standing, flagged=True).startswith("Nothing else resembles it")


def test_words_of_a_run():
    assert reason(Standing(0.1, 0.99), False, True) == "Hard to fit while training: more than 99 % of the records."
