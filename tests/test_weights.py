"""Sample weights, class weights, smoothed labels: against refits, scikit-learn and autograd, which share no code."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn.functional import cross_entropy

from noshadow import InputError, LastLayer, score
from noshadow.heads import make_head
from noshadow.scoring import score_with_diagnostics
from noshadow.theory import from_sample

CURVED = ["leverage", "influence", "newton", "leave_one_out"]


def classes_of(x, m, seed=0):
    """Classes drawn from a softmax of a random linear function."""
    rng = np.random.default_rng(seed)
    return np.array([rng.choice(m, p=np.exp(v) / np.exp(v).sum()) for v in x @ rng.normal(size=(x.shape[1], m))])


def with_constant(x):
    return np.hstack([x, np.ones((len(x), 1))])


@pytest.mark.parametrize("alpha", [0.0, 3.0])
@pytest.mark.parametrize("q", [1, 3])
def test_weighted_least_squares_is_the_refit(alpha, q):
    rng = np.random.default_rng(0)
    x, n = rng.normal(size=(40, 4)) * [1, 10, 0.1, 1], 40
    x[0] *= 6
    y, w = rng.normal(size=(n, q)) + x[:, :1], rng.exponential(size=n)
    w[[3, 8]] = 0.0
    design = with_constant(x)

    def fit(rows):
        a = design[rows].T @ (w[rows, None] * design[rows]) + alpha * np.eye(5)
        return np.linalg.solve(a, design[rows].T @ (w[rows, None] * y[rows]))

    whole = design @ fit(np.arange(n))
    got = score(LastLayer(x, whole, y, "squared", 2 * alpha, sample_weight=w))
    before = ((y - whole) ** 2).sum(1)
    for i in range(n):
        gap = ((y[i] - design[i] @ fit(np.arange(n) != i)) ** 2).sum() - before[i]
        assert got["leave_one_out"][i] == pytest.approx(gap, rel=1e-8, abs=1e-12)
    inverse = np.linalg.inv(design.T @ (w[:, None] * design) + alpha * np.eye(5))
    hat = w * np.einsum("ij,jk,ik->i", design, inverse, design)
    np.testing.assert_allclose(got["leverage"], hat, rtol=1e-9)
    np.testing.assert_allclose(got["influence"], 2 * before * hat, rtol=1e-9)
    np.testing.assert_allclose(got["newton"], 2 * before * hat / (1 - hat), rtol=1e-9)
    np.testing.assert_allclose(got["loss"], before, rtol=1e-12)  # what an attacker sees: without the weight
    np.testing.assert_allclose(got["gradient_norm"], 2 * np.sqrt(before) * np.linalg.norm(design, axis=1), rtol=1e-12)
    assert not got.loc[[3, 8], CURVED].to_numpy().any()  # they took no part


def test_a_weighted_ridge_of_scikit_learn_is_refitted_exactly():
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(50, 3)), rng.uniform(0.1, 5, size=50)
    y = x.sum(1) + rng.normal(size=50)
    model = Ridge(alpha=2.0).fit(x, y, sample_weight=w)
    layer = LastLayer(x, model.predict(x), y, "squared", 4.0, penalize_bias=False, sample_weight=w)
    got, found = score_with_diagnostics(layer)
    assert found.stationarity < 1e-8
    for i in range(0, 50, 5):
        rest = np.arange(50) != i
        without = Ridge(alpha=2.0).fit(x[rest], y[rest], sample_weight=w[rest])
        gap = (y[i] - without.predict(x[i : i + 1])[0]) ** 2 - (y[i] - model.predict(x[i : i + 1])[0]) ** 2
        assert got["leave_one_out"][i] == pytest.approx(gap, rel=1e-8)


def reference(x, y, theta, ridge, sample, weight, smoothing):
    """IF, NS and the full step by dense autograd Hessians of torch's own weighted loss, record by record."""
    design, target = torch.from_numpy(with_constant(x)), torch.from_numpy(y)
    s = torch.ones(len(x), dtype=torch.float64) if sample is None else torch.from_numpy(sample)
    w = None if weight is None else torch.from_numpy(weight)
    m = theta.shape[1]

    def seen(t):
        return cross_entropy(design @ t.reshape(-1, m), target, reduction="none", label_smoothing=smoothing)

    def trained(t):
        z = design @ t.reshape(-1, m)
        return s * cross_entropy(z, target, weight=w, reduction="none", label_smoothing=smoothing)

    flat, jacobian = theta.flatten(), torch.autograd.functional.jacobian
    g, pull = jacobian(seen, flat), jacobian(trained, flat)
    whole = torch.autograd.functional.hessian(lambda t: trained(t).sum() + 0.5 * ridge * (t**2).sum(), flat)
    total = pull.sum(0) + ridge * flat
    influence = ((g @ torch.linalg.pinv(whole, hermitian=True, rtol=1e-12)) * pull).sum(1)
    newton, full, leverage = [], [], []
    step = -torch.linalg.pinv(whole, hermitian=True, rtol=1e-12) @ total
    for i in range(len(x)):
        own = torch.autograd.functional.hessian(lambda t, i=i: trained(t)[i], flat)
        without = torch.linalg.pinv(whole - own, hermitian=True, rtol=1e-12)
        newton.append(float(g[i] @ without @ pull[i]))
        # both heads take their Newton step; the gap is linear at the one with the record
        curved = torch.autograd.functional.hessian(lambda t, i=i: seen(t)[i], flat)
        full.append(float((g[i] + curved @ step) @ (-without @ (total - pull[i]) - step)))
        leverage.append(float(torch.trace(torch.linalg.pinv(whole, hermitian=True, rtol=1e-12) @ own)))
    return {"leverage": leverage, "influence": influence.numpy(), "newton": newton, "full": full, "loss": seen(flat)}


