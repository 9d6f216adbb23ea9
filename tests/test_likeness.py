"""Held-out records that are not like the members are told of; random halves of one pool are left alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import noshadow
from noshadow import LastLayer, NoshadowWarning
from noshadow.likeness import note_unlike

SPLIT = "split one shuffled pool, and prepare both parts alike"


def notes(others, members):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        note_unlike(others, members)
    return [str(one.message) for one in caught if issubclass(one.category, NoshadowWarning)]


def pool(seed, count, classes):
    """A linear model of classes (0: of values) whose outputs follow the targets, with features of several shapes."""
    generator = np.random.default_rng(seed)
    x = generator.standard_t(1.5, size=(count, 6))
    x[:, 3:] = np.maximum(x[:, 3:], 0.0)  # as after a ReLU
    slopes = generator.normal(size=(6, max(classes, 1)))
    z = x @ slopes
    if not classes:
        return x, z, z[:, 0] + generator.standard_t(3, size=count)
    noise = generator.gumbel(size=z.shape)
    return x, z, (z + 2.0 * noise + np.linspace(0, -4, classes)).argmax(1)


def layers(parts, *rows):
    x, z, y = parts
    head = "squared" if z.shape[1] == 1 else "softmax"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoshadowWarning)
        return [LastLayer(x[chosen], z[chosen], y[chosen], head) for chosen in rows]


@pytest.mark.parametrize("classes", [0, 2, 5, 40])
@pytest.mark.parametrize("held", [20, 100, 400])
def test_random_halves_of_one_pool_are_left_alone(classes, held):
    """Heavy tails, rare classes, few records: none of 20 random splits is told of."""
    for seed in range(20):
        others, members = layers(pool(seed, 600, classes), slice(held), slice(held, None))
        assert notes(others, members) == []


def test_a_split_that_nobody_shuffled_is_told_of():
    x, y = load_wine(return_X_y=True)  # sorted by class
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor(y)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    with pytest.warns(NoshadowWarning, match="48 of its 60 records are of a class that no member has"):
        noshadow.audit(model, (x[:118], y[:118] % 2), held_out=(x[118:], y[118:]), ridge=0.0)


@pytest.mark.parametrize(
    ("classes", "change", "said"),
    [
        (5, lambda x, z, y: (x[y == 0], z[y == 0], y[y == 0]), "its classes are not in the members' proportions"),
        (5, lambda x, z, y: (10.0 * x, 10.0 * z, y), "what the last layer sees of it is spread"),
        (5, lambda x, z, y: (0.1 * x, 0.1 * z, y), "what the last layer sees of it is spread"),
        (5, lambda x, z, y: (x, z, np.random.default_rng(0).permutation(y)), "outputs say nothing of its targets"),
        (2, lambda x, z, y: (x, z[:, ::-1].copy(), y), "outputs say nothing of its targets"),
        (0, lambda x, z, y: (x, z, 40.0 + 9.0 * y), "its targets are not distributed as the members' are"),
        (0, lambda x, z, y: (x, z, y + 20.0), "its targets are not distributed as the members' are"),
        (0, lambda x, z, y: (x, z, 10.0 * (y - np.median(y))), "its targets are not distributed as the members' are"),
        (0, lambda x, z, y: (x, z, np.roll(y, 1)), "outputs say nothing of its targets"),
    ],
)
def test_what_is_unlike_is_told_of(classes, change, said):
    parts = pool(1, 600, classes)
    (members,) = layers(parts, slice(300, None))
    others = layers(change(*(part[:300] for part in parts)), slice(None))[0]
    (note,) = notes(others, members)
    assert note.startswith("held_out: ")
    assert said in note
    assert note.endswith(SPLIT)


def test_a_class_that_members_lack_by_chance_is_left_alone():
    """One record in sixty of a class that three hundred members lack: seen in many splits of a long tail."""
    x, z, y = pool(2, 400, 5)
    y = np.where(y == 4, 3, y)
    y[0] = 4
    others, members = layers((x, z, y), slice(60), slice(60, None))
    assert notes(others, members) == []
    y[:6] = 4
    others, members = layers((x, z, y), slice(60), slice(60, None))
    assert "6 of its 60 records are of a class that no member has (4)" in notes(others, members)[0]
