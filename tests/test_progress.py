"""Progress: one convention for everything that takes long, one bar on the screen."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import noshadow
from noshadow.progress import progress_bar
from tests.shadow.toys import N_SAMPLES, ridge


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def told():
    """What a function that is passed as ``progress`` is told: (stage, done, total) each time."""
    calls = []
    return calls, lambda stage, done, total: calls.append((stage, done, total))


def stages(calls):
    """Each stage once, with where it began, where it ended and its total; within a stage nothing goes back."""
    found = {}
    for stage, done, total in calls:
        begin, last, _ = found.get(stage, (done, done, total))
        assert done >= last
        found[stage] = begin, done, total
    return found


def test_a_function_is_told_of_every_step(told):
    calls, report = told
    with progress_bar("work", 10, report, done=4) as advance:
        advance()
        advance(2.5)
    assert calls == [("work", 4, 10), ("work", 5, 10), ("work", 7.5, 10)]


def test_a_bar_is_for_terminals_or_on_request(monkeypatch):
    for screen, progress, shown in (
        (Terminal(), None, True),
        (io.StringIO(), None, False),
        (Terminal(), False, False),
        (Terminal(), True, True),
    ):
        monkeypatch.setattr(sys, "stderr", screen)
        with progress_bar("counting", 3, progress) as advance:
            advance(3)
        assert ("counting" in screen.getvalue()) == shown


def test_work_inside_work_shows_no_bar_of_its_own(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress_bar("outer", 2) as outer, progress_bar("inner", 2) as inner:
        inner(2)
        outer(2)
    assert "outer" in screen.getvalue()
    assert "inner" not in screen.getvalue()
    with progress_bar("reported", 2, lambda *_: None), progress_bar("part", 2), progress_bar("wanted", 1, True):
        pass
    with progress_bar("hidden", 2, False), progress_bar("part", 2):
        pass
    assert "part" not in screen.getvalue()
    assert "wanted" in screen.getvalue()
    with pytest.raises(ZeroDivisionError), progress_bar("failing", 1):
        raise ZeroDivisionError
    with progress_bar("after", 1):
        pass
    assert "after" in screen.getvalue()


def test_audit_and_score(told):
    calls, report = told
    x, y = torch.randn(60, 4), torch.randint(3, (60,))
    noshadow.audit(torch.nn.Linear(4, 3), TensorDataset(x, y), progress=report)
    assert stages(calls) == {"Extracting": (0, 60, 60), "Scoring": (0, 180, 180)}


def test_network(told):
    calls, report = told
    x, y = torch.randn(30, 4), torch.randint(3, (30,))
    noshadow.network.network_influence(torch.nn.Linear(4, 3), x, y, subspace=0, progress=report)
    assert stages(calls) == {"Influence": (0, 30, 30)}


def test_study(tmp_path, told):
    calls, report = told
    noshadow.shadow.Study(ridge, N_SAMPLES, n_models=4, store=tmp_path).run("serial", progress=report)
    assert stages(calls) == {"training models": (0, 4, 4)}


@pytest.fixture
def study():
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(12, 20, 3)), rng.integers(0, 3, 20)
    return outputs, rng.random((12, 20)) < 0.5, targets


def test_attacks(told, study):
    calls, report = told
    outputs, membership, targets = study
    signal = noshadow.attacks.signal(outputs, targets, "softmax")
    noshadow.attacks.lira(signal, membership, variance="fixed", progress=report)
    noshadow.attacks.rmia(signal, membership, progress=report)
    noshadow.attacks.shokri(outputs, membership, targets, "softmax", folds=3, progress=report)
    found = stages(calls)
    assert set(found) == {"LiRA", "RMIA", "Shokri"}
    assert all(begin == 0 and done == total > 0 for begin, done, total in found.values())


def test_ceilings(told, study, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    calls, report = told
    outputs, membership, targets = study
    signal = noshadow.attacks.signal(outputs, targets, "softmax")

    def attack(signal, membership):
        return noshadow.attacks.lira(signal, membership, variance="fixed")

    noshadow.evaluate.oracle_ceiling(attack, signal, membership, draws=2, progress=report)
    noshadow.evaluate.ceiling(lambda m: attack(signal[m], membership[m]), 12, splits=3, progress=report)
    assert stages(calls) == {"Simulating studies": (0, 2, 2), "Halving the models": (0, 3, 3)}
    assert not screen.getvalue()  # the attacks are parts of the work
