"""Canaries: the greedy choice against refits, what hides what, and the audit that they are for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from noshadow import InputError, LastLayer, attacks, canaries, score
from tests.conftest import fit_softmax

ROOT = Path(__file__).resolve().parents[1]


def with_constant(x):
    return np.hstack([x, np.ones((len(x), 1))])


@pytest.mark.parametrize("q", [1, 2])
def test_the_greedy_choice_is_that_of_refits_for_squared_error(q):
    rng = np.random.default_rng(0)
    n, p, k, alpha = 40, 3, 5, 0.4
    x, y = rng.normal(size=(n + 30, p)), rng.normal(size=(n + 30, q))

    def layer(fit, rows):
        d = with_constant(x)
        theta = np.linalg.solve(d[fit].T @ d[fit] + alpha * np.eye(p + 1), d[fit].T @ y[fit])
        return LastLayer(x[rows], d[rows] @ theta, y[rows], "squared", 2 * alpha)

    train, others = np.arange(n), np.arange(n, n + 30)
    found = canaries(layer(train, train), k, candidates=layer(train, others), labels="given")
    members = train
    for row, shift in zip(found.rows, found.shift, strict=True):
        left = score(layer(members, members), ["leave_one_out"], candidates=layer(members, others))["leave_one_out"]
        left[np.isin(others, members)] = -1.0
        assert row == left.argmax()
        assert shift == pytest.approx(left.max(), rel=1e-8)
        members = np.append(members, others[row])
    np.testing.assert_array_equal(found.targets, y[others][found.rows])


@pytest.mark.parametrize("m", [2, 4])
def test_shifts_that_are_left_follow_the_refits(m):
    """φ of each canary in a model with those before it, and in one with it as well."""
    rng = np.random.default_rng(1)
    n, p, k, ridge = 1500, 3, 8, 1.0
    x = rng.normal(size=(n + 60, p))
    y = np.array([rng.choice(m, p=np.exp(v) / np.exp(v).sum()) for v in 1.5 * x @ rng.normal(size=(p, m))])
    design = with_constant(x)
    theta = fit_softmax(x[:n], y[:n], m, ridge)
    layer, others = (
        LastLayer(x[rows], design[rows] @ theta.numpy(), y[rows], "softmax", ridge)
        for rows in (slice(n), slice(n, None))
    )
    found = canaries(layer, k, candidates=others)
    np.testing.assert_array_equal(found.targets, (design[n:] @ theta.numpy()).argmin(1)[found.rows])
    features, labels, true = x[:n], y[:n], []
    fits = [theta]
    for row, target in zip(found.rows, found.targets, strict=True):
        features, labels = np.vstack([features, x[n + row]]), np.append(labels, target)
        fits.append(fit_softmax(features, labels, m, ridge, start=fits[-1]))
        both = torch.stack([torch.from_numpy(design[n + row]) @ fit for fit in fits[-2:]]).numpy()
        without, having = attacks.signal(both[:, None], [target], "softmax")[:, 0]
        true.append(having - without)
    # the other records' curvature is that of the model as it is; canaries move it a little
    np.testing.assert_allclose(found.shift, true, rtol=0.25)


def test_what_is_taken_is_part_of_the_hessian_and_of_the_model():
    """With classes that are coupled: the same choice, one at a time, with H of training records and canaries anew."""
    rng = np.random.default_rng(6)
    n, p, m, ridge = 60, 3, 4, 0.8
    x = rng.normal(size=(n + 25, p))
    design = with_constant(x)
    z = design @ (2 * rng.normal(size=(p + 1, m)))
    y = rng.integers(0, m, n + 25)
    train, others = np.arange(n), np.arange(n, n + 25)
    layer, pool = (LastLayer(x[rows], z[rows], y[rows], "softmax", ridge) for rows in (train, others))
    found = canaries(layer, 6, candidates=pool, labels="given")
    features, outputs, targets, said = x[:n], z[:n], y[:n], z[n:].copy()
    for row, shift in zip(found.rows, found.shift, strict=True):
        now = LastLayer(features, outputs, targets, "softmax", ridge)
        one = canaries(
            now, 25, candidates=LastLayer(x[n:], said, y[n:], "softmax", ridge), labels="given", diverse=False
        )
        free = [r for r in one.rows if r not in found.rows[: list(found.rows).index(row)]]
        assert row == free[0]
        assert shift == pytest.approx(one.shift[list(one.rows).index(row)], rel=1e-7)
        prob = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        hessian = ridge * np.eye((p + 1) * m)
        for own, chance in zip(with_constant(features), prob, strict=True):
            hessian += np.kron(np.outer(own, own), np.diag(chance) - np.outer(chance, chance))
        own = design[n + row]
        block = np.kron(own, np.eye(m)) @ np.linalg.inv(hessian) @ np.kron(own, np.eye(m)).T
        move = np.zeros(m)
        for _ in range(2000):  # d = −A g(z + d), by damped fixed-point steps
            chance = np.exp(said[row] + move) / np.exp(said[row] + move).sum()
            pull = chance - np.eye(m)[y[n + row]]
            move += 0.1 * (-block @ pull - move)
        features, targets = np.vstack([features, x[n + row]]), np.append(targets, y[n + row])
        outputs = np.vstack([outputs, said[row] + move])
        step = np.linalg.solve(hessian, np.kron(own, pull)).reshape(p + 1, m)
        said = said - design[n:] @ step


def logistic_case(n=200):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n + 40, 4))
    y = (x[:, 0] + 0.5 * rng.normal(size=n + 40) > 0).astype(int)
    model = LogisticRegression(C=1.0).fit(x[:n], y[:n])
    return x, y, model, n


def layer_of(model, x, y, **options):
    return LastLayer(x, model.decision_function(x), y, "logistic", 1.0, penalize_bias=False, **options)


def test_copies_of_a_canary_wait():
    x, y, model, n = logistic_case()
    x[n + 1 : n + 20] = x[n]
    x[n : n + 20] *= 3.0  # the most exposed of all, twenty times over
    layer, others = layer_of(model, x[:n], y[:n]), layer_of(model, x[n:], y[n:])
    alone = canaries(layer, 10, candidates=others, diverse=False)
    assert (alone.rows < 20).all()
    assert alone.shift.max() == pytest.approx(alone.shift.min())
    diverse = canaries(layer, 10, candidates=others)
    assert (diverse.rows < 20).sum() < 5
    assert diverse.rows[0] < 20
    assert diverse.shift[0] == pytest.approx(alone.shift[0])
    assert len(set(diverse.rows)) == 10
    first = {int(canaries(layer, 1, candidates=others, seed=seed).rows[0]) for seed in range(8)}
    assert len(first) > 1  # equal shifts are ordered by the seed
    again = [canaries(layer, 4, candidates=others, seed=3).rows.tolist() for _ in range(2)]
    assert again[0] == again[1]


def test_copies_of_training_records_get_other_labels():
    x, y, model, n = logistic_case()
    heavy = layer_of(model, x[:n], y[:n], sample_weight=np.full(n, 1.0))
    found = canaries(heavy, 5)
    np.testing.assert_array_equal(found.targets, 1 - model.predict(x[:n])[found.rows])


@pytest.mark.parametrize("diverse", [False, True])
def test_copies_of_weighted_records_are_inserted_with_no_weight(diverse):
    """A copy under another label is a new record: as a candidate with the same features and no weight."""
    x, y, model, n = logistic_case()
    weight = np.random.default_rng(0).uniform(0.1, 5.0, n)
    layer = layer_of(model, x[:n], y[:n], sample_weight=weight)
    found = canaries(layer, 5, diverse=diverse)
    plain = canaries(layer, 5, candidates=layer_of(model, x[:n], y[:n]), diverse=diverse)
    np.testing.assert_array_equal(found.rows, plain.rows)
    np.testing.assert_allclose(found.shift, plain.shift)


@pytest.mark.parametrize("diverse", [False, True])
def test_sparse_features_give_the_same_canaries(diverse):
    x, y, model, n = logistic_case()
    x = np.where(np.abs(x) > 0.5, x, 0.0)
    dense, table = (layer_of(model, form(x[:n]), y[:n]) for form in (np.asarray, sparse.csr_matrix))
    others, same = (layer_of(model, form(x[n:]), y[n:]) for form in (np.asarray, sparse.csr_matrix))
    for plain, found in ((None, None), (others, same)):
        wanted = canaries(dense, 5, candidates=plain, diverse=diverse)
        given = canaries(table, 5, candidates=found, diverse=diverse)
        np.testing.assert_array_equal(given.rows, wanted.rows)
        np.testing.assert_allclose(given.shift, wanted.shift)


def test_class_weights_are_those_of_the_new_labels():
    """A canary is inserted with the weight of the label it is given."""
    x, y, model, n = logistic_case()
    weight = [0.1, 5.0]
    layer, others = (layer_of(model, x[rows], y[rows], class_weight=weight) for rows in (slice(n), slice(n, None)))
    found = canaries(layer, 5, candidates=others, diverse=False)
    relabelled = layer_of(model, x[n:], 1 - model.predict(x[n:]), class_weight=weight)
    given = canaries(layer, 5, candidates=relabelled, labels="given", diverse=False)
    np.testing.assert_array_equal(found.rows, given.rows)
    np.testing.assert_allclose(found.shift, given.shift)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k: expected 1 … 40, the number of candidates, got 0"),
        ({"k": 41}, "k: expected 1 … 40"),
        ({"k": 2.5}, "k: expected 1 … 40, the number of candidates, got 2.5"),
        ({"k": True}, "k: expected 1 … 40, the number of candidates, got True"),
        ({"k": None}, "k: expected 1 … 40, the number of candidates, got None"),
        ({"labels": "any"}, "labels: 'any' is not one of"),
        ({"labels": "given", "candidates": None}, "candidates: needed for labels='given'"),
        ({"memory": 1e-6}, "memory: the exact Hessian"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, message):
    x, y, model, n = logistic_case()
    layer, others = layer_of(model, x[:n], y[:n]), layer_of(model, x[n:], y[n:])
    with pytest.raises(InputError, match=message):
        canaries(layer, **({"k": 3, "candidates": others} | arguments))


def test_what_it_keeps_stays_within_memory():
    rng = np.random.default_rng(7)
    x, y = rng.normal(size=(400, 2)), rng.integers(0, 40, 400)
    layer = LastLayer(x, rng.normal(size=(400, 40)), y, ridge=1.0)
    with pytest.raises(InputError, match="memory: 390 canaries keep blocks of 39 × 39 numbers"):
        canaries(layer, 390, memory=0.5)
    small = canaries(layer, 2, memory=0.05)  # fewer than 400 fit
    np.testing.assert_array_equal(small.rows, canaries(layer, 2).rows)


def test_heads_without_labels_or_with_several():
    x = np.random.default_rng(3).normal(size=(20, 2))
    with pytest.raises(InputError, match="labels: 'least_likely' needs classes"):
        canaries(LastLayer(x, x[:, 0], x[:, 1], "squared"), 2)
    with pytest.raises(InputError, match="layer: no single statistic tells of membership for several labels"):
        canaries(LastLayer(x, x, (x > 0).astype(int), "logistic"), 2)


def test_the_example_gets_a_higher_bound():
    spec = importlib.util.spec_from_file_location("canaries_example", ROOT / "examples" / "canaries.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = example.compare(n_canaries=50, n_models=16)
    bounds = {name: result.epsilon_lower_bound(confidence=0.95) for name, result in found.items()}
    assert bounds["chosen"] > bounds["random mislabelled"] > bounds["random"]
    rates = {name: result.success_rate.mean() for name, result in found.items()}
    assert rates["chosen"] > max(rates["random mislabelled"], rates["most exposed"]) + 0.02
