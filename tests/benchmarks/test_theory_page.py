"""The theory's page holds the numbers of the stored results, and no others."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_the_one_that_the_results_write(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "theory_page", raising=False)
    from theory_page import page

    results = json.loads((ROOT / "benchmarks" / "results" / "theory.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "theory.md").read_text(encoding="utf-8") == page(results)
    assert page(results | {"tests": {"threshold": 0.125, "optimal": 0.25}}) != page(results)
    assert (ROOT / "docs" / "theory_figure1.png").read_bytes().startswith(b"\x89PNG")
