"""The site builds without a warning, its links lead somewhere, and its tables leave nothing out."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from noshadow.scores import SCORES

from .snippets import DOCS, ROOT

sys.path.insert(0, str(ROOT / "tools"))
import check_links

SOURCE = ROOT / "src" / "noshadow"
COMMANDS = (DOCS / "reference" / "commands.md").read_text(encoding="utf-8")  # now: a build of the site writes it anew


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-n", "-q"]
    built = subprocess.run(
        [*command, "-d", str(folder / "read"), str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_links_within_the_site_lead_somewhere(site):
    checked = check_links.check_site(site)
    assert checked.followed > 1000
    assert not checked.broken, "\n".join(checked.broken)


def test_a_broken_link_is_noticed(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">1</a><a href="b.html#there">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="here">')
    checked = check_links.check_site(tmp_path)
    assert (checked.followed, len(checked.broken)) == (3, 2)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_links_of_the_repository_lead_somewhere(name):
    assert not check_links.check_markdown(ROOT / name).broken


def test_formulas_are_rendered_without_another_site(site):
    page = (site / "method" / "scores.html").read_text(encoding="utf-8")
    assert "math" in page
    scripts = re.findall(r'<script[^>]*src="([^"]+)"', page)
    assert not [script for script in scripts if script.startswith(("http:", "https:", "//"))]


def test_every_score_has_a_row():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference" / "columns.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(SCORES) <= set(rows)


def said() -> str:
    """All texts in the code, one after the other: literals that follow each other are one."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
    return "\n".join(" ".join(text.split()) for text in found)


def test_the_notes_are_those_of_the_code():
    page = (DOCS / "reference" / "notes.md").read_text(encoding="utf-8")
    quoted = re.findall(r'^\| (".*?) \|', page, re.MULTILINE)
    words = [word for cell in quoted for word in re.findall(r'"([^"]+)"', cell)]
    texts = said()
    assert len(words) > 30
    assert not [word for word in words if word not in texts]


def test_every_public_name_has_a_place_in_the_reference(site):
    import importlib

    for part in ("", ".attacks", ".evaluate", ".network", ".shadow", ".theory"):
        module = importlib.import_module(f"noshadow{part}")
        places = {
            place for page in (site / "reference" / "api").glob("*.html") for place in check_links._read(page).places
        }
        packages = {"attacks", "evaluate", "network", "shadow", "theory"} if not part else set()
        missing = set(module.__all__) - packages - {"__version__", "Metric"}
        assert not {name for name in missing if f"noshadow{part}.{name}" not in places}


def test_the_commands_page_names_every_option():
    from typer.main import get_command

    import commands_page
    from noshadow.cli import app

    text = commands_page.page()
    assert text == COMMANDS, "run: make docs"
    for words, command in commands_page.leaves(get_command(app), ("noshadow",)):
        assert f"## {' '.join(words)}\n" in text
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert f"`{parameter.opts[0]}`" in text


def test_no_page_names_a_folder_of_somebodys_machine():
    for path in [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst"), ROOT / "README.md"]:
        if "_build" not in path.parts:
            assert not re.search(r"(?<![\w.])/(work|home|tmp|root)/", path.read_text(encoding="utf-8")), path


def test_pages_are_not_larger_than_a_person_waits_for(site):
    heavy = {page.name: page.stat().st_size for page in Path(site).rglob("*.html") if page.stat().st_size > 1_000_000}
    assert not heavy
