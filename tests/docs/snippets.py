"""The code blocks of the README and of the site, and what is done with each.

    python -m tests.docs.snippets    how many there are, by page and kind

A page is read like this:

* ``python`` blocks are run in their order, in one namespace and one folder per page. ``<!-- snippets: NAME -->`` on the
  page runs ``setups/NAME.py`` first: what the page takes for granted (a trained model, arrays).
* a block whose first line is a comment with the name of a file, ``# train.py``, is saved under that name, as the page
  asks; a script is run where the page says ``python train.py``, and has to be.
* ``sh`` blocks are run line by line in the same folder; a line may end in ``# exit 1``. What trains for long, installs
  or downloads is not run but parsed: commands of noshadow by their own parser, ``make`` targets and extras looked up.
* a ``text`` block after ``<!-- output -->`` is what the block before it printed, with … for what may differ; after
  ``<!-- output, about -->`` it is so but for the numbers, which are those of one run on one machine.
* ``yaml``, ``toml`` and ``json`` are parsed, and the commands in a workflow as above.

Anything else fails, so that no block goes unseen.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SETUPS = Path(__file__).parent / "setups"
WRITTEN = {"reference/commands.md"}  # when the site is built, from the commands' help

_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_SETUP = re.compile(r"<!-- snippets: (\w+) -->")
_NAMED = re.compile(r"# (\w+\.(?:py|toml))\n")
_OUTPUT = re.compile(r"<!-- output(, about)? -->\s*\Z")


@dataclass(frozen=True)
class Snippet:
    """A block: its language, its text, the line of the page it starts on, what it is to print (None: anything), and
    whether the numbers in that may be others."""

    language: str
    code: str
    line: int
    prints: str | None = None
    about: bool = False

    @property
    def file(self) -> str | None:
        """The name that the reader is to save it under; None: it is typed."""
        named = _NAMED.match(self.code)
        return named[1] if named else None


@dataclass(frozen=True)
class Page:
    """A page with the blocks to be run, and the name of what has to be there before."""

    path: Path
    snippets: tuple[Snippet, ...]
    setup: str | None

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def read_page(path: Path) -> Page:
    """The blocks of a page; outputs are joined to what prints them."""
    text = path.read_text(encoding="utf-8")
    found: list[Snippet] = []
    for block in _BLOCK.finditer(text):
        language = block["info"].strip()
        if language.startswith("{") or language == "mermaid":  # a directive of the site, a drawing
            continue
        line = text.count("\n", 0, block.start()) + 2
        if language == "text":
            if marker := _OUTPUT.search(text[: block.start()]):
                found.append(replace(found.pop(), prints=block["code"], about=bool(marker[1])))
            continue
        found.append(Snippet(language, block["code"], line))
    setup = _SETUP.search(text)
    return Page(path, tuple(found), setup[1] if setup and setup[1] != "none" else None)


def pages() -> Iterator[Page]:
    """All pages with a block on them."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))):
        inside = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else ""
        if inside not in WRITTEN and not inside.startswith("_build"):
            page = read_page(path)
            if page.snippets:
                yield page


def main() -> None:
    total: Counter[str] = Counter()
    for page in pages():
        kinds = Counter(snippet.language for snippet in page.snippets)
        total += kinds
        print(f"{page.name:40} {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    print(f"{'in all':40} {total.total()}: {', '.join(f'{count} {kind}' for kind, count in sorted(total.items()))}")


if __name__ == "__main__":
    main()
