"""Before and after: matched by id, counted by a loop, refused where ids name other records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from noshadow import InputError
from noshadow.bands import band_names
from noshadow.report.compare import compare, comparison_page
from tests.report.made import made_audit


def defended(before, seed=1):
    """The same records in another order, some gone, most rates lower."""
    rng = np.random.default_rng(seed)
    table = before.table.sample(frac=0.9, random_state=seed).reset_index(drop=True)
    table["attack_accuracy"] = np.clip(
        0.5 + (table["attack_accuracy"] - 0.5) * rng.uniform(0.2, 1.2, len(table)), 0.5, 1
    )
    return dataclasses.replace(before, table=table, metadata={**before.metadata, "records": len(table)})


def test_paired_differences_and_moves_are_those_of_a_loop():
    before = made_audit(500)
    after = defended(before)
    found = compare(before, after)
    rates = [dict(zip(a.table["id"], a.table["attack_accuracy"], strict=True)) for a in (before, after)]
    bands = [
        dict(zip(a.table["id"], band_names(a.table["attack_accuracy"], a.table["flagged"]), strict=True))
        for a in (before, after)
    ]
    shared = [name for name in rates[0] if name in rates[1]]
    change = np.array([rates[1][name] - rates[0][name] for name in shared])
    assert (found.matched, found.only_before, found.only_after) == (len(shared), 50, 0)
    assert found.mean == pytest.approx(change.mean())
    assert found.error == pytest.approx(change.std(ddof=1) / np.sqrt(len(change)))
    names = ["near guessing", "noticeable", "high", "near certain"]
    for i, old in enumerate(names):
        for j, new in enumerate(names):
            assert found.moves[i, j] == sum(bands[0][k] == old and bands[1][k] == new for k in shared)
    worst = max(shared, key=lambda name: rates[1][name] - rates[0][name])
    assert found.rose[0].name == worst
    assert found.exposed[0] == sum(band in names[2:] for band in bands[0].values())
    assert found.exposed[2] == sum(bands[0][k] in names[2:] and bands[1][k] not in names[2:] for k in shared)
    assert "Fewer records are exposed" in found.sentence
    text = comparison_page(found, "<before>", "after")
    assert "&lt;before&gt;" in text
    assert worst in text


def test_ids_that_name_other_records_are_refused():
    before, after = made_audit(300), made_audit(300, seed=5)
    with pytest.raises(InputError, match=r"compare: only \d+% of the records with one id have one target"):
        compare(before, after)
    after.table["id"] = [f"other {i}" for i in range(300)]
    with pytest.raises(InputError, match=r"compare: no record is in both audits"):
        compare(before, after)
    after.table["id"] = "same"
    with pytest.raises(InputError, match=r"compare: after, rows 0, 1, 2, 3, 4 and 295 more"):
        compare(before, after)


def test_what_is_not_alike_is_said():
    before = made_audit(300)
    after = defended(before)
    after.metadata.update(trace="none", calibration={"source": "gap"})
    said = " ".join(compare(before, after).concerns)
    assert "kinds of trace: mean outputs before, none after" in said
    assert "different calibrations: rerun before, gap after" in said
    for audit in (before, after):
        audit.table["id"] = np.arange(len(audit.table))
    before.table["target"] = after.table["target"] = 1
    assert any("row numbers" in line for line in compare(before, after).concerns)


def test_without_rates_places_are_compared_and_nothing_is_claimed():
    before, after = made_audit(200), made_audit(200, rates=False)
    found = compare(before, after)
    assert found.moves is None
    assert found.exposed is None
    assert "cannot tell" in found.sentence
    assert found.mean == pytest.approx(0.0)
    assert "places in the ranking" in comparison_page(found, "a", "b")


@pytest.mark.parametrize("kind", [float, str, object])
def test_ids_of_other_records_are_noticed_however_targets_are_written(kind):
    before, other = made_audit(300), made_audit(300, seed=5)
    same = made_audit(300)
    for after in (other, same):
        after.table["target"] = after.table["target"].astype(kind)
    assert not any("target" in line for line in compare(before, same).concerns)
    with pytest.raises(InputError, match=r"compare: only \d+% of the records with one id have one target"):
        compare(before, other)


def test_fewer_exposed_among_fewer_records_is_said_to_be_so():
    before = made_audit(300)
    after = dataclasses.replace(before, table=before.table.head(30))
    found = compare(before, after)
    assert "Fewer records are exposed" in found.sentence
    assert any("270 are in the first alone, 0 in the second" in line for line in found.concerns)
    after = dataclasses.replace(before, table=before.table.assign(attack_accuracy=[0.5, *[np.nan] * 299]))
    found = compare(before, after)
    assert any("without a predicted rate count as not exposed: 0 before, 299 after" in line for line in found.concerns)
    assert "±" not in found.sentence  # one record is in both with a rate
    assert not any("same records" in line or "count as" in line for line in compare(before, before).concerns)
