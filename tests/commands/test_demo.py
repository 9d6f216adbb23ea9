"""``noshadow demo``: the recipe, the shadow results that come with the package, the check against them, the picture."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from noshadow import attacks
from noshadow.cli import app
from noshadow.commands import digits, digits_shadows
from noshadow.commands.demo_view import BOTH, HARD, TOGETHER, UNUSUAL, in_words, reason
from noshadow.commands.digits_shadows import N_MODELS, Shadows, agreement, retrained, shipped, write_shipped
from noshadow.errors import FileError
from noshadow.report.reasons import Standing
from noshadow.shadow import ModelKey


@pytest.fixture(scope="module")
def found():
    return digits.run_demo(0)


@pytest.fixture(scope="module")
def agreed(found):
    return agreement(found.audit, shipped(), progress=False)


@pytest.fixture
def once(found, agreed, monkeypatch):
    """Commands show the demo that was run above, and do not run it again."""
    monkeypatch.setattr(digits, "run_demo", lambda seed: found)
    monkeypatch.setattr(digits_shadows, "agreement", lambda audit, shadows: agreed)


def run(*arguments, columns=60):
    result = CliRunner().invoke(app, ["demo", *map(str, arguments)], env={"COLUMNS": str(columns)})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_shipped_results_are_those_of_the_recipe(tmp_path):
    """Two of the models, trained again by the study: the same to the last digit that is shipped."""
    again = retrained(tmp_path / "store", 2, progress=False)
    kept = shipped()
    assert kept.signal.shape == (N_MODELS, 1797)
    np.testing.assert_allclose(again.signal, kept.signal[:2], rtol=0, atol=2e-3)
    assert (again.membership == kept.membership[:2]).all()
    last = ModelKey("shadow", N_MODELS - 1)  # one that no study was asked for, by hand
    plan, (images, labels) = digits.plan(), digits.load()
    outputs = digits.train(plan.members(last), plan.seed_of(last))(images).detach()
    right = outputs.gather(1, labels[:, None])[:, 0]
    others = outputs.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    np.testing.assert_allclose((right - others).numpy(), kept.signal[-1], rtol=0, atol=2e-3)


def test_a_shipped_file_of_another_recipe_or_a_damaged_one_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "shadows.safetensors"
    some = Shadows(np.linspace(-20, 30, 3 * 1797).reshape(3, 1797), False)
    write_shipped(some, path)
    monkeypatch.setattr(digits_shadows, "SHIPPED", path)
    np.testing.assert_allclose(shipped().signal, some.signal, atol=6e-4)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(FileError, match=r"fails its checksum.*--retrain does without"):
        shipped()
    write_shipped(some, path)
    monkeypatch.setitem(digits.RECIPE, "epochs", 41)
    with pytest.raises(FileError, match="of something else"):
        shipped()
    path.unlink()
    assert run("-o", tmp_path / "d.csv").exit_code == 3
    with pytest.raises(ValueError, match="16 bits"):
        write_shipped(replace(some, signal=some.signal * 100), path)


def test_the_model_is_a_target_of_the_study_and_no_shadow_model(found):
    rows = found.audit.table["id"].to_numpy()
    assert (rows == digits.plan().members(ModelKey("target", 0))).all()
    assert not (shipped().membership[:, rows].all(1)).any()
    images, labels = digits.load()
    np.testing.assert_array_equal(found.images.reshape(-1, 64), images.numpy()[rows])
    assert (found.audit.table["target"].to_numpy() == labels.numpy()[rows]).all()
    assert found.audit.metadata["calibration"]["source"] == "rerun"
    assert found.audit.metadata["trace"] == "mean outputs"


def test_agreement_against_loops(found, agreed):
    """Recall and calibration by definition; of the ceilings, that they are shares and in their order."""
    kept = shipped()
    rows = found.audit.table["id"].to_numpy()
    lira = attacks.lira(kept.signal, kept.membership, progress=False)
    by_lira = sorted(rows, key=lambda row: (lira.success_rate[row], lira.tiebreak[row]), reverse=True)
    by_audit = [int(name) for name in found.audit.top(len(rows))["id"]]
    for one in agreed.recalls:
        assert (one.sought, one.kept) == (int(one.top * len(rows)), int(one.keep * len(rows)))
        shared = set(by_lira[: one.sought]) & set(by_audit[: one.kept])
        assert one.recall == pytest.approx(len(shared) / one.sought)
        assert one.keep < one.again <= 1
        assert one.again - 0.1 < one.perfect <= 1
    table = found.audit.table.sort_values("attack_accuracy", kind="stable")
    rates, measured = table["attack_accuracy"].to_numpy(), lira.success_rate[table["id"].to_numpy()]
    pairs = zip(np.array_split(rates, 10), np.array_split(measured, 10), strict=True)
    off = [abs(one.mean() - other.mean()) for one, other in pairs]
    assert agreed.calibration_error == pytest.approx(np.mean(off))


def test_an_audit_that_knows_nothing_agrees_no_better_than_chance(found, agreed):
    """The check can fail: with the scores in any other order it does."""
    table = found.audit.table.copy()
    for name in ("exposure", "attack_accuracy"):
        table[name] = np.random.default_rng(0).permutation(table[name])
    shuffled = agreement(replace(found.audit, table=table), shipped(), progress=False)
    assert shuffled.recalls[1].recall < 0.2 < agreed.recalls[1].recall
    assert shuffled.calibration_error > 1.5 * agreed.calibration_error


def test_other_seeds_are_other_halves_and_the_same_seed_is_the_same(found):
    again, other = digits.run_demo(0), digits.run_demo(1)
    pd.testing.assert_frame_equal(again.audit.table, found.audit.table, rtol=1e-9)
    shared = set(again.audit.table["id"]) & set(other.audit.table["id"])
    assert 350 < len(shared) < 550
    assert digits.plan().seed_of(ModelKey("rerun", 0)) != digits.plan().seed_of(ModelKey("target", 0))


@pytest.mark.parametrize("columns", [60, 80, 132])
def test_what_people_see_fits_and_needs_no_colour(columns, tmp_path, once):
    table = tmp_path / "d.parquet"
    result = run("-o", table, columns=columns)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    files = [line for line in lines if str(tmp_path) in line]
    assert max(len(line) for line in lines if line not in files) <= columns
    assert "\x1b" not in result.stdout
    assert "…" not in result.stdout
    text = " ".join(result.stdout.split())
    for said in ("softmax head", "64 features × 10 outputs", "898 records", "near certain", "came with noshadow"):
        assert said in text
    assert sum(line.count("no. ") for line in lines) >= 10
    assert text.count(" that looks like ") == 10
    assert str(table) in text
    assert f"Open in a browser: {tmp_path / 'd.html'}" in text
    page = (tmp_path / "d.html").read_text()
    assert page.count("data:image/png") >= 10
    assert (tmp_path / "d.html").stat().st_mode & 0o777 == 0o600


def test_what_machines_see(tmp_path, once):
    result = run("--json", "--top", "3", "-o", tmp_path / "d.csv")
    shown = json.loads(result.stdout)
    assert len(shown["top"]) == 3
    assert {"id", "target", "nearest_class", "attack_accuracy", "exposure", "reason"} <= set(shown["top"][0])
    assert sum(shown["bands"].values()) == shown["metadata"]["records"] == 898
    assert shown["agreement"]["models"] == N_MODELS
    assert shown["agreement"]["came_with_package"] is True
    assert {"recall", "again", "perfect"} <= set(shown["agreement"]["recalls"][0])
    assert len(pd.read_csv(tmp_path / "d.csv")) == 898


def test_retrained_models_take_the_place_of_the_shipped_ones(tmp_path, found, monkeypatch):
    monkeypatch.setattr(digits, "run_demo", lambda seed: found)
    monkeypatch.setattr(digits_shadows, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(digits_shadows, "N_MODELS", 16)
    kept = Shadows(np.random.default_rng(0).normal(size=(16, 1797)), False)
    asked = []
    monkeypatch.setattr(digits_shadows, "retrained", lambda store: asked.append(store) or kept)
    shown = json.loads(run("--json", "--retrain", "-o", tmp_path / "d.csv").stdout)
    assert asked == [tmp_path / "d-shadows"]
    assert (shown["agreement"]["models"], shown["agreement"]["came_with_package"]) == (16, False)
    assert shown["saved"]["shadows"] == str(tmp_path / "d-shadows")


def test_a_picture_is_dark_on_white(found):
    row = int(found.audit.table["id"][5])
    shown = found.picture(row)
    assert (shown.shape, shown.dtype) == ((32, 32), np.uint8)
    np.testing.assert_allclose(shown[::4, ::4], 255 * (1 - found.images[5]), atol=0.5)
    assert (shown[1::4, 2::4] == shown[::4, ::4]).all()


def test_words():
    assert [reason(Standing(*pair)) for pair in ((0.99, 0.96), (0.99, 0.9), (0.1, 0.95), (0.9, 0.9))] == [
        BOTH,
        UNUSUAL,
        HARD,
        TOGETHER,
    ]
    assert in_words(3, 9) == "a 3 that looks like a 9"
    assert in_words(8, 1) == "an 8 that looks like a 1"
    assert in_words("1", "8") == "a 1 that looks like an 8"