@pytest.mark.parametrize("ridge", [0.0, 2.0])
@pytest.mark.parametrize("weighted", ["sample", "class", "smooth", "class smooth", "sample class smooth"])
def test_softmax_scores_are_those_of_torchs_weighted_loss(weighted, ridge):
    rng = np.random.default_rng(3)
    n, p, m = 50, 3, 4
    x = rng.normal(size=(n, p))
    y = classes_of(x, m)
    sample = rng.exponential(size=n) if "sample" in weighted else None
    weight = np.array([0.2, 1.0, 3.0, 0.0 if "smooth" in weighted else 0.7]) if "class" in weighted else None
    smoothing = 0.15 if "smooth" in weighted else 0.0
    theta = torch.from_numpy(rng.normal(size=(p + 1, m)))
    want = reference(x, y, theta, ridge, sample, weight, smoothing)
    outputs = with_constant(x) @ theta.numpy()
    options = {"sample_weight": sample, "class_weight": weight, "label_smoothing": smoothing}
    layer = LastLayer(x, outputs, y, "softmax", ridge, **options)
    got, stepped = score(layer), score(layer, ["newton"], full_step=True)
    for name in ("leverage", "influence", "newton", "loss"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-8, atol=1e-13, err_msg=name)
    np.testing.assert_allclose(stepped["newton"], want["full"], rtol=1e-8, atol=1e-9 * np.abs(want["full"]).max())


def fit_weighted_softmax(x, y, m, ridge, sample, weight, smoothing):
    """Newton's method on torch's own loss, with autograd's Hessian."""
    design, target = torch.from_numpy(with_constant(x)), torch.from_numpy(y)
    s, w = torch.from_numpy(sample), torch.from_numpy(weight)

    def value(t):
        z = design @ t.reshape(-1, m)
        losses = cross_entropy(z, target, weight=w, reduction="none", label_smoothing=smoothing)
        return (s * losses).sum() + 0.5 * ridge * (t**2).sum()

    theta = torch.zeros(design.shape[1] * m, dtype=torch.float64)
    for _ in range(50):
        gradient = torch.autograd.functional.jacobian(value, theta)
        step = torch.linalg.solve(torch.autograd.functional.hessian(value, theta), gradient)
        theta = theta - step
        if float(step.abs().max()) < 1e-11:
            return theta.reshape(-1, m).numpy()
    raise AssertionError("no convergence")


def test_leave_one_out_of_a_weighted_smoothed_softmax_is_that_of_true_refits():
    rng = np.random.default_rng(4)
    n, p, m, ridge, smoothing = 90, 3, 3, 1.0, 0.1
    x = rng.normal(size=(n, p))
    y = classes_of(x, m)
    sample, weight = rng.exponential(size=n), np.array([0.5, 1.0, 2.5])
    theta = fit_weighted_softmax(x, y, m, ridge, sample, weight, smoothing)
    options = {"sample_weight": sample, "class_weight": weight, "label_smoothing": smoothing}
    layer = LastLayer(x, with_constant(x) @ theta, y, "softmax", ridge, **options)
    got, found = score_with_diagnostics(layer)
    assert found.stationarity < 1e-8
    chosen, truth = rng.choice(n, 40, replace=False), []
    for i in chosen:
        rest = np.arange(n) != i
        without = fit_weighted_softmax(x[rest], y[rest], m, ridge, sample[rest], weight, smoothing)
        both = torch.from_numpy(np.stack([with_constant(x)[i] @ without, with_constant(x)[i] @ theta]))
        after, before = cross_entropy(both, torch.tensor([y[i]] * 2), reduction="none", label_smoothing=smoothing)
        truth.append(float(after - before))
    values = got["leave_one_out"].to_numpy()[chosen]
    assert np.median(np.abs(values / truth - 1)) < 0.02
    assert spearmanr(values, truth).statistic > 0.99
    plain = score(LastLayer(x, with_constant(x) @ theta, y, "softmax", ridge))["leave_one_out"].to_numpy()[chosen]
    assert spearmanr(plain, truth).statistic < 0.9  # without the weights it is another ranking


