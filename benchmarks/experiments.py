"""Write docs/experiments.md, its figures and the README's table from the results of ``noshadow bench``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from experiments_page import NETWORK, in_order, page, readme_table
from noshadow.bench.figures import ATTACK_NAMES, DRAWN, recall_curves
from noshadow.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "experiments"
PAGE = ROOT / "docs" / "experiments.md"
FIGURES = ROOT / "docs" / "figures"
README = ROOT / "README.md"
START, END = "<!-- experiments:start -->", "<!-- experiments:end -->"


def read_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """The results there are, in the paper's order."""
    return in_order([json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))])


def figure_names(folder: Path = FIGURES) -> set[str]:
    """The figures there are; those of single settings come from ``noshadow bench``."""
    return {path.name for path in folder.glob("*.*")}


def fill_readme(text: str, table: str) -> str:
    """The README with the table between its markers."""
    pattern = re.compile(f"({re.escape(START)}\n).*?({re.escape(END)})", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"README.md: expected {START} and {END} once")
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def draw_figures(results: list[dict[str, Any]], folder: Path = FIGURES) -> None:
    """The recall curves of all settings, and those with the full-network influence."""
    folder.mkdir(parents=True, exist_ok=True)
    for attack in ATTACK_NAMES:
        recall_curves(results, attack, folder / f"recall-{attack}")
    having = [result for result in results if NETWORK in result["attacks"]["lira"]["scores"]]
    if having:
        recall_curves(having, "lira", folder / "recall-network", (*DRAWN, NETWORK))


def main() -> None:
    results = read_results()
    if not results:
        raise SystemExit(f"{RESULTS}: no results; noshadow bench makes them")
    draw_figures(results)
    write_text(PAGE, page(results, figure_names()), private=False)
    write_text(README, fill_readme(README.read_text(encoding="utf-8"), readme_table(results)), private=False)
    print(PAGE, README, sep="\n")


if __name__ == "__main__":
    main()
