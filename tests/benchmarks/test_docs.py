"""The pages of the measurements hold the numbers of the stored results, and no others."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("docs", "core", "cost", "scale_docs")


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


def test_the_benchmarks_page_is_the_one_that_the_results_write(docs):
    text = docs.PAGE.read_text(encoding="utf-8")
    for section in docs.SECTIONS.values():
        assert "\n".join(section()) in text
