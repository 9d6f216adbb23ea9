"""Records that would be added: against refits with each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

from noshadow import InputError, LastLayer, score
from noshadow.candidates import added, candidate_chunks
from noshadow.curvature import build_curvature
from tests.conftest import fit_softmax


def ridge_fit(x, y, penalty, weight):
    return np.linalg.solve((x.T * weight) @ x + np.diag(penalty), (x.T * weight) @ y)


def with_constant(x):
    return np.hstack([x, np.ones((len(x), 1))])


@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 50.0])
@pytest.mark.parametrize(("q", "weighted"), [(1, False), (3, False), (2, True)])
def test_squared_error_scores_are_those_of_the_refit(penalize_bias, alpha, q, weighted):
    """Every score of a candidate is what the record scores in the model that was trained with it."""
    rng = np.random.default_rng(0)
    n, p, k = 50, 5, 12
    x = rng.normal(size=(n + k, p)) @ np.diag(10.0 ** rng.uniform(-2, 2, p)) + 1.0
    x[n] *= 8
    y = rng.normal(size=(n + k, q)) + x[:, :1]
    weight = rng.uniform(0.2, 3.0, n + k) if weighted else np.ones(n + k)
    design, penalty = with_constant(x), np.append(np.full(p, alpha), alpha if penalize_bias else 0.0)
    options = {"head": "squared", "ridge": 2 * alpha, "penalize_bias": penalize_bias}

    def layer(fit, rows):
        theta = ridge_fit(design[fit], y[fit], penalty, weight[fit])
        own = {"sample_weight": weight[rows]} if weighted else {}
        return LastLayer(x[rows], design[rows] @ theta, y[rows], **options, **own)

    train, others = np.arange(n), np.arange(n, n + k)
    got = score(layer(train, train), candidates=layer(train, others))
    assert len(got) == k
    for j, i in enumerate(others):
        rows = np.append(train, i)
        wanted = score(layer(rows, rows)).iloc[-1]
        for name in got:
            assert got[name][j] == pytest.approx(wanted[name], rel=1e-8, abs=1e-12), name


def test_squared_error_by_hand():
    """e² − e²/(1+h)² and h/(1+h)."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    theta = np.linalg.lstsq(with_constant(x), y, rcond=None)[0]
    new, target = rng.normal(size=(4, 3)), rng.normal(size=4)
    outputs = with_constant(new) @ theta
    layer = LastLayer(x, with_constant(x) @ theta, y, "squared")
    got = score(layer, ["leverage", "leave_one_out", "loss"], candidates=LastLayer(new, outputs, target, "squared"))
    h = np.einsum(
        "ij,jk,ik->i", with_constant(new), np.linalg.inv(with_constant(x).T @ with_constant(x)), with_constant(new)
    )
    e2 = (target - outputs) ** 2
    np.testing.assert_allclose(got["leverage"], h / (1 + h), rtol=1e-10)
    np.testing.assert_allclose(got["leave_one_out"], e2 - e2 / (1 + h) ** 2, rtol=1e-10)
    np.testing.assert_allclose(got["loss"], e2 / (1 + h) ** 2, rtol=1e-10)


def softmax_case(seed=2, n=80, p=3, m=3, k=60, ridge=1.0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + k, p))
    x[n : n + 5] *= 4
    y = np.array([rng.choice(m, p=np.exp(v) / np.exp(v).sum()) for v in 2 * x @ rng.normal(size=(p, m))])
    theta = fit_softmax(x[:n], y[:n], m, ridge).numpy()
    return x, y, theta, n, m, ridge


