"""The layers of the package: who may import whom."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize(
    ("library", "places"),
    [
        ("matplotlib", {"drawing"}),
        # what commands show, and an Audit, which shows itself
        ("rich", {"commands/render.py", "commands/demo_view.py", "commands/fitted.py", "progress.py", "findings.py"}),
    ],
)
def test_what_draws_and_what_shows_is_in_one_place(tool, library, places):
    found = set()
    for path in tool.SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == library for name in names):
                found.add(path.relative_to(tool.SOURCE).as_posix())
    assert {next((place for place in places if name.startswith(place)), name) for name in found} == places
