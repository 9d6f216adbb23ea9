"""Which records stand alone in a direction of the features, whatever their chunk."""

from __future__ import annotations

import numpy as np
import pytest

from noshadow import LastLayer
from noshadow.curvature import alone


@pytest.mark.parametrize("columns", [4, 60], ids=["tall", "wide"])
def test_who_stands_alone_does_not_depend_on_the_chunks(monkeypatch, columns):
    """Record 37 alone has the last feature; 3 and 38 share one. The others, in few directions, stand together."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 2)) @ generator.normal(size=(2, columns))
    x = np.hstack([x, np.zeros((40, 2))])
    x[[3, 38], -2], x[37, -1] = 1.0, 1.0
    layer = LastLayer(x, generator.normal(size=40), generator.integers(0, 2, 40), "logistic")
    assert alone.stand_alone(layer, [3, 20, 37, 38], 1.0) == (37,)
    monkeypatch.setattr(alone, "_CHUNK", 16)
    assert alone.stand_alone(layer, [3, 20, 37, 38], 1.0) == (37,)
    assert alone.stand_alone(layer, [], 1.0) == ()
    assert alone.stand_alone(layer, [37], 1e-9) == ()


@pytest.mark.parametrize(("others", "alone_there"), [(0.0, True), (1e-5, True), (1e-3, False)])
def test_records_of_which_others_know_a_little_do_not_stand_alone(others, alone_there):
    """1 − h is others² there: nothing to say where it is below 10⁻⁸, a fit where it is a millionth."""
    generator = np.random.default_rng(1)
    x = np.hstack([generator.normal(size=(40, 2)), np.zeros((40, 1))])
    x[37, 2], x[4, 2] = 1.0, others
    layer = LastLayer(x, generator.normal(size=40), generator.integers(0, 2, 40), "logistic")
    assert alone.stand_alone(layer, [37], 1.0) == ((37,) if alone_there else ())
