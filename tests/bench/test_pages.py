"""Pages are made from results alone: no number in the docs is typed by hand; and the paper's numbers beside ours."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from noshadow.bench.pages import (
    beside_paper,
    draw_setting,
    fill_readme,
    markdown,
    one_setting,
    overview,
    story,
    write_pages,
)
from noshadow.bench.pages.beside_paper import Pair, pairs, reasons
from noshadow.bench.pages.section import figures_of, page_text
from noshadow.bench.pages.write import END, START, setting_page
from noshadow.bench.result import HEADLINE, NETWORK, BudgetFound, RatesFound, load_results, save_result
from noshadow.cli import app
from noshadow.errors import InputError
from noshadow.evaluate import Summary
from tests.bench.toy_results import ceiling, score_result, toy_result

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "experiments"
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def results():
    return load_results([RESULTS])


@pytest.fixture(scope="module")
def energy(results):
    return next(result for result in results if result.setting == "energy-mlp")


def estimates(ours, paper, number="recall@1%", again=50.0, perfect=None):
    return Pair(5, "newton", number, ours, paper, again, perfect)


def overview_text(results):
    return page_text(overview.SECTIONS, results, lambda name: f"figures/{name}")


def with_row(result, name, row, attack="lira"):
    """The result with a score more, or another one of that name."""
    findings = result.attacks[attack]
    return replace(result, attacks=result.attacks | {attack: replace(findings, scores=findings.scores | {name: row})})


def with_target(result, target):
    """The result with records of that target to be shown."""
    shown = {name: tuple(replace(one, target=target) for one in found) for name, found in result.shown.items()}
    return replace(result, shown=shown)


def test_the_docs_are_those_that_the_results_make(tmp_path):
    """All pages and figures of the committed results, made anew by the command; ``make pages`` writes them."""
    readme = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    readme.write_text(text.split(START)[0] + f"{START}\n{END}" + text.split(END)[1], encoding="utf-8")
    line = ["bench", "--pages", str(RESULTS), "--output", str(tmp_path / "docs"), "--readme", str(readme), "--json"]
    outcome = CliRunner().invoke(app, line)
    assert outcome.exit_code == 0, outcome.stderr
    made = [Path(name) for name in json.loads(outcome.stdout)["written"]]
    assert readme.read_text(encoding="utf-8") == text
    pages = [path for path in made if path.suffix == ".md" and path != readme]
    assert len(pages) == 10
    for path in pages:
        committed = DOCS / path.relative_to(tmp_path / "docs")
        assert committed.read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), "run: make pages"
    figures = {path.name for path in made if path.parent.name == "figures"}
    others = {"report.png", "researcher.svg"}  # of the other pages
    assert {path.name for path in (DOCS / "figures").iterdir()} - others == figures
    for name in figures:  # their pixels depend on matplotlib's version, what is drawn does not
        assert 1_000 < (DOCS / "figures" / name).stat().st_size < 400_000


def test_every_figure_and_page_that_a_page_links_to_is_there():
    for page in (DOCS / "experiments.md", *(DOCS / "experiments").iterdir()):
        links = [part.split(")")[0] for part in page.read_text(encoding="utf-8").split("](")[1:]]
        assert links
        for name in links:
            assert (page.parent / name).is_file(), (page, name)


def test_another_number_makes_another_page(results):
    loss = results[0].lira.scores["loss"]
    metrics = loss.metrics | {HEADLINE: Summary(np.full(results[0].targets, 0.98765))}
    other = [with_row(results[0], "loss", replace(loss, metrics=metrics)), *results[1:]]
    for text in (overview_text(other), overview.readme_table(other), setting_page(other[0])):
        assert "98.8" in text
    assert "98.8" not in setting_page(results[0])


def test_pages_of_a_new_result_have_all_it_holds(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
    result = toy_result(images=images, oracle=ceiling(0.875))
    written = write_pages([result], tmp_path / "new")
    text = (tmp_path / "new" / "experiments" / "toy-net.md").read_text(encoding="utf-8")
    for name in ("recall", "scatter", "images"):
        assert f"(../figures/toy-net-{name}.png)" in text
        assert tmp_path / "new" / "figures" / f"toy-net-{name}.svg" in written
    for part in ("16 shadow models", "3 epochs of SGD", "momentum 0.9", "cosine", "would find 87.5 %", "0.5 / 0.75"):
        assert part in text
    assert "paper's are more than" not in text  # which has no such setting
    assert sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file()) == sorted(written)


def test_sections_that_have_nothing_to_say_are_left_out():
    text = setting_page(toy_result(points=False, attacks=("lira",)))
    for heading in ("## The records", "## The same for other attacks", "## Full-network", "## Where we differ"):
        assert heading not in text
    assert "was not measured here" in text
    assert [figure.name for figure in figures_of(one_setting.SECTIONS, toy_result(points=False))] == ["recall"]
    assert "\n\n\n" not in text
    with pytest.raises(InputError, match="there are none"):
        write_pages([], Path("nowhere"))


def test_the_command_makes_pages_of_what_a_run_has_left(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_result(toy_result(points=False), tmp_path / "noshadow-bench" / "results")
    outcome = CliRunner().invoke(app, ["bench", "--pages"])
    assert outcome.exit_code == 0, outcome.stderr
    assert (tmp_path / "docs" / "experiments" / "toy-net.md").is_file()
    for line, words in (
        (["bench", "--pages", "none"], "RESULTS: there is no none"),
        (["bench", "--readme", "docs/experiments.md"], "--readme: it is filled by --pages"),
        (["bench", "--pages", "--rescore"], "--pages: it runs nothing; leave --rescore out"),
    ):
        outcome = CliRunner().invoke(app, line)
        assert outcome.exit_code == 2
        assert words in " ".join(outcome.stderr.split())
    outcome = CliRunner().invoke(app, ["bench", "--pages", "--readme", "docs/experiments.md"])
    assert outcome.exit_code == 3
    assert "--readme: expected <!-- experiments:start -->" in " ".join(outcome.stderr.split())


def test_the_readme_needs_its_markers_once():
    text = f"a\n{START}\nold\n{END}\nb\n"
    assert fill_readme(text, r"| \1 |") == text.replace("old", r"| \1 |")
    for wrong in ("nothing", text + text):
        with pytest.raises(InputError, match="once"):
            fill_readme(wrong, "")


@pytest.mark.parametrize(
    ("ours", "paper", "deviations"),
    [
        ((10.0, 3.0), (20.0, 4.0), 2.0),  # √(9 + 16) = 5: exactly two, which is no difference yet
        ((9.9, 3.0), (20.0, 4.0), 2.02),
        ((20.0, None), (26.0, 2.0), 3.0),  # one target
        ((0.0, 0.0), (0.0, 0.0), 0.0),
        ((0.0, 0.0), (0.1, 0.0), float("inf")),
    ],
)
def test_the_rule(ours, paper, deviations):
    pair = estimates(ours, paper)
    assert pair.deviations == pytest.approx(deviations)
    assert pair.differs == (deviations > 2.0)


def test_every_number_of_the_paper_is_compared(energy):
    found = pairs(energy)
    assert len(found) == 4 + 4 * 4
    recall = next(pair for pair in found if (pair.score, pair.number) == ("newton", "recall@5%"))
    assert recall.paper == (28.25, 7.50)
    assert recall.ours[0] == pytest.approx(100 * energy.lira.scores["newton"].metrics["recall@5%"].mean)
    rank = next(pair for pair in found if (pair.score, pair.number) == ("newton", "spearman"))
    assert 0 < rank.ours[0] < 1


def test_reasons_come_from_the_result(energy):
    found = [estimates((1.0, 0.1), (60.0, 0.1))]
    (same, above, few) = reasons(energy, found)
    assert "does not state" in same
    assert "above what LiRA finds again, 50.0 %" in above
    assert "3 records" in few
    smaller = replace(energy, pool=300, shadows=24, targets=4, backbone="tiny", recipe=energy.recipe | {"epochs": 7})
    text = " ".join(reasons(smaller, found))
    facts = ["300 records, not 614", "24 shadow models, not 200", "4 targets, not 16", "is tiny", "epochs 7, not 300"]
    assert [fact for fact in facts if fact not in text] == []
    assert "does not state" not in text
    noise = reasons(energy, [estimates((4.0, None), (9.0, 1.0), "recall@5%", again=5.5)])
    assert any("mostly noise" in reason for reason in noise)
    assert any("one target" in reason for reason in noise)
    ranks = reasons(energy, [estimates((0.0, 0.1), (0.5, 0.1), "spearman", again=0.02)])
    assert any("0.020" in reason for reason in ranks)


def test_a_gradient_norm_that_equals_the_loss_is_explained(results):
    ridge = next(result for result in results if result.setting == "california-ridge")
    pair = Pair(5, "gradient_norm", "recall@0.1%", (90.0, 1.0), (6.33, 7.74), 20.0)
    found = reasons(ridge, [pair])
    assert any("`output_gradient_norm` does not differ" in reason for reason in found)
    assert any("closed form" in reason for reason in found)


def test_a_result_of_everything_has_all_sections(energy):
    fit = replace(energy.fit, accuracy_on_members=0.9876, accuracy_on_others=0.5)
    seconds = replace(energy.seconds, network_influence=5400.0)
    shown = {name: tuple(replace(record, text="a | b") for record in found) for name, found in energy.shown.items()}
    result = with_row(energy, NETWORK, score_result((0.25,), None))
    result = replace(result, setting="california-mlp", note="another thing", fit=fit, seconds=seconds, shown=shown)
    result = replace(result, network_influence={"damping": 10.0}, notes=("beware",))
    text = setting_page(result)
    parts = ("another thing", "## Full-network influence", "1.5 h", "damping 10", "98.8 / 50.0", r"a \| b", "beware")
    assert [part for part in parts if part not in text] == []
    assert "of 1 target," in text
    assert "\n\n\n" not in text
    assert "98.8 / 50.0" in overview_text([result])


def test_what_the_run_adds_is_told_with_its_interval(tmp_path):
    result = with_row(toy_result(), "exposure", score_result((0.5, 0.75)))
    result = with_row(result, "exposure, rerun", score_result((0.5, 1.0)))
    rates = RatesFound((0.5, 0.9), (0.55, 0.8), Summary(np.array([0.07, 0.08])), "rerun", (0.1, 2.0), (0.3, 1.5))
    budget = BudgetFound((0, 2, 4), (0.5, 0.6, 0.7), (None, None, 0.25), (0.0, 0.01, 0.02), 12, 0.45)
    text = setting_page(replace(result, rates=rates, budget=budget))
    for part in ("| `exposure` | 2 | 62.5 | +12.5 (+0.0 … +25.0) |", "`exposure, rerun` | 2 | 75.0 | +25.0"):
        assert part in text
    for part in (
        "| 4 | 70.0 ± 2.0 | 25.0 |",
        "| 0 | 50.0 ± 0.0 | – |",
        "12 other shadow models",
        "| 2 | 2.00 | 1.50 |",
        "0.075",
    ):
        assert part in text
    assert "+12.5 (+0.0 … +25.0) | 75.0 | – | – | 50.0 | – | – |" in overview_text([result])
    made = draw_setting(replace(result, budget=budget), tmp_path)
    assert tmp_path / "toy-net-budget.svg" in made
    with pytest.raises(InputError, match="2 numbers for 3"):
        replace(budget, alone=(None, 0.25))


@pytest.mark.parametrize(
    ("found", "halvings", "counts"),
    [
        ((0.70, 0.74), (0.75, 0.75), (1, 1)),  # 0.72 ± 0.02, two of which reach 0.75
        ((0.70, 0.72), (0.75, 0.75), (0, 0)),  # 0.71 ± 0.01
        ((0.70, 0.72), (0.73, 0.77), (0, 1)),  # the ceiling has an error too: of ± 0.028
        ((0.80, 0.80), (0.73, 0.77), (1, 1)),
    ],
)
def test_a_ceiling_is_reached_within_two_standard_errors(found, halvings, counts):
    result = with_row(toy_result(), "exposure", score_result(found))
    again = ceiling()
    again = replace(again, metrics=again.metrics | {HEADLINE: Summary(np.array(halvings))})
    lira = replace(result.lira, ceiling=again)
    text = page_text(story.SECTIONS, [replace(result, attacks=result.attacks | {"lira": lira})], str)
    strict, with_its_own = counts
    assert f"within two standard errors of it, in {strict} of 1; in {with_its_own} where" in text
    assert ("where half of LiRA's models find 75.0" in text) == (not strict)


def test_durations_and_figures():
    durations = {0.0008: "0.8 ms", 0.167: "167 ms", 1.0: "1.0 s", 59.0: "59 s", 90.0: "1.5 min", 36_000.0: "10 h"}
    assert {seconds: markdown.duration(seconds) for seconds in durations} == durations
    assert [markdown.two_figures(value) for value in (7.4, 42.0, 4619.2, 14_400.0)] == ["7", "42", "4,600", "14,000"]


@pytest.mark.parametrize(
    ("scores", "bold"),
    [
        # one record of 16 is one target of four: nothing
        ({"a": (0.25, 0.5, 0.25, 0.25), "b": (0.25, 0.25, 0.25, 0.25), "c": (0.0, 0.25, 0.25, 0.25)}, ""),
        # better in every target: by how much does not matter
        ({"a": (0.5, 0.7, 0.6, 0.8), "b": (0.45, 0.66, 0.54, 0.75), "c": (0.1, 0.2, 0.1, 0.2)}, "a"),
        # not told from the best, but both from the third
        ({"a": (0.5, 0.7, 0.6, 0.8), "b": (0.6, 0.6, 0.7, 0.6), "c": (0.1, 0.2, 0.1, 0.2)}, "ab"),
        # told apart, but printed alike
        ({"a": (0.5, 0.7, 0.6), "b": (0.4999, 0.6999, 0.5999), "c": (0.1, 0.2, 0.1)}, "ab"),
        ({"a": (0.5,), "b": (0.4,)}, ""),  # one target
        ({"a": (0.5, 0.5), "b": (0.5, 0.5)}, ""),
        ({"a": (0.5, 0.7, 0.6), "b": (0.1, 0.2, 0.1), "c": (0.9,)}, "a"),  # of fewer targets: not compared
    ],
)
def test_bold_is_what_the_targets_tell_apart(scores, bold):
    found = {name: Summary(np.array(values)) for name, values in scores.items()}
    assert markdown.best(found, "recall@1%") == set(bold)


def test_a_perfect_score_is_shown_where_it_was_measured(energy):
    def with_oracle(oracle):
        return replace(energy, attacks=energy.attacks | {"lira": replace(energy.lira, oracle=oracle)})

    without, measured = with_oracle(None), with_oracle(ceiling(0.98765))
    for write in (lambda result: overview.readme_table([result]), lambda result: overview_text([result]), setting_page):
        empty, full = write(without), write(measured)
        assert "perfect score" in empty
        assert "98.8" not in empty
        assert "98.8" in full
    assert re.search(r"\| – \| \d+ ms \|", overview.readme_table([without]))
    assert {pair.perfect for pair in pairs(without)} == {None}
    assert pairs(measured)[0].perfect == pytest.approx(98.765)
    above = reasons(energy, [estimates((1.0, 0.1), (60.0, 0.1), perfect=55.0)])
    assert any("above what a perfect score would reach here, 55.0 %" in reason for reason in above)
    below = reasons(energy, [estimates((1.0, 0.1), (60.0, 0.1), perfect=65.0)])
    assert not any("above what" in reason for reason in below)


def test_a_setting_of_our_own_has_no_reasons():
    assert beside_paper.reasons(toy_result(), []) == []
    assert beside_paper.paper_sizes(toy_result()) == {}
    assert beside_paper.paper_sizes(toy_result(setting="california-linear")) == {}
    assert beside_paper.paper_sizes(toy_result(setting="energy-mlp"))["epochs"] == 300


def test_sentences_are_shown_as_they_are():
    text = "`` lilo & stitch '' | <b>*not* _bold_</b> [x](y) ~~z~~ \\ $5 $6\nnext"
    lines = setting_page(toy_result(texts=[text, "long " * 40])).splitlines()
    named = setting_page(with_target(toy_result(texts=["good"], setting="sst2-probe"), 1.0))
    assert "| 1 | good | positive | 97.5 % | good | positive | 97.5 % |" in named
    first = next(number for number, line in enumerate(lines) if line.startswith("| rank |"))
    escaped = (
        r"\`\` lilo &amp; stitch '' \| &lt;b&gt;\*not\* \_bold\_&lt;/b&gt; \[x\](y) \~\~z\~\~ \\ &#36;5 &#36;6 next"
    )
    assert lines[first + 2] == f"| 1 | {escaped} | class 3 | 97.5 % | {escaped} | class 3 | 97.5 % |"
    assert "long…" in lines[first + 3]
    assert lines[first + 11].startswith("| 10 |")
    assert "| rank |" not in setting_page(toy_result())


def test_the_readme_calls_nothing_unbeatable_that_its_table_beats():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "no score can beat" not in text
    block = text.split(START)[1].split(END)[0]
    undecided = [
        line.split(" | ")[0].strip("| ") for line in block.splitlines() if line.startswith("| ") and "**" not in line
    ]
    said = re.findall(r"^- The targets do not tell the scores apart: (.*)\.$", block, re.MULTILINE)
    assert undecided[2:] == (said[0].split("; ") if said else [])  # the first two lines are the head's


def with_recalls(result, again=None, **scores):
    """The result with other recalls: the same for every target, or those given."""
    lira = result.lira
    rows = dict(lira.scores)
    for name, value in scores.items():
        values = np.broadcast_to(np.asarray(value, dtype=float), (result.targets,)).copy()
        rows[name] = replace(rows["newton"], metrics=rows["newton"].metrics | {HEADLINE: Summary(values)})
    lira = replace(lira, scores=rows, ceiling=lira.ceiling if again is None else ceiling(again))
    return replace(result, attacks=result.attacks | {"lira": lira})


def test_the_readme_says_which_rows_to_read_with_care(energy):
    apart = {name: 0.1 * place for place, name in enumerate(overview.README_COLUMNS, 1)}  # exposure is the last
    sure = with_recalls(energy, again=0.9, **apart)
    sure = replace(sure, attacks={"lira": replace(sure.lira, scores={n: sure.lira.scores[n] for n in apart})})

    def remarks(result):
        return [line[2:] for line in overview.readme_table([result]).splitlines() if line.startswith("- ")]

    assert remarks(sure) == []
    assert remarks(with_recalls(sure, again=0.249)) == [
        "LiRA finds less than 25 % of its own top again: UCI Energy, MLP."
    ]
    assert remarks(with_recalls(sure, again=0.251)) == []
    assert remarks(replace(sure, shadows=energy.shadows - 1)) == [
        "Fewer models, records or epochs than in the paper: UCI Energy, MLP."
    ]
    assert remarks(with_recalls(sure, leverage=0.61)) == ["Another score finds more than `exposure`: UCI Energy, MLP."]
    assert remarks(with_recalls(sure, **dict.fromkeys(apart, 0.5))) == [
        "The targets do not tell the scores apart: UCI Energy, MLP."
    ]
