"""Shared helpers: heads fitted to convergence by Newton's method, written here so that nothing is shared with src."""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import tempfile
from pathlib import Path

# some virtual machines announce AMX and then die of it in a bfloat16 product; to be set before torch is imported
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # clusters that tests start themselves would tell Ray's makers of it

import numpy as np
import pytest
import torch
from hypothesis import settings
from sklearn.datasets import load_digits

from tests import offline
from tests.report import browser

pytest_plugins = ["tests.own_process"]

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")  # a test that fails must fail again

# `make test` installs both; they are heavy, and all else can be tested without them
trainers = all(importlib.util.find_spec(name) for name in ("accelerate", "lightning"))
collect_ignore = [] if trainers else ["trace/test_trainers.py"]

# the report in a browser: run wherever there is one
no_browser = browser.missing()
if no_browser and os.environ.get("NOSHADOW_BROWSER") == "required":
    raise RuntimeError(f"{no_browser}: NOSHADOW_BROWSER=required; {browser.HOW_TO_ADD}")
collect_ignore += ["report/test_browser.py"] if no_browser else []


def pytest_terminal_summary(terminalreporter):
    """What was left out, and how to add it."""
    if no_browser:
        terminalreporter.write_line(f"left out: tests/report/test_browser.py ({no_browser}); add: {browser.HOW_TO_ADD}")


torch.set_num_threads(1)  # the tests' arrays are small: threads would only wait for each other


def pytest_configure(config):
    folder = Path(tempfile.mkdtemp(prefix="noshadow-tests-"))
    config.add_cleanup(lambda: shutil.rmtree(folder))
    offline.install(folder)


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine():
    """Whatever a test runs, here or in a process of its own, connects to nobody else."""
    yield
    assert offline.refused() == []


@pytest.fixture(autouse=True)
def same_randomness():
    """Whatever a test draws without a generator of its own is the same in any order of the tests."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  scikit-learn's estimators without a random_state draw from it


def fit_softmax(x, y, m, ridge, penalize_bias=True, start=None, tol=1e-12):
    """Minimise Σ cross-entropy + Λ/2‖Θ‖² over Θ (p+1, m) by damped Newton steps with an autograd Hessian."""
    design = torch.cat([torch.as_tensor(x, dtype=torch.float64), torch.ones(len(x), 1, dtype=torch.float64)], 1)
    target = torch.as_tensor(y)
    theta = torch.zeros(design.shape[1] * m, dtype=torch.float64) if start is None else start.clone().flatten()
    penalty = torch.full((design.shape[1], m), float(ridge), dtype=torch.float64)
    if not penalize_bias:
        penalty[-1] = 0.0
    penalty = penalty.flatten()

    def value(t):
        return torch.nn.functional.cross_entropy(design @ t.reshape(-1, m), target, reduction="sum")

    for _ in range(100):
        p = torch.softmax(design @ theta.reshape(-1, m), 1)
        hessian = torch.einsum("ij,il,ik->jkl", design, design, p)
        full = torch.diag(penalty)
        blocks = full.reshape(design.shape[1], m, design.shape[1], m)
        for k in range(m):
            blocks[:, k, :, k] += hessian[:, k]
        flat = (design.unsqueeze(2) * p.unsqueeze(1)).reshape(len(design), -1)
        full = full - flat.T @ flat
        onehot = torch.nn.functional.one_hot(target, m).to(torch.float64)
        gradient = (design.T @ (p - onehot)).flatten() + penalty * theta
        step = torch.linalg.lstsq(full, gradient, driver="gelsd").solution
        size = 1.0
        before = value(theta) + 0.5 * (penalty * theta**2).sum()
        while value(theta - size * step) + 0.5 * (penalty * (theta - size * step) ** 2).sum() > before + 1e-9:
            size /= 2
        theta = theta - size * step
        if float(step.abs().max()) < tol:
            break
    return theta.reshape(-1, m)


@pytest.fixture(scope="session")
def noisy_digits():
    """600 digits of four classes, one label in twenty wrong: (x, y, m)."""
    x, y = load_digits(return_X_y=True)
    keep = y < 4
    x, y = x[keep][:600] / 16.0, y[keep][:600].copy()
    rng = np.random.default_rng(0)
    wrong = rng.random(len(y)) < 0.05
    y[wrong] = rng.integers(0, 4, wrong.sum())
    return x, y, 4


@pytest.fixture
def flip_bits():
    """How many of 500 files, each with one random bit flipped, are accepted; the file is whole again afterwards."""

    def count(path, accepted):
        content = path.read_bytes()
        rng = np.random.default_rng(0)
        found = 0
        for position in rng.integers(0, 8 * len(content), 500):
            altered = bytearray(content)
            altered[position // 8] ^= 1 << (position % 8)
            path.write_bytes(altered)
            found += bool(accepted())
        path.write_bytes(content)
        return found

    return count
