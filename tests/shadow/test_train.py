"""TorchTrainer: stacked training gives the models of one-by-one training, to rounding, whatever they hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from noshadow import shadow
from noshadow.errors import InputError
from noshadow.shadow import Recipe, TorchTrainer

RNG = np.random.default_rng(3)
X = RNG.normal(size=(46, 5)).astype(np.float32)
Y = (X[:, 0] - X[:, 1] ** 2).astype(np.float32)
CLASSES = (X[:, 0] > 0).astype(np.int64) + (X[:, 1] > 0.5)
IMAGES = RNG.normal(size=(40, 3, 8, 8)).astype(np.float32)
IMAGE_CLASSES = RNG.integers(0, 2, 40)


def mlp(outputs=1, dropout=0.0):
    return nn.Sequential(
        nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, outputs)
    )


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 2)
    )


def flat():
    """One number a record, without the axis of outputs."""
    return nn.Sequential(nn.Linear(5, 1), nn.Flatten(0))


class FunctionalDropout(nn.Module):
    """Draws from torch's global generator: it cannot be stacked on streams of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 1)

    def forward(self, x):
        return self.linear(F.dropout(x, 0.5, self.training))


def flip(x, generator):
    """A random sign for every record."""
    signs = torch.randint(0, 2, (len(x),), generator=generator) * 2 - 1
    return x * signs.reshape(-1, *[1] * (x.ndim - 1))


@pytest.fixture(autouse=True)
def _one_thread():
    """As the engines train: networks this small only lose time by sharing threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def double():
    """Training amplifies rounding; in float64 there is so little of it that a real difference stands out."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def plan(n_samples, count=6):
    keys = [shadow.ModelKey("shadow", k) for k in range(count)]
    return [shadow.Plan(n_samples).members(k) for k in keys], [shadow.Plan(n_samples).seed_of(k) for k in keys]


