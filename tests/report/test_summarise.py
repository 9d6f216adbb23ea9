"""The sentences: the finding with its counts, the reasons for trust, each for what the audit rests on."""

from __future__ import annotations

import numpy as np
import pytest

from noshadow import InputError, diagnostics
from noshadow.report.redact import redact
from noshadow.report.summarise import FEW_HELD_OUT, LEFT_OPEN, TOLD_FROM_CHANCE, summarise, trust
from noshadow.report.verify import checked_verification
from tests.report.made import made_audit


def with_rates(*rates, n=1000, flagged=0):
    audit = made_audit(n)
    audit.table["attack_accuracy"] = [*rates, *[0.55] * (n - len(rates))]
    audit.table["flagged"] = np.arange(n) >= n - flagged
    return audit


def finding(audit, **options):
    return summarise(redact(audit, **options)).finding


def test_the_finding_counts():
    assert finding(with_rates(0.95, 0.92, 0.8)).startswith(
        "3 of 1,000 training records (0.3 %) are exposed: an attacker is right about each of them at least 75 % of the "
        "time (2 of them: at least 90 %), where a coin is right half of the time."
    )
    assert "1 of 1,000 training records (0.1 %) is exposed: an attacker is right about it at least 75 % of" in finding(
        with_rates(0.8)
    )
    assert "at least 90 % of the time, where" in finding(with_rates(0.95))
    assert finding(with_rates()).startswith("None of the 1,000 training records is predicted to be exposed")
    assert "1 of 1,000" in finding(with_rates(flagged=1))  # fully exposed, whatever its rate
    assert "not known" in finding(made_audit(rates=False))


def test_a_public_finding_names_no_small_count():
    text = finding(with_rates(0.95, 0.92, 0.8), public=True)
    assert text.startswith("Fewer than 10 of 1,000 training records are exposed")
    shown = redact(with_rates(0.95, 0.92, 0.8), public=True)
    assert [(part.name, part.count) for part in shown.ranges] == [("near guessing to near certain", 1000)]
    text = finding(with_rates(*[0.95] * 12, *[0.8] * 3), public=True)
    assert "15" not in text


LEVELS = {
    "Training run": [("mean outputs", "firm"), ("losses", "fair"), ("none", "weak")],
    "Predicted rates": [("rerun", "firm"), ("stated", "fair"), ("gap", "weak"), ("converged", "fair")],
}


@pytest.mark.parametrize(("kind", "level"), LEVELS["Training run"])
def test_the_trace_decides_how_firm_it_is(kind, level):
    trust = {one.name: one for one in summarise(redact(made_audit(trace=kind))).trust}
    assert trust["Training run"].level == level


@pytest.mark.parametrize(("source", "level"), LEVELS["Predicted rates"])
def test_the_calibration_decides_how_firm_it_is(source, level):
    audit = made_audit(calibration={"source": source, "held_out": 250})
    trust = {one.name: one for one in summarise(redact(audit)).trust}
    assert trust["Predicted rates"].level == level
    if source in ("rerun", "gap"):
        assert "250 held-out records" in trust["Predicted rates"].text


def test_what_was_not_verified_is_said():
    trust = {one.name: one for one in summarise(redact(made_audit())).trust}
    assert trust["Checked by an attack"].text.startswith("Not verified on this model")
    verified = {"attack": "LiRA", "models": 128, "recall": 0.72, "ceiling": 0.8}
    trust = {one.name: one for one in summarise(redact(made_audit(), verified=verified)).trust}
    found = trust["Checked by an attack"]
    assert found.level == "firm"
    assert (
        "72 % of the 1 % that it exposes most are in the top 5 % here; that attack finds 80 % of its own" in found.text
    )
    weaker = {one.name: one for one in summarise(redact(made_audit(), verified=verified | {"recall": 0.3})).trust}
    assert weaker["Checked by an attack"].level == "fair"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recall": 1.2}, "recall: expected a share"),
        ({"models": 0}, "models: expected how many"),
        ({"recal": 0.4}, "'recal' is not known"),
    ],
)
def test_a_verification_that_says_nothing_is_refused(change, message):
    verified = {"attack": "LiRA", "models": 8, "recall": 0.5}
    with pytest.raises(InputError, match=f"verified: {message}"):
        checked_verification(verified | change)
    with pytest.raises(InputError, match=r"verified: 'recall' is missing"):
        checked_verification({"attack": "LiRA", "models": 8})


def test_an_approximation_states_its_error():
    accuracy = {"median_error": 0.07, "top_kept": 0.93, "stable": None}
    audit = made_audit(curvature="kronecker", curvature_exact=False, accuracy=accuracy)
    trust = {one.name: one for one in summarise(redact(audit)).trust}
    assert "off by 7 % in the median; 93 % of the most exposed are the right ones" in trust["Arithmetic"].text
    audit.metadata["accuracy"] = {**accuracy, "stable": True}
    assert {one.name: one for one in summarise(redact(audit)).trust}["Arithmetic"].level == "firm"


def test_provenance_has_the_hashes_and_says_what_is_not_known():
    rows = dict(summarise(redact(made_audit())).provenance)
    assert rows["Weights, SHA-256"] == "a" * 64
    assert rows["Data, SHA-256"] == "d" * 64
    assert rows["Command"] == "noshadow audit layer.safetensors"
    rows = dict(summarise(redact(made_audit(provenance={}))).provenance)
    assert rows["Weights, SHA-256"] == "not recorded"


def test_records_without_a_rate_are_not_called_safe():
    audit = made_audit(500)
    audit.table["attack_accuracy"] = np.nan
    for public in (False, True):
        said = summarise(redact(audit, public=public)).finding
        assert said.startswith("None of the 500 training records could be rated")
        assert "less than 75" not in said
    audit.table.loc[:99, "attack_accuracy"] = 0.55
    for public in (False, True):
        said = summarise(redact(audit, public=public)).finding
        assert "400 could not be rated; none of the other 100 is predicted to be exposed" in said


def test_few_held_out_records_are_not_called_firm():
    def level(count, margin=0.01, errors=None):
        about = {"source": "rerun", "held_out": count, "scale": 1.0, "margin": margin, "gap_errors": errors}
        audit = made_audit(calibration=about)
        return next((one.level, one.text) for one in trust(redact(audit)) if one.name == "Predicted rates")

    assert diagnostics.FEW_HELD_OUT == FEW_HELD_OUT  # what the notes say
    assert diagnostics.LEFT_OPEN == LEFT_OPEN
    assert level(300)[0] == "firm"
    assert level(68)[0] == "fair"
    assert "rough" in level(68)[1]
    assert level(300, None)[0] == "firm"
    assert level(300, 0.06)[0] == "fair"
    assert diagnostics.TOLD_FROM_CHANCE == TOLD_FROM_CHANCE
    assert [level(300, errors=errors)[0] for errors in (-1.0, 0.0, 1.9, 2.1)] == ["fair", "fair", "fair", "firm"]
