"""The section for a model card: Markdown that stays Markdown, whatever classes are called."""

from __future__ import annotations

import pytest

from noshadow import InputError
from noshadow.report import write_report
from noshadow.report.card import markdown
from noshadow.report.redact import redact
from noshadow.report.summarise import summarise
from tests.report.made import made_audit


def card(audit):
    shown = redact(audit, public=True)
    return markdown(shown, summarise(shown))


def test_the_section_has_bands_groups_trust_and_limits():
    text = card(made_audit(5000))
    assert text.startswith("## Membership inference risk\n")
    for part in ("| near certain |", "By class", "By site", "### How far to trust it", "### What this does not show"):
        assert part in text
    assert "no proof of anonymity" in text
    assert "Weights, SHA-256" in text


def test_names_of_classes_are_text():
    audit = made_audit(3000, classes=3, class_names={"0": "a | b", "1": "<script>x</script>", "2": "[c](http://d) *e*"})
    text = card(audit)
    assert "| a \\| b |" in text
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "](http" not in text.replace("\\]", "")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") in (4, 5) for line in rows)


def test_a_private_report_makes_no_card():
    shown = redact(made_audit())
    with pytest.raises(InputError, match="public: a model card is public"):
        markdown(shown, summarise(shown))


def test_the_section_says_what_the_model_is_called(tmp_path):
    path = write_report(made_audit(), tmp_path / "card.md", public=True, title="Wine | *2*")
    assert path.read_text(encoding="utf-8").startswith("## Membership inference risk of Wine \\| \\*2\\*\n")
