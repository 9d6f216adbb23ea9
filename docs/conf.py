"""How the site is made: ``make docs`` builds it into docs/_build/html, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

from noshadow import __version__

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))

import commands_page  # noqa: E402  of tools/, which is not a package
import import_graph  # noqa: E402

project = "noshadow"
author = "the noshadow authors"
copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path: list[str] = []
nitpicky = True

# Markdown
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
highlight_language = "none"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# docstrings: NumPy style, types in words beside each parameter, so that signatures can be short
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

# looks
html_theme = "furo"
html_title = f"noshadow {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#8a3b12", "color-brand-content": "#8a3b12"},
    "dark_css_variables": {"color-brand-primary": "#f0a27a", "color-brand-content": "#f0a27a"},
}
html_copy_source = False
html_show_sphinx = False


def write_commands(app: Any) -> None:
    """The page of the commands, from their own help."""
    (HERE / "reference" / "commands.md").write_text(commands_page.page(), encoding="utf-8")


def layers_as_table(app: Any, name: str, source: list[str]) -> None:
    """The import graph, which GitHub draws from its Mermaid source, as a table: a site needs no script for it."""
    if name == "architecture":
        before, _, rest = source[0].partition(import_graph.START)
        source[0] = before + import_graph.table(import_graph.edges()) + rest.partition(import_graph.END)[2]


def setup(app: Any) -> dict[str, Any]:
    app.connect("builder-inited", write_commands)
    app.connect("source-read", layers_as_table)
    app.add_lexer("mermaid", TextLexer)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
