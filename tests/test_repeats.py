"""Records that are there more than once, against a dictionary of their bytes."""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import sparse

import noshadow
from noshadow import LastLayer, NoshadowWarning
from noshadow.repeats import find_repeats

SAME = "are there more than once with the same target"
OTHER = "have the features of another record with another target"


def drawn(seed, n=400, levels=3, columns=4):
    """Rows of few values, so that many repeat."""
    generator = np.random.default_rng(seed)
    x = generator.integers(0, levels, size=(n, columns)) * 0.1
    return x, generator.normal(size=(n, 3)), generator.integers(0, 3, size=n)


def counted(x, y):
    rows = [row.tobytes() for row in x + 0.0]
    both = list(zip(rows, y.tolist(), strict=True))
    of_rows, of_both = Counter(rows), Counter(both)
    same = [i for i, one in enumerate(both) if of_both[one] > 1]
    other = [i for i, one in enumerate(both) if of_rows[one[0]] > of_both[one]]
    return tuple(same), tuple(other)


@pytest.mark.parametrize("levels", [1, 2, 3, 9, 1000])
@pytest.mark.parametrize("form", ["dense", "sparse", "float32"])
def test_they_are_those_of_a_dictionary(levels, form):
    x, z, y = drawn(levels, levels=levels)
    x[5] = -x[5] * 0.0  # −0 is 0
    given = {"dense": x, "sparse": sparse.csr_matrix(x), "float32": x.astype(np.float32)}[form]
    found = find_repeats(LastLayer(given, z, y, head="softmax"))
    assert (found.same, found.other) == counted(x, y)


def test_an_entry_of_minus_0_that_is_stored_is_an_entry_that_is_not():
    table = sparse.csr_matrix(([2.0, -0.0, 2.0, 0.0, 2.0], ([0, 0, 1, 1, 2], [0, 1, 0, 1, 0])), shape=(3, 2))
    assert table.nnz == 5
    found = find_repeats(LastLayer(table, np.zeros((3, 2)), np.zeros(3, dtype=int)))
    assert found.same == (0, 1, 2)


def test_chunks_change_nothing(monkeypatch):
    x, z, y = drawn(0)
    layer = LastLayer(x, z, y, head="softmax")
    whole = find_repeats(layer)
    monkeypatch.setattr("noshadow.repeats._ENTRIES", 37)
    assert find_repeats(layer) == whole


def test_columns_that_change_places_and_entries_that_cancel_are_not_the_same():
    x = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0], [0.0, 3.0], [-1.0, -2.0], [1.0, -2.0]])
    found = find_repeats(LastLayer(x, np.zeros((6, 1)), np.arange(6.0), head="squared"))
    assert not found.same
    assert not found.other


def test_score_and_audit_say_how_many_and_what_it_means():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 4))
    z, y = x @ generator.normal(size=(4, 3)), generator.integers(0, 3, 60)
    x[50:53], z[50:53], y[50:52], y[52] = x[:3], z[:3], y[:2], (y[2] + 1) % 3
    layer = LastLayer(x, z, y, head="softmax", ridge=1.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoshadowWarning)
        noshadow.score(layer)
    for notes in ([str(one.message) for one in caught], noshadow.audit(layer).notes):
        same, other = ([one for one in notes if words in one] for words in (SAME, OTHER))
        assert len(same) == len(other) == 1
        assert same[0].startswith("features: 4 records")
        assert "rows 0, 1, 50, 51, counted from 0" in same[0]
        assert other[0].startswith("features: 2 records")
        assert "rows 2, 52, counted from 0" in other[0]


def test_a_twin_hides_a_record_from_leaving_one_out():
    """What the note says: beside a copy of itself a record changes the fit less, by a refit."""
    generator = np.random.default_rng(2)
    x = generator.normal(size=(30, 3))
    y = x @ [1.0, -1.0, 0.5] + generator.normal(size=30)
    x[0] *= 5.0  # the higher the leverage, the more
    y[0] += 4.0

    def moved(x, y):
        with_it, without = (np.linalg.lstsq(x[rows], y[rows], rcond=None)[0] for rows in (slice(None), slice(1, None)))
        return float((y[0] - x[0] @ without) ** 2 - (y[0] - x[0] @ with_it) ** 2)

    alone, beside = moved(x, y), moved(np.vstack([x, x[:1]]), np.append(y, y[0]))
    assert 0.0 < beside < 0.5 * alone


def test_a_layer_of_one_record_or_of_other_records_has_none():
    assert find_repeats(LastLayer(torch.ones(1, 2), torch.zeros(1, 1), torch.zeros(1), head="squared")).same == ()
    x, z, y = drawn(3)
    x = np.random.default_rng(3).normal(size=x.shape)
    assert find_repeats(LastLayer(x, z, y, head="softmax")) == find_repeats(LastLayer(x[:1], z[:1], y[:1], "softmax"))


def test_values_that_differ_where_the_features_are_the_same_are_not_remarked_on():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(60, 4))
    x[50:53] = x[:3]
    y = generator.normal(size=60)
    y[50:52] = y[:2]
    layer = LastLayer(x, x @ generator.normal(size=(4, 1)), y, head="squared", ridge=1.0)
    assert find_repeats(layer).other == (2, 52)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        notes = noshadow.audit(layer).notes
    assert [SAME in note for note in notes if "records" in note and note.startswith("features")] == [True]
