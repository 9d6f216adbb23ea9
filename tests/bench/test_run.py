"""All settings at the smoke scale, on data and backbones made here; scoring again; a run that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

from noshadow import attacks, evaluate
from noshadow.bench import architectures, measure
from noshadow.bench.result import CURVE, METRICS, RECALLS, load_result
from noshadow.bench.setting import Pool, all_settings, find_settings
from noshadow.bench.source import DataSource
from noshadow.bench.training import ClosedFormRidge, _procedure, make_pool, make_trainer, train_models
from noshadow.bench.typed_json import to_json
from noshadow.cli import app
from noshadow.errors import InputError
from noshadow.scores import SCORES
from noshadow.shadow import TorchTrainer
from tests.attacks.definitions import half_splits
from tests.bench.tiny_data import write_data, write_image_backbone, write_text_backbone
from tests.bench.toy_results import ceiling

SETTINGS = sorted(all_settings())
BACKBONES = {"bloodmnist-probe": "image", "sst2-probe": "text", "sst2-finetune": "text"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, backbones, and a folder for the models of all settings."""
    folder = tmp_path_factory.mktemp("bench")
    write_data(folder / "data")
    write_image_backbone(folder / "image")
    write_text_backbone(folder / "text")
    return folder


def command(place: Path, *arguments: str, store: str = "store") -> list[str]:
    folders = ["--data", str(place / "data"), "--cache", str(place / "cache"), "--store", str(place / store)]
    return ["bench", *arguments, *folders, "--scale", "smoke", "--json"]


def run(place: Path, *arguments: str, store: str = "store") -> list[dict]:
    outcome = CliRunner().invoke(app, command(place, *arguments, store=store))
    assert outcome.exit_code == 0, outcome.stderr
    return json.loads(outcome.stdout)


def arguments_of(place: Path, name: str) -> list[str]:
    extra = ["--backbone", str(place / BACKBONES[name])] if name in BACKBONES else []
    return [name, "--engine", "serial", *extra]


def without_times(result: dict) -> dict:
    attacks = {name: {k: v for k, v in found.items() if k != "seconds"} for name, found in result["attacks"].items()}
    return {**{k: v for k, v in result.items() if k not in ("seconds", "network_influence")}, "attacks": attacks}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_runs_and_is_measured_whole(place, name):
    [result] = run(place, *arguments_of(place, name))
    setting = all_settings()[name]
    scale = setting.scales["smoke"]
    assert (result["shadows"], result["targets"], result["pool"]) == (scale.shadows, scale.targets, scale.pool)
    assert set(result["attacks"]) == {"lira", "rmia", "shokri"}
    trained = setting.model is not None
    for attack in result["attacks"].values():
        expected = {
            key
            for key, entry in SCORES.items()
            if (setting.head == "softmax" or not entry.only_classifiers) and (trained or "losses" not in entry.needs)
        }
        if setting.network_influence is not None:
            expected |= {"network_influence"}
        if trained:
            expected |= {"exposure, rerun", "exposure, both runs", "exposure, checkpoints"}
        assert set(attack["scores"]) == expected
        ceilings = (
            [attack["ceiling"], attack["oracle"]] if attack is not result["attacks"]["shokri"] else [attack["ceiling"]]
        )
        for row in [*attack["scores"].values(), *ceilings]:
            assert all(0.0 <= row["metrics"][key]["mean"] <= 1.0 for key in RECALLS)
            assert -1.0 <= row["metrics"]["spearman"]["mean"] <= 1.0
        for reached in ceilings:
            assert len(reached["curve"]) == len(CURVE)
            assert reached["curve"][-1] == 1.0  # keeping all finds all
    assert result["attacks"]["shokri"]["oracle"] is None
    assert (result["budget"] is None) == (scale.pool < 200)
    folder = place / "store" / "results"
    saved = load_result(folder / f"{name}.json")
    assert to_json(saved) == result
    assert saved.seconds.speedup > 0
    assert len(saved.first_target.lira_success_rate) == scale.pool // 2
    images = setting.data in ("CIFAR-10", "CIFAR-100", "BloodMNIST")
    for kind in ("recall", "scatter", *(["images"] if images else [])):
        assert (folder / f"{name}-{kind}.png").stat().st_size > 0
        assert (folder / f"{name}-{kind}.svg").stat().st_size > 0

    kept = load_file(place / "store" / f"{name}-smoke-{scale.pool}-0" / "targets" / "target" / "000001.safetensors")
    if trained:
        epochs = setting.recipe_at(scale).epochs
        n, m = kept["outputs"].shape
        assert kept["epoch_losses"].shape == (epochs, n)
        assert kept["mean_outputs"].shape == (n, m)
        assert kept["checkpoint_outputs"].shape == (4, n, m)
        if "features" in kept:
            assert kept["checkpoint_features"].shape == (4, *kept["features"].shape)
    again = load_file(place / "store" / f"{name}-smoke-{scale.pool}-0" / "targets" / "rerun" / "000001.safetensors")
    np.testing.assert_array_equal(again["membership"], kept["membership"])
    assert set(again) == {"membership", "outputs", "seconds", *(["epoch_losses", "mean_outputs"] if trained else [])}
    assert np.array_equal(again["outputs"], kept["outputs"]) != trained  # a closed form has no randomness
    assert not any((place / "store" / f"{name}-smoke-{scale.pool}-0" / "shadows" / "target").iterdir())


