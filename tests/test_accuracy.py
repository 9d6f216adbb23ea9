"""Refinement against answers that are known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from noshadow.accuracy import Floats, _refine


class Answers:
    """Exact scores that are at hand, and which of them were asked for."""

    def __init__(self, truth: Floats) -> None:
        self._truth, self.rows = truth, np.empty(0, dtype=np.int64)

    def __call__(self, rows: Any, names: list[str]) -> dict[str, Floats]:
        return dict.fromkeys(names, self._truth[rows])


def refined(approximate: Floats, truth: Floats, size: int) -> tuple[bool, int, set[int]]:
    frame = pd.DataFrame({"newton": approximate.copy()})
    answers: Any = Answers(truth)
    stable, count = _refine(answers, frame, "newton", ["newton"], approximate, size)
    found = np.argsort(-frame["newton"].to_numpy(), kind="stable")[:size]
    assert np.array_equal(frame["newton"][answers.rows], truth[answers.rows])
    assert len(np.unique(answers.rows)) == len(answers.rows) == count
    return stable, count, set(found.tolist())


@pytest.mark.parametrize("shuffled", [False, True])
def test_records_that_the_approximation_puts_too_low_are_found(shuffled: bool):
    """The first thirty are right, the next are half as high again as they are said to be, and so are the top."""
    approximate = 0.99 ** np.arange(1000.0)
    truth = np.where((np.arange(1000) >= 30) & (np.arange(1000) < 60), 1.5, 1.0) * approximate
    order = np.random.default_rng(0).permutation(1000) if shuffled else np.arange(1000)
    stable, count, found = refined(approximate[order], truth[order], 10)
    assert stable
    assert found == set(np.argsort(-truth[order])[:10].tolist())
    assert count < 100


def test_nothing_more_is_solved_than_may_belong_to_the_top():
    approximate = 0.9 ** np.arange(1000.0)
    stable, count, found = refined(approximate, approximate, 10)
    assert stable
    assert found == set(range(10))
    assert count <= 10 + 50


def test_a_search_that_ends_at_its_limit_says_so():
    """Approximations that tell nothing: any record may belong to the top, and ten times as many are looked at."""
    rng = np.random.default_rng(1)
    stable, count, _ = refined(1.0 + 1e-3 * rng.random(1000), rng.random(1000), 10)
    assert not stable
    assert count == 100
