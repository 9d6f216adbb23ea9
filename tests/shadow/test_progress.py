"""Progress moves while models train, in a stack too, and tells which were there before."""

from __future__ import annotations

import time
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn

from noshadow import shadow
from noshadow.progress import progress_bar
from noshadow.shadow import study as study_module
from noshadow.shadow import worker
from noshadow.shadow.work import advance
from tests.shadow.toys import N_SAMPLES, ridge


@pytest.fixture
def bar(monkeypatch):
    """What the bar is told: its title, what is done at the start, each step."""
    seen = {"steps": []}

    @contextmanager
    def watched(title, total, show=None, in_bytes=False, done=0):
        seen.update(title=title, total=total, done=done)
        yield lambda steps=1: seen["steps"].append(steps)

    monkeypatch.setattr(study_module, "progress_bar", watched)
    return seen


def trainer(**options):
    rng = np.random.default_rng(0)
    data = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 1)).astype(np.float32)
    recipe = shadow.Recipe(epochs=5, batch_size=10)
    return shadow.TorchTrainer(lambda: nn.Linear(3, 1), data, recipe, head="squared", **options)


@pytest.mark.parametrize("stack", [False, 4])
def test_a_trainer_tells_of_every_step(tmp_path, bar, stack):
    shadow.Study(trainer(vectorise=stack), 40, n_models=8, store=tmp_path).run("serial")
    assert bar["total"] == 8
    told = [step for step in bar["steps"] if step]
    assert len(told) >= (20 if stack else 80)  # 5 epochs of 2 batches, of 2 stacks or of 8 models
    assert sum(bar["steps"]) == pytest.approx(8)
    assert max(told) <= (0.4 if stack else 0.1) + 1e-9


def test_workers_tell_while_they_train(tmp_path, bar):
    def slow(members, seed):
        for _ in range(10):
            time.sleep(0.1)
            advance(0.1)
        return ridge(members, seed)

    shadow.Study(slow, N_SAMPLES, n_models=2, store=tmp_path).run("processes", workers=1)
    parts = [step for step in bar["steps"] if 0 < step < 0.95]
    assert len(parts) >= 3
    assert sum(bar["steps"]) == pytest.approx(2)
    assert worker.SECONDS_BETWEEN_NEWS >= 0.1  # and not at every step


def test_work_that_was_lost_is_taken_back(tmp_path, bar):
    failed = tmp_path / "failed"

    def fails_once(members, seed):
        advance(0.75)
        if not failed.exists():
            failed.touch()
            raise ZeroDivisionError
        return ridge(members, seed)

    shadow.Study(fails_once, N_SAMPLES, n_models=1, store=tmp_path / "store").run("serial")
    assert bar["steps"] == pytest.approx([0.75, -0.75, 0.75, 0.25])


def test_a_trainer_that_boasts_is_not_believed(tmp_path, bar):
    def boasts(members, seed):
        for _ in range(5):
            advance(0.4)
        return ridge(members, seed)

    shadow.Study(boasts, N_SAMPLES, n_models=2, store=tmp_path).run("serial")
    assert sum(bar["steps"]) == pytest.approx(2)
    assert min(bar["steps"]) >= 0


def test_models_that_were_there_are_told(tmp_path, bar):
    shadow.Study(ridge, N_SAMPLES, n_models=3, store=tmp_path).run("serial")
    assert (bar["title"], bar["done"]) == ("training models", 0)
    shadow.Study(ridge, N_SAMPLES, n_models=5, store=tmp_path).run("serial")
    assert (bar["title"], bar["total"], bar["done"]) == ("training models (3 resumed)", 5, 3)


def test_the_bar_shows_parts(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # what makes it a terminal
    with progress_bar("training models (2 resumed)", 24, True, done=2) as step:
        step(3.4)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "training models (2 resumed)" in shown.err
    assert "22.5%" in shown.err
    assert "5/24" in shown.err
    with progress_bar("quiet", 2, False) as step:
        step()
    assert capsys.readouterr().err == ""


def test_telling_costs_nothing_where_nobody_listens():
    advance(0.5)
    assert torch.is_tensor(torch.as_tensor(trainer()(np.arange(20), 0)))
