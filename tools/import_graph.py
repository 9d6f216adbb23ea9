"""Draw the import graph of noshadow by package and hold it to its layers.

    python tools/import_graph.py            print the graph
    python tools/import_graph.py --write    write it into docs/architecture.md

Every part (a top-level module or package of noshadow) has a place in ``LAYERS``; a part may import from layers below
its own, never from its own layer or above. Imports inside functions count too. Imports for type checkers only
(``if TYPE_CHECKING:``) do not: they are not there when the code runs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "noshadow"
PAGE = ROOT / "docs" / "architecture.md"
START, END = "<!-- graph:start -->", "<!-- graph:end -->"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("_version", "errors", "import_paths", "origin", "progress", "schemas", "spread_sources", "triangles"),
    ("pairing",),
    (
        "noshadow",
        "bands",
        "evaluate",
        "files",
        "gate",
        "heads",
        "losses",
        "memory",
        "optimizers",
        "packed",
        "ray_cluster",
        "sparse",
        "tensors",
    ),
    ("weights",),
    ("artefact", "npz", "records", "report", "tables"),
    ("findings", "sources"),
    ("layer_records",),
    ("layer",),
    ("passes",),
    ("attacks", "curvature", "objective", "theory"),
    ("likeness", "predict", "sandwich"),
    ("squared_law",),
    ("drawing", "extract"),
    ("columns", "network", "provenance", "shadow", "trace"),
    ("repeats", "run"),
    ("diagnostics",),
    ("reading", "scores"),
    ("candidates", "points", "rating"),
    ("accuracy", "canary", "comparison", "facts"),
    ("bundle", "scoring"),
    ("audit", "bench"),
    ("commands",),
    ("cli",),
    ("__main__",),
)
"""Lowest first. Parts of one layer know nothing of each other."""


def part_of(module: str) -> str:
    """The part that ``noshadow.a.b`` belongs to: ``a``; the package itself is ``noshadow``."""
    words = module.split(".")
    return words[1] if len(words) > 1 else "noshadow"


def imports(path: Path, module: str) -> Iterator[str]:
    """The noshadow modules that a file imports when it runs."""
    for node in _running(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "noshadow")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "noshadow":
            if node.module == "noshadow":
                yield from (f"noshadow.{alias.name}" for alias in node.names)
            else:
                yield node.module


def _running(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _running(child)


def edges() -> dict[str, set[str]]:
    """Which parts each part imports from, itself left out."""
    graph: dict[str, set[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        words = path.relative_to(SOURCE.parent).with_suffix("").parts
        module = ".".join(words[:-1] if words[-1] == "__init__" else words)
        found = graph.setdefault(part_of(module), set())
        found |= {part_of(name) for name in imports(path, module)} - {part_of(module)}
    return graph


def violations(graph: dict[str, set[str]]) -> list[str]:
    """Imports that go sideways or up, and parts without a layer: a sentence each."""
    level = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    missing = [f"{part} has no layer" for part in graph if part not in level]
    return missing + [
        f"{part} imports {other}, which is not below it"
        for part, others in graph.items()
        for other in sorted(others)
        if part in level and other in level and level[other] >= level[part]
    ]


def drawing(graph: dict[str, set[str]]) -> str:
    """The graph as a Mermaid diagram: a box per layer, an arrow for every import that no other path implies."""
    lines = ["```mermaid", "flowchart BT"]
    for number, layer in enumerate(LAYERS):
        lines += [f"  subgraph layer{number} [ ]", *(f"    {part}" for part in layer if part in graph), "  end"]
    for part in sorted(graph):
        direct = graph[part] - {far for other in graph[part] for far in _reachable(graph, other)}
        lines += [f"  {part} --> {other}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


def table(graph: dict[str, set[str]]) -> str:
    """The same as a Markdown table, for a site without scripts: a row per layer, the highest first."""
    lines = ["| layer | part | imports, beside what these import |", "|--:|---|---|"]
    for number, layer in reversed(list(enumerate(LAYERS))):
        for part in layer:
            if part in graph:
                direct = graph[part] - {far for other in graph[part] for far in _reachable(graph, other)}
                lines.append(f"| {number} | `{part}` | {', '.join(f'`{other}`' for other in sorted(direct)) or '–'} |")
    return "\n".join(lines)


def _reachable(graph: dict[str, set[str]], part: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph.get(part, ()))
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += graph.get(other, ())
    return found


def main() -> int:
    graph = edges()
    if "--write" in sys.argv[1:]:
        text = PAGE.read_text(encoding="utf-8")
        head, rest = text.split(START)
        PAGE.write_text(f"{head}{START}\n{drawing(graph)}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    else:
        for part, others in sorted(graph.items()):
            print(f"{part}: {', '.join(sorted(others)) or '-'}")
    problems = violations(graph)
    print("\n".join(problems), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
