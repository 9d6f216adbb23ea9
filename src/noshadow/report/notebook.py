"""An audit in a notebook: the bands as a bar and a small table of the most exposed, static, everything escaped.

Notebooks take a page's style sheet away from what they show, so that the styles are attributes here.
"""

from __future__ import annotations

from markupsafe import Markup

from noshadow.report.render import environment
from noshadow.report.shown import Shown
from noshadow.report.summarise import finding

__all__ = ["COUNT", "notebook_table"]

COUNT = 10
"""Records in the table."""


def notebook_table(shown: Shown) -> Markup:
    """What a notebook shows of an audit."""
    return Markup(environment().get_template("notebook.html.j2").render(shown=shown, finding=finding(shown)[0]))
