"""The report in a browser: no errors; it sorts, filters, folds, prints on two pages; nobody is kept from reading it."""

from __future__ import annotations

import io

import numpy as np
import pypdf
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from noshadow.gate import Policy
from noshadow.report import html_of, write_comparison, write_report
from tests.report.browser import FLAGS, chromium
from tests.report.made import made_audit
from tests.report.test_render import PAYLOADS, hostile

A4 = {"width": 680, "height": 1020}  # what an A4 page holds inside of its margins, in points of the screen


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens a page; whatever the console said meanwhile fails the test."""
    said, contexts = [], []

    def show(text, engineer=True, **options):
        path = tmp_path / f"{len(contexts)}.html"
        path.write_text(text, encoding="utf-8")
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
        page.goto(path.as_uri())
        if engineer and page.locator("#engineer").count():
            page.locator("#engineer > summary").click()
        return page

    yield show
    for context in contexts:
        context.close()
    assert said == []


def full(n=600, **facts):
    audit = made_audit(n, **facts)
    return html_of(audit, verdict=Policy(0.9, 2).judge(audit), show=lambda name: np.eye(8))


def worst():
    """All that makes the officer's pages long."""
    accuracy = {"median_error": 0.12, "top_kept": 0.7, "stable": None}
    verification = {"attack": "online LiRA with a pooled variance", "models": 256, "recall": 0.7, "ceiling": 0.8}
    name = "A classifier of the department of " + "very long names " * 8
    facts = {"accuracy": accuracy, "verification": verification, "curvature_exact": False, "curvature": "kronecker"}
    audit = made_audit(
        5000, classes=40, class_names={str(k): f"class with a name of its own, {k}" for k in range(40)}, **facts
    )
    rng = np.random.default_rng(0)
    for group in ("region", "age", "device"):
        audit.table[f"group_{group}"] = [f"{group} of the number {k}" for k in rng.integers(0, 40, 5000)]
    audit.table.loc[:30, "attack_accuracy"] = np.nan
    audit.table.loc[40:42, "flagged"] = True
    audit.metadata["provenance"]["command"] = "noshadow audit " + "--option value " * 40
    audit.metadata["provenance"]["versions"] = {f"library{k}": "1.2.3" for k in range(9)}
    return html_of(audit, verdict=Policy(0.9, 2).judge(audit), title=name)


def without_rates():
    return html_of(made_audit(rates=False, trace="none"))


def public():
    return html_of(made_audit(2000), public=True)


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def test_sorts_filters_and_folds(opened):
    page = opened(full())
    rows = "#records tbody tr:visible"
    assert page.locator(rows).count() == 100
    names = texts(page, "#records tbody th")
    heads = page.locator("#records thead th")
    exposure = heads.filter(has_text="exposure")
    exposure.get_by_role("button").click()
    assert exposure.get_attribute("aria-sort") == "descending"
    values = [float(v) for v in page.locator("#records tbody td[data-value]").evaluate_all(
        "(cells) => cells.map((cell) => cell.dataset.value)")]  # fmt: skip
    columns = len(values) // 100
    by_column = np.array(values).reshape(100, columns)
    assert any((np.diff(by_column[:, k]) <= 0).all() for k in range(columns))
    exposure.get_by_role("button").click()
    assert exposure.get_attribute("aria-sort") == "ascending"
    heads.filter(has_text="#").get_by_role("button").click()
    heads.filter(has_text="#").get_by_role("button").click()
    assert texts(page, "#records tbody th") == names
    heads.filter(has_text="Record").get_by_role("button").click()
    in_order = texts(page, "#records tbody th")
    assert in_order == sorted(names, key=lambda name: int(name.split()[1]))  # 2 before 10

    page.fill("#filter", names[5].upper())
    assert page.locator("#records tbody tr:visible th").first.inner_text().startswith(names[5])
    assert page.locator("#count").inner_text() == f"{page.locator(rows).count()} of 100 shown"
    page.fill("#filter", "")
    page.select_option("#band", "high")
    shown = page.locator(rows)
    assert 0 < shown.count() < 100
    assert all("high" in text for text in shown.all_inner_texts())
    page.select_option("#band", "")

    assert page.locator("details.part[open]").count() > 0
    page.click("#fold")
    assert page.locator("details.part[open]").count() == 0
    page.click("#fold")
    assert page.locator("details.part:not([open])").count() == 0
    page.locator("#engineer > summary").click()
    assert not page.locator("#records").is_visible()


def test_readable_without_a_script(opened):
    page = opened(full(), java_script_enabled=False)
    assert page.locator("#records tbody tr").count() == 100
    assert page.locator("#records").is_visible()
    assert page.locator(".tools:visible").count() == 0  # nothing that would not work
    assert page.locator("#records button").count() == 0


@pytest.mark.parametrize("make", [full, worst, without_rates])
def test_prints_on_two_pages_and_nothing_is_cut_off(opened, make):
    page = opened(make())
    pages = pypdf.PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True, print_background=True))).pages
    assert len(pages) == 2
    first, second = (" ".join(one.extract_text().split()) for one in pages)
    assert "The attacker that was assumed" in first
    assert "How far to trust it" in second
    assert "Signature" in second
    assert "privacy is one with a proof" in second  # the last line
    assert "For the engineer" not in first + second
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    for sheet in page.locator(".sheet").all():
        high, room = sheet.evaluate("(sheet) => [sheet.scrollHeight, sheet.clientHeight]")
        assert high <= room


@pytest.mark.parametrize("make", [full, worst, without_rates, public])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened, make, scheme):
    page = opened(make(), color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    found = Axe().run(page).response["violations"]
    serious = [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []


@pytest.mark.parametrize("make", [full, worst, without_rates, public])
def test_a_telephone_shows_it_without_scrolling_sideways(opened, make):
    page = opened(make(), viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_payloads_show_as_text_and_do_nothing(opened):
    page = opened(html_of(hostile(), show="text"))
    assert page.evaluate("window.hit") is None
    shown = page.locator("#records").inner_text()
    for payload in PAYLOADS:
        assert payload in shown
    assert page.locator("#records img, #records script").count() == 0
    page.fill("#filter", "<script>")
    assert page.evaluate("window.hit") is None


def test_the_policy_stops_what_the_escaping_would_let_through(browser, tmp_path):
    path = write_report(made_audit(), tmp_path / "a.html")
    text = path.read_text(encoding="utf-8")
    attack = "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
    path.write_text(text.replace("<main>", f"<main>{attack}"), encoding="utf-8")
    page = browser.new_page()
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    page.goto(path.as_uri())
    assert page.evaluate("window.hit") is None
    assert any("Content Security Policy" in text for text in refused)
    page.close()


def test_a_comparison_opens(opened, tmp_path):
    before, after = made_audit(seed=0), made_audit(seed=0)
    after.table["attack_accuracy"] = 0.5 + 0.6 * (after.table["attack_accuracy"] - 0.5)
    write_comparison(before, after, tmp_path / "c.html", ("before.parquet", "after.parquet"))
    page = opened((tmp_path / "c.html").read_text(encoding="utf-8"), viewport={"width": 390, "height": 844})
    assert "Fewer records are exposed" in page.locator(".lead").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    found = Axe().run(page).response["violations"]
    assert [one["id"] for one in found if one["impact"] in ("serious", "critical")] == []
