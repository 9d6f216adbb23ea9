"""The pages of the measurements hold the numbers of the stored results, and no others."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("docs", "core", "cost", "scale_docs", "small_docs", "refits_docs")


@pytest.fixture
def docs(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module("docs")
    for name in MODULES:
        sys.modules.pop(name, None)


def test_the_theory_page_is_the_one_that_the_results_write(docs):
    results = docs.read("theory")
    assert docs.THEORY_PAGE.read_text(encoding="utf-8") == docs.theory_page(results)
    assert docs.theory_page(results | {"tests": {"threshold": 0.125, "optimal": 0.25}}) != docs.theory_page(results)
    assert (ROOT / "docs" / "theory_figure1.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_of_costs_is_the_one_that_the_results_write(docs):
    scale, streaming = docs.read("scale"), docs.read("streaming")
    assert docs.COST_PAGE.read_text(encoding="utf-8") == docs.cost_page(scale, streaming)
    slower = scale["imagenet"]["side by side"]
    slower["kronecker"] = slower["kronecker"] | {"seconds": 10 * slower["kronecker"]["seconds"]}
    assert docs.COST_PAGE.read_text(encoding="utf-8") != docs.cost_page(scale, streaming)


def test_the_page_of_small_data_is_the_one_that_the_results_write(docs):
    results, refits = docs.read("small_studies"), docs.read("refits")
    assert docs.SMALL_PAGE.read_text(encoding="utf-8") == docs.small_page(results, refits)
    assert sum(not row["looked_at"] for row in results.values()) >= 5
    right = sum(row["error"] <= 0.05 for row in results.values())
    results["wine"]["error"] = 0.5
    assert f"at most 0.05 on {right - 1} of {len(results)}" in docs.small_page(results, refits)


def test_rates_of_regressions_are_held_against_thousands_of_refits(docs):
    results, refits = docs.read("small_studies"), docs.read("refits")
    assert min(row["refits"] for row in refits.values()) >= 2000
    assert {row["head"] for row in refits.values()} == {"squared", "logistic", "softmax"}
    assert sum(not row["looked_at"] for row in refits.values()) >= 5
    right = sum(row["error"] <= 0.02 for row in refits.values())
    assert f"at most 0.02 on {right} of {len(refits)}." in docs.small_page(results, refits)
    next(iter(refits.values()))["error"] = 0.5
    assert f"at most 0.02 on {right - 1} of {len(refits)}." in docs.small_page(results, refits)


def test_the_benchmarks_page_is_the_one_that_the_results_write(docs):
    text = docs.PAGE.read_text(encoding="utf-8")
    for section in docs.SECTIONS.values():
        assert "\n".join(section()) in text


def test_what_establishes_the_exact_top_is_said_and_core_seconds_where_they_are_known(docs):
    results = docs.read("scale")
    top = {"size": 50, "edge": 0.25, "excluded_by_bound": 4658, "of_them_without_a_step": 4000, "established": True}
    results["network"]["exact"] = {"by": "conjugate gradients", "records": 342, "top": top}
    results["network"]["blocks"] = {"seconds": 90.0, "core_seconds": 30.0}
    page = "\n".join(docs.scale_section(results))
    assert "342 records have converged scores, of the other 4,658 a bound says that they are lower (4,000" in page
    assert "| blocks | 30 s of a core |" in page
    assert "does not establish" not in page
    top["established"] = False
    assert "**which does not establish them**" in "\n".join(docs.scale_section(results))
