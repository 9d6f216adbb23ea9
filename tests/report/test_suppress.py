"""Small cells: nothing that is withheld can be worked out, checked by trying all tables that fit what is published."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noshadow.report.suppress import SMALLEST, is_small, merge, merge_ordered, overlaps, withhold


def rows_of(sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


def hidden_of(tables, exposed):
    """``withhold`` on records with one row in each table."""
    counts = np.concatenate([np.bincount(codes, weights=exposed) for codes in tables]).astype(int)
    of_table = np.repeat(np.arange(len(tables)), [codes.max() + 1 for codes in tables])
    return counts, withhold(counts, of_table, overlaps(tables))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(10, 16), st.integers(0, 16)), min_size=2, max_size=4))
def test_every_withheld_count_could_be_another(cells):
    """All counts that fit the published ones, their sum and the sizes, by enumeration."""
    sizes = [size for size, _ in cells]
    counts = [min(count, size) for size, count in cells]
    exposed = np.concatenate([np.arange(size) < count for size, count in zip(sizes, counts, strict=True)])
    _, hidden = hidden_of([rows_of(sizes)], exposed)
    assert hidden[is_small(np.array(counts))].all()
    assert hidden[is_small(np.array(sizes) - np.array(counts))].all()
    if hidden.all() and not SMALLEST <= sum(counts) <= sum(sizes) - SMALLEST:
        return  # so few in all that the whole column is withheld
    choices = [range(size + 1) if gone else [count] for size, count, gone in zip(sizes, counts, hidden, strict=True)]
    fits = np.array([one for one in itertools.product(*choices) if sum(one) == sum(counts)])
    for row in hidden.nonzero()[0]:
        assert len(np.unique(fits[:, row])) > 2


def test_one_small_cell_takes_another_with_it():
    exposed = np.zeros(300, dtype=bool)
    exposed[:3] = exposed[100:120] = exposed[200:250] = True
    counts, hidden = hidden_of([rows_of([100, 100, 100])], exposed)
    assert counts.tolist() == [3, 20, 50]
    assert hidden.tolist() == [True, True, False]  # 3 alone would be 73 − 20 − 50


def test_a_table_that_refines_another_gives_nothing_away():
    """Counties and their districts: what a county holds minus its other district is the small one."""
    districts = rows_of([60, 60, 60, 60])
    counties = districts // 2
    exposed = np.zeros(240, dtype=bool)
    exposed[:4] = exposed[60:90] = exposed[120:132] = exposed[180:220] = True
    counts, hidden = hidden_of([districts, counties], exposed)
    assert counts.tolist() == [4, 30, 12, 40, 34, 52]
    published = [row for row in range(6) if not hidden[row]]
    sets = np.array(
        [districts == k for k in range(4)] + [counties == k for k in range(2)] + [np.ones(240)], dtype=float
    )
    known = sets[[*published, 6]]
    for row in hidden.nonzero()[0]:
        weights, *_ = np.linalg.lstsq(known.T, sets[row], rcond=None)
        assert np.abs(known.T @ weights - sets[row]).max() > 0.1
    alone = hidden_of([districts], exposed)[1]
    assert alone.tolist() == [True, False, True, False]  # beside the counties that would not do: 34 − 30


def test_nothing_small_nothing_withheld():
    exposed = np.zeros(200, dtype=bool)
    exposed[:20] = True  # 20 and 0: a zero names nobody
    _, hidden = hidden_of([rows_of([100, 100])], exposed)
    assert not hidden.any()


def test_rows_with_few_records_are_put_together():
    sizes = [50, 4, 30, 3, 12]
    found = merge(rows_of(sizes), np.array(sizes, dtype=float), most=10)
    assert np.bincount(found.codes).min() >= SMALLEST
    assert found.kept.tolist() == [0, 2]  # 4 + 3 are too few, so that the 12 join them
    assert found.merged == 3
    found = merge(rows_of([20] * 30), np.arange(30.0), most=5)
    assert found.kept.tolist() == [29, 28, 27, 26, 25]
    assert np.bincount(found.codes).tolist() == [20] * 5 + [500]


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ([900, 80, 12, 15, 0], [[0], [1], [2], [3], [4]]),
        ([900, 80, 12, 3, 0], [[0], [1], [2, 3], [4]]),
        ([900, 4, 2, 3, 0], [[0, 1, 2, 3], [4]]),
        ([5, 0, 0, 100, 0], [[0, 1, 2, 3], [4]]),
        ([3, 0, 0, 0, 0], [[0, 1, 2, 3, 4]]),
        ([900, 80, 12, 30, 2], [[0], [1], [2], [3, 4]]),
    ],
)
def test_small_bands_join_their_neighbours(counts, parts):
    found = merge_ordered(counts)
    assert found == parts
    assert sorted(itertools.chain(*found)) == list(range(5))


@given(st.lists(st.integers(0, 30), min_size=5, max_size=5))
def test_no_band_is_small_unless_all_records_are_few(counts):
    found = merge_ordered(counts)
    assert [place for part in found for place in part] == list(range(5))
    if sum(counts) >= SMALLEST:
        assert not any(is_small(sum(counts[k] for k in part)) for part in found)


def test_withheld_rows_leave_ten_or_more_over_together():
    """5 and 3 records of two rows are not exposed: their sum, 8, would follow from the third row and the whole."""
    exposed = np.zeros(140, dtype=bool)
    exposed[:15] = exposed[20:37] = exposed[40:90] = True
    counts, hidden = hidden_of([rows_of([20, 20, 100])], exposed)
    assert counts.tolist() == [15, 17, 50]
    assert hidden.tolist() == [True, True, True]