def test_scoring_again_trains_nothing_and_gives_the_same(place, monkeypatch):
    [before] = run(place, *arguments_of(place, "energy-mlp"))

    def refuse(*_):
        raise AssertionError("trained, or attacked, again")

    monkeypatch.setattr(TorchTrainer, "_trained", refuse)
    monkeypatch.setattr(TorchTrainer, "_recorded", refuse)
    monkeypatch.setattr(measure, "run_attack", refuse)
    [after] = run(place, "energy-mlp", "--rescore", "--no-figures")
    assert without_times(after) == without_times(before)


def test_a_new_score_is_tried_without_training(place, monkeypatch):
    run(place, *arguments_of(place, "energy-mlp"))
    by_row = replace(SCORES["loss"], compute=lambda records: -SCORES["loss"].compute(records), default=False)
    monkeypatch.setitem(SCORES, "minus_loss", by_row)
    monkeypatch.setattr(TorchTrainer, "_trained", None)
    [result] = run(place, "energy-mlp", "--rescore", "--no-figures")
    rows = result["attacks"]["lira"]["scores"]
    minus, loss = (rows[name]["metrics"]["spearman"]["mean"] for name in ("minus_loss", "loss"))
    assert minus == pytest.approx(-loss)


def test_numbers_are_those_of_the_definition(place):
    """Recall of the top 1 % at 5 % by hand: sort members by success rate, then separation; count."""
    [result] = run(place, *arguments_of(place, "cifar10-cnn"))
    store = place / "store" / "cifar10-cnn-smoke-160-0"
    truth = load_file(store / "lira.safetensors")
    for number in (0, 1):
        kept = load_file(store / "targets" / "target" / f"{number:06d}.safetensors")
        members = np.flatnonzero(kept["membership"])
        logits = kept["outputs"].astype(np.float64)
        labels = np.load(place / "data" / "cifar10_10k.npz")["y_train"]
        rows = np.sort(np.random.default_rng(0).permutation(len(labels))[:160])
        losses = [np.log(np.exp(logits[i]).sum()) - logits[i, labels[rows[i]]] for i in members]
        exposed = sorted(members, key=lambda i: (truth["success_rate"][i], truth["tiebreak"][i]))[-4:]
        kept_by_loss = [members[i] for i in np.argsort(losses)[-4:]]
        recall = len(set(exposed) & set(kept_by_loss)) / 4
        found = result["attacks"]["lira"]["scores"]["loss"]["metrics"]["recall@5%"]
        assert found["values"][number] == pytest.approx(recall)


