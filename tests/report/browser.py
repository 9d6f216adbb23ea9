"""The browser of the tests: Debian's Chromium, or the one that NOSHADOW_CHROMIUM names."""

from __future__ import annotations

import importlib.util
import os
import shutil

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
HOW_TO_ADD = "apt-get install chromium fonts-dejavu-core && pip install 'noshadow[dev]'"


def chromium():
    """Its path; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("NOSHADOW_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def missing():
    """What the tests in a browser lack; None where they can run."""
    packages = ("playwright", "axe_playwright_python", "pypdf")
    lacking = [name for name in packages if importlib.util.find_spec(name) is None]
    return "no Chromium" if chromium() is None else f"no {lacking[0]}" if lacking else None
