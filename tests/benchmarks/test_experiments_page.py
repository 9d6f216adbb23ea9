"""The page of the experiments holds the numbers of the stored results, and no others; the rule of the differences."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("experiments", "experiments_page", "experiments_differences")


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield [importlib.import_module(name) for name in MODULES]
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def energy(modules):
    return next(result for result in modules[0].read_results() if result["setting"] == "energy-mlp")


def estimates(modules, ours, paper, number="recall@1%", again=50.0, perfect=None):
    return modules[2].Pair(5, "newton", number, ours, paper, again, perfect)


def test_the_page_and_the_readme_are_those_that_the_results_write(modules):
    experiments, page, _ = modules
    results, names = experiments.read_results(), experiments.figure_names()
    assert experiments.PAGE.read_text(encoding="utf-8") == page.page(results, names)
    readme = experiments.README.read_text(encoding="utf-8")
    assert experiments.fill_readme(readme, page.readme_table(results)) == readme
    other = copy.deepcopy(results)
    other[0]["attacks"]["lira"]["scores"]["loss"]["recall of top 1% at 5%"]["mean"] = 0.98765
    assert "98.8" in page.page(other, names)
    assert "98.8" in page.readme_table(other)


def test_every_figure_of_the_page_is_there(modules):
    experiments = modules[0]
    text = experiments.PAGE.read_text(encoding="utf-8")
    shown = [part.split(")")[0] for part in text.split("](")[1:] if part.startswith("figures/")]
    assert shown
    for name in shown:
        path = experiments.PAGE.parent / name
        assert path.stat().st_size < 400_000
        assert path.read_bytes().startswith(b"\x89PNG" if path.suffix == ".png" else b"<?xml")


def test_the_readme_needs_its_markers_once(modules):
    experiments = modules[0]
    text = f"a\n{experiments.START}\nold\n{experiments.END}\nb\n"
    assert experiments.fill_readme(text, r"| \1 |") == text.replace("old", r"| \1 |")
    for wrong in ("nothing", text + text):
        with pytest.raises(ValueError, match="once"):
            experiments.fill_readme(wrong, "")


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
def test_the_rule(modules, ours, paper, deviations):
    pair = estimates(modules, ours, paper)
    assert pair.deviations == pytest.approx(deviations)
    assert pair.differs == (deviations > 2.0)


def test_every_number_of_the_paper_is_compared(modules, energy):
    found = modules[2].pairs(energy)
    assert len(found) == 4 + 4 * 4
    recall = next(pair for pair in found if (pair.score, pair.number) == ("newton", "recall@5%"))
    assert recall.paper == (28.25, 7.50)
    assert recall.ours[0] == pytest.approx(100 * energy["attacks"]["lira"]["scores"]["newton"]["recall@5%"]["mean"])
    rank = next(pair for pair in found if (pair.score, pair.number) == ("newton", "spearman"))
    assert 0 < rank.ours[0] < 1


def test_reasons_come_from_the_result(modules, energy):
    differences = modules[2]
    found = [estimates(modules, (1.0, 0.1), (60.0, 0.1))]
    (same, above, few) = differences.reasons(energy, found)
    assert "does not state" in same
    assert "above what LiRA finds again, 50.0 %" in above
    assert "3 records" in few
    smaller = energy | {"pool": 300, "shadows": 24, "targets": 4, "backbone": "tiny"}
    smaller["recipe"] = energy["recipe"] | {"epochs": 7}
    text = " ".join(differences.reasons(smaller, found))
    facts = ["300 records, not 614", "24 shadow models, not 200", "4 targets, not 16", "is tiny", "epochs 7, not 300"]
    assert [fact for fact in facts if fact not in text] == []
    assert "does not state" not in text
    noise = differences.reasons(energy, [estimates(modules, (4.0, None), (9.0, 1.0), "recall@5%", again=5.5)])
    assert any("mostly noise" in reason for reason in noise)
    assert any("one target" in reason for reason in noise)
    ranks = differences.reasons(energy, [estimates(modules, (0.0, 0.1), (0.5, 0.1), "spearman", again=0.02)])
    assert any("0.020" in reason for reason in ranks)


def test_a_gradient_norm_that_equals_the_loss_is_explained(modules):
    experiments, _, differences = modules
    ridge = next(result for result in experiments.read_results() if result["setting"] == "california-ridge")
    pair = differences.Pair(5, "gradient_norm", "recall@0.1%", (90.0, 1.0), (6.33, 7.74), 20.0)
    reasons = differences.reasons(ridge, [pair])
    assert any("`output_gradient_norm` does not differ" in reason for reason in reasons)
    assert any("closed form" in reason for reason in reasons)


def test_a_result_of_everything_has_all_sections(modules, energy):
    page = modules[1]
    result = copy.deepcopy(energy)
    scores = result["attacks"]["lira"]["scores"]
    scores["network_influence"] = {
        name: {"mean": 0.25, "std": None, "values": [0.25]} for name in [*page.RECALLS, "spearman"]
    }
    result |= {"setting": "california-mlp", "note": "another thing", "network_influence": {"damping": 10.0}}
    result["seconds"]["network_influence"] = 5400.0
    result["fit"] |= {"accuracy on members": 0.9876, "accuracy on others": 0.5}
    for records in result["top"].values():
        for record in records:
            record["text"] = "a | b"
    figures = {"california-mlp-scatter.png", "california-mlp-images.png", "recall-network.png"}
    text = page.page([result], figures)
    for part in ("another thing", "## Full-network influence", "1.5 h", "damping 10", "98.8 / 50.0", r"a \| b"):
        assert part in text
    for name in figures:
        assert f"(figures/{name})" in text
    assert "recall-lira" not in text
    assert text.endswith("|\n")
    assert "\n\n\n" not in text


def test_durations_and_figures(modules):
    page = modules[1]
    durations = {0.0008: "0.8 ms", 0.167: "167 ms", 1.0: "1.0 s", 59.0: "59 s", 90.0: "1.5 min", 36_000.0: "10 h"}
    assert {seconds: page._duration(seconds) for seconds in durations} == durations
    assert [page._figures(value) for value in (7.4, 42.0, 4619.2, 14_400.0)] == ["7", "42", "4,600", "14,000"]


def summary(*values):
    mean = sum(values) / len(values)
    return {"mean": mean, "std": 0.1, "values": list(values)}


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
    ],
)
def test_bold_is_what_the_targets_tell_apart(modules, scores, bold):
    found = {name: summary(*values) for name, values in scores.items()}
    assert modules[1]._best(found, "recall@1%") == set(bold)


def test_a_perfect_score_is_shown_where_it_was_measured(modules, energy):
    _, page, differences = modules
    without, measured = copy.deepcopy(energy), copy.deepcopy(energy)
    without["attacks"]["lira"].pop("oracle", None)
    measured["attacks"]["lira"]["oracle"] = {
        name: {"mean": 0.98765, "std": 0.0123, "values": [0.98765]} for name in [*page.RECALLS, "spearman"]
    }
    for write in (page.readme_table, lambda results: page.page(results, set())):
        empty, full = write([without]), write([measured])
        assert "a perfect score" in empty
        assert "98.8" not in empty
        assert "98.8" in full
    assert "| – | 12 ms |" in page.readme_table([without])
    assert {pair.perfect for pair in differences.pairs(without)} == {None}
    assert differences.pairs(measured)[0].perfect == pytest.approx(98.765)
    above = differences.reasons(energy, [estimates(modules, (1.0, 0.1), (60.0, 0.1), perfect=55.0)])
    assert any("above what a perfect score would reach here, 55.0 %" in reason for reason in above)
    below = differences.reasons(energy, [estimates(modules, (1.0, 0.1), (60.0, 0.1), perfect=65.0)])
    assert not any("above what" in reason for reason in below)


def test_the_readme_calls_nothing_unbeatable_that_its_table_beats(modules):
    text = modules[0].README.read_text(encoding="utf-8")
    assert "no score can beat" not in text
    fine_tuned = next(line for line in text.splitlines() if line.startswith("| SST-2, BERT, fine-tuned"))
    assert "**" not in fine_tuned
