"""The table of attacks: each by its name is the function of that name, and a new one takes its line."""

from __future__ import annotations

import inspect
from dataclasses import asdict

import numpy as np
import pytest

from noshadow import attacks
from noshadow.attacks.registry import ATTACKS, Attack, Options, run_attack
from noshadow.attacks.result import AttackResult
from noshadow.commands.attack import attack as command
from noshadow.errors import InputError

RNG = np.random.default_rng(0)
INSIDE = RNG.random((16, 30)) < 0.5
INSIDE[:8] = ~INSIDE[8:]
VALUES = RNG.normal(size=30)
CLASSES = RNG.integers(0, 3, 30)
PREDICTIONS = VALUES + RNG.normal(size=(16, 30)) * np.where(INSIDE, 0.5, 1.0)
LOGITS = RNG.normal(size=(16, 30, 3)) + 2.0 * np.eye(3)[CLASSES] * INSIDE[:, :, None]


def same(found: AttackResult, expected: AttackResult) -> None:
    assert found.attack == expected.attack
    for field in ("scores", "success_rate", "separation", "tiebreak"):
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field


@pytest.mark.parametrize(
    ("form", "members"), [(None, "lower"), ("loss", "lower"), ("log_loss", "lower"), ("signed_residual", "either")]
)
def test_lira_by_name_knows_where_members_lie(form, members):
    phi = attacks.signal(PREDICTIONS, VALUES, "squared", form)
    expected = attacks.lira(phi, INSIDE, members=members, constant="tie")
    same(run_attack(PREDICTIONS, INSIDE, VALUES, "squared", Options("lira", signal=form)), expected)
    with pytest.raises(InputError, match="signal: 'logit' is not one of 'loss', 'log_loss', 'signed_residual', those"):
        run_attack(PREDICTIONS, INSIDE, VALUES, "squared", Options("lira", signal="logit"))


def test_attacks_on_classes_by_name_are_the_functions():
    phi = attacks.signal(LOGITS, CLASSES, "softmax")
    expected = {
        "lira": attacks.lira(phi, INSIDE, variance="fixed"),
        "rmia": attacks.rmia(phi, INSIDE),
        "shokri": attacks.shokri(LOGITS, INSIDE, CLASSES, "softmax", folds=8),
    }
    assert list(expected) == list(ATTACKS)
    for name, result in expected.items():
        same(run_attack(LOGITS, INSIDE, CLASSES, "softmax", Options.for_models(name, 16)), result)


def test_benchmarks_keep_what_they_measured_under_these_options():
    """Attacks that were kept are found again by them, so that a change attacks all models anew."""
    none = {"variant": None, "variance": None, "signal": None, "folds": None}
    assert asdict(Options.for_models("lira", 24)) == {"name": "lira", **none, "variance": "per_sample"}
    assert asdict(Options.for_models("lira", 23)) == {"name": "lira", **none, "variance": "fixed"}
    assert asdict(Options.for_models("rmia", 24)) == {"name": "rmia", **none}
    assert asdict(Options.for_models("shokri", 24)) == {"name": "shokri", **none, "folds": 8}
    measured = {name: (a.label, a.ceiling_splits, a.simulated, a.oracle_draws) for name, a in ATTACKS.items()}
    assert measured == {
        "lira": ("LiRA", 10, True, None),
        "rmia": ("RMIA", 4, True, 4),
        "shokri": ("Shokri", 1, False, None),
    }


@pytest.mark.parametrize("name", ATTACKS)
def test_the_command_offers_every_attack_and_option(name):
    parameters = inspect.signature(command, eval_str=True).parameters
    assert set(ATTACKS[name].options) <= set(parameters)
    (option,) = parameters["name"].annotation.__metadata__
    assert name in option.help
    assert name in option.autocompletion()


def test_a_new_attack_takes_one_line(monkeypatch):
    def by_margin(outputs, membership, targets, head, *, variant="plain"):
        return attacks.threshold(outputs, membership, targets, head, "loss" if variant == "plain" else variant)

    monkeypatch.setitem(ATTACKS, "margin", Attack("Margin", by_margin, ("variant",), lambda n: {}, 1))
    expected = attacks.threshold(LOGITS, INSIDE, CLASSES, "softmax", "entropy")
    same(run_attack(LOGITS, INSIDE, CLASSES, "softmax", Options("margin", variant="entropy")), expected)
    with pytest.raises(InputError, match="folds: an option of shokri, of no use to margin; leave it out"):
        Options("margin", folds=3)
