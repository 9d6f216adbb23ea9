"""The attack signal: golden values, no saturation, every head and shape, bad input named."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from noshadow import attacks
from noshadow.errors import InputError, NoshadowWarning

LOGITS = np.array([[1.0, 2.0, -3.0], [-1.0, 1.0, 0.0]])
LABELS = np.array([1, 2])


def exact_signal(logits, label):
    with mpmath.workdps(60):
        p = [mpmath.exp(mpmath.mpf(float(z))) for z in logits]
        return float(mpmath.log(p[label]) - mpmath.log(sum(v for c, v in enumerate(p) if c != label)))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_logit_signal_is_exact_at_any_scale(scale):
    outputs = np.stack([LOGITS * scale] * 4)
    found = attacks.signal(outputs, LABELS, "softmax")
    expected = [exact_signal(row, label) for row, label in zip(LOGITS * scale, LABELS, strict=True)]
    np.testing.assert_allclose(found, np.tile(expected, (4, 1)), rtol=1e-14)


def test_logits_of_thousands_do_not_tie():
    rng = np.random.default_rng(0)
    outputs = 1000.0 * rng.normal(size=(4, 500, 5))
    found = attacks.signal(outputs, rng.integers(0, 5, 500), "softmax")
    assert np.isfinite(found).all()
    assert len(np.unique(found)) == found.size


def test_float32_outputs_are_computed_in_double_precision():
    outputs = (1000.0 * np.stack([LOGITS] * 4)).astype(np.float32)
    found = attacks.signal(torch.from_numpy(outputs), torch.from_numpy(LABELS), "softmax")
    assert found.dtype == np.float64
    assert found[0, 1] == exact_signal(outputs[0, 1], 2)


def test_logistic_signal_is_the_signed_logit():
    z = np.array([[2.0, -3.0], [0.5, 1.0]])
    np.testing.assert_array_equal(attacks.signal(z, [1, 0], "logistic"), [[2.0, 3.0], [0.5, -1.0]])
    np.testing.assert_array_equal(attacks.signal(z[:, :, None], [1, 0], "logistic"), [[2.0, 3.0], [0.5, -1.0]])


def test_two_class_softmax_is_logistic():
    z = np.random.default_rng(1).normal(size=(4, 6))
    y = np.array([0, 1, 1, 0, 1, 0])
    two = np.stack([np.zeros_like(z), z], -1)
    np.testing.assert_allclose(attacks.signal(two, y, "softmax"), attacks.signal(z, y, "logistic"), rtol=1e-14)


def test_squared_error_variants():
    predictions, y = np.array([[1.0, 2.0], [0.0, 5.0]]), np.array([3.0, 2.0])
    np.testing.assert_array_equal(attacks.signal(predictions, y, "squared"), [[4.0, 0.0], [9.0, 9.0]])
    np.testing.assert_array_equal(
        attacks.signal(predictions, y, "squared", "signed_residual"), [[2.0, 0.0], [3.0, -3.0]]
    )
    log_loss = attacks.signal(predictions, y, "squared", "log_loss")
    np.testing.assert_allclose(log_loss[[0, 1, 1], [0, 0, 1]], np.log([4.0, 9.0, 9.0]), rtol=1e-15)
    assert np.isfinite(log_loss).all()
    assert log_loss[0, 1] < -700


def test_several_outputs_and_several_queries():
    rng = np.random.default_rng(2)
    z, y = rng.normal(size=(4, 5, 3, 2)), rng.normal(size=(5, 2))
    found = attacks.signal(z, y, "squared")
    assert found.shape == (4, 5, 3)
    np.testing.assert_allclose(found, ((z - y[:, None]) ** 2).sum(-1), rtol=1e-14)
    labels = rng.integers(0, 2, 5)
    queries = attacks.signal(z, labels, "softmax")
    for query in range(3):
        np.testing.assert_array_equal(queries[:, :, query], attacks.signal(z[:, :, query], labels, "softmax"))


def test_chunks_do_not_change_the_result(monkeypatch):
    rng = np.random.default_rng(3)
    z, y = rng.normal(size=(5, 40, 3)), rng.integers(0, 3, 40)
    whole = attacks.signal(z, y, "softmax")
    monkeypatch.setattr("noshadow.attacks.arrays.CHUNK_BYTES", 8 * 5 * 3 * 7)
    np.testing.assert_array_equal(attacks.signal(z, y, "softmax"), whole)


def test_probabilities_in_the_place_of_logits_are_noticed():
    p = np.random.default_rng(4).dirichlet(np.ones(3), size=(4, 6))
    with pytest.warns(NoshadowWarning, match="look like probabilities"):
        attacks.signal(p, np.zeros(6, dtype=int), "softmax")


@pytest.mark.parametrize(
    ("outputs", "targets", "head", "variant", "message"),
    [
        (np.zeros((4, 3)), [0, 1, 0], "softmax", None, r"outputs: expected shape \(K, N, m\)"),
        (np.zeros((4, 3, 2)), [0, 1, 0], "logistic", None, "one logit"),
        (np.zeros((4, 3, 1)), [0, 1, 0], "softmax", None, "two logits or more"),
        (np.zeros((4, 3, 2)), [0, 1], "softmax", None, r"targets: expected classes of shape \(3,\)"),
        (np.zeros((4, 3, 2)), [0, 1, 2], "softmax", None, "got 2 in row 2"),
        (np.zeros((4, 3, 2)), [0, -1, 0], "softmax", None, "got -1 in row 1"),
        (np.zeros((4, 3)), [1, -1, 1], "logistic", None, r"\(map −1 to 0\), got -1 in row 1"),
        (np.zeros((4, 3, 2)), np.zeros((3, 2)), "logistic", None, r"one at a time: outputs\[:, :, k\], targets"),
        (np.zeros((4, 3, 2)), [0.0, 1.0, np.nan], "softmax", None, "got nan in row 2"),
        (np.zeros((4, 3)), [0.0, np.nan, 0.0], "squared", None, "targets: NaN or infinite in row 1"),
        (
            np.zeros((4, 3, 2)),
            np.zeros((3, 1)),
            "squared",
            None,
            r"targets: expected values of shape \(3, 2\)",
        ),
        (np.full((4, 3), np.inf), np.zeros(3), "squared", None, "outputs: NaN or infinite in rows 0, 1, 2"),
        (np.zeros((4, 3)), np.zeros(3), "squared", "logit", "variant: 'logit' is not one of"),
        (np.zeros((4, 3, 2)), np.zeros((3, 2)), "squared", "signed_residual", "needs one output"),
        (np.zeros((4, 3)), np.zeros(3), "hinge", None, "head: 'hinge'"),
        ("logits", np.zeros(3), "squared", None, "outputs: expected numbers"),
    ],
)
def test_bad_input_is_named(outputs, targets, head, variant, message):
    with pytest.raises(InputError, match=message):
        attacks.signal(outputs, targets, head, variant)
