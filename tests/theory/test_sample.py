"""Plug-in estimates from a fitted layer against brute-force leave-one-out refits."""

from __future__ import annotations

import numpy as np
import pytest

from noshadow import theory
from noshadow.errors import InputError, NoshadowWarning
from noshadow.layer import LastLayer


def _data(n=60, p=4, q=1, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p)) * [1.0, 10.0, 0.1, 3.0][:p] + 2.0
    y = x @ rng.standard_normal((p, q)) + rng.standard_normal((n, q)) + 5.0
    return x, y


def _fit(design, y):
    return np.linalg.lstsq(design, y, rcond=None)[0]


def _layer(x, y, bias=True):
    design = np.column_stack([x, np.ones(len(x))]) if bias else x
    return LastLayer(x, design @ _fit(design, y), y, head="squared", bias=bias), design


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("q", [1, 2])
def test_estimates_are_those_of_real_leave_one_out_refits(bias, q):
    x, y = _data(q=q)
    layer, design = _layer(x, y, bias)
    sample = theory.from_sample(layer)
    n, p = design.shape
    assert (sample.n, sample.p) == (n, p)
    assert sample.error.shape == ((n,) if q == 1 else (n, q))
    for i in (0, 17, 59):
        rest = np.delete(np.arange(n), i)
        theta = _fit(design[rest], y[rest])
        np.testing.assert_allclose(np.atleast_1d(sample.error[i]), y[i] - design[i] @ theta, rtol=1e-9)
        noise = ((y[rest] - design[rest] @ theta) ** 2).sum() / (q * (n - 1 - p))
        assert sample.sigma[i] == pytest.approx(np.sqrt(noise), rel=1e-9)
        hbar = (n - p) * design[i] @ np.linalg.inv(design[rest].T @ design[rest]) @ design[i]
        assert sample.leverage[i] == pytest.approx(hbar, rel=1e-8)
    if q == 2:
        residual = y - design @ _fit(design, y)
        np.testing.assert_allclose(sample.covariance, residual.T @ residual / (n - p), rtol=1e-9)
        gap = theory.expected_gap(sample.leverage, sample.error, n, p, covariance=sample.covariance)
        assert gap.shape == (n,)
    else:
        assert sample.covariance is None


def test_every_training_point_gets_a_curve():
    layer, _ = _layer(*_data())
    s = theory.from_sample(layer)
    beta = theory.tradeoff([0.01, 0.1], s.leverage[:, None], s.error[:, None], s.n, s.p, s.sigma[:, None])
    assert beta.shape == (60, 2)
    assert ((beta > 0) & (beta < 1)).all()
    # with V = n−p the contraction of the law is the one observed
    h = s.leverage / (s.n - s.p + s.leverage)
    assert h.sum() == pytest.approx(s.p, rel=1e-10)


def test_redundant_columns_change_nothing():
    x, y = _data()
    plain = theory.from_sample(_layer(x, y)[0])
    wide = np.column_stack([x, x[:, 0], np.zeros(len(x)), np.full(len(x), 3.0), x[:, 1] - 2 * x[:, 2]])
    redundant = theory.from_sample(_layer(wide, y)[0])
    assert redundant.p == plain.p == 5
    np.testing.assert_allclose(redundant.leverage, plain.leverage, rtol=1e-7)
    np.testing.assert_allclose(redundant.error, plain.error, rtol=1e-7)
    np.testing.assert_allclose(redundant.sigma, plain.sigma, rtol=1e-9)


def test_a_record_alone_in_its_direction_is_flagged():
    x, y = _data()
    alone = np.zeros((60, 1))
    alone[7] = 4.0
    layer, _ = _layer(np.column_stack([x, alone]), y)
    with pytest.warns(NoshadowWarning, match="leverage 1 in row 7"):
        sample = theory.from_sample(layer)
    assert np.flatnonzero(sample.undefined).tolist() == [7]
    assert np.isfinite(sample.leverage).all()
    assert sample.leverage[7] > 1e6 * np.delete(sample.leverage, 7).max()
    assert theory.success_rate(sample.leverage, sample.error, sample.n, sample.p, sample.sigma)[7] > 0.99


