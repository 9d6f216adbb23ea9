"""A page from what may be shown: one HTML file that needs nothing else, with everything from data escaped.

Its Content-Security-Policy allows the one style sheet and the one script by their hashes, images in data: addresses and
nothing else: were a text to get into the page as markup after all, it could neither run nor reach out.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from noshadow.report import svg, words
from noshadow.report.shown import Shown
from noshadow.report.summarise import Summary, percent

__all__ = ["environment", "heat", "page", "report_page"]

_DIFFICULTY = {"mean_trace": "how hard it was to fit while training", "loss": "how hard it is to fit"}


@cache
def environment() -> Environment:
    """The templates; escaping is on for every one of them."""
    found = Environment(
        loader=PackageLoader("noshadow.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"percent": percent, "words": words, "heat": heat, "figure": _figure}
    found.globals |= {name: getattr(svg, name) for name in svg.__all__}
    return found


@cache
def _static(name: str) -> tuple[Markup, str]:
    """A style sheet or script of ours, and its source expression for the policy."""
    text = files("noshadow.report").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"


def page(template: str, values: Mapping[str, Any]) -> str:
    """A whole page, with its style, its script and its policy."""
    css, style_hash = _static("report.css")
    script, script_hash = _static("report.js")
    policy = (
        f"default-src 'none'; style-src {style_hash}; script-src {script_hash}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return environment().get_template(template).render(css=css, script=script, policy=policy, **values)


def report_page(shown: Shown, summary: Summary, title: str, snippet: str = "") -> str:
    """The report as HTML."""
    cloud = shown.cloud
    return page(
        "report.html.j2",
        {
            "shown": shown,
            "summary": summary,
            "title": title,
            "snippet": snippet,
            "difficulty": "" if cloud is None else _DIFFICULTY[cloud.difficulty],
            "has_items": any(record.item for record in shown.top),
            "has_nearest": any(record.nearest for record in shown.top),
            "has_classes": bool(shown.strips) or any(table.title == "class" for table in shown.breakdowns),
        },
    )


def heat(value: float) -> int:
    """The shade of a correlation: 0 for none, 2 for a strong one."""
    return 0 if not abs(value) >= 0.5 else 2 if abs(value) >= 0.9 else 1


def _figure(name: str, value: float) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{100 * value:.1f} %" if name in ("attack_accuracy", "attack_tpr") else f"{value:.3g}"
