"""Every link within a built site, and of the repository's own Markdown, leads somewhere.

    python tools/check_links.py docs/_build/html    the site; links to files and to places in them
    python tools/check_links.py README.md …         Markdown files; links to files

Links to other sites are counted, not followed.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Checked", "check_markdown", "check_site"]


@dataclass
class Checked:
    """How many links were followed, how many lead elsewhere, and those that lead nowhere, a sentence each."""

    followed: int = 0
    elsewhere: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Checked) -> None:
        self.followed += other.followed
        self.elsewhere += other.elsewhere
        self.broken += other.broken


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        for name in ("href", "src"):
            if value := found.get(name):
                self.links.append(value)
        for name in ("id", "name"):
            if value := found.get(name):
                self.places.add(value)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def check_site(folder: Path) -> Checked:
    """All links of all pages below a folder."""
    checked = Checked()
    for path in sorted(folder.rglob("*.html")):
        for link in _read(path).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                checked.elsewhere += 1
                continue
            checked.followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                checked.broken.append(f"{path.relative_to(folder)}: {link} is not there")
            elif parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in _read(target).places:
                checked.broken.append(f"{path.relative_to(folder)}: {link} has no such place")
    return checked


def check_markdown(path: Path) -> Checked:
    """The links of a Markdown file to files beside it."""
    checked = Checked()
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            checked.elsewhere += 1
            continue
        checked.followed += 1
        if parts.path and not (path.parent / unquote(parts.path)).exists():
            checked.broken.append(f"{path.name}: {link} is not there")
    return checked


def main(paths: list[str]) -> int:
    checked = Checked()
    for path in map(Path, paths):
        checked.add(check_site(path) if path.is_dir() else check_markdown(path))
    print("\n".join(checked.broken), end="\n" if checked.broken else "", file=sys.stderr)
    print(f"{checked.followed:,} links followed, {len(checked.broken)} broken; {checked.elsewhere:,} lead elsewhere")
    return int(bool(checked.broken) or not checked.followed)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