def test_ridge_and_unconverged_fits_warn():
    x, y = _data()
    design = np.column_stack([x, np.ones(60)])
    ridge = 2.0 * 5.0
    theta = np.linalg.solve(design.T @ design + ridge / 2 * np.eye(5), design.T @ y)
    with pytest.warns(NoshadowWarning, match="the ridge leaves"):
        sample = theory.from_sample(LastLayer(x, design @ theta, y, head="squared", ridge=ridge))
    # e/(1 − h) is the left-out residual of a ridge fit too
    rest = np.arange(1, 60)
    left_out = np.linalg.solve(design[rest].T @ design[rest] + ridge / 2 * np.eye(5), design[rest].T @ y[rest])
    assert sample.error[0] == pytest.approx((y[0] - design[0] @ left_out).item(), rel=1e-9)
    with pytest.warns(NoshadowWarning, match="lies in the span of the features"):
        theory.from_sample(LastLayer(x, np.zeros_like(y), y, head="squared"))


def test_what_the_laws_do_not_cover_is_refused():
    x, y = _data()
    with pytest.raises(InputError, match="squared error, but the head is 'logistic'"):
        theory.from_sample(LastLayer(x, y, (y > 5).astype(int), head="logistic"))
    with pytest.raises(InputError, match="6 records for 5 parameters"):
        theory.from_sample(_layer(x[:6], y[:6])[0])


def test_plug_in_finds_the_population_values():
    rng = np.random.default_rng(5)
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    mean = np.array([3.0, -1.0])
    x = rng.standard_normal((20000, 2)) @ np.linalg.cholesky(covariance).T + mean
    noise = 0.7 * rng.standard_normal(20000)
    y = x @ [1.0, -2.0] + 4.0 + noise
    sample = theory.from_sample(_layer(x, y[:, None])[0])
    truth = theory.population_leverage(x, covariance, mean)
    np.testing.assert_allclose(sample.leverage, truth, rtol=0.05)
    np.testing.assert_allclose(sample.error, noise, atol=0.1)
    np.testing.assert_allclose(sample.sigma, 0.7, rtol=0.02)


def test_population_leverage():
    rng = np.random.default_rng(1)
    root = rng.standard_normal((3, 3))
    covariance = root @ root.T
    x = rng.standard_normal((5, 3))
    truth = np.einsum("ij,jk,ik->i", x, np.linalg.inv(covariance), x)
    np.testing.assert_allclose(theory.population_leverage(x, covariance), truth, rtol=1e-9)
    # with a bias: the inverse second moment of (x, 1)
    mean = np.array([1.0, 2.0, 3.0])
    moment = np.block([[covariance + np.outer(mean, mean), mean[:, None]], [mean[None, :], np.ones((1, 1))]])
    wide = np.column_stack([x, np.ones(5)])
    truth = np.einsum("ij,jk,ik->i", wide, np.linalg.inv(moment), wide)
    np.testing.assert_allclose(theory.population_leverage(x, covariance, mean), truth, rtol=1e-8)
    # singular: the pseudo-inverse on the range, infinite off it
    flat = np.diag([4.0, 1.0, 0.0])
    assert theory.population_leverage([2.0, 1.0, 0.0], flat) == pytest.approx(2.0)
    assert theory.population_leverage([2.0, 1.0, 1e-3], flat) == np.inf
    assert theory.population_leverage([2.0, 1.0, 0.0], np.diag([4.0, 1e-20, 1.0])) == pytest.approx(1 + 1e20)
    with pytest.raises(InputError, match="covariance: Σ must be symmetric"):
        theory.population_leverage([1.0, 1.0], [[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(InputError, match="x: its last axis must hold the 3"):
        theory.population_leverage([1.0, 1.0], covariance)
