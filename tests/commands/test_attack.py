"""``noshadow attack``: the table, the JSON, the parquet and the exit codes, on real studies."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from noshadow import attacks, shadow
from noshadow.attacks.named import Options, run_attack
from noshadow.bench.measure import ATTACKS
from noshadow.commands.attack import attack
from noshadow.errors import InputError
from noshadow.shadow import store
from noshadow.shadow.work import limited_threads
from tests.attacks.definitions import rmia_loop

N_SAMPLES = 60
RNG = np.random.default_rng(1)
X = RNG.normal(size=(N_SAMPLES, 12))
VALUES = X[:, 0] + RNG.normal(size=N_SAMPLES)
VALUES[7] += 25.0  # an outlier that every model it is in bends to
CLASSES = (X[:, 0] + 0.5 * RNG.normal(size=N_SAMPLES) > 0).astype(int)


def regression(members, seed):
    return X @ np.linalg.lstsq(X[members], VALUES[members], rcond=None)[0]


def scorer(members, seed):
    """Class scores by least squares on one-hot targets."""
    return X @ np.linalg.lstsq(X[members], np.eye(2)[CLASSES[members]], rcond=None)[0]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    for name, train, targets, head in (
        ("squared", regression, VALUES, "squared"),
        ("softmax", scorer, CLASSES, "softmax"),
        ("bare", regression, None, None),
    ):
        shadow.Study(train, N_SAMPLES, n_models=24, store=folder / name, targets=targets, head=head).run("serial")
    return folder


@pytest.fixture
def run(stores, tmp_path, monkeypatch):
    """Runs the command in an empty folder, on one thread: boosting on so few rows only loses time by sharing."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(attack)

    def run(store, *arguments):
        with limited_threads(1):
            return CliRunner().invoke(app, [str(stores / store), *arguments])

    return run


@pytest.mark.parametrize("name", ["lira", "rmia", "shokri"])
@pytest.mark.parametrize("store", ["squared", "softmax"])
def test_json_and_parquet_hold_the_attack(run, tmp_path, store, name):
    done = run(store, "--attack", name, "--json", "--top", "3", *(["--folds", "3"] if name == "shokri" else []))
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    table = pd.read_parquet(tmp_path / f"noshadow-{name}.parquet")
    assert len(table) == report["records"] == N_SAMPLES
    assert report["models"] == 24
    assert report["success_rate"] == pytest.approx(table["success_rate"].mean())
    assert [row["rank"] for row in report["top"]] == [1, 2, 3]
    assert sorted(table["rank"]) == list(range(1, N_SAMPLES + 1))
    assert table["models_in"].between(3, 21).all()
    assert report["balanced_accuracy"] > 0.52  # small overfitted models do leak
    if store == "squared" and name != "shokri":
        assert table["separation"].abs().idxmax() == 7  # the outlier
    ranked = table.sort_values("rank")["success_rate"].to_numpy()
    assert (np.diff(ranked) < 1e-9).all()


def test_lira_is_the_function_of_the_same_name(run, stores, tmp_path):
    assert run("squared", "--variance", "fixed", "--signal", "signed_residual", "-o", "out.parquet").exit_code == 0
    study = shadow.load(stores / "squared")
    phi = attacks.signal(study.outputs, VALUES, "squared", "signed_residual")
    expected = attacks.lira(phi, study.membership, variance="fixed")
    table = pd.read_parquet(tmp_path / "out.parquet")
    assert np.array_equal(table["success_rate"], expected.success_rate)
    assert np.array_equal(table["separation"], expected.separation)
    # members move either way: of records with one success rate the one that moves further is ranked first
    order = np.lexsort((-table["separation"].abs(), -table["success_rate"]))
    assert np.array_equal(table["rank"].to_numpy()[order], np.arange(1, N_SAMPLES + 1))


