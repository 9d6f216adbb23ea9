"""Several labels per record: independent logistic heads, against separate scikit-learn models and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import binary_cross_entropy_with_logits

import noshadow.curvature.dense as dense
from noshadow import InputError, LastLayer, attacks, audit, score
from noshadow.curvature import build_curvature
from noshadow.heads import make_head
from noshadow.network import network_influence
from noshadow.scoring import score_with_diagnostics

SUMMED = ["loss", "entropy", "leverage", "influence", "newton", "leave_one_out"]


def make(n=80, p=4, m=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    z = x @ rng.normal(size=(p, m)) - 0.5
    return x, z, (rng.random((n, m)) < 1 / (1 + np.exp(-z))).astype(int)


def test_a_records_scores_are_the_sums_over_its_labels():
    x, z, y = make()
    sample, weight = np.random.default_rng(1).exponential(size=80), np.array([[1.0, 3.0], [0.5, 0.5], [2.0, 1.0]])
    for options in ({}, {"sample_weight": sample}, {"sample_weight": sample, "class_weight": weight}):
        both = []
        got = score(LastLayer(x, z, y, "logistic", 1.5, **options))
        for k in range(3):
            single = options | ({"class_weight": weight[k]} if "class_weight" in options else {})
            both.append(score(LastLayer(x, z[:, k], y[:, k], "logistic", 1.5, **single)))
        for name in SUMMED:
            np.testing.assert_allclose(got[name], sum(one[name] for one in both), rtol=1e-9, err_msg=name)
        norms = np.sqrt(sum(one["gradient_norm"] ** 2 for one in both))
        np.testing.assert_allclose(got["gradient_norm"], norms, rtol=1e-12)
    stepped = score(LastLayer(x, z, y, "logistic", 1.5), ["newton"], full_step=True)["newton"]
    alone = [LastLayer(x, z[:, k], y[:, k], "logistic", 1.5) for k in range(3)]
    want = sum(score(layer, ["newton"], full_step=True)["newton"] for layer in alone)
    np.testing.assert_allclose(stepped, want, rtol=1e-9)


@pytest.mark.parametrize("ridge", [0.0, 2.0])
def test_influence_and_newton_are_those_of_one_dense_hessian_over_all_labels(ridge):
    x, z, y = make(n=50, m=3)
    design, target = torch.from_numpy(np.hstack([x, np.ones((50, 1))])), torch.from_numpy(y).double()
    positive = torch.tensor([1.0, 4.0, 0.5], dtype=torch.float64)
    theta = torch.linalg.lstsq(design, torch.from_numpy(z)).solution.flatten()

    def seen(t):
        return binary_cross_entropy_with_logits(design @ t.reshape(-1, 3), target, reduction="none").sum(1)

    def trained(t):
        losses = binary_cross_entropy_with_logits(
            design @ t.reshape(-1, 3), target, reduction="none", pos_weight=positive
        )
        return losses.sum(1)

    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    g, pull = jacobian(seen, theta), jacobian(trained, theta)
    whole = hessian(lambda t: trained(t).sum() + 0.5 * ridge * (t**2).sum(), theta)
    inverse = torch.linalg.inv(whole)
    weight = torch.stack([torch.ones(3, dtype=torch.float64), positive], 1)
    got = score(LastLayer(x, z, y, "logistic", ridge, class_weight=weight))
    np.testing.assert_allclose(got["influence"], ((g @ inverse) * pull).sum(1), rtol=1e-8)
    for i in range(50):
        own = hessian(lambda t, i=i: trained(t)[i], theta)
        assert got["leverage"][i] == pytest.approx(float(torch.trace(inverse @ own)), rel=1e-8)
        assert got["newton"][i] == pytest.approx(float(g[i] @ torch.linalg.solve(whole - own, pull[i])), rel=1e-8)


def test_leave_one_out_is_that_of_separate_logistic_regressions_refitted():
    x, _, y = make(n=100, m=4, seed=2)

    def outputs(rows, points):
        models = [LogisticRegression(C=1.0, tol=1e-12, max_iter=1000, solver="newton-cg") for _ in range(4)]
        return np.stack([f.fit(x[rows], y[rows, k]).decision_function(points) for k, f in enumerate(models)], 1)

    z = outputs(np.arange(100), x)
    got, found = score_with_diagnostics(LastLayer(x, z, y, "logistic", 1.0, penalize_bias=False))
    assert found.stationarity < 1e-4
    assert found.rank == 5
    truth, sign = [], 2 * y - 1
    for i in range(0, 100, 4):
        after = outputs(np.arange(100) != i, x[i : i + 1])[0]
        truth.append((np.logaddexp(0, -sign[i] * after) - np.logaddexp(0, -sign[i] * z[i])).sum())
    assert np.median(np.abs(got["leave_one_out"][::4] / truth - 1)) < 0.02
    assert spearmanr(got["leave_one_out"][::4], truth).statistic > 0.99


def test_a_label_without_a_record_flags_it():
    """A feature that one record alone has: without the record its weight is undefined, for every label."""
    x, z, y = make()
    x[:, 2] = 0.0
    x[7, 2] = 1.0
    got, found = score_with_diagnostics(LastLayer(x, z, y, "logistic"))
    assert found.flagged == (7,)
    assert got["leverage"][7] == pytest.approx(3.0)  # all of its own fit, in each of three labels
    assert np.isfinite(got.to_numpy()).all()
    # a label that no record has a weight in: no curvature in any of its five directions, and nothing to undo
    ignored = LastLayer(x, z, y, "logistic", class_weight=[[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    got, found = score_with_diagnostics(ignored)
    assert (found.flagged, found.null_directions) == ((7,), 5)
    assert got["leverage"][7] == pytest.approx(2.0)


def test_chunks_memory_and_solve(monkeypatch):
    x, z, y = make(n=300, p=30, m=5)
    layer = LastLayer(x, z, y, "logistic", 0.5)
    whole = score(layer)
    monkeypatch.setattr(dense, "_chunk_rows", lambda *_: 7)
    np.testing.assert_allclose(score(layer), whole, rtol=1e-9)
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"memory: .* 5 × 31 × 31 entries \(31 columns × 5 outputs\)"):
        build_curvature(layer, "dense", memory=0.0001)
    gradient = np.random.default_rng(0).normal(size=(31, 5))
    got = build_curvature(layer).solve(torch.from_numpy(gradient)).numpy()
    design, p = np.hstack([x, np.ones((300, 1))]), 1 / (1 + np.exp(-z))
    for k in range(5):
        hessian = design.T @ (design * (p * (1 - p))[:, k : k + 1]) + 0.5 * np.eye(31)
        np.testing.assert_allclose(got[:, k], np.linalg.solve(hessian, gradient[:, k]), rtol=1e-9)


def test_the_head_against_autograd_and_on_leading_dimensions():
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(5, 4, 3, dtype=torch.float64, generator=generator)
    d = torch.randn(5, 4, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 2, (4, 3), generator=generator).expand(5, 4, 3)
    head = make_head("logistic", 3)
    truth = binary_cross_entropy_with_logits(z, y.double(), reduction="none").sum(-1)
    after = binary_cross_entropy_with_logits(z + d, y.double(), reduction="none").sum(-1)
    torch.testing.assert_close(head.loss(z, y), truth, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(head.loss_change(z, y, d), after - truth, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(head.gradient(z, y), torch.sigmoid(z) - y, rtol=1e-12, atol=1e-14)
    p = torch.sigmoid(z)
    torch.testing.assert_close(head.curvature(z), torch.diag_embed(p * (1 - p)), rtol=1e-12, atol=1e-14)
    with pytest.raises(InputError, match="attack its labels one at a time"):
        head.signal(z, y)
    with pytest.raises(InputError, match="one logit, got 3"):
        attacks.signal(z, y[0], "logistic")


def test_audits_and_full_network_influence_take_labels():
    x, _, y = make(n=40, p=4, m=3)
    inputs, labels = torch.from_numpy(x).float(), torch.from_numpy(y).float()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    result = audit(model, (inputs, labels), loss="bce_with_logits", ridge=2.0)
    assert result.metadata["head"] == "logistic"
    assert list(result.table.columns[:4]) == ["id", "target_0", "target_1", "target_2"]
    assert (result.table[["target_0", "target_1", "target_2"]].to_numpy() == y).all()
    # a linear model is all head: influence over its parameters is that of the layer
    full = network_influence(model.double(), inputs.double(), labels, head="logistic", damping=0.05, tolerance=1e-10)
    np.testing.assert_allclose(full.scores / 40, result.table["influence"], rtol=1e-4)


def test_labels_must_be_zero_or_one():
    x, z, y = make()
    with pytest.raises(InputError, match=r"map −1 to 0\), got -1 in rows"):
        LastLayer(x, z, 2 * y - 1, "logistic")
    half = y.astype(float)
    half[5, 1] = 0.5
    with pytest.raises(InputError, match=r"for each of 3 labels .* got 0.5 in row 5"):
        LastLayer(x, z, half, "logistic")
    with pytest.raises(InputError, match=r"class_weight: expected the weights of 0 and of 1 for each label.* \(3, 2\)"):
        LastLayer(x, z, y, "logistic", class_weight=[1.0, 2.0, 3.0])
    one = LastLayer(x, z, y, "logistic", class_weight=[[1.0, 3.0]])  # the same for every label
    assert one.class_weight.shape == (3, 2)


def test_rows_without_any_label_are_no_classes():
    """Zeros alone are not a class: a row of them would be taken for class 0."""
    logits = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(InputError, match=r"no label or several in row 2 .*head='logistic'"):
        LastLayer(logits, logits, np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 1]]), head="softmax")
