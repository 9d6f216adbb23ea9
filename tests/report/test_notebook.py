"""An audit in a notebook."""

from __future__ import annotations

from tests.report.made import made_audit


def test_the_bands_and_the_most_exposed():
    audit = made_audit()
    html = audit._repr_html_()
    assert "near certain" in html
    assert html.count("<tr>") == 10  # and one of the head, with a style
    assert audit.metadata["ranked_by"] in html
    assert "<pre" not in html
    assert "<script" not in html
    assert len(html) < 20_000


def test_without_rates_no_bar():
    html = made_audit(rates=False)._repr_html_()
    assert "near guessing" not in html
    assert "not known" in html