def test_a_killed_run_continues_with_the_same_numbers(place):
    whole = run(place, "energy-mlp", "--no-figures", "--engine", "processes", "--workers", "1", store="whole")[0]
    store = place / "killed" / "energy-mlp-smoke-120-0"
    how = ("energy-mlp", "--no-figures", "--engine", "processes")
    line = [sys.executable, "-m", "noshadow", *command(place, *how, store="killed")]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, start_new_session=True)
    patience = time.monotonic() + 120
    while not list(store.glob("shadows/shadow/*.safetensors")) and time.monotonic() < patience:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(store.glob("*/*/*.safetensors")))
    assert 0 < done < 20, "killed too late to show anything"
    continued = run(place, "energy-mlp", "--no-figures", store="killed")[0]
    assert without_times(continued) == without_times(whole)


def test_more_models_are_added_to_those_there(place):
    run(place, *arguments_of(place, "energy-mlp"), store="more")
    store = place / "more" / "energy-mlp-smoke-120-0"
    before = {path: path.stat().st_mtime_ns for path in store.glob("*/*/*.safetensors")}
    [result] = run(place, *arguments_of(place, "energy-mlp"), "--targets", "3", store="more")
    assert result["targets"] == 3
    after = {path: path.stat().st_mtime_ns for path in store.glob("*/*/*.safetensors")}
    assert len(after) == len(before) + 2  # the target model and its rerun
    assert before.items() <= after.items()


def test_a_changed_network_is_another_study_and_other_wording_is_not(place, monkeypatch):
    """What a class computes counts, and so do options and weights; not how noshadow's functions put it together."""
    setting = all_settings()["cifar10-cnn"]
    scale = setting.scales["smoke"]
    source = DataSource(place / "data", place / "cache")
    pool = make_pool(setting, scale, source, 0)

    def found(build=None, **changes):
        changed = replace(setting, model=lambda pool, source: build) if build else setting
        changed = replace(changed, recipe=replace(changed.recipe, **changes))
        return _procedure(changed, scale, pool, make_trainer(changed, scale, pool, source, recording=True))

    before = found()
    assert found(lambda: architectures.small_cnn(10)) == before
    assert found(lambda: architectures.small_cnn(10, hidden=128)) != before
    assert found(learning_rate=2e-3) != before
    assert not before.keys() & {"libraries", "model"}

    def forward(self, x):
        """The same as before, in other words."""
        outputs: torch.Tensor = self.body(x.contiguous(memory_format=torch.channels_last))  # and with a comment
        return outputs

    monkeypatch.setattr(architectures.ChannelsLast, "forward", forward)
    assert found() == before
    monkeypatch.setattr(architectures.ChannelsLast, "forward", lambda self, x: self.body(-x))
    assert found() != before


def test_a_budget_is_that_of_the_models_and_scores():
    """Two outputs a record; members move by their exposure."""
    rng = np.random.default_rng(0)
    n_models, n = 20, 400
    shift = rng.exponential(size=n)
    inside = half_splits(rng, n_models, n)
    outputs = np.zeros((n_models, n, 2))
    outputs[..., 0] = 0.3 * rng.normal(size=(n_models, n)) + shift * inside
    members = rng.random((2, n)) < 0.6
    pool = Pool(np.zeros((n, 1)), np.zeros(n, dtype=np.int64))
    models = SimpleNamespace(shadows=SimpleNamespace(outputs=outputs, membership=inside), pool=pool)
    exposure = np.where(members, shift, np.nan)
    scored = measure.Scored({"exposure": exposure, "exposure, rerun": exposure**2}, members, 0.0, 0.0)
    setting = all_settings()["cifar10-cnn"]
    found = measure.budget_found(setting, models, scored, progress=False)
    assert found.models == (0, 2, 4, 8)
    assert found.reference == 12
    assert found.alone[:2] == (None, None)
    assert found.rerun == found.together[0]  # the same order
    assert found.together[-1] >= found.together[0] > found.alone[2]
    few = replace(scored, members=members & (np.arange(n) < 150))
    assert measure.budget_found(setting, models, few, progress=False) is None


