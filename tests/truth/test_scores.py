"""The scores against things that do not share their code: refits, autograd, statsmodels."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from sklearn.linear_model import LogisticRegression

from noshadow import LastLayer, score
from tests.conftest import fit_softmax


def ridge_fit(x, y, penalty):
    return np.linalg.solve(x.T @ x + np.diag(penalty), x.T @ y)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("penalize_bias", [True, False])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 50.0])
@pytest.mark.parametrize("q", [1, 3])
def test_squared_error_leave_one_out_is_the_refit(bias, penalize_bias, alpha, q):
    rng = np.random.default_rng(0)
    n, p = 50, 6
    x = rng.normal(size=(n, p)) @ np.diag(10.0 ** rng.uniform(-2, 2, p)) + 1.0
    x[0] *= 8  # one record of high leverage
    y = rng.normal(size=(n, q)) + x[:, :1]
    design = np.hstack([x, np.ones((n, 1))]) if bias else x
    penalty = np.full(design.shape[1], alpha)
    if bias and not penalize_bias:
        penalty[-1] = 0.0
    outputs = design @ ridge_fit(design, y, penalty)
    layer = LastLayer(x, outputs, y, "squared", 2 * alpha, bias=bias, penalize_bias=penalize_bias)
    got = score(layer)
    before = ((y - outputs) ** 2).sum(1)
    for i in range(n):
        rest = np.arange(n) != i
        theta = ridge_fit(design[rest], y[rest], penalty)
        gap = ((y[i] - design[i] @ theta) ** 2).sum() - before[i]
        assert got["leave_one_out"][i] == pytest.approx(gap, rel=1e-8)
    hat = np.einsum("ij,jk,ik->i", design, np.linalg.inv(design.T @ design + np.diag(penalty)), design)
    np.testing.assert_allclose(got["leverage"], hat, rtol=1e-10)
    np.testing.assert_allclose(got["influence"], 2 * before * hat, rtol=1e-9)
    np.testing.assert_allclose(got["newton"], 2 * before * hat / (1 - hat), rtol=1e-9)
    np.testing.assert_allclose(got["gradient_norm"], 2 * np.sqrt(before) * np.linalg.norm(design, axis=1), rtol=1e-12)


def test_newton_linearises_and_leave_one_out_does_not():
    """Errata 7: at h = .82 the true gap is 2.460; here on a line through five points, by hand."""
    x = np.array([[0.0], [0.1], [-0.1], [0.05], [3.0]])
    y = np.array([0.0, 0.3, -0.2, 0.1, 2.0])
    design = np.hstack([x, np.ones((5, 1))])
    outputs = design @ np.linalg.lstsq(design, y, rcond=None)[0]
    got = score(LastLayer(x, outputs, y, "squared"))
    i = 4
    rest = np.arange(5) != i
    theta = np.linalg.lstsq(design[rest], y[rest], rcond=None)[0]
    gap = (y[i] - design[i] @ theta) ** 2 - (y[i] - outputs[i]) ** 2
    assert got["leverage"][i] > 0.99
    assert got["leave_one_out"][i] == pytest.approx(gap, rel=1e-8)
    assert got["newton"][i] < 0.05 * gap
    assert got["influence"][i] < 0.05 * got["newton"][i]


def autograd_reference(x, y, theta, penalty, head):
    """IF, NS and NS of the full step from dense autograd Hessians and explicit pseudo-inverses, record by record."""
    design = torch.cat([torch.as_tensor(x), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    target = torch.as_tensor(y)
    m = theta.shape[1]

    def losses(t):
        z = design @ t.reshape(-1, m)
        if head == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(
                z[:, 0], target.to(torch.float64), reduction="none"
            )
        return torch.nn.functional.cross_entropy(z, target, reduction="none")

    flat = theta.flatten()
    weights = penalty.unsqueeze(1).expand(-1, m).flatten()
    jacobian = torch.autograd.functional.jacobian(losses, flat)
    whole = torch.autograd.functional.hessian(lambda t: losses(t).sum(), flat) + torch.diag(weights)
    total = jacobian.sum(0) + weights * flat
    inverse = torch.linalg.pinv(whole, hermitian=True, rtol=1e-12)
    influence = ((jacobian @ inverse) * jacobian).sum(1)
    newton, full = [], []
    step = -inverse @ total
    for i in range(len(x)):
        own = torch.autograd.functional.hessian(lambda t, i=i: losses(t)[i], flat)
        without = torch.linalg.pinv(whole - own, hermitian=True, rtol=1e-12)
        newton.append(jacobian[i] @ without @ jacobian[i])
        # both heads take their Newton step; the gap is linear at the one with the record
        step_without = -without @ (total - jacobian[i])
        full.append((jacobian[i] + own @ step) @ (step_without - step))
    return influence.numpy(), torch.stack(newton).numpy(), torch.stack(full).numpy()


@pytest.mark.parametrize("head", ["logistic", "softmax"])
@pytest.mark.parametrize(("ridge", "penalize_bias"), [(0.0, True), (2.0, True), (2.0, False)])
@pytest.mark.parametrize("converged", [True, False])
def test_influence_and_newton_are_those_of_a_dense_autograd_hessian(head, ridge, penalize_bias, converged):
    rng = np.random.default_rng(3)
    n, p, m = 60, 4, 2 if head == "logistic" else 4
    x = rng.normal(size=(n, p))
    y = np.array([rng.choice(m, p=np.exp(v) / np.exp(v).sum()) for v in x @ rng.normal(size=(p, m))])
    # softmax of (0, z) is the logistic head; its ridge on two columns is half on the one logit (errata 9)
    theta = fit_softmax(x, y, m, 2 * ridge if head == "logistic" else ridge, penalize_bias)
    if head == "logistic":
        theta = theta[:, 1:] - theta[:, :1]
    if not converged:
        theta = theta + 0.3 * torch.from_numpy(rng.normal(size=theta.shape))
    penalty = torch.full((p + 1,), ridge, dtype=torch.float64)
    penalty[-1] *= penalize_bias
    influence, newton, full = autograd_reference(x, y, theta, penalty, head)
    outputs = np.hstack([x, np.ones((n, 1))]) @ theta.numpy()
    layer = LastLayer(x, outputs, y, head, ridge, penalize_bias=penalize_bias)
    wanted = ["influence", "newton"]
    got, stepped = (score(layer, wanted, full_step=step) for step in (False, True))
    np.testing.assert_allclose(got["influence"], influence, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(got["newton"], newton, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(stepped["newton"], full, rtol=1e-8, atol=1e-9 * np.abs(full).max())


def test_leave_one_out_beats_newton_beats_influence(noisy_digits, capsys):
    x, y, m = noisy_digits
    ridge = 1.0
    theta = fit_softmax(x, y, m, ridge)
    design = torch.cat([torch.as_tensor(x), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    got = score(LastLayer(x, design @ theta, y, "softmax", ridge))
    chosen = np.random.default_rng(0).choice(len(x), 100, replace=False)
    truth = []
    for i in chosen:
        rest = np.arange(len(x)) != i
        without = fit_softmax(x[rest], y[rest], m, ridge, start=theta)
        both = torch.stack([design[i] @ without, design[i] @ theta])
        losses = torch.nn.functional.cross_entropy(both, torch.as_tensor([y[i], y[i]]), reduction="none")
        truth.append(float(losses[0] - losses[1]))
    errors = {
        name: float(np.median(np.abs(got[name].to_numpy()[chosen] / np.array(truth) - 1)))
        for name in ("influence", "newton", "leave_one_out")
    }
    with capsys.disabled():
        print("\nmedian relative error to 100 refits:", {k: f"{v:.3%}" for k, v in errors.items()})
    assert errors["leave_one_out"] < 0.01
    assert errors["leave_one_out"] < errors["newton"] < errors["influence"]


def test_statsmodels_agrees_on_linear_models():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 3))
    y = x.sum(1) + rng.normal(size=40)
    design = sm.add_constant(x, prepend=False)
    influence = sm.OLS(y, design).fit().get_influence()
    layer = LastLayer(x, sm.OLS(y, design).fit().fittedvalues, y, "squared")
    got = score(layer)
    np.testing.assert_allclose(got["leverage"], influence.hat_matrix_diag, rtol=1e-10)
    np.testing.assert_allclose(got["leave_one_out"] + got["loss"], influence.resid_press**2, rtol=1e-9)


def test_statsmodels_agrees_on_logistic_models():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(80, 3))
    y = (rng.random(80) < 1 / (1 + np.exp(-x.sum(1)))).astype(int)
    fit = sm.GLM(y, sm.add_constant(x, prepend=False), family=sm.families.Binomial()).fit(tol=1e-14)
    influence = fit.get_influence(observed=False)
    layer = LastLayer(x, fit.predict(which="linear"), y, "logistic")
    got = score(layer)
    np.testing.assert_allclose(got["leverage"], influence.hat_matrix_diag, rtol=1e-8)
    # Pearson residual (y − p)/√w: IF = r² h, NS = r² h/(1−h)
    pearson = fit.resid_pearson**2
    np.testing.assert_allclose(got["influence"], pearson * influence.hat_matrix_diag, rtol=1e-7)
    leverage = influence.hat_matrix_diag
    np.testing.assert_allclose(got["newton"], pearson * leverage / (1 - leverage), rtol=1e-7)


@pytest.mark.parametrize("ridge", [0.0, 3.0])
def test_two_class_softmax_is_logistic(ridge):
    """Errata 9: ridge Λ on the two columns of a softmax is Λ/2 on the single logit."""
    rng = np.random.default_rng(4)
    x, logit = rng.normal(size=(70, 5)), rng.normal(size=70) * 3
    y = rng.integers(0, 2, 70)
    pair = np.stack([-0.5 * logit, 0.5 * logit], 1) + rng.normal(size=(70, 1))
    with pytest.warns(match="not a linear function"):
        one = score(LastLayer(x, logit, y, "logistic", ridge / 2))
    with pytest.warns(match="not a linear function"):
        two = score(LastLayer(x, pair, y, "softmax", ridge))
    for name in ("loss", "entropy", "leverage", "influence", "newton", "leave_one_out"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-9, atol=1e-15)


def test_leverage_is_the_sensitivity_of_the_fit_to_its_own_label():
    """∂p̂ᵢ/∂yᵢ = hᵢᵢ for a converged logistic head, by refitting with a slightly changed (fractional) label."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(50, 3))
    y = (rng.random(50) < 1 / (1 + np.exp(-x.sum(1)))).astype(float)
    design = sm.add_constant(x, prepend=False)

    def probabilities(labels):
        theta = np.zeros(4)
        for _ in range(60):
            p = 1 / (1 + np.exp(-design @ theta))
            theta += np.linalg.solve(design.T @ (design * (p * (1 - p))[:, None]), design.T @ (labels - p))
        return 1 / (1 + np.exp(-design @ theta)), theta

    _, theta = probabilities(y)
    got = score(LastLayer(x, design @ theta, y.astype(int), "logistic"))
    for i in range(0, 50, 7):
        up, down = y.copy(), y.copy()
        up[i] += 1e-5
        down[i] -= 1e-5
        slope = (probabilities(up)[0][i] - probabilities(down)[0][i]) / 2e-5
        assert got["leverage"][i] == pytest.approx(slope, rel=1e-6)


