"""Predicted rates where a record decides its own fit, against attacks on many refits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from noshadow import LastLayer, NoshadowWarning, Trace, attacks, audit, score, spread
from noshadow.scoring import score_with_diagnostics


def halves(models, n, generator):
    """Membership (models, n): pairs of complementary halves."""
    inside = np.zeros((models, n), bool)
    for k in range(0, models, 2):
        order = generator.permutation(n)
        inside[k, order[: n // 2]] = inside[k + 1, order[n // 2 : 2 * (n // 2)]] = True
    return inside


def calibration_error(rate, truth):
    parts = np.array_split(np.argsort(rate, kind="stable"), 10)
    return np.mean([abs(rate[part].mean() - truth[part].mean()) for part in parts])


def train_together(x, y, inside, seed, width=128, epochs=60):
    """Networks of one hidden layer, one for each row of ``inside``, trained side by side by Adam; their hidden features
    and outputs for all records, and the mean outputs over the epochs of the last two."""
    generator = torch.Generator().manual_seed(seed)
    models, features = len(inside), x.shape[1]
    rows = torch.stack([torch.from_numpy(np.flatnonzero(row)) for row in inside])

    def uniform(*shape, fan_in):
        return ((torch.rand(*shape, generator=generator) * 2 - 1) / math.sqrt(fan_in)).requires_grad_()

    first, offset = uniform(models, features, width, fan_in=features), uniform(models, 1, width, fan_in=features)
    last, bias = uniform(models, width, 2, fan_in=width), uniform(models, 1, 2, fan_in=width)
    optimizer = torch.optim.Adam([first, offset, last, bias], lr=0.03)
    every = x.expand(models, *x.shape)

    def forward(records, which=slice(None)):
        hidden = torch.relu(torch.baddbmm(offset[which], records, first[which]))
        return hidden, torch.baddbmm(bias[which], hidden, last[which])

    total = torch.zeros(2, len(x), 2)
    for _ in range(epochs):
        order = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in rows])
        for batch in order.split(48, dim=1):
            optimizer.zero_grad()
            logits = forward(x[batch])[1].flatten(0, 1)
            (torch.nn.functional.cross_entropy(logits, y[batch].flatten()) * models).backward()
            optimizer.step()
        with torch.no_grad():
            total += forward(every[:2], slice(models - 2, None))[1]
    with torch.no_grad():
        hidden, logits = forward(every)
    return hidden.numpy(), logits.numpy(), (total / epochs).numpy()


def test_a_saturated_record_alone_in_a_direction_is_rated_as_refits_say():
    """Leverage is 1 to eight digits for many records of a saturated network that refits move no more than others."""
    x, y = load_breast_cancer(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    inside = halves(34, len(y), np.random.default_rng(0))
    hidden, outputs, means = train_together(x, torch.tensor(y), inside, 0)
    _, again, _ = train_together(x, torch.tensor(y), inside[32:], 1)
    truth = attacks.lira(attacks.signal(outputs[:32], y, "softmax"), inside[:32]).success_rate
    rates, refits, errors = [], [], []
    for k in (32, 33):
        m = inside[k]
        spreads = tuple(spread(outputs[k, side], again[k - 32, side], y[side], "softmax") for side in (m, ~m))
        layer = LastLayer(hidden[k, m], outputs[k, m], y[m])
        frame, found = score_with_diagnostics(
            layer,
            trace=Trace.from_outputs(means[k - 32 : k - 31, m]),
            spread=spreads,
            held_out=(outputs[k, ~m], y[~m]),
            fixed_features=False,
            source="rerun",
        )
        flagged, rate = list(found.flagged), frame["attack_accuracy"].to_numpy()
        assert len(flagged) >= 5
        assert found.certain == ()
        assert np.isfinite(frame["attack_power"]).all()
        saturated = [row for row in flagged if frame["loss"][row] < 1e-5]
        rates += rate[saturated].tolist()
        refits += truth[m][saturated].tolist()
        errors.append(calibration_error(rate, truth[m]))
    assert len(rates) >= 10
    assert np.mean(rates) == pytest.approx(np.mean(refits), abs=0.15)
    assert np.mean(refits) < 0.75
    assert np.mean(errors) < 0.06


def test_rates_of_classes_that_are_all_but_separated():
    """Twenty features, a hundred records, hardly a ridge: to first order the spread is five times too small."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(200, 20))
    y = (generator.random(200) < 1 / (1 + np.exp(-2 * x @ generator.normal(size=20)))).astype(int)
    inside = halves(100, 200, generator)
    fits = [LogisticRegression(C=100.0, solver="newton-cholesky", tol=1e-9).fit(x[m], y[m]) for m in inside]
    outputs = np.stack([fit.decision_function(x)[:, None] for fit in fits])
    truth = attacks.lira(attacks.signal(outputs, y, "logistic"), inside).success_rate
    errors, tops = [], []
    for fit, m in zip(fits[:4], inside[:4], strict=True):
        with pytest.warns(NoshadowWarning, match="a few records decide the fit"):
            result = audit(fit, (x[m], y[m]))
        assert result.metadata["calibration"]["source"] == "converged"
        rate = result.table["attack_accuracy"].to_numpy()
        errors.append(calibration_error(rate, truth[m]))
        top = np.argsort(rate)[-10:]
        tops.append(rate[top].mean() - truth[m][top].mean())
    assert np.mean(errors) < 0.06
    assert 0.0 < np.mean(tops) < 0.18  # the note calls them upper bounds


def test_saturation_is_not_standing_alone():
    """h = 1 of two records: one has a feature that no other has, the other only curvature that no other has."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 4))
    x[:, 2:] = 0.0
    x[3, 2] = 1.0  # alone in this direction
    x[10:20, 3] = generator.normal(size=10)  # shared, but all of these are saturated but for record 10
    z = np.where(np.arange(60) % 2 == 0, 1.0, -1.0)
    z[10:20] *= 40.0
    z[10] = 1.0
    y = (z > 0).astype(int)
    design = np.column_stack([x, np.ones(60)])
    plain = np.einsum("ij,jk,ik->i", design, np.linalg.pinv(design.T @ design), design)
    assert plain[3] == pytest.approx(1.0)
    assert plain[10] < 0.9
    layer = LastLayer(x, z, y, "logistic")
    with pytest.warns(NoshadowWarning) as told:
        frame = score(layer)
    found = score_with_diagnostics(layer)[1]
    np.testing.assert_allclose(frame["leverage"][[3, 10]], 1.0, atol=1e-8)
    assert (found.flagged, found.certain) == ((3, 10), (3,))
    notes = [str(one.message) for one in told]
    assert any(note.startswith("row 3: leverage is 1, the fit without the record is undefined") for note in notes)
    assert any(note.startswith("row 10: leverage is 1 in the last layer by its present curvature") for note in notes)
    # in a form with fewer columns too, and not at all where the features were trained
    wide = LastLayer(np.hstack([x, np.zeros((60, 90))]), z, y, "logistic")
    assert score_with_diagnostics(wide)[1].certain == (3,)
    assert score_with_diagnostics(layer, fixed_features=False)[1].certain == ()
    assert audit(layer).table["flagged"].to_numpy().nonzero()[0].tolist() == [3]
