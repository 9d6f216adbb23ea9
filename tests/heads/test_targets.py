"""Layers, attacks and trainers read targets alike: what one of them takes or refuses, all do."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from noshadow import LastLayer, attacks
from noshadow.errors import InputError, NoshadowWarning
from noshadow.shadow import TorchTrainer
from noshadow.shadow.recipe import Recipe

N = 6
X = np.random.default_rng(0).normal(size=(N, 2))
CLASSES = np.array([0, 2, 1, 1, 0, 2])
LABELS = CLASSES % 2


def in_layer(targets, head, m):
    return LastLayer(X, np.linspace(-2.0, 2.0, N * m).reshape(N, m), targets, head).targets


def in_attack(targets, head, m):
    outputs = np.linspace(-2.0, 2.0, N * m).reshape(N, m)
    return attacks.signal(np.stack([outputs, 2.0 * outputs]), targets, head)


def in_trainer(targets, head, m):
    return TorchTrainer(lambda: nn.Linear(2, m), (X, targets), Recipe(1, 3), head=head).targets


READERS = (in_layer, in_attack, in_trainer)


@pytest.mark.parametrize(
    ("targets", "same_as", "head", "m"),
    [
        (np.eye(3)[CLASSES], CLASSES, "softmax", 3),
        (np.eye(3, dtype=np.int64)[CLASSES], CLASSES, "softmax", 3),
        (CLASSES.astype(np.float32), CLASSES, "softmax", 3),
        (CLASSES[:, None], CLASSES, "softmax", 3),
        (LABELS == 1, LABELS, "logistic", 1),
        (LABELS.astype(np.float64)[:, None], LABELS, "logistic", 1),
        (CLASSES, CLASSES[:, None].astype(np.float64), "squared", 1),
    ],
)
def test_forms_of_the_same_targets(targets, same_as, head, m):
    for read in READERS:
        found, expected = (torch.as_tensor(read(given, head, m)) for given in (targets, same_as))
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), read.__name__


@pytest.mark.parametrize(
    ("targets", "head", "m", "message"),
    [
        ([0, 2, 1, 3, 0, 2], "softmax", 3, "targets: expected classes 0 … 2, got 3 in row 3 (counted from 0)"),
        ([0, 2, 1, 0.5, 0, 2], "softmax", 3, "targets: expected classes 0 … 2, got 0.5 in row 3 (counted from 0)"),
        ([0, 2, -100, 0, 0, 2], "softmax", 3, "torch leaves such records out of training"),
        (np.eye(4)[CLASSES], "softmax", 3, "targets: expected classes of shape (n,), or one-hot (n, 3), got (6, 4)"),
        (np.ones((N, 3)), "softmax", 3, "targets: no label or several in rows 0, 1, 2, 3, 4 and 1 more"),
        (np.full((N, 3), 1 / 3), "softmax", 3, "targets: soft labels in rows 0, 1, 2, 3, 4 and 1 more"),
        (np.zeros((N, 2, 2)), "softmax", 2, "targets: expected shape (n,) or (n, m), got (6, 2, 2)"),
        ([1, -1, 1, 1, -1, 1], "logistic", 1, "targets: expected classes 0 … 1 (map −1 to 0), got -1 in rows 1, 4"),
        (np.eye(2)[LABELS], "logistic", 1, "targets: 1 logistic output need 0/1 targets of shape (n, 1), got (6, 2)"),
        ([0, 1, np.nan, 1, 0, 1], "logistic", 1, "targets: expected classes 0 … 1, got nan in row 2"),
        (np.zeros(N), "squared", 2, "targets: 1 value per record, but outputs has 2 columns"),
        ([0, 1, np.inf, 1, 0, 1], "squared", 1, "targets: NaN or infinite in row 2 (counted from 0)"),
    ],
)
def test_what_a_head_cannot_take_is_refused_everywhere_in_the_same_words(targets, head, m, message):
    for read in READERS:
        with pytest.raises(InputError) as refused:
            read(targets, head, m)
        assert message in str(refused.value), read.__name__


@pytest.mark.parametrize(("head", "m"), [("softmax", 3), ("logistic", 1)])
def test_probabilities_are_noticed_everywhere_in_the_same_words(head, m):
    z = np.random.default_rng(1).normal(size=(N, m))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True) if m > 1 else 1.0 / (1.0 + np.exp(-z))
    targets = CLASSES if m > 1 else LABELS
    said = []
    for read in (lambda z: LastLayer(X, z, targets, head), lambda z: attacks.signal(np.stack([z, z]), targets, head)):
        with pytest.warns(NoshadowWarning, match=r"^outputs: these look like probabilities \(all within") as caught:
            read(p)
        said.append(str(caught[0].message))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read(z)
    assert said[0] == said[1]
    assert ("rows sum to 1" in said[0]) == (m > 1)


def test_small_logits_of_a_single_class_are_no_probabilities():
    """The signal of other heads is attacked as a logit of class 1, and may well be within [0, 1]."""
    z = np.random.default_rng(2).random((N, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LastLayer(X, z, np.ones(N, dtype=int), "logistic")
        attacks.signal(np.stack([z, z]), np.ones(N, dtype=int), "logistic")