def test_a_scale_may_have_another_network(place):
    setting = all_settings()["cifar100-resnet20"]
    scale = setting.scales["smoke"]
    source = DataSource(place / "data", place / "cache")
    pool = make_pool(setting, scale, source, 0)
    whole, shrunk = (
        make_trainer(setting, replace(scale, model=model), pool, source, recording=False)
        for model in ({}, {"shrink": 2})
    )
    first = [next(iter(trainer.model().body)) for trainer in (whole, shrunk)]
    assert [type(layer).__name__ for layer in first] == ["Conv2d", "AvgPool2d"]
    assert whole.fingerprint() != shrunk.fingerprint()


def test_closed_form_ridge_is_scikit_learns():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 4)), rng.standard_normal(50)
    members = np.arange(0, 50, 2)
    outputs = ClosedFormRidge(x, y, 0.3)(members, 0)
    design = np.column_stack([x, np.ones(50)])
    fitted = Ridge(alpha=25 * 0.3 / 2, fit_intercept=False).fit(design[members], y[members])
    np.testing.assert_allclose(outputs, fitted.predict(design), rtol=1e-10)


def test_a_pool_follows_its_seed(place):
    setting = all_settings()["california-ridge"]
    source = DataSource(place / "data", place / "cache")
    scale = setting.scales["smoke"]
    first, again, other = (make_pool(setting, scale, source, seed) for seed in (0, 0, 1))
    assert len(first) == scale.pool
    np.testing.assert_array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.inputs, other.inputs)
    np.testing.assert_allclose(first.inputs.mean(0), 0.0, atol=1e-5)


def test_targets_are_no_shadow_models_and_rankings_are_over_members(place):
    setting = all_settings()["california-ridge"]
    scale = setting.scales["smoke"]
    source = DataSource(place / "data", place / "cache")
    models = train_models(setting, scale, source, place / "members", 0, engine="serial")
    for inside in models.targets.membership:
        assert not (models.shadows.membership == inside).all(axis=1).any()
    scored = measure.score_targets(setting, scale, models)
    for values in scored.scores.values():
        np.testing.assert_array_equal(np.isnan(values), ~scored.members)


def test_an_expensive_score_may_cover_some_targets(place):
    members = np.array([[True, True, True, False], [True, True, False, True]])
    values = np.array([[3.0, 2.0, 1.0, np.nan], [np.nan] * 4])
    scored = measure.Scored({"some": values}, members, 1.0, 0.0)
    truth = measure.Truth(np.array([0.9, 0.8, 0.7, 0.6]), np.zeros(4), {}, ceiling(), None, 0.0)
    row = measure.compare(scored, truth).scores["some"]
    assert row.metrics["spearman"].values == pytest.approx([1.0])
    assert set(row.curve.std) == {None}
    assert evaluate.spearman(values[0, :3], truth.success_rate[:3]) == pytest.approx(1.0)


def test_what_is_known_of_an_attack_is_kept_as_stores_have_it():
    """Metrics and curve side by side: so it is in stores that were filled before results were typed."""
    summary = {"mean": 0.5, "std": None, "values": [0.5]}
    flat = {**dict.fromkeys(METRICS, summary), "curve": list(CURVE)}
    facts = {"summary": {"auc": 0.75}, "ceiling": flat, "oracle": None, "seconds": 2.0}
    truth = measure._truth({"success_rate": np.ones(3), "tiebreak": np.zeros(3)}, facts)
    assert truth.ceiling.metrics["spearman"].mean == 0.5
    assert truth.oracle is None
    assert measure._facts(truth) == facts


