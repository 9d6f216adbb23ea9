"""Write the pages and their figures into a folder, from results alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from noshadow.bench.pages import one_setting, overview, story
from noshadow.bench.pages.section import figures_of, page_text
from noshadow.bench.result import Result, in_order
from noshadow.errors import FileError, InputError
from noshadow.files import write_text
from noshadow.progress import progress_bar

__all__ = ["END", "START", "draw_setting", "fill_readme", "setting_page", "write_pages"]

START, END = "<!-- experiments:start -->", "<!-- experiments:end -->"


def write_pages(
    results: Sequence[Result], folder: Path, readme: Path | None = None, progress: bool | None = None
) -> list[Path]:
    """An overview ``folder/experiments.md``, ``beyond.md``, ``folder/experiments/SETTING.md`` and ``folder/figures/``.

    Parameters
    ----------
    results
        One per setting.
    folder
        Where documentation is kept. Files of the same names are replaced, others are left alone.
    readme
        A file with the lines ``<!-- experiments:start -->`` and ``<!-- experiments:end -->``: what is between them
        becomes the short table.

    Returns
    -------
    What was written: pages first, then figures, then the readme.
    """
    if not results:
        raise InputError("results: there are none; noshadow bench SETTING makes them")
    ordered = in_order(results)
    filled = None if readme is None else fill_readme(_text(readme), overview.readme_table(ordered))
    figures = folder / "figures"
    for place in (folder, folder / "experiments", figures):
        place.mkdir(parents=True, exist_ok=True)
    of_all = {"experiments.md": overview.SECTIONS, "beyond.md": story.SECTIONS}
    pages = {folder / name: page_text(s, ordered, lambda name: f"figures/{name}") for name, s in of_all.items()}
    for result in ordered:
        pages[folder / "experiments" / f"{result.setting}.md"] = setting_page(result)
    drawn: list[Path] = []
    with progress_bar("figures", len(ordered) + 1, progress) as advance:
        for figure in (figure for sections in of_all.values() for figure in figures_of(sections, ordered)):
            drawn += figure.draw(ordered, figures / figure.name)
        advance()
        for result in ordered:
            drawn += draw_setting(result, figures)
            advance()
    for path, text in pages.items():
        write_text(path, text, private=False)
    if readme is not None and filled is not None:
        write_text(readme, filled, private=False)
    return [*pages, *drawn, *([] if readme is None else [readme])]


def setting_page(result: Result) -> str:
    """The Markdown of one setting's page."""
    return page_text(one_setting.SECTIONS, result, lambda name: f"../figures/{result.setting}-{name}")


def draw_setting(result: Result, folder: Path) -> list[Path]:
    """All figures of one setting, as ``folder/SETTING-NAME.png`` and ``.svg``: those that its records allow."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for figure in figures_of(one_setting.SECTIONS, result):
        made += figure.draw(result, folder / f"{result.setting}-{figure.name}")
    return made


def fill_readme(text: str, table: str) -> str:
    """The text with the table between its markers."""
    pattern = re.compile(f"({re.escape(START)}\n).*?({re.escape(END)})", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise FileError(f"readme: expected {START} and {END} once, on lines of their own")
    return pattern.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"readme: {path} cannot be read ({error})") from None
