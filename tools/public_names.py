"""Every module says what it offers: ``__all__`` names its public functions, classes and constants.

    python tools/public_names.py            print the modules whose ``__all__`` is missing or incomplete
    python tools/public_names.py --write    put it right: after the imports, sorted as the linter wants it

Public is what a module defines at its top level without a leading underscore. A package's ``__init__`` lists what it
hands on as well, by hand.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "noshadow"
WIDTH = 120


def modules() -> Iterator[Path]:
    """Every module that can be imported without running a program."""
    return (path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py")


def defined(tree: ast.Module) -> set[str]:
    """The public names that a module defines."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found = (name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
            names |= {name.id for name in found if isinstance(name.ctx, ast.Store)}
    return {name for name in names if not name.startswith("_") or name == "__version__"}


def listed(tree: ast.Module) -> set[str] | None:
    """What its ``__all__`` says; None without one."""
    node = _statement(tree)
    return None if node is None or node.value is None else set(ast.literal_eval(node.value))


def problems() -> dict[Path, set[str]]:
    """The modules without an ``__all__`` or with names that it leaves out, and those names."""
    found = {}
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = listed(tree)
        if names is None or defined(tree) - names:
            found[path] = defined(tree) - (names or set())
    return found


def complete(text: str) -> str:
    """The text of a module with an ``__all__`` that leaves nothing out."""
    tree = ast.parse(text)
    line = _line(defined(tree) | (listed(tree) or set()))
    lines, node = text.splitlines(keepends=True), _statement(tree)
    if node is not None:
        assert node.end_lineno is not None
        return "".join([*lines[: node.lineno - 1], line, *lines[node.end_lineno :]])
    place = _after_imports(tree)
    return "".join([*lines[:place], "\n", line, *lines[place:]])


def _statement(tree: ast.Module) -> ast.Assign | ast.AnnAssign | None:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__":
                return node
    return None


def _after_imports(tree: ast.Module) -> int:
    """The line after the docstring, the imports and the blocks that hold imports alone."""
    place = 0
    for number, node in enumerate(tree.body):
        docstring = number == 0 and isinstance(node, ast.Expr)
        block = isinstance(node, (ast.If, ast.Try)) and isinstance(node.body[0], (ast.Import, ast.ImportFrom))
        if not (docstring or block or isinstance(node, (ast.Import, ast.ImportFrom))):
            break
        place = node.end_lineno or place
    return place


def _line(names: set[str]) -> str:
    """CONSTANTS, then Classes, then functions, as the linter sorts them; laid out as the formatter does."""
    if not names:
        return "__all__: list[str] = []\n"
    ordered = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    quoted = [f'"{name}"' for name in ordered]
    line = f"__all__ = [{', '.join(quoted)}]\n"
    return line if len(line) <= WIDTH + 1 else "".join(["__all__ = [\n", *(f"    {q},\n" for q in quoted), "]\n"])


def main() -> int:
    found = problems()
    for path, names in found.items():
        if "--write" in sys.argv[1:]:
            path.write_text(complete(path.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            print(f"{path.relative_to(ROOT)}: {', '.join(sorted(names)) or 'no __all__'}")
    return int(bool(found) and "--write" not in sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
