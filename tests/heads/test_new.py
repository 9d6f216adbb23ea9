"""A head of one's own, a class and a line in the registry: counts, with a logarithmic link."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.special import gammaln

from noshadow import InputError, LastLayer, Trace, audit, score
from noshadow.heads import HEADS, Signal
from noshadow.heads.uncoupled import Uncoupled
from noshadow.predict import Calibration, HeldOut, Rates, spreads_of
from noshadow.rating import LAWS, Law
from noshadow.scoring import score_with_diagnostics


class Poisson(Uncoupled):
    """loss = exp(z) − y z + log y!, of one output."""

    name = "poisson"
    loss_name = "Poisson deviance"
    classifies = False
    signals: ClassVar = {"loss": Signal("lower")}
    signal_scale = "count"

    def loss(self, z, y):
        return (z.exp() - y * z + torch.lgamma(y + 1.0)).sum(-1)

    def gradient(self, z, y):
        return z.exp() - y

    def curved(self, z, v):
        return z.exp() * v

    def packed_curvature(self, z):
        return z.exp()

    def loss_change(self, z, y, d):
        return (z.exp() * torch.expm1(d) - y * d).sum(-1)

    def signal(self, z, y, form=None):
        return self.loss(z, y)

    def signal_gradient(self, z, y):
        return self.gradient(z, y)

    def signal_change(self, z, y, d):
        return self.loss_change(z, y, d)

    def for_outputs(self, m):
        return self

    def read_targets(self, y, m):
        return y.to(torch.float64)

    def n_classes(self, m):
        return 0

    def nearest_class(self, z, y):
        return None

    def concern(self, z, y):
        return None


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(HEADS, "poisson", Poisson())


def fitted(x, y):
    design, theta = np.c_[x, np.ones(len(x))], np.zeros(x.shape[1] + 1)
    for _ in range(40):
        rate = np.exp(design @ theta)
        theta -= np.linalg.solve(design.T @ (rate[:, None] * design), design.T @ (rate - y))
    return theta


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = rng.poisson(np.exp(0.4 * x.sum(1) + 0.5)).astype(float)
    return x, np.c_[x, np.ones(200)] @ fitted(x, y), y


def loss_of(z, y):
    return np.exp(z) - y * z + gammaln(y + 1.0)


def test_its_scores_are_those_of_refits(counts):
    x, z, y = counts
    layer = LastLayer(x, z, y, "poisson")
    table, found = score_with_diagnostics(layer, ["leave_one_out", "signal_shift", "newton"])
    np.testing.assert_array_equal(table["signal_shift"], table["leave_one_out"])  # its members lose less
    refitted = []
    for row in range(40):
        others = np.arange(200) != row
        refitted.append(loss_of(np.r_[x[row], 1.0] @ fitted(x[others], y[others]), y[row]) - loss_of(z[row], y[row]))
    np.testing.assert_allclose(table["leave_one_out"][:40], refitted, rtol=0.1, atol=1e-3)
    assert found.stationarity < 1e-6
    assert found.constant is None  # a mean of counts is no output of this head


def test_its_exposure_is_the_newton_score_of_the_run(counts):
    x, z, y = counts
    layer = LastLayer(x, z, y, "poisson")
    epochs = np.stack([z * share for share in (0.2, 0.6, 1.0)])
    losses = loss_of(epochs, y)
    mean = epochs.mean(0)
    at_mean = score(LastLayer(x, mean, y, "poisson"), ["newton"])["newton"]
    wanted = at_mean * losses.mean(0) / loss_of(mean, y)
    found = score(layer, ["exposure"], Trace.from_losses(losses, mean[:, None]))["exposure"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    of_losses = score(layer, ["exposure", "newton"], losses)
    np.testing.assert_array_equal(of_losses["exposure"], of_losses["newton"])


def test_rates_wait_for_a_law(counts):
    x, z, y = counts
    layer, again = LastLayer(x, z, y, "poisson"), LastLayer(x, z + 0.1 * x[:, 0], y, "poisson")
    with pytest.raises(InputError, match=r"^held_out: no law of predicted rates is known of a poisson head"):
        score(layer, held_out=(z, y))
    with pytest.raises(InputError, match=r"^rerun: no law of predicted rates is known of a poisson head"):
        audit(layer, rerun=again)
    found = audit(layer)
    assert "attack_accuracy" not in found.table
    assert not any("held_out=" in hint for hint in found.metadata["advice"])


def test_a_law_names_the_scores_that_it_takes(counts, monkeypatch):
    x, z, y = counts
    asked = []

    def rates(values):
        asked.append(set(values))
        return Rates(values["gradient_norm"], 0.5 + 0.0 * values["loss"], lambda: 0.01 + 0.0 * values["loss"])

    def converged(total, values, spreads):
        return Calibration(1.0, 1.0, source="converged"), rates(values)

    def calibrated(basis):
        loss = basis.values["loss"]
        return loss, lambda held: (spreads_of(basis.layer.kind, loss, held, None, "gap"), rates(basis.values))

    law = Law(converged, calibrated, scores=("gradient_norm",))
    monkeypatch.setitem(LAWS, "count", law)
    layer = LastLayer(x, z, y, "poisson")
    table = score(layer, ["attack_power", "gradient_norm"])
    np.testing.assert_array_equal(table["attack_power"], table["gradient_norm"])
    beside = score(layer, ["attack_power"], held_out=(z[:90], y[:90] + 1.0))
    np.testing.assert_array_equal(beside["attack_power"], table["gradient_norm"])
    assert all({"leverage", "loss", "gradient_norm"} <= names for names in asked)


def test_what_its_spread_costs_is_its_own_curvature(counts):
    _, z, y = counts
    held_out = HeldOut.of(HEADS["poisson"], z, y)
    np.testing.assert_allclose(held_out.cost, np.exp(z), rtol=1e-12)
    lost = float(held_out.loss.mean()) - 0.5
    found = spreads_of(HEADS["poisson"], np.full(9, 0.5), held_out, None, "stated")
    assert found.spread_out == pytest.approx(np.sqrt(lost / np.exp(z).mean() / 2.0))


def test_a_trace_says_of_values_that_they_are_counts(counts):
    x, _, y = counts
    model, data = torch.nn.Linear(4, 1), (torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y))
    trace = Trace("poisson")
    for bias in (0.0, 0.5):
        torch.nn.init.constant_(model.bias, bias)
        trace.update(model, data)
    assert audit(model, data, trace=trace, optimizer="adam").metadata["head"] == "poisson"
