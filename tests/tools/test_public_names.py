"""Every module lists its public names, and they exist."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool():
    sys.path.insert(0, str(ROOT / "tools"))
    yield importlib.import_module("public_names")
    sys.path.remove(str(ROOT / "tools"))


def in_hand(tool):
    for path in tool.modules():
        words = path.relative_to(tool.SOURCE.parent).with_suffix("").parts
        yield path, ".".join(words[:-1] if words[-1] == "__init__" else words)


def test_every_module_lists_all_that_it_defines(tool):
    incomplete = {path: names for path, names in tool.problems().items() if path in dict(in_hand(tool))}
    assert not incomplete, "run: python tools/public_names.py --write"


def test_every_listed_name_exists_and_is_public(tool):
    for path, name in in_hand(tool):
        module = importlib.import_module(name)
        assert [missing for missing in module.__all__ if not hasattr(module, missing)] == [], path
        assert [hidden for hidden in module.__all__ if hidden.startswith("_") and hidden != "__version__"] == [], path


def test_what_is_written(tool):
    text = '"""Words."""\n\nimport os\n\nif os:\n    import sys\n\n'
    text += "B, _c = 1, 2\nsys.a = 3\n\n\ndef f():\n    d = 1\n\n\nclass Apple: ...\n"
    written = tool.complete(text)
    assert written.replace('__all__ = ["B", "Apple", "f"]\n\n', "") == text
    assert tool.complete(written) == written
    partial = text.replace("import os\n", 'import os\n\n__all__ = ["os"]\n')
    assert '__all__ = ["B", "Apple", "f", "os"]\n' in tool.complete(partial)
    assert tool.defined(tool.ast.parse("x: int = 1\ny[0] = z.w = 2\nasync def g(): ...")) == {"x", "g"}
