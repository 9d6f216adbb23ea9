"""The page: whole, small, escaped, with a policy that fits its own style and script."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import stat
from html.parser import HTMLParser

import numpy as np
import pytest

from noshadow import InputError
from noshadow.gate import Policy
from noshadow.report import LARGEST, html_of, in_notebook, write_report
from tests.report.made import made_audit

PAYLOADS = (
    "<script>window.hit = 1</script>",
    '"><img src=x onerror="window.hit=1">',
    "</style></title></textarea><svg onload=window.hit=1>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hit=1",
)


class Page(HTMLParser):
    """Its elements, its attributes, its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def hostile(n=200, **facts):
    audit = made_audit(n, **facts)
    table = audit.table
    table["id"] = [f"{PAYLOADS[i % 5]}{i}" for i in range(n)]
    table["target"] = [PAYLOADS[i % 5] for i in range(n)]
    table["nearest_class"] = [PAYLOADS[(i + 1) % 5] for i in range(n)]
    table["group_site"] = [PAYLOADS[i % 5] for i in range(n)]
    table["text"] = [f"{PAYLOADS[i % 5]} text" for i in range(n)]
    audit.metadata["model"] = PAYLOADS[0]
    audit.metadata["provenance"]["command"] = PAYLOADS[1]
    return type(audit)(table.rename(columns={"group_site": f"group_{PAYLOADS[0]}"}), audit.metadata, PAYLOADS)


def test_the_policy_names_the_hashes_of_style_and_script_and_there_is_nothing_inline():
    text = html_of(made_audit(), verdict=Policy().judge(made_audit()))
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{source} &#39;sha256-{digest}&#39;" in text
    assert "default-src &#39;none&#39;" in text
    attributes = {name for name, _ in Page(text).attributes}
    assert "style" not in attributes
    assert not {name for name in attributes if name.startswith("on")}
    assert not re.search(r"https?://", text)


@pytest.mark.parametrize("public", [False, True])
def test_payloads_are_text(public):
    audit = hostile()
    text = html_of(audit, public=public, show=None if public else "text")
    page, plain = Page(text), Page(html_of(made_audit(), public=public, show=None if public else "id"))
    assert page.tags.count("script") == plain.tags.count("script") == 1
    assert "img" not in page.tags
    assert not {name for name, _ in page.attributes if name.startswith("on")}
    assert PAYLOADS[0] in page.text
    if not public:
        for payload in PAYLOADS:
            assert payload in page.text
    notebook = Page(in_notebook(audit))
    assert not {"script", "img", "svg"} & set(notebook.tags)
    assert PAYLOADS[0] in notebook.text


@pytest.mark.parametrize("public", [False, True])
def test_a_million_records_make_no_larger_file(public):
    n = 1_000_000
    audit = made_audit(n, classes=1000)
    audit.table["id"] = np.arange(n)
    audit.table["group_zip"] = np.random.default_rng(0).integers(0, 90_000, n)
    text = html_of(audit, public=public)
    assert len(text.encode()) < 300_000 < LARGEST


def test_large_texts_and_images_make_fewer_records_not_a_larger_file():
    rng = np.random.default_rng(0)
    audit = made_audit()
    text = html_of(audit, show=lambda name: rng.integers(0, 256, (200, 200, 3), dtype=np.uint8))
    assert len(text.encode()) <= LARGEST
    assert 20 <= text.count('src="data:image/png') <= 100
    audit.table["id"] = [str(i) * 100_000 for i in range(600)]
    assert len(html_of(audit).encode()) <= LARGEST


@pytest.mark.parametrize(
    "change",
    [
        {"trace": "none", "calibration": None, "provenance": None},
        {"accuracy": {"median_error": 0.05, "top_kept": 0.9, "stable": None}, "curvature_exact": False},
        {"accuracy": None, "curvature_exact": False, "stationarity": None, "linearity": None},
        {"verification": {"attack": "LiRA", "models": 64, "recall": 0.8, "ceiling": 0.9}},
        {"calibration": {"source": "gap", "held_out": 200}},
        {"calibration": {"source": "converged", "held_out": 0}},
    ],
)
def test_whatever_is_known_makes_a_page(change):
    rates = "calibration" not in change or change["calibration"] is not None
    for public in (False, True):
        assert "</html>" in html_of(made_audit(300, rates=rates, **change), public=public)


def test_without_rates_there_are_no_bands():
    text = html_of(made_audit(rates=False))
    assert "no predicted success rates" in text
    assert "held_out=" in text
    assert "rerun=" in text
    assert '<svg class="bandsbar"' not in text
    assert 'class="bands"' not in text
    assert "% to" not in text


def test_few_columns_few_records():
    audit = made_audit(3, rates=False, groups=False)
    table = audit.table[["id", "target", "exposure", "flagged"]]
    text = html_of(type(audit)(table, audit.metadata, ()))
    assert "The 3 most exposed records" in text
    table = table.assign(exposure=0.0)
    assert "</html>" in html_of(type(audit)(table, audit.metadata, ()))


def test_files_are_private_unless_they_are_public(tmp_path):
    before = os.umask(0o022)
    try:
        private = write_report(made_audit(), tmp_path / "a.html")
        public = write_report(made_audit(), tmp_path / "p.html", public=True)
    finally:
        os.umask(before)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "p.html"]
    with pytest.raises(InputError, match=r"path: .* must end in .html"):
        write_report(made_audit(), tmp_path / "a.pdf")
    with pytest.raises(InputError, match=r"path: a report in Markdown is a section of a public model card"):
        write_report(made_audit(), tmp_path / "a.md")
    with pytest.raises(InputError, match=r"does not exist"):
        made_audit().report(tmp_path / "no" / "a.html")


def test_a_policy_is_held_against_it(tmp_path):
    (tmp_path / "policy.toml").write_text("fail_above = 0.75\nmax_records = 1\n", encoding="utf-8")
    path = made_audit().report(tmp_path / "a.html", policy=tmp_path / "policy.toml", title="My <model>")
    text = path.read_text(encoding="utf-8")
    assert "✗ Policy not met." in text
    assert "My &lt;model&gt;" in text
    assert "✓ Policy met." in html_of(made_audit(), verdict=Policy(0.9, 600).judge(made_audit()))
    assert "Held against no policy" in html_of(made_audit())
    with pytest.raises(InputError, match=r"policy: this audit has no predicted rates"):
        made_audit(rates=False).report(tmp_path / "b.html", policy=Policy())
    assert not (tmp_path / "b.html").exists()