@pytest.mark.parametrize("store", ["squared", "softmax"])
def test_lira_has_one_default(run, stores, tmp_path, store):
    """The command, the README's two lines of Python and the benchmarks' attack of that name are the same attack."""
    done = run(store, "--json")
    study = shadow.load(stores / store)
    in_python = attacks.lira(attacks.signal(study.outputs, study.targets, store), study.membership)
    in_bench = run_attack(study.outputs, study.membership, study.targets, store, ATTACKS["lira"])
    table = pd.read_parquet(tmp_path / "noshadow-lira.parquet")
    for result in (in_python, in_bench):
        assert np.array_equal(table["success_rate"], result.success_rate)
        assert result.attack == json.loads(done.stdout)["attack"] == "lira online, variance per_sample"


def test_rmia_on_losses_is_a_gaussian_likelihood_as_wide_as_the_errors_on_others(stores):
    """p = exp(−loss/2σ²), σ² the mean loss of the records a model was not trained on."""
    study = shadow.load(stores / "squared")
    loss = np.square(study.outputs.reshape(24, N_SAMPLES) - VALUES)
    p = np.exp(-loss / (2.0 * loss[~study.membership].mean()))
    found = run_attack(study.outputs, study.membership, VALUES, "squared", Options("rmia"))
    np.testing.assert_allclose(found.scores, rmia_loop(p, study.membership), atol=1e-12)


def test_unknown_attacks_and_options_without_use_are_errors():
    with pytest.raises(InputError, match="attack: 'magic' is not one of 'lira', 'rmia', 'shokri'"):
        Options("magic")
    with pytest.raises(InputError, match="variance: an option of lira, of no use to rmia"):
        Options("rmia", variance="fixed")


@pytest.mark.parametrize(
    ("store", "arguments", "message"),
    [
        ("softmax", ["--signal", "loss"], "error: --signal: 'loss' is not one of 'logit', those of a softmax head"),
        ("squared", ["--variant", "sideways"], "error: --variant: 'sideways' is not one of 'online'"),
        ("squared", ["--variance", "none"], "error: --variance: 'none' is not one of"),
        ("squared", ["--attack", "rmia", "--signal", "loss"], "error: --signal: an option of lira, of no use to rmia"),
        ("squared", ["--attack", "shokri", "--folds", "99"], "error: --folds: expected 2 … 24"),
        ("squared", ["--head", "magic"], "error: --head: "),
    ],
)
def test_errors_name_the_option(run, store, arguments, message):
    done = run(store, *arguments)
    assert done.exit_code == 2
    assert " ".join(done.stderr.split()).startswith(message)


def test_notes_of_the_attack_are_told(run, tmp_path):
    """With 8 models some records are in fewer than two, or in all but one or none."""
    shadow.Study(regression, N_SAMPLES, n_models=8, store=tmp_path / "few", targets=VALUES, head="squared").run(
        "serial"
    )
    done = run(str(tmp_path / "few"), "--json", "--variance", "per_sample")
    (note,) = json.loads(done.stdout)["notes"]
    assert "counted as undecided" in note
    assert "or use --variance fixed" in note
    shown = " ".join(run(str(tmp_path / "few"), "--variance", "per_sample").stdout.split())
    assert f"note: {note}" in shown


def test_the_table_for_people(run):
    done = run("squared", "--top", "4")
    assert done.exit_code == 0
    for part in ("24 models, 60 records", "balanced accuracy", "tpr at 0.1 % fpr", "The 4 most exposed", "parquet"):
        assert part in done.stdout


def test_targets_and_head_can_be_given_later(run, tmp_path):
    np.save(tmp_path / "targets.npy", VALUES)
    lacking = run("bare")
    assert lacking.exit_code == 3
    assert "--targets" in lacking.stderr
    assert run("bare", "--targets", "targets.npy").exit_code == 3  # still no head
    assert run("bare", "--targets", "targets.npy", "--head", "squared").exit_code == 0


