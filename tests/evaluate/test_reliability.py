"""Predicted against measured rates, by tenths."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from noshadow import InputError, evaluate


def test_groups_are_the_definition():
    generator = np.random.default_rng(0)
    predicted, measured = generator.random(103), generator.random(103)
    found = evaluate.reliability(predicted, measured, bins=7)
    order = sorted(range(103), key=lambda i: predicted[i])
    sizes = [15, 15, 15, 15, 15, 14, 14]
    start, error = 0, 0.0
    for n, size in enumerate(sizes):
        group = order[start : start + size]
        p, m = sum(predicted[i] for i in group) / size, sum(measured[i] for i in group) / size
        assert found.predicted[n] == pytest.approx(p)
        assert found.measured[n] == pytest.approx(m)
        error += abs(p - m) / 7
        start += size
    assert found.error == pytest.approx(error)


def test_a_right_prediction_of_coins_has_a_small_error():
    """Rates of 60 flips each are far off one by one, and right on average."""
    generator = np.random.default_rng(1)
    predicted = generator.uniform(0.5, 1.0, 5000)
    measured = generator.binomial(60, predicted) / 60
    assert evaluate.reliability(predicted, measured).error < 0.004
    assert evaluate.reliability(predicted, 1 - measured / 2).error > 0.05


@pytest.mark.parametrize(
    ("predicted", "measured", "bins", "message"),
    [
        ([0.5, 0.6], [0.5], 2, "measured: shape"),
        ([0.5, 0.6], [0.5, 0.5], 3, "bins: expected from 1 to the number of records, 2"),
        ([0.5, 0.6], [0.5, 0.5], 1.5, "bins: expected from 1 to the number of records, 2, got 1.5"),
        ([0.5, np.nan], [0.5, 0.5], 1, "NaN or infinite"),
        (["low"], ["high"], 1, "predicted: expected numbers, got list"),
        (pd.Series([0.5, 0.6]), pd.Series([0.5, 0.6])[::-1], 1, "measured: its index has the labels of predicted in"),
    ],
)
def test_what_cannot_be_compared_is_refused(predicted, measured, bins, message):
    with pytest.raises(InputError, match=message):
        evaluate.reliability(predicted, measured, bins)


def test_equal_predictions_are_of_no_order():
    """A model that leaks nothing: every rate is that of a coin, and the records may be sorted by what was measured."""
    generator = np.random.default_rng(2)
    predicted = np.repeat([0.5, 0.7], [60, 40])
    measured = np.concatenate([np.linspace(0.4, 0.6, 60), np.linspace(0.5, 0.9, 40)])
    expected = evaluate.reliability(predicted, np.repeat([0.5, 0.7], [60, 40]))
    for order in (np.arange(100), generator.permutation(100), np.arange(100)[::-1]):
        found = evaluate.reliability(predicted[order], measured[order])
        assert found.error == pytest.approx(expected.error, abs=1e-12)
        assert found.measured == pytest.approx(expected.measured)
