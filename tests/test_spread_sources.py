"""What is said of rates goes by where their spreads are from, and a new source takes one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import noshadow
from noshadow import LastLayer
from noshadow.facts import advice_of
from noshadow.gate import Policy
from noshadow.predict import HeldOut, spreads_of
from noshadow.report.summarise import _rates
from noshadow.spread_sources import SPREAD_SOURCES, SpreadSource


def _facts(source: str) -> dict[str, object]:
    return {"trace": "mean outputs", "linearity": None, "calibration": {"source": source, "held_out": 300}}


@pytest.fixture
def layer() -> LastLayer:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 3))
    return LastLayer(x, x @ np.ones((3, 1)), (x[:, 0] > 0).astype(int), head="logistic")


def test_a_new_source_is_one_line(monkeypatch: pytest.MonkeyPatch, layer: LastLayer) -> None:
    said = SpreadSource("fair", "From eight models and {others}.", hint="pass more models", rough=", by few models")
    monkeypatch.setitem(SPREAD_SOURCES, "shadows", said)
    statement = _rates(_facts("shadows"))
    assert (statement.level, statement.text) == ("fair", "From eight models and 300 held-out records.")
    assert advice_of(_facts("shadows"), layer, untrained=False) == ["pass more models"]
    x, y = np.random.default_rng(1).normal(size=(80, 2)), np.arange(80) % 2
    audit = noshadow.audit(LogisticRegression().fit(x, y), (x, y))
    audit.metadata["calibration"]["source"] = "shadows"
    assert Policy(fail_above=0.9).judge(audit).sentence.endswith(", by few models.")


@pytest.mark.parametrize(("source", "told", "of_head"), [("rerun", 0, 0), ("stated", 0, 0), ("gap", 1, 1)])
def test_hints_are_those_of_the_source(layer, source, told, of_head):
    assert len(advice_of(_facts(source), layer, untrained=False)) == told
    assert len(advice_of(_facts(source), layer, untrained=True)) == of_head


def test_the_hint_of_a_law_of_fixed_features_is_for_networks_alone(layer):
    assert len(advice_of(_facts("converged"), layer, untrained=False)) == 1
    assert advice_of(_facts("converged"), layer, untrained=True) == []


def test_every_source_is_in_the_reference():
    page = (Path(__file__).parent.parent / "docs" / "reference" / "columns.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `calibration` |"))
    assert [name for name in SPREAD_SOURCES if f'`"{name}"`' not in row] == []


def test_a_source_that_no_registry_knows_is_called_unknown():
    """A file of a later version may name one."""
    statement = _rates(_facts("later"))
    assert (statement.level, statement.text) == ("weak", "Of unknown origin.")


@pytest.mark.parametrize("source", ["rerun", "stated"])
def test_spreads_of_the_seed_have_those_of_other_data_on_top_and_a_gap_holds_both(source):
    head = LastLayer(torch.ones(2, 1), torch.zeros(2, 1), torch.tensor([0, 1]), head="logistic").kind
    others = HeldOut(np.zeros(40), np.full(40, 0.8), np.full(40, 0.2))  # V = (0.8 − 0.4)/0.2 = 2
    found = spreads_of(head, np.full(50, 0.4), others, (0.5, 0.5), source)
    assert found.source == source
    assert SPREAD_SOURCES[source].of_seed
    assert (found.spread_out * found.resampled) ** 2 == pytest.approx(0.5**2 + 1.0)
    derived = spreads_of(head, np.full(50, 0.4), others, None, source)
    assert derived.source == "gap"
    assert not SPREAD_SOURCES["gap"].of_seed
    assert (derived.spread_out * derived.resampled) ** 2 == pytest.approx(1.0)


def test_spreads_over_data_have_nothing_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of models on other data, say: what other data does is in them. A converged head's are of data alone."""
    assert not SPREAD_SOURCES["converged"].of_seed
    monkeypatch.setitem(SPREAD_SOURCES, "shadows", SpreadSource("fair", "From eight models.", of_seed=False))
    others = HeldOut(np.zeros(40), np.full(40, 0.8), np.full(40, 0.2))
    for head, outputs in (("logistic", [0, 1]), ("squared", [0.0, 1.0])):
        kind = LastLayer(torch.ones(2, 1), torch.zeros(2, 1), torch.tensor(outputs), head=head).kind
        found = spreads_of(kind, np.full(50, 0.4), others, (0.3, 0.5), "shadows")
        assert (found.spread_in, found.spread_out, found.resampled, found.source) == (0.3, 0.5, 1.0, "shadows")