def test_exit_codes(run, stores, tmp_path):
    assert run("nowhere").exit_code == 2
    assert run("squared", "--attack", "magic").exit_code == 2
    wrong = run("squared", "-o", "table.xlsx")
    assert (wrong.exit_code, "--output: 'table.xlsx'" in wrong.stderr) == (2, True)
    wrong = run("squared", "--variant", "sideways")
    assert (wrong.exit_code, "--variant: 'sideways'" in wrong.stderr) == (2, True)
    assert run("bare", "--targets", "nowhere.npy").exit_code == 2
    (tmp_path / "empty").mkdir()
    no_study = run(str(tmp_path / "empty"))
    assert no_study.exit_code == 3
    assert "STORE: " in no_study.stderr
    assert "holds no study" in " ".join(no_study.stderr.split())


def damage(manifest, **facts):
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **facts}))


def forge(manifest, **facts):
    """With a checksum that holds."""
    manifest.write_text(store._signed({**json.loads(manifest.read_text()), **facts}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda manifest: manifest.write_text('{"format": 1'), "is not a manifest"),
        (lambda manifest: manifest.write_bytes(b"\xff\xfe"), "is not a manifest"),
        (lambda manifest: manifest.write_text("[" * 10**5), "manifest.json"),
        (lambda manifest: (manifest.unlink(), manifest.mkdir()), "holds no study"),
        (lambda manifest: forge(manifest, n_models=10**12), "it asks for 1000000000000 shadow models"),
        (lambda manifest: forge(manifest, n_models="many"), "it asks for 'many' shadow models"),
        (lambda manifest: damage(manifest, n_models=5), "was altered"),
        (lambda manifest: forge(manifest, study={}), "was altered"),
    ],
)
def test_a_damaged_manifest_is_one_sentence(run, tmp_path, stores, spoil, words):
    import shutil

    shutil.copytree(stores / "squared", tmp_path / "spoilt")
    spoil(tmp_path / "spoilt" / "manifest.json")
    done = run(str(tmp_path / "spoilt"))
    assert done.exit_code == 3
    assert words in " ".join(done.stderr.split())
    assert done.stderr.count("\n") == 1


def test_damaged_targets_are_one_sentence(run, tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}] * N_SAMPLES, dtype=object))
    refused = run("bare", "--targets", "objects.npy", "--head", "squared")
    assert refused.exit_code == 3
    assert "--targets: objects.npy is not an .npy of plain numbers" in refused.stderr


def test_notes_reach_the_terminal_the_json_and_the_file(run, stores, tmp_path):
    def probabilities(members, seed):
        first = np.random.default_rng(seed).uniform(0.1, 0.9, N_SAMPLES)
        return np.column_stack([first, 1 - first])

    study = shadow.Study(probabilities, N_SAMPLES, n_models=16, store=tmp_path / "p", targets=CLASSES, head="softmax")
    study.run("serial")
    done = run(str(tmp_path / "p"), "--json", "-o", "out.csv")
    assert done.exit_code == 0, done.stderr
    assert any("STORE: these look like probabilities" in note for note in json.loads(done.stdout)["notes"])
    assert any(
        "look like probabilities" in note for note in json.loads((tmp_path / "out.csv.json").read_text())["notes"]
    )
    assert "note: STORE: these look like" in run(str(tmp_path / "p")).stdout


def test_an_unfinished_study_needs_a_word(run, tmp_path, stores):
    import shutil

    shutil.copytree(stores / "squared", tmp_path / "half")
    for number in (3, 4):
        (tmp_path / "half" / "shadow" / f"{number:06d}.safetensors").unlink()
    refused = run(str(tmp_path / "half"))
    assert refused.exit_code == 3
    assert "models 3, 4" in " ".join(refused.stderr.split())
    done = run(str(tmp_path / "half"), "--partial", "--json")
    assert json.loads(done.stdout)["models"] == 22
