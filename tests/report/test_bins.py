"""Charts of many records: hexagons hold every one of them, lines of equal risk are where the score is the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from noshadow.report.bins import agreement, cloud, hexagons, strips


def test_every_point_is_in_its_nearest_hexagon():
    rng = np.random.default_rng(0)
    x, y = rng.random(500), 0.6 * rng.random(500)
    found = hexagons(x, y, 12)
    assert found[:, 2].sum() == 500
    i, j = np.meshgrid(np.arange(-1, 27), np.arange(-1, 27))
    lattice = np.stack([i.ravel() / 24, j.ravel() * np.sqrt(3) / 24], 1)[((i + j) % 2 == 0).ravel()]
    nearest = np.argmin(((lattice[None] - np.stack([x, y], 1)[:, None]) ** 2).sum(2), 1)
    counts = np.bincount(nearest, minlength=len(lattice))
    wanted = {tuple(np.round(lattice[k], 9)): counts[k] for k in counts.nonzero()[0]}
    assert {tuple(np.round(row[:2], 9)): row[2] for row in found} == wanted


def test_lines_of_equal_risk_are_exact_for_a_product():
    rng = np.random.default_rng(0)
    leverage, loss = rng.lognormal(-2, 1, 3000), rng.lognormal(0, 1, 3000)
    score = 2.0 * leverage * loss
    found = cloud(leverage, loss, score, np.arange(5), "loss")
    assert found.fit == pytest.approx(1.0)
    assert [line.label for line in found.lines] == ["top 50 %", "top 10 %", "top 1 %"]
    for line, share in zip(found.lines, (0.5, 0.9, 0.99), strict=True):
        x = np.array([-3.0, -1.0])
        on_line = 2.0 * 10**x * 10 ** (line.intercept + line.slope * x)
        np.testing.assert_allclose(on_line, np.quantile(score, share), rtol=1e-6)
    assert found.hexagons[:, 2].sum() == 3000


def test_what_cannot_be_drawn_is_left_out():
    zeros = np.zeros(50)
    assert cloud(zeros, zeros, zeros, np.arange(3), "loss") is None
    rng = np.random.default_rng(0)
    x, y = rng.lognormal(size=(2, 400))
    assert cloud(x, y, 1.0 / (x * y), np.arange(3), "loss").lines == ()  # risk falls: no line to read
    assert cloud(x, y, np.zeros(400), np.arange(3), "loss").lines == ()


def test_strips_hold_every_record():
    rng = np.random.default_rng(0)
    values, codes = rng.uniform(0.5, 1.0, 300), rng.integers(0, 3, 300)
    values[:5] = np.nan
    found = strips(values, codes, ["a", "b", "c"], (0.5, 1.0))
    for code, strip in enumerate(found):
        inside = values[(codes == code) & np.isfinite(values)]
        assert strip.records == strip.counts.sum() == len(inside)
        assert strip.median == np.median(inside)


def test_agreement_is_spearman():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=200), "c": 1.0})
    table["b"] = table["a"] ** 3 + rng.normal(size=200)
    names, found = agreement(table, ["a", "b", "c"])
    assert names == ("a", "b")
    assert found[0, 1] == pytest.approx(stats.spearmanr(table["a"], table["b"]).statistic)
    assert agreement(table, ["a", "c"]) is None