RECIPES = {
    "adam": Recipe(15, 8, "adam", 1e-2, weight_decay=1e-3),
    "adamw, cosine": Recipe(15, 8, "adamw", 1e-2, weight_decay=0.1, schedule="cosine"),
    "sgd with momentum, linear": Recipe(15, 8, "sgd", 1e-2, momentum=0.9, schedule="linear"),
    "own optimiser, augmented": Recipe(
        15,
        7,
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
        schedule=lambda t: 1 - t / 2,
        augment=flip,
    ),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize(
    ("model", "data", "head"),
    [
        (mlp, (X, Y), "squared"),
        (lambda: mlp(3, dropout=0.4), (X, CLASSES), "softmax"),
        (lambda: mlp(1, dropout=0.4), (X[:45], (CLASSES > 0).astype(int)[:45]), "logistic"),  # unequal halves
        (conv, (IMAGES, IMAGE_CLASSES), "softmax"),
    ],
    ids=["regression", "dropout", "logistic, odd", "convolution, batch norm, dropout"],
)
def test_a_stack_trains_the_same_models(double, model, data, head, recipe):
    trainer = TorchTrainer(model, data, recipe, head=head)
    members, seeds = plan(len(data[0]))
    stacked = trainer.train_many(members, seeds)
    single = [trainer(*pair) for pair in zip(members, seeds, strict=True)]
    assert trainer._obstacle is None  # it was a stack indeed
    for one, other in zip(stacked, single, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
    assert np.std(single, axis=0).mean() > 1e-2  # the models do differ from one another


def test_a_stack_trains_the_same_models_in_single_precision():
    trainer = TorchTrainer(lambda: mlp(dropout=0.3), (X, Y), Recipe(20, 8, weight_decay=1e-3), head="squared")
    members, seeds = plan(len(X))
    for one, other in zip(trainer.train_many(members, seeds), map(trainer, members, seeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_a_stack_trains_the_same_models_when_masks_are_drawn_batch_by_batch(double, monkeypatch):
    monkeypatch.setattr("noshadow.shadow.train.MASKS_A_DRAW", 100)
    trainer = TorchTrainer(lambda: mlp(dropout=0.3), (X, Y), Recipe(20, 8), head="squared")
    members, seeds = plan(len(X))
    for one, other in zip(trainer.train_many(members, seeds), map(trainer, members, seeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)


def test_training_is_the_textbook_loop():
    """Against plain torch, written out: same initial weights, same batches, Adam, mean squared error."""
    members, seeds = plan(len(X), 1)
    trainer = TorchTrainer(mlp, (X, Y), Recipe(3, 8, "adam", 1e-2, weight_decay=1e-3), head="squared")
    words = np.random.SeedSequence(seeds[0]).generate_state(3, np.uint64) >> np.uint64(1)
    with torch.random.fork_rng():
        torch.manual_seed(int(words[0]))
        model = mlp()
    order = torch.Generator().manual_seed(int(words[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-3)
    rows = torch.as_tensor(members[0])
    for _ in range(3):
        for batch in rows[torch.randperm(len(rows), generator=order)].split(8):
            optimizer.zero_grad()
            F.mse_loss(model(torch.tensor(X)[batch]), torch.tensor(Y)[batch, None]).backward()
            optimizer.step()
    with torch.no_grad():
        expected = model.eval()(torch.tensor(X)).numpy()
    np.testing.assert_allclose(trainer(members[0], seeds[0]), expected, rtol=1e-4, atol=1e-5)


def test_dropout_drops_the_right_share_while_training_and_nothing_after():
    kept = []

    class Watch(nn.Module):
        def forward(self, x):
            if self.training:
                kept.append((x != 0).float().mean().item())
                assert set(x.unique().tolist()) <= {0.0, 1.25}
            else:
                assert (x == 1).all()
            return x.mean(-1, keepdim=True)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout, self.watch, self.scale = nn.Dropout(0.2), Watch(), nn.Linear(1, 1)

        def forward(self, x):
            return self.scale(self.watch(self.dropout(torch.ones(len(x), 64))))

    TorchTrainer(Net, (X, Y), Recipe(20, 8), head="squared")(*(part[0] for part in plan(len(X))))
    assert len(kept) == 20 * 3
    assert abs(np.mean(kept) - 0.8) < 5 * 0.4 / np.sqrt(64 * 23 * 20)
    assert len(set(kept)) > 5


def test_the_same_seed_gives_the_same_bits_and_leaves_the_global_generator_alone():
    trainer = TorchTrainer(lambda: mlp(dropout=0.5), (X, Y), Recipe(3, 8), head="squared")
    members, seeds = plan(len(X))
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    first = trainer(members[0], seeds[0])
    many = trainer.train_many(members, seeds)
    assert torch.equal(torch.rand(3), expected)
    assert np.array_equal(trainer(members[0], seeds[0]), first)
    assert all(np.array_equal(*pair) for pair in zip(trainer.train_many(members, seeds), many, strict=True))
    assert not np.array_equal(trainer(members[0], seeds[1]), first)
    assert not np.array_equal(trainer(members[1], seeds[0]), first)


def test_models_that_cannot_be_stacked_are_trained_one_by_one():
    trainer = TorchTrainer(FunctionalDropout, (X, Y), Recipe(2, 8), head="squared")
    members, seeds = plan(len(X), 3)
    assert trainer.models_at_once() == 1
    for one, other in zip(trainer.train_many(members, seeds), map(trainer, members, seeds), strict=True):
        assert np.array_equal(one, other)
    with pytest.raises(InputError, match=r"vectorise.*random"):
        TorchTrainer(FunctionalDropout, (X, Y), Recipe(2, 8), head="squared", vectorise=True).models_at_once()
    lbfgs = Recipe(1, 8, lambda parameters: torch.optim.LBFGS(parameters))
    assert TorchTrainer(mlp, (X, Y), lbfgs, head="squared").models_at_once() == 1


def test_how_many_at_once():
    trainer = TorchTrainer(mlp, (X, Y), Recipe(5, 8), head="squared")
    assert trainer.models_at_once() > 1  # so small a network is all overhead
    assert trainer.models_at_once(most=5) in (1, 5)
    assert trainer.models_at_once(most=1) == 1
    never, three = (TorchTrainer(mlp, (X, Y), Recipe(5, 8), head="squared", vectorise=v) for v in (False, 3))
    assert never.models_at_once() == 1
    assert three.models_at_once() == 3
    wide = TorchTrainer(
        lambda: nn.Sequential(nn.Linear(5, 3000), nn.Linear(3000, 3000), nn.Linear(3000, 1)),
        (X, Y),
        Recipe(1, 23),
        head="squared",
    )
    assert wide.models_at_once() == 1  # nothing to gain: its steps are all arithmetic


def test_a_study_in_groups_is_resumed_to_the_same_bits(tmp_path):
    def study(name):
        trainer = TorchTrainer(
            lambda: mlp(dropout=0.3), (X, Y), Recipe(5, 8, weight_decay=1e-3), head="squared", vectorise=4
        )
        return shadow.Study(trainer, len(X), n_models=10, store=tmp_path / name)

    whole = study("whole").run("serial").outputs
    assert np.array_equal(study("processes").run("processes").outputs, whole)
    (tmp_path / "whole" / "shadow" / "000005.safetensors").unlink()
    (tmp_path / "whole" / "shadow" / "000009.safetensors").unlink()
    assert np.array_equal(study("whole").run("serial").outputs, whole)


def test_the_fingerprint_tells_trainers_apart():
    short = Recipe(5, 8)

    def trainer(model=mlp, data=(X, Y), recipe=short, **settings):
        return TorchTrainer(model, data, recipe, head="squared", **settings).fingerprint()

    others = [
        trainer(data=(X + 1, Y)),
        trainer(data=(X, Y + 1)),
        trainer(recipe=Recipe(6, 8)),
        trainer(recipe=Recipe(5, 8, augment=flip)),
        trainer(model=lambda: mlp(dropout=0.1)),
        trainer(loss=F.l1_loss),
    ]
    assert trainer() == trainer(vectorise=True)
    assert all(other != trainer() for other in others)


def test_a_dataset_is_as_good_as_tensors():
    members, seeds = plan(len(X), 1)
    data = TensorDataset(torch.tensor(X), torch.tensor(CLASSES))
    expected = TorchTrainer(lambda: mlp(3), (X, CLASSES), Recipe(2, 8))(members[0], seeds[0])
    assert np.array_equal(TorchTrainer(lambda: mlp(3), data, Recipe(2, 8))(members[0], seeds[0]), expected)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Recipe(0, 8), "epochs"),
        (lambda: Recipe(1, 8, optimizer="adagrad"), "optimizer"),
        (lambda: Recipe(1, 8, schedule="stairs"), "schedule"),
        (lambda: TorchTrainer(mlp, (X, Y[:3]), Recipe(1, 8), head="squared"), "46 inputs but 3 targets"),
        (lambda: TorchTrainer(mlp, (X, Y), Recipe(1, 8), head="softmax"), "integer class"),
        (
            lambda: TorchTrainer(mlp, (X, torch.eye(46, dtype=torch.int64)), Recipe(1, 8), head="softmax"),
            r"one integer class per record, shape \(n,\), got torch.int64 of shape \(46, 46\)",
        ),
        (lambda: TorchTrainer(mlp, (X, Y), Recipe(1, 8), head="hinge"), "head"),
        (lambda: TorchTrainer(lambda: 3, (X, Y), Recipe(1, 8), head="squared"), "model: must give"),
        (lambda: TorchTrainer(flat, (X, Y), Recipe(1, 8), head="squared"), "model: gives outputs of shape"),
        (lambda: TorchTrainer(flat, (X, CLASSES > 0), Recipe(1, 8), head="logistic"), "model: a logistic head"),
        (lambda: TorchTrainer(mlp, (X, CLASSES), Recipe(1, 8)), "model: classes 0 … 2 need as many logits"),
    ],
)
def test_bad_input_is_named(build, named):
    with pytest.raises(InputError, match=named):
        build()
