"""What a page is made of: sections with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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
    return [figure for section in sections for figure in _shown(section, subject)]


def page_text(sections: Sequence[Section[Subject]], subject: Subject, image_of: Callable[[str], str]) -> str:
    """The page; ``image_of`` gives the path of a figure, without its suffix, as the page links to it."""
    parts = []
    for section in sections:
        lines = section.write(subject)
        for figure in _shown(section, subject):
            path = image_of(figure.name)
            lines = [*lines, "", figure.caption, "", f"[![{figure.caption.partition('.')[0]}]({path}.png)]({path}.svg)"]
        if lines:
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _shown(section: Section[Subject], subject: Subject) -> list[Figure[Subject]]:
    return [figure for figure in section.figures if figure.applies(subject)] if section.write(subject) else []
