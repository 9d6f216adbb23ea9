"""Warnings point at the line that called noshadow, however deep what they tell of was found."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch

import noshadow
from noshadow import LastLayer, NoshadowWarning, Trace, attacks


def _lines(call: Callable[[], object], words: str) -> list[str]:
    """The files that a warning of these words is blamed on."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", NoshadowWarning)
        call()
    return [one.filename for one in heard if words in str(one.message)]


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_records_that_an_attack_cannot_decide(attack: str) -> None:
    rng = np.random.default_rng(0)
    membership = rng.random((12, 30)) < 0.5
    membership[:, 3] = False
    statistic = rng.normal(size=(12, 30))
    found = _lines(lambda: getattr(attacks, attack)(statistic, membership), "counted as undecided")
    assert found == [__file__]


def test_an_epoch_that_was_recorded_twice() -> None:
    x, y = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    model, again = torch.nn.Linear(3, 2), "counts double"
    outputs = model(x).detach()

    def by_model() -> None:
        trace = Trace()
        for _ in range(2):
            trace.update(model, (x, y))

    def by_outputs() -> None:
        trace = Trace("softmax")
        for _ in range(2):
            trace.update(outputs=outputs, targets=y)

    def by_batches() -> None:
        trace = Trace("softmax")
        for _ in range(2):
            trace.update(outputs=outputs, targets=y, rows=range(8))
            trace.end_epoch()

    def by_checkpoints() -> None:
        Trace.from_checkpoints(model, [model.state_dict()] * 2, (x, y))

    for call in (by_model, by_outputs, by_batches, by_checkpoints):
        assert _lines(call, again) == [__file__], call.__name__


@pytest.fixture
def values() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 3))
    return x, x.sum(1) + 0.1 * rng.normal(size=200)


def test_what_a_score_is_told_of_its_trace(values: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = values
    far = LastLayer(x, x.sum(1) + 1e6, y + 1e6, head="squared")
    trace = Trace.from_outputs(np.stack([far.outputs + 0.5, far.outputs]))
    assert _lines(lambda: noshadow.score(far, ["exposure"], trace), "whose rounding is") == [__file__]

    logits = np.c_[x[:, :2], -x[:, 2]]
    layer = LastLayer(x, logits, np.arange(200) % 3, head="softmax")
    trace = Trace.from_outputs(np.stack([0.5 * logits, logits]), np.arange(200) % 3, "softmax", label_smoothing=0.1)
    assert _lines(lambda: noshadow.score(layer, ["exposure"], trace), "with label_smoothing") == [__file__]

    near = LastLayer(x, x.sum(1), y, head="squared")
    losses = np.tile((x.sum(1) - y) ** 2, (2, 1))
    losses[:, 7] = 0.0
    mean = near.outputs.numpy().copy()
    mean[7] += 5.0
    trace = Trace.from_losses(losses, mean)
    assert _lines(lambda: noshadow.score(near, ["exposure"], trace), "which no run gives") == [__file__]


def test_what_a_score_is_told_of_its_held_out_records(values: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = values
    members = LastLayer(x, x.sum(1), y, head="squared")
    rng = np.random.default_rng(2)
    others = rng.normal(size=(60, 3))
    others[:5] = x[:5]
    targets = np.r_[y[:5], others[5:].sum(1) + 0.1 * rng.normal(size=55)]
    held_out = LastLayer(others, others.sum(1), targets, head="squared")
    found = _lines(lambda: noshadow.score(members, held_out=held_out, spread=(0.1, 0.1)), "the same as training")
    assert found == [__file__]