def test_a_score_that_tells_nothing_correlates_with_nothing():
    assert measure.rank_correlation(np.ones(5), np.arange(5.0)) == 0.0
    assert measure.rank_correlation(np.arange(5.0), np.arange(5.0)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "SETTING: 'nonsense' is not one of"),
        ([], "SETTING: none was named; name some, or all"),
        (["--rescore"], "holds no models of scale smoke"),
        (["california-ridge", "--pool", "100000"], "--pool: 100,000"),
        (["california-ridge", "--rescore"], "holds no study"),
    ],
)
def test_what_was_typed_wrongly_is_said(place, arguments, words):
    outcome = CliRunner().invoke(app, command(place, *arguments, store="empty"))
    assert outcome.exit_code == 2
    assert words in " ".join(outcome.stderr.split())


def test_the_list_names_every_setting():
    outcome = CliRunner().invoke(app, ["bench", "--list", "--json"])
    assert [row["setting"] for row in json.loads(outcome.stdout)] == list(all_settings())
    assert len(find_settings(["all"])) == 8
    with pytest.raises(InputError, match="cifar10-cnn"):
        find_settings(["cifar"])


def test_a_table_is_printed_for_people(place):
    run(place, *arguments_of(place, "california-ridge"))
    line = [part for part in command(place, *arguments_of(place, "california-ridge")) if part != "--json"]
    outcome = CliRunner().invoke(app, line, env={"COLUMNS": "160"})
    assert outcome.exit_code == 0
    assert "LiRA again" in outcome.stdout
    assert "a perfect score" in outcome.stdout
    assert "12.3±3" in outcome.stdout  # the paper's number


def test_part_of_a_pool():
    pool = Pool(np.arange(6).reshape(3, 2), np.arange(3), np.array(["a", "b", "c"], dtype=object))
    part = pool.rows(np.array([2, 0]))
    assert part.targets.tolist() == [2, 0]
    assert part.shown is not None
    assert part.shown.tolist() == ["c", "a"]


def test_halves_are_attacked_with_the_variance_of_the_whole(place):
    """24 shadow models have a variance for each record; "auto" would give their halves of 12 one for all."""
    setting = all_settings()["california-ridge"]
    scale = replace(setting.scales["smoke"], shadows=24)
    source = DataSource(place / "data", place / "cache")
    models = train_models(setting, scale, source, place / "halves", 0, engine="serial")
    found = measure.find_truths(setting, models, place / "halves")["lira"].ceiling.metrics["spearman"].values
    signal = attacks.signal(models.shadows.outputs, models.pool.targets, "squared")
    inside = models.shadows.membership

    def again(variance):
        def attack(rows):
            return attacks.lira(signal[rows], inside[rows], variance=variance, members="lower")

        return evaluate.over_predictions(evaluate.spearman, evaluate.halves(attack, 24), models.targets.membership)

    assert found.tolist() == pytest.approx(again("per_sample").values.tolist())
    assert found.tolist() != pytest.approx(again("fixed").values.tolist())


def test_the_signal_of_classes_is_simulated_as_a_logit():
    """A logistic head on class 1 has the signal of a softmax head: the simulated attack is the attack itself."""
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(16, 60, 4)), rng.integers(0, 4, 60)
    inside = half_splits(rng, 16, 60)
    phi = attacks.signal(outputs, targets, "softmax")
    for name in (name for name, attack in measure.ATTACKS.items() if attack.simulated):
        options = measure.Options.for_models(name, 16)
        whole = measure.run_attack(outputs, inside, targets, "softmax", options)
        again = measure.run_attack(phi, inside, np.ones(60, dtype=int), "logistic", options)
        np.testing.assert_allclose(again.scores, whole.scores, atol=1e-12)