def test_stationarity_tells_a_converged_head_from_another():
    from noshadow.scoring import score_with_diagnostics

    x, y = np.random.default_rng(0).normal(size=(300, 5)), np.random.default_rng(1).integers(0, 3, 300)
    model = LogisticRegression(C=0.5, tol=1e-12, max_iter=5000, solver="newton-cg").fit(x, y)
    z = model.decision_function(x)
    other = 1.5 * z + x[:, :3]
    other -= other.mean(1, keepdims=True)  # what all classes share changes no prediction and is not counted
    fine = score_with_diagnostics(LastLayer(x, z, y, "softmax", 2.0, penalize_bias=False))[1]
    off = score_with_diagnostics(LastLayer(x, other, y, "softmax", 2.0, penalize_bias=False))[1]
    assert fine.stationarity < 1e-4
    assert off.stationarity > 10
    # its definition, from explicit sums
    design = np.hstack([x, np.ones((300, 1))])
    p = np.exp(other) / np.exp(other).sum(1, keepdims=True)
    per_record = np.einsum("ij,ik->ijk", design, p - np.eye(3)[y]).reshape(300, -1)
    theta = np.linalg.lstsq(design, other, rcond=None)[0]
    penalty = np.array([2.0] * 5 + [0.0])
    hessian = sum(np.kron(np.outer(d, d), np.diag(w) - np.outer(w, w)) for d, w in zip(design, p, strict=True))
    hessian += np.kron(np.diag(penalty), np.eye(3))
    inverse = np.linalg.pinv(hessian, hermitian=True)
    total = per_record.sum(0) + (penalty[:, None] * theta).ravel()
    typical = np.sqrt(np.einsum("ij,jk,ik->i", per_record, inverse, per_record).mean())
    assert off.stationarity == pytest.approx(np.sqrt(total @ inverse @ total) / typical, rel=1e-6)
