"""The layers of the package: who may import whom."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("import_graph", ROOT / "tools" / "import_graph.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_part_imports_from_its_own_layer_or_above(tool):
    graph = tool.edges()
    assert graph["scores"] >= {"curvature", "records"}  # imports are seen
    assert tool.violations(graph) == []


def test_an_upward_or_sideways_import_is_noticed(tool):
    upward = {**tool.edges(), "heads": {"audit"}}
    assert tool.violations(upward) == ["heads imports audit, which is not below it"]
    sideways = {**tool.edges(), "theory": {"objective"}}
    assert tool.violations(sideways) == ["theory imports objective, which is not below it"]
    assert tool.violations({"newcomer": set()}) == ["newcomer has no layer"]


def test_the_page_shows_the_graph_as_it_is(tool):
    assert tool.drawing(tool.edges()) in tool.PAGE.read_text(encoding="utf-8"), (
        "run: python tools/import_graph.py --write"
    )