@pytest.mark.parametrize("by_class", [True, False])
def test_weighted_logistic_regression_against_scikit_learns_refits(by_class):
    rng = np.random.default_rng(5)
    n = 120
    x = rng.normal(size=(n, 4))
    y = (rng.random(n) < 1 / (1 + np.exp(-x.sum(1) + 2))).astype(int)
    sample = None if by_class else rng.exponential(size=n)
    balanced = n / (2 * np.bincount(y)) if by_class else None

    def fit(rows):
        weights = None if balanced is None else {0: balanced[0], 1: balanced[1]}
        model = LogisticRegression(C=0.5, class_weight=weights, tol=1e-12, max_iter=1000, solver="newton-cg")
        return model.fit(x[rows], y[rows], sample_weight=None if sample is None else sample[rows])

    model = fit(np.arange(n))
    if by_class:
        same = LogisticRegression(C=0.5, class_weight="balanced", tol=1e-12, max_iter=1000, solver="newton-cg")
        np.testing.assert_allclose(same.fit(x, y).coef_, model.coef_, rtol=1e-8)
    z = model.decision_function(x)
    options = {"sample_weight": sample, "class_weight": balanced}
    got, found = score_with_diagnostics(LastLayer(x, z, y, "logistic", 2.0, penalize_bias=False, **options))
    assert found.stationarity < 1e-4
    # H, leverage, influence and newton from their definitions
    w = sample if sample is not None else balanced[y]
    design, p = with_constant(x), 1 / (1 + np.exp(-z))
    hessian = design.T @ (design * (w * p * (1 - p))[:, None]) + np.diag([2.0] * 4 + [0.0])
    a = np.einsum("ij,jk,ik->i", design, np.linalg.inv(hessian), design)
    h = w * p * (1 - p) * a
    np.testing.assert_allclose(got["leverage"], h, rtol=1e-8)
    np.testing.assert_allclose(got["influence"], w * (y - p) ** 2 * a, rtol=1e-8)
    np.testing.assert_allclose(got["newton"], w * (y - p) ** 2 * a / (1 - h), rtol=1e-8)
    truth = []
    for i in range(n):
        after = fit(np.arange(n) != i).decision_function(x[i : i + 1])[0]
        sign = 2 * y[i] - 1
        truth.append(np.logaddexp(0, -sign * after) - np.logaddexp(0, -sign * z[i]))
    assert np.median(np.abs(got["leave_one_out"] / truth - 1)) < 0.02
    assert spearmanr(got["leave_one_out"], truth).statistic > 0.99


@pytest.mark.parametrize("head", ["squared", "logistic", "softmax"])
def test_a_weight_of_three_is_three_copies_and_zero_is_none(head):
    rng = np.random.default_rng(6)
    n, m = 40, {"squared": 2, "logistic": 1, "softmax": 3}[head]
    x = rng.normal(size=(n, 3))
    z = x @ rng.normal(size=(3, m))
    y = z + rng.normal(size=z.shape) if head == "squared" else rng.integers(0, max(2, m), n)
    count = rng.integers(0, 4, n)
    got = score(LastLayer(x, z, y, head, 1.5, sample_weight=count))
    row = np.repeat(np.arange(n), count)
    copies = score(LastLayer(x[row], z[row], y[row], head, 1.5))
    for name in ("leverage", "influence"):  # both add up over copies
        np.testing.assert_allclose(got[name], np.bincount(row, copies[name], minlength=n), rtol=1e-9, atol=1e-15)
    assert not got.loc[count == 0, CURVED].to_numpy().any()
    once = np.flatnonzero(count == 1)
    np.testing.assert_allclose(got.loc[once, CURVED], copies.iloc[np.searchsorted(row, once)][CURVED], rtol=1e-9)


