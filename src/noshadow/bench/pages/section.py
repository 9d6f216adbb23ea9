"""What a page is made of: sections with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

__all__ = ["Figure", "Section", "Subject", "figures_of", "page_text"]

Subject = TypeVar("Subject")
"""What a page is about: one result, or all of them."""


@dataclass(frozen=True)
class Figure(Generic[Subject]):
    """A figure: ``draw`` writes it as PNG and SVG to a path without a suffix; ``applies``: whether there is one.

    The first sentence of the caption is what is read out to those who do not see the figure.
    """

    name: str
    caption: str
    draw: Callable[[Subject, Path], list[Path]]
    applies: Callable[[Subject], bool] = lambda _: True


@dataclass(frozen=True)
class Section(Generic[Subject]):
    """A section: its Markdown lines, heading first (none: it is left out), and figures that come below."""

    name: str
    write: Callable[[Subject], list[str]]
    figures: Sequence[Figure[Subject]] = ()


def figures_of(sections: Sequence[Section[Subject]], subject: Subject) -> list[Figure[Subject]]:
    """The figures that the page shows, in their order."""
    written = [section for section in sections if section.write(subject)]
    return [figure for section in written for figure in section.figures if figure.applies(subject)]


def page_text(sections: Sequence[Section[Subject]], subject: Subject, image_of: Callable[[str], str]) -> str:
    """The page; ``image_of`` gives the path of a figure, without its suffix, as the page links to it."""
    parts = []
    for section in sections:
        lines = section.write(subject)
        shown = [figure for figure in section.figures if figure.applies(subject)] if lines else []
        for figure in shown:
            path = image_of(figure.name)
            lines = [*lines, "", figure.caption, "", f"[![{figure.caption.partition('.')[0]}]({path}.png)]({path}.svg)"]
        if lines:
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
