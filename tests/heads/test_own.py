"""What depends on the head is in ``noshadow.heads``: no other module asks which head it has before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import noshadow
from noshadow.heads import HEADS

SOURCE = Path(noshadow.__file__).parent
CLASSES = {type(head).__module__ for head in HEADS.values()}
ALLOWED = {
    "theory/sample.py: layer.head != 'squared'": "the laws are those of one head, whatever others can do",
    "attacks/shokri.py: classifier == 'logistic'": "a classifier of scikit-learn",
    "extract/sklearn/network.py: model.out_activation_ == 'softmax'": "an activation of scikit-learn",
    "extract/torch/matching.py: 'softmax' not in name": "an activation of torch",
}


def questions(code: str) -> list[str]:
    """Where code compares with the name of a head, looks something up by it, or imports a head's class."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            parts = [
                part for side in sides for part in (side.elts if isinstance(side, ast.Tuple | ast.List) else [side])
            ]
            asks = any(_is_name(part) for part in parts)
        elif isinstance(node, ast.MatchValue):
            asks = _is_name(node.value)
        elif isinstance(node, ast.Dict):
            asks = sum(_is_name(key) for key in node.keys) > 1
        else:
            asks = isinstance(node, ast.ImportFrom) and node.module in CLASSES
        if asks:
            found.append(ast.unparse(node))
    return found


def _is_name(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in HEADS


def test_no_module_outside_heads_asks_for_the_name_of_a_head():
    found = set()
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith("heads/"):
            found |= {f"{place}: {question}" for question in questions(path.read_text(encoding="utf-8"))}
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "code",
    [
        "if head == 'squared': pass",
        "x = 1 if 'softmax' != kind.name else 2",
        "x = head in ('logistic', 'softmax')",
        "match head:\n    case 'logistic': pass",
        "LOSSES = {'squared': 1, 'logistic': 2}",
        "from noshadow.heads.softmax import Softmax",
    ],
)
def test_a_question_is_noticed(code):
    assert questions(code)


def test_names_that_are_passed_on_are_no_questions():
    assert not questions("layer = LastLayer(x, z, y, head='softmax')\nby_kind = {'regression': 'squared'}")