def test_what_weights_mean():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(60, 3))
    z, y = x @ rng.normal(size=(3, 3)), rng.integers(0, 3, 60)
    s, w = rng.exponential(size=60), np.array([0.3, 1.0, 4.0])
    by_class = score(LastLayer(x, z, y, ridge=1.0, class_weight=w))
    by_record = score(LastLayer(x, z, y, ridge=1.0, sample_weight=w[y]))
    by_name = score(LastLayer(x, z, y, ridge=1.0, class_weight={0: 0.3, 2: 4.0}))
    np.testing.assert_allclose(by_class, by_record, rtol=1e-12)
    np.testing.assert_allclose(by_class, by_name, rtol=1e-12)
    # the scale of the objective is nobody's business
    options = {"class_weight": w, "label_smoothing": 0.2}
    one, found = score_with_diagnostics(LastLayer(x, z, y, ridge=1.0, sample_weight=s, **options))
    ten, again = score_with_diagnostics(LastLayer(x, z, y, ridge=10.0, sample_weight=10 * s, **options))
    np.testing.assert_allclose(one, ten, rtol=1e-9)
    assert again.stationarity == pytest.approx(found.stationarity, rel=1e-9)
    assert "sample_weight, class_weight, label_smoothing=0.2" in repr(LastLayer(x, z, y, sample_weight=s, **options))


def test_smoothed_heads_are_torchs_on_any_leading_dimensions():
    generator = torch.Generator().manual_seed(0)
    z = 5 * torch.randn(4, 7, 3, dtype=torch.float64, generator=generator)
    d = torch.randn(4, 7, 3, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (7,), generator=generator).expand(4, 7)
    head = make_head("softmax", 3, 0.3)

    def truth(values):
        losses = cross_entropy(values.reshape(-1, 3), y.flatten(), reduction="none", label_smoothing=0.3)
        return losses.reshape(4, 7)

    torch.testing.assert_close(head.loss(z, y), truth(z), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(head.loss_change(z, y, d), truth(z + d) - truth(z), rtol=1e-10, atol=1e-12)
    point = z.clone().requires_grad_()
    (g,) = torch.autograd.grad(truth(point).sum(), point)
    torch.testing.assert_close(head.gradient(z, y), g, rtol=1e-12, atol=1e-14)


def test_bad_weights_are_named():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(20, 2))
    z, y = x @ rng.normal(size=(2, 3)), rng.integers(0, 3, 20)
    w = np.ones(20)
    for bad, match in (
        (np.where(np.arange(20) == 4, -1.0, w), r"sample_weight: negative in row 4 \(counted from 0\)"),
        (np.where(np.arange(20) == 4, np.nan, w), r"sample_weight: NaN or infinite in row 4"),
        (w[1:], r"sample_weight: expected a weight per record, shape \(20,\), got \(19,\)"),
        (np.ones((20, 3)), r"sample_weight: expected a weight per record, shape \(20,\), got \(20, 3\)"),
        ("balanced", r"sample_weight: expected numbers"),
        (0 * w, r"they are 0 for every record"),
    ):
        with pytest.raises(InputError, match=match):
            LastLayer(x, z, y, sample_weight=bad)
    for bad, match in (
        (np.ones(2), r"class_weight: expected a weight per class, shape \(3,\), got \(2,\)"),
        ([1.0, -2.0, 1.0], r"class_weight: expected finite weights ≥ 0, got -2 for class 1"),
        ([1.0, 1.0, np.inf], r"got inf for class 2"),
        ({3: 1.0}, r"class_weight: 3 is not a class of the model; its classes are \[0, 1, 2\]"),
        ("balanced", r"class_weight: expected numbers"),
    ):
        with pytest.raises(InputError, match=match):
            LastLayer(x, z, y, class_weight=bad)
    with pytest.raises(InputError, match=r"class_weight: a squared-error head has no classes"):
        LastLayer(x, z, z, "squared", class_weight=[1.0, 1.0, 1.0])
    for bad in (-0.1, 1.5, np.nan, "much"):
        with pytest.raises(InputError, match=r"label_smoothing: expected a number from 0 to 1"):
            LastLayer(x, z, y, label_smoothing=bad)
    with pytest.raises(InputError, match=r"label_smoothing: it is for head='softmax'"):
        LastLayer(x, z[:, 0], y > 0, "logistic", label_smoothing=0.1)
    with pytest.raises(InputError, match=r"the layer has a sample_weight"):
        from_sample(LastLayer(x, z[:, 0], z[:, 0], "squared", sample_weight=w))
