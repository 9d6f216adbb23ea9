"""What gets past the redaction, and what never does."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from noshadow import InputError
from noshadow.bands import band_counts
from noshadow.gate import Policy
from noshadow.report import html_of, in_notebook, write_report
from noshadow.report.redact import PUBLIC_FACTS, redact
from tests.report.made import made_audit

CANARY = "CANARY-7f3a"


def planted(n=400):
    """An audit with a canary in every place that knows a record, and in groups and classes of a few."""
    audit = made_audit(n, class_names={"0": "cat"}, command=CANARY, model=CANARY, somewhere=CANARY)
    audit.metadata["provenance"] |= {"command": CANARY, "data_sha256": CANARY}
    table = audit.table
    table["id"] = [f"{CANARY}-id-{i}" for i in range(n)]
    table["text"] = f"{CANARY}-text"
    table["target"] = table["target"].astype(object)
    table.loc[:4, "target"] = f"{CANARY}-class"
    table.loc[5:12, "group_site"] = f"{CANARY}-group"
    table["group_name"] = [f"{CANARY}-{i}" for i in range(n)]  # a group per record
    return dataclasses.replace(audit, notes=(f"row 3: {CANARY}",))


def test_a_canary_never_gets_into_anything_public(tmp_path):
    audit = planted()
    verdict = Policy(0.9, 3).judge(audit)
    assert CANARY not in html_of(audit, public=True, verdict=verdict)
    for name in ("p.html", "p.md"):
        path = write_report(audit, tmp_path / name, public=True, verdict=verdict)
        assert CANARY not in path.read_text(encoding="utf-8")
    shown = redact(audit, public=True, verdict=verdict)
    assert CANARY not in repr(shown)
    assert (shown.top, shown.notes, shown.cloud, shown.strips, shown.agreement) == ((), (), None, (), None)
    assert CANARY not in json.dumps(audit.summary())
    assert CANARY in html_of(audit)  # the test could fail
    assert CANARY in in_notebook(audit)


def test_public_facts_say_nothing_of_records():
    found = redact(planted(), public=True).facts
    assert set(found) <= {*PUBLIC_FACTS, "provenance"}
    assert set(found["provenance"]) == {"weights_sha256", "versions"}
    assert found["date"] == "2026-01-02"


def test_public_reports_show_no_records():
    with pytest.raises(InputError, match=r"show: a public report shows no records"):
        redact(made_audit(), public=True, show="id")


def test_private_bands_are_all_counts_and_public_ones_none_below_ten():
    audit = made_audit(3000)
    counts = band_counts(audit.table["attack_accuracy"], audit.table["flagged"])
    shown = redact(audit)
    assert {part.name: part.count for part in shown.ranges} == {k: v for k, v in counts.items() if k != "not rated"}
    assert shown.exposed == counts["high"] + counts["near certain"]
    for n in (11, 40, 150, 600, 3000):
        audit = made_audit(n)
        audit.table.loc[:2, "attack_accuracy"] = np.nan
        public = redact(audit, public=True)
        assert sum(part.count for part in public.ranges) == n
        assert all(part.count == 0 or part.count >= 10 for part in public.ranges)
        if public.exposed is None:  # what the bands do not say, no table may say
            assert not any(table.counted for table in public.breakdowns)


def test_records_without_a_rate_are_counted_apart():
    audit = made_audit(500)
    audit.table.loc[:19, "attack_accuracy"] = np.nan
    audit.table.loc[3, "flagged"] = True
    shown = redact(audit)
    assert {part.name: part.count for part in shown.ranges}["not rated"] == 19
    assert shown.top[0].name == "record 3"
    assert (shown.top[0].band, shown.top[0].flagged) == ("near certain", True)


def test_the_most_exposed_come_first():
    audit = made_audit(500)
    shown = redact(audit, count=20)
    wanted = audit.table.sort_values(["attack_accuracy", "exposure"], ascending=False)["id"].head(20)
    assert [record.name for record in shown.top] == wanted.tolist()
    audit = made_audit(500, rates=False)
    shown = redact(audit, count=20)
    assert [record.name for record in shown.top] == audit.top(20)["id"].tolist()
    assert shown.ranges is None
    assert shown.exposed == 25


def test_tables_count_what_a_loop_counts():
    audit = made_audit(2000, classes=3, class_names={"0": "cat", "1": "dog", "2": "cow"})
    table = audit.table
    by_class, by_site = redact(audit).breakdowns
    for row in by_class.rows:
        inside = table[table["target"] == ["cat", "dog", "cow"].index(row.name)]
        exposed = int((inside["attack_accuracy"] >= 0.75).sum())
        assert row.records == len(inside)
        assert row.exposed in (exposed, None)
        assert row.mean == pytest.approx(inside["attack_accuracy"].mean())
    assert {row.name for row in by_site.rows} == {"north", "south"}
    assert sum(row.records for row in by_site.rows) == 2000
    shares = [row.share for row in by_class.rows if row.share is not None]
    assert shares == sorted(shares, reverse=True)


def test_groups_without_a_table_are_told_of(tmp_path):
    audit = made_audit()
    for name in "abcdefg":
        audit.table[f"group_{name}"] = audit.table["group_site"]
    shown = redact(audit)
    assert [one.title for one in shown.breakdowns] == ["class", "site", "a", "b", "c", "d"]
    assert shown.groups_left_out == ("e", "f", "g")
    text = audit.report(tmp_path / "own.html").read_text(encoding="utf-8")
    assert "There is no room for 3 more groups (e, f, g): name them first in groups= to see them here" in text
    told = "The audit has 3 more groups that this summary has no room for."
    for name in ("all.html", "all.md"):
        assert told in audit.report(tmp_path / name, public=True).read_text(encoding="utf-8")
    assert redact(made_audit()).groups_left_out == ()
    assert "no room" not in made_audit().report(tmp_path / "few.html").read_text(encoding="utf-8")


def test_values_have_no_classes():
    audit = made_audit(200, head="squared", groups=False)
    audit.table["target"] = np.linspace(0, 1, 200)
    audit.table.drop(columns=["nearest_class", "entropy"], errors="ignore", inplace=True)  # which values have not
    shown = redact(audit)
    assert shown.breakdowns == ()
    assert shown.strips == ()


def test_a_column_that_is_not_there_is_refused():
    with pytest.raises(InputError, match=r"show: the audit has no column 'tetx'; it has id, target"):
        redact(made_audit(), show="tetx")
    empty = made_audit()
    with pytest.raises(InputError, match=r"audit: it has no records"):
        redact(dataclasses.replace(empty, table=empty.table.head(0)))


@pytest.mark.parametrize("over", range(1, 10))
def test_a_public_verdict_does_not_say_how_small_a_small_count_is(over):
    """Whatever 1 to 9 records are over a rate: no policy that allows so many tells them from one more or less."""
    said = set()
    for most in range(1, 10):
        audit = made_audit(400)
        audit.table["attack_accuracy"] = [0.95] * over + [0.55] * (400 - over)
        said.add(redact(audit, public=True, verdict=Policy(0.9, most).judge(audit)).verdict)
    assert len(said) <= 2  # met, not met; not by how many
    assert all("fewer than 10 records" in sentence for _, sentence in said)


def test_a_public_verdict_says_what_it_rests_on():
    audit = made_audit(400, calibration={"source": "gap", "held_out": 300})
    _, sentence = redact(audit, public=True, verdict=Policy(0.9, 400).judge(audit)).verdict
    assert sentence.endswith("met, by rates that no rerun calibrated.")
    assert "allows 400 records" in sentence


def test_flagged_records_do_not_tell_the_few_others_of_their_band():
    for certain, flagged, shown in ((16, 15, None), (30, 15, 15), (15, 15, 15), (20, 5, None), (20, 0, 0)):
        audit = made_audit(400)
        audit.table["attack_accuracy"] = [0.95] * certain + [0.55] * (400 - certain)
        audit.table["flagged"] = np.arange(400) < flagged
        assert redact(audit, public=True).flagged == shown
        assert redact(audit).flagged == flagged


def test_which_public_rows_there_are_does_not_tell_what_they_would_say():
    names = []
    for first in (0, 300):  # who is exposed: the groups of the first half of the records, or of the second
        audit = made_audit(600, groups=False)
        audit.table["group_site"] = [f"site {k // 20:02d}" for k in range(600)]  # 30 of them, 15 rows
        audit.table["attack_accuracy"] = np.where((np.arange(600) - first) % 600 < 150, 0.95, 0.55)
        table = next(one for one in redact(audit, public=True).breakdowns if one.title == "site")
        names.append([row.name for row in table.rows])
    assert names[0] == names[1]


def test_few_records_without_a_rate_cannot_be_worked_out():
    """3 of them are put together with 20 near certain ones; the number of the exposed, 70, would give them away."""
    audit = made_audit(400)
    audit.table["attack_accuracy"] = [np.nan] * 3 + [0.95] * 20 + [0.8] * 50 + [0.55] * 327
    shown = redact(audit, public=True)
    assert [part.count for part in shown.ranges if part.kinds[0] >= 2] == [50, 23]
    assert shown.exposed is None
    assert redact(audit).exposed == 70
