"""Held-out records that are not like the members are told of; random halves of one pool are left alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_digits, load_iris, load_wine

import noshadow
from noshadow import LastLayer, NoshadowWarning, likeness
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


def test_a_class_that_held_out_records_lack_is_told_of():
    """A sixth of the members: by proportions alone so few held-out records leave it open, and their rates do not."""
    x, z, y = pool(3, 420, 5)
    lacking = int(np.abs(np.bincount(y) - 420 / 6).argmin())
    inside = np.arange(420) >= 120
    (held,) = layers((x, z, y), np.flatnonzero(~inside & (y != lacking)))
    (members,) = layers((x, z, y), inside)
    (note,) = notes(held, members)
    assert f"none of its records is of a class that {np.sum(y[inside] == lacking)} members are of ({lacking})" in note
    assert note.endswith(SPLIT)


def test_a_class_that_held_out_records_lack_by_chance_is_left_alone():
    """Sixty of four hundred records lack a class: of six members in many splits, of sixty in one of ten thousand."""
    x, z, y = pool(2, 400, 5)
    y = np.where(y == 4, 3, y)
    y[-6:] = 4
    others, members = layers((x, z, y), slice(60), slice(60, None))
    assert notes(others, members) == []
    y[-60:] = 4
    others, members = layers((x, z, y), slice(60), slice(60, None))
    assert "none of its records is of a class that 60 members are of (4)" in notes(others, members)[0]


def overfitted(seed, table, norm):
    """A network that has all but memorised half of a table, and its layers of members and of held-out records + c."""
    x, y = table(return_X_y=True)
    values = len(np.unique(y)) > 20
    x = (x - x.mean(0)) / (x.std(0) + 1e-9)
    y = (y - y.mean()) / y.std() if values else y
    order = np.random.default_rng(seed).permutation(len(x))[:800]
    x, y = (
        torch.tensor(x[order], dtype=torch.float32),
        torch.tensor(y[order], dtype=None if not values else torch.float),
    )
    half = len(x) // 2
    torch.manual_seed(seed)
    between = torch.nn.BatchNorm1d(32) if norm else torch.nn.Identity()
    body = torch.nn.Sequential(torch.nn.Linear(x.shape[1], 32), between, torch.nn.ReLU())
    head = torch.nn.Linear(32, 1 if values else int(y.max()) + 1)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        z = head(body(x[:half]))
        fit = (z[:, 0] - y[:half]).square().mean() if values else torch.nn.functional.cross_entropy(z, y[:half])
        fit.backward()
        optimizer.step()
    body.eval()

    @torch.no_grad()
    def layer(rows, moved=0.0):
        seen = body(x[rows] + moved)
        return LastLayer(seen, head(seen), y[rows], "squared" if values else "softmax")

    return layer(slice(half)), lambda moved: layer(slice(half, None), moved)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("table", [load_wine, load_iris, load_diabetes, load_digits])
def test_inputs_that_are_moved_are_told_of_and_random_halves_of_overfitted_networks_are_not(table, norm):
    for seed in range(4):
        members, others = overfitted(seed, table, norm)
        assert notes(others(0.0), members) == []
        (note,) = notes(others(2.0), members)  # of all inputs, by two standard deviations
        assert "what the last layer sees of it is " in note
        if members.n > 150:
            (note,) = notes(others(1.0), members)
            assert "what the last layer sees of it is moved away from the members (along a random" in note


@pytest.mark.parametrize(("count", "moved"), [(60, 0.15), (4000, 0.15), (60, 0.6), (4000, 0.6)])
def test_how_far_features_may_be_moved_is_a_share_of_pairs_beyond_chance(count, moved):
    """Normal features of one column: the one side is ahead in Φ(c/√2) of the pairs, 0.54 and 0.66; of 60 and 60 records
    the standard error is 0.053, of 4000 and 4000 it is 0.006."""
    generator = np.random.default_rng(0)
    sides = generator.normal(size=(2, count, 1)) + np.array([[[moved]], [[0.0]]])
    others, members = (LastLayer(x, x, np.arange(count) % 2, "logistic") for x in sides)
    assert bool([note for note in notes(others, members) if "moved away" in note]) == (count == 4000 and moved == 0.6)


def test_classes_in_somewhat_other_proportions_are_told_of():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4000, 3))
    for share, told in ((0.6, False), (0.75, True)):
        y = np.concatenate([np.arange(2000) < 2000 * share, np.arange(2000) < 1000]).astype(int)
        others, members = layers((x, np.stack([0.0 * y, 4.0 * y - 2.0], 1), y), slice(2000), slice(2000, None))
        found = notes(others, members)
        assert bool(found) == told
        assert not told or f"({share - 0.5:.0%} of the records would have to differ)" in found[0]


def test_one_column_of_two_that_is_narrower_shows_in_a_few_directions_and_is_left_alone():
    """The spread along (a, b) is √(a² + b²) against √(a² + b²/100): it differs where b is many times a."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4000, 2))
    y = (x[:, 0] > 0).astype(int)
    parts = x * np.where(np.arange(4000) < 2000, 0.1, 1.0)[:, None] ** [0, 1], 4.0 * x[:, :1] * [-0.5, 0.5], y
    others, members = layers(parts, slice(2000), slice(2000, None))
    assert notes(others, members) == []
    parts = x * np.where(np.arange(4000) < 2000, 0.1, 1.0)[:, None], parts[1], y
    others, members = layers(parts, slice(2000), slice(2000, None))
    assert "is spread 0.1 times as widely" in notes(others, members)[0]


def test_of_many_records_some_are_looked_at_evenly(monkeypatch):
    """Whatever the chunks; and they tell of a shift as all would."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(10_000, 3))
    layer = LastLayer(x, x[:, :1], generator.normal(size=10_000), head="squared")
    directions = torch.eye(4, dtype=torch.float64)
    for chunk in (65_536, 999):
        monkeypatch.setattr(likeness, "_CHUNK", chunk)
        found = likeness._along(layer, directions)
        np.testing.assert_array_equal(found[:, :3], x[::3])
