"""What a training run keeps, against shorter runs of the same training and against the module itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from noshadow import shadow
from noshadow.errors import InputError
from noshadow.shadow import ModelKey, Plan, Recipe, Study, TorchTrainer
from noshadow.shadow.recording import Recording, restore
from tests.shadow.toys import N_SAMPLES, ridge

N, EPOCHS = 60, 5
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 4)).astype(np.float32)
CLASSES = (X[:, 0] + 0.5 * RNG.standard_normal(N) > 0).astype(np.int64) + (X[:, 1] > 1)
VALUES = (X @ RNG.standard_normal(4)).astype(np.float32)
MEMBERS = Plan(N, 0).members(ModelKey("target", 0))
RECIPE = Recipe(EPOCHS, 8, learning_rate=1e-2)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


def regressor() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))


def trained(model, targets, head, record, recipe=RECIPE):
    return TorchTrainer(model, (X, targets), recipe, head=head, record=record)(MEMBERS, 7)


@pytest.mark.parametrize(
    ("model", "targets", "head"),
    [(network, CLASSES, "softmax"), (regressor, VALUES, "squared"), (regressor, CLASSES % 2, "logistic")],
)
def test_every_epoch_is_that_of_a_run_which_stops_there(model, targets, head):
    kept = trained(model, targets, head, Recording(checkpoints=4))
    runs = [trained(model, targets, head, None, replace(RECIPE, epochs=e)) for e in range(1, EPOCHS + 1)]
    np.testing.assert_allclose(kept["outputs"], runs[-1], rtol=1e-5, atol=1e-6)
    for epoch, outputs in enumerate(runs):
        z = outputs.astype(np.float64)
        if head == "softmax":
            losses = np.log(np.exp(z).sum(1)) - z[np.arange(N), targets]
        elif head == "logistic":
            losses = np.log1p(np.exp(np.where(targets == 1, -z[:, 0], z[:, 0])))
        else:
            losses = (z[:, 0] - targets) ** 2
        np.testing.assert_allclose(kept["epoch_losses"][epoch], losses, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(kept["mean_outputs"], np.mean(runs, axis=0), rtol=1e-4, atol=1e-5)
    assert kept["mean_outputs"].dtype == np.float32
    assert kept["checkpoint_epochs"].tolist() == [1, 2, 3, 4]
    for position, epoch in enumerate(kept["checkpoint_epochs"]):
        np.testing.assert_allclose(kept["checkpoint_outputs"][position], runs[epoch - 1], rtol=1e-4, atol=1e-5)


def test_features_and_weights_give_the_outputs():
    kept = trained(network, CLASSES, "softmax", Recording(weights=True))
    module = restore(network(), kept["weights"]).eval()
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.as_tensor(X)), kept["outputs"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(module[:-1](torch.as_tensor(X)), kept["features"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(module[-1](torch.as_tensor(kept["features"])), kept["outputs"], rtol=1e-5, atol=1e-6)
    assert kept["checkpoint_features"].shape == (4, N, 6)
    with pytest.raises(InputError, match="weights"):
        restore(network(), kept["weights"][1:])


def test_a_linear_layer_keeps_no_copy_of_its_inputs():
    kept = trained(lambda: nn.Linear(4, 3), CLASSES, "softmax", Recording())
    assert set(kept) == {"outputs", "epoch_losses", "mean_outputs", "checkpoint_epochs", "checkpoint_outputs"}


def test_checkpoints_are_spread_over_the_epochs():
    assert Recording(4).epochs(200) == [40, 80, 120, 160]
    assert Recording(4).epochs(25) == [5, 10, 15, 20]
    assert Recording(4).epochs(2) == [1, 1, 2, 2]
    assert Recording(0).epochs(10) == []
    with pytest.raises(InputError, match="checkpoints"):
        Recording(-1)


def test_recording_models_are_trained_one_by_one_and_named_in_the_fingerprint():
    plain, recording = (TorchTrainer(network, (X, CLASSES), RECIPE, record=record) for record in (None, Recording()))
    assert recording.models_at_once(64) == 1
    assert "record.checkpoints" not in plain.fingerprint()
    assert recording.fingerprint()["record.checkpoints"] == 4
    both = recording.train_many([MEMBERS, MEMBERS], [7, 8])
    np.testing.assert_array_equal(both[0]["outputs"], recording(MEMBERS, 7)["outputs"])


def test_a_study_of_target_models_only(tmp_path):
    trainer = TorchTrainer(network, (X, CLASSES), RECIPE, record=Recording())
    study = Study(trainer, N, 0, 3, store=tmp_path, n_target_models=2, targets=CLASSES, head="softmax")
    found = study.run(engine="serial").target_models
    assert found is not None
    assert found.extra("epoch_losses").shape == (2, EPOCHS, N)
    again = shadow.load(tmp_path).target_models
    assert again is not None
    np.testing.assert_array_equal(again.outputs, found.outputs)
    with pytest.raises(InputError, match="at least one model"):
        Study(trainer, N, 0, 3, store=tmp_path / "none")


def test_reruns_have_the_members_of_their_targets_and_seeds_of_their_own(tmp_path):
    """A second model of each target: the same training, and of what is recorded no features and no checkpoints."""
    trainer = TorchTrainer(network, (X, CLASSES), RECIPE, record=Recording(weights=True))
    study = Study(trainer, N, 0, 3, store=tmp_path, n_target_models=2, reruns=True, targets=CLASSES, head="softmax")
    found = study.run(engine="serial")
    assert found.target_models is not None
    assert found.reruns is not None
    np.testing.assert_array_equal(found.reruns.membership, found.target_models.membership)
    assert len({*found.reruns.seeds, *found.target_models.seeds}) == 4
    alone = TorchTrainer(network, (X, CLASSES), RECIPE, record=Recording())
    for number, seed in enumerate(found.reruns.seeds):
        kept = found.store.read(found.reruns.keys[number])
        assert set(kept) == {"outputs", "membership", "epoch_losses", "mean_outputs"}
        expected = alone(np.flatnonzero(kept["membership"]), int(seed))
        for name in ("outputs", "epoch_losses", "mean_outputs"):
            np.testing.assert_array_equal(kept[name], expected[name])
    again = shadow.load(tmp_path).reruns
    assert again is not None
    np.testing.assert_array_equal(again.extra("mean_outputs"), found.reruns.extra("mean_outputs"))


def test_reruns_can_be_added_later(tmp_path):
    def study(reruns):
        return Study(ridge, N_SAMPLES, 2, store=tmp_path, n_target_models=3, reruns=reruns).run(engine="serial")

    before = study(False)
    assert before.reruns is None
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("0*.safetensors")}
    after = study(True)
    assert after.reruns is not None
    assert [str(key) for key in after.reruns.keys] == [f"rerun of target model {number}" for number in range(3)]
    assert "weights" in after.store.read(after.reruns.keys[0])  # what train gave is kept
    assert times.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("0*.safetensors")}.items()
    assert after.target_models is not None
    np.testing.assert_array_equal(after.target_models.outputs, before.target_models.outputs)
