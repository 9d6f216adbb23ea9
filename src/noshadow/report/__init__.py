"""The report: an audit for a privacy officer to sign and an engineer to act on, in one HTML file; a section for a model
card; two audits side by side.

    audit ──redact──▶ Shown ──summarise──▶ sentences ──render (templates, svg)──▶ HTML, Markdown

One direction. ``redact`` alone sees the audit; nothing after it could show what it has not let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from noshadow.errors import FileError, InputError
from noshadow.files import check_output, write_text
from noshadow.gate import Verdict
from noshadow.report.card import markdown
from noshadow.report.compare import Comparison, compare, comparison_page
from noshadow.report.notebook import COUNT, notebook_table
from noshadow.report.redact import MOST_RECORDS, Audited, redact
from noshadow.report.render import report_page
from noshadow.report.summarise import summarise

__all__ = ["LARGEST", "Comparison", "compare", "html_of", "in_notebook", "write_comparison", "write_report"]

LARGEST = 500_000
"""Bytes of a report, for any number of records."""
_PAGES, _CARDS = (".html", ".htm"), (".md",)


def html_of(
    audit: Audited,
    *,
    verdict: Verdict | None = None,
    show: Callable[[Any], Any] | str | None = None,
    public: bool = False,
    title: str | None = None,
    verified: Mapping[str, Any] | None = None,
    source: str = "audit.parquet",
) -> str:
    """The report as HTML, at most ``LARGEST`` bytes: with large texts or images fewer records are named."""
    count = MOST_RECORDS
    while True:
        shown = redact(audit, public=public, verdict=verdict, show=show, verified=verified, count=count)
        name = title or ("This model" if public else str(shown.facts.get("model", "This model")))
        text = report_page(shown, summarise(shown), name, _snippet(source, shown.facts))
        if len(text.encode()) <= LARGEST or count == 1 or public:
            return text
        count //= 2


def write_report(
    audit: Audited,
    path: str | Path,
    *,
    verdict: Verdict | None = None,
    show: Callable[[Any], Any] | str | None = None,
    public: bool = False,
    title: str | None = None,
    verified: Mapping[str, Any] | None = None,
    source: str = "audit.parquet",
) -> Path:
    """Write a report: .html; or, in public, a section of a model card: .md. Private ones are for their owner alone."""
    target = check_output(path, _PAGES + _CARDS, "path")
    if target.suffix.lower() in _CARDS:
        if not public:
            raise InputError(
                "path: a report in Markdown is a section of a public model card; pass public=True, or .html"
            )
        shown = redact(audit, public=True, verdict=verdict, show=show, verified=verified)
        text = markdown(shown, summarise(shown), title)
    else:
        how: dict[str, Any] = {"title": title, "verified": verified, "source": source}
        text = html_of(audit, verdict=verdict, show=show, public=public, **how)
    _write(target, text, private=not public)
    return target


def write_comparison(before: Audited, after: Audited, path: str | Path, names: tuple[str, str]) -> Comparison:
    """Write what changed from one audit to the other: .html, for its owner alone."""
    target = check_output(path, _PAGES, "path")
    found = compare(before, after)
    _write(target, comparison_page(found, *names), private=True)
    return found


def in_notebook(audit: Audited) -> str:
    """What a notebook shows of an audit."""
    return str(notebook_table(redact(audit, count=COUNT)))


def _write(target: Path, text: str, private: bool) -> None:
    try:
        write_text(target, text, private)
    except OSError as error:
        raise FileError(f"path: {target} could not be written ({error.strerror or error})") from None


def _snippet(source: str, facts: Any) -> str:
    """What makes the report again."""
    command = (facts.get("provenance") or {}).get("command")
    first = f"# the audit was made by:  {command}\n" if command else ""
    return (
        f"{first}import noshadow\n\naudit = noshadow.Audit.load({source!r})\n"
        'print(audit.top(0.01))  # the most exposed hundredth\naudit.report("audit.html")'
    )