def test_softmax_scores_follow_the_refits():
    x, y, theta, n, m, ridge = softmax_case()
    design = with_constant(x)
    layer = LastLayer(x[:n], design[:n] @ theta, y[:n], "softmax", ridge)
    got = score(layer, candidates=LastLayer(x[n:], design[n:] @ theta, y[n:], "softmax", ridge))
    wanted = []
    for i in range(n, len(x)):
        rows = np.append(np.arange(n), i)
        refit = fit_softmax(x[rows], y[rows], m, ridge, start=torch.from_numpy(theta)).numpy()
        wanted.append(score(LastLayer(x[rows], design[rows] @ refit, y[rows], "softmax", ridge)).iloc[-1])
    for name in got:
        truth = np.array([row[name] for row in wanted])
        assert spearmanr(got[name], truth)[0] > 0.99, name
        assert np.median(np.abs(got[name] / truth - 1)) < 0.03, name
    # and the gap is that between the refit and the model as it is
    before = -np.log(np.exp(design[n:] @ theta)[np.arange(len(got)), y[n:]] / np.exp(design[n:] @ theta).sum(1))
    gap = before - np.array([row["loss"] for row in wanted])
    assert spearmanr(got["leave_one_out"], gap)[0] > 0.99
    assert np.median(np.abs(got["leave_one_out"] / gap - 1)) < 0.02
    np.testing.assert_allclose(got["loss"] + got["leave_one_out"], before, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_logistic_scores_follow_the_refits(weighted):
    rng = np.random.default_rng(3)
    n, k, p = 120, 40, 3
    x = rng.normal(size=(n + k, p))
    y = (rng.random(n + k) < 1 / (1 + np.exp(-2 * x[:, 0] - 1))).astype(int)
    weight = rng.uniform(0.3, 3.0, n + k) if weighted else np.ones(n + k)

    def layer(fit, rows):
        model = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(x[fit], y[fit], weight[fit])
        return LastLayer(
            x[rows],
            model.decision_function(x[rows]),
            y[rows],
            "logistic",
            1.0,
            penalize_bias=False,
            sample_weight=weight[rows],
        )

    train = np.arange(n)
    got = score(layer(train, train), candidates=layer(train, np.arange(n, n + k)))
    rows = [np.append(train, i) for i in range(n, n + k)]
    wanted = [score(layer(some, some)).iloc[-1] for some in rows]
    for name in got:
        truth = np.array([row[name] for row in wanted])
        assert spearmanr(got[name], truth)[0] > 0.99, name
        assert np.median(np.abs(got[name] / truth - 1)) < 0.03, name


@pytest.mark.parametrize("head", ["softmax", "multi-label", "smoothed"])
def test_the_added_record_is_where_its_own_loss_pulls_as_hard_as_the_rest(head):
    """d = −A g'(z + d) with A from a dense autograd-free double loop, absurd labels included; and back again."""
    rng = np.random.default_rng(4)
    n, p, m, k = 40, 3, 3, 20
    x = rng.normal(size=(n + k, p))
    design = with_constant(x)
    theta = rng.normal(size=(p + 1, m))
    theta[:, 0] *= 6  # confident outputs: many labels are absurd
    z = design @ theta
    if head == "multi-label":
        y, options = rng.integers(0, 2, (n + k, m)), {"head": "logistic", "ridge": 0.7}
    else:
        y, options = rng.integers(0, m, n + k), {"head": "softmax", "ridge": 0.7}
    if head == "smoothed":
        options |= {"label_smoothing": 0.1, "class_weight": [1.0, 2.0, 0.5]}
    layer, others = (LastLayer(x[rows], z[rows], y[rows], **options) for rows in (slice(n), slice(n, None)))
    (records,) = candidate_chunks(others)
    member = added(build_curvature(layer), records)
    whole = torch.zeros((p + 1) * m, (p + 1) * m, dtype=torch.float64)
    own = layer.records(slice(None))
    for i in range(n):
        w = torch.diag(torch.sigmoid(own.outputs[i]) * torch.sigmoid(-own.outputs[i]))
        if head != "multi-label":
            prob = torch.softmax(own.outputs[i], 0)
            w = torch.diag(prob) - torch.outer(prob, prob)
        weight = 1.0 if own.weights is None else float(own.weights[i, 0])
        whole += weight * torch.kron(torch.outer(own.design[i], own.design[i]), w)
    inverse = torch.linalg.inv(whole + 0.7 * torch.eye(len(whole), dtype=torch.float64))
    move = member.records.outputs - records.outputs
    for j in range(k):
        lift = torch.kron(records.design[j].unsqueeze(1), torch.eye(m, dtype=torch.float64))
        pull = records.head.expand(member.records.pull)[j] if head != "multi-label" else member.records.pull[j]
        np.testing.assert_allclose(
            move[j] - move[j].mean() * (head != "multi-label"), -(lift.T @ inverse @ lift) @ pull, atol=1e-8
        )
    back = member.removal(member.records.pull)
    np.testing.assert_allclose(back.shift, -member.shift, atol=1e-8)
    assert not back.undefined.any()


def test_directions_that_no_training_record_has():
    rng = np.random.default_rng(5)
    n, p = 30, 4
    x, y = rng.normal(size=(n + 3, p)), rng.normal(size=n + 3)
    x[:n, 3] = 0.0  # dead in training
    x[:n, 2] = x[:n, 1]  # collinear in training
    x[n + 2, 3], x[n + 2, 2] = 0.0, x[n + 2, 1]
    design = with_constant(x)

    def layer(fit, rows, alpha):
        theta = np.linalg.pinv(design[fit].T @ design[fit] + alpha * np.eye(p + 1)) @ design[fit].T @ y[fit]
        return LastLayer(x[rows], design[rows] @ theta, y[rows], "squared", 2 * alpha)

    train, others = np.arange(n), np.arange(n, n + 3)
    with pytest.raises(InputError, match=r"candidates: features in rows 0, 1 \(counted from 0\) point where"):
        score(layer(train, train, 0.0), candidates=layer(train, others, 0.0))
    got = score(layer(train, train, 0.5), candidates=layer(train, others, 0.5))
    inside = score(layer(train, train, 0.0), candidates=layer(train, others[2:], 0.0))
    for j, i in enumerate(others):
        rows = np.append(train, i)
        wanted = score(layer(rows, rows, 0.5), list(got)).iloc[-1]
        np.testing.assert_allclose(got.iloc[j], wanted, rtol=1e-8)
    np.testing.assert_allclose(inside.iloc[0], score(layer(rows, rows, 0.0), list(inside)).iloc[-1], rtol=1e-8)


def test_chunks_do_not_matter(monkeypatch):
    x, y, theta, n, _, ridge = softmax_case()
    z = with_constant(x) @ theta
    layer, others = (LastLayer(x[rows], z[rows], y[rows], "softmax", ridge) for rows in (slice(n), slice(n, None)))
    whole = score(layer, candidates=others)
    monkeypatch.setattr("noshadow.candidates._CHUNK_NUMBERS", 56)
    np.testing.assert_allclose(score(layer, candidates=others), whole, rtol=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": ["mean_trace"]}, "scores: 'mean_trace' needs what training remembers of a record, and candidates"),
        ({"scores": ["nothing"]}, "scores: 'nothing' is not a score"),
        ({"trace": np.ones((3, 80))}, "trace: what training remembers is of its own records"),
        ({"full_step": True}, "full_step: both heads of a candidate"),
        ({"candidates": np.ones((3, 3))}, "candidates: expected a LastLayer"),
        ({"candidates": "wide"}, "candidates: n_features is 2, but 3 for the training records"),
        ({"candidates": "weights"}, "candidates: class_weight differs"),
        ({"candidates": "smooth"}, "candidates: label_smoothing is 0.2, but 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    x, y, theta, n, _, ridge = softmax_case()
    z = with_constant(x) @ theta
    layer, others = (LastLayer(x[rows], z[rows], y[rows], "softmax", ridge) for rows in (slice(n), slice(n, None)))
    changed = {
        "wide": LastLayer(x[n:, :2], z[n:], y[n:]),
        "weights": LastLayer(x[n:], z[n:], y[n:], class_weight=[1.0, 2.0, 1.0]),
        "smooth": LastLayer(x[n:], z[n:], y[n:], label_smoothing=0.2),
    }
    given = arguments.get("candidates", others)
    arguments = arguments | {"candidates": changed[given] if isinstance(given, str) else given}
    with pytest.raises(InputError, match=message):
        score(layer, **arguments)


@pytest.mark.parametrize("q", [1, 2])
def test_fewer_records_than_columns(q):
    """Candidates have directions of their own, beside the span of the training records."""
    rng = np.random.default_rng(3)
    n, p, k, alpha = 12, 30, 5, 0.4
    x, y = rng.normal(size=(n + k, p)), rng.normal(size=(n + k, q))
    design = with_constant(x)
    theta = ridge_fit(design[:n], y[:n], np.full(p + 1, alpha), np.ones(n))
    layer, others = (
        LastLayer(x[rows], design[rows] @ theta, y[rows], "squared", 2.0 * alpha) for rows in (slice(n), slice(n, None))
    )
    got = score(layer, ["leave_one_out", "leverage"], candidates=others)
    for place in range(k):
        rows = [*range(n), n + place]
        fit = ridge_fit(design[rows], y[rows], np.full(p + 1, alpha), np.ones(n + 1))
        before, after = (((y - design @ one)[n + place] ** 2).sum() for one in (theta, fit))
        inverse = np.linalg.inv(design[rows].T @ design[rows] + alpha * np.eye(p + 1))
        leverage = design[n + place] @ inverse @ design[n + place]
        np.testing.assert_allclose(got.iloc[place], [before - after, leverage], rtol=1e-9)
    with pytest.raises(InputError, match="candidates: they are seen through the exact Hessian"):
        score(layer, candidates=others, memory=2e-5)
