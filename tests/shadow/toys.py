"""Training procedures small enough to run by the hundred, shared by the tests of shadow studies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

N_SAMPLES = 24
X = np.random.default_rng(7).normal(size=(N_SAMPLES, 3))


def ridge(members, seed):
    """A seeded ridge regression: all that a study needs of a training procedure, in microseconds."""
    noise = np.random.default_rng(seed).normal(size=N_SAMPLES)
    rows = X[members]
    weights = np.linalg.solve(rows.T @ rows + np.eye(3), rows.T @ (X[members, 0] + 0.1 * noise[members]))
    return {"outputs": X @ weights, "weights": weights}


def slow_ridge(members, seed):
    """The same, slowly enough to be interrupted and large enough for a write to be."""
    time.sleep(0.03)
    return {**ridge(members, seed), "ballast": np.full(50_000, float(seed))}


def noted_ridge(members, seed, folder):
    """The same, with a note of every call."""
    with (Path(folder) / f"{os.getpid()}").open("a") as calls:
        calls.write(f"{seed}\n")
    return slow_ridge(members, seed)


def endless(members, seed, folder):
    """Notes its process and never comes back."""
    (Path(folder) / f"{os.getpid()}").touch()
    time.sleep(600)


def dies_once(members, seed, folder):
    """The worker that gets here first is killed, as by the kernel when memory runs out."""
    try:
        (Path(folder) / "died").touch(exist_ok=False)
    except FileExistsError:
        return ridge(members, seed)
    return os.kill(os.getpid(), signal.SIGKILL)


def fails_for(members, seed, bad_seed, folder):
    """Raises for one seed, every time, and counts how often it was asked."""
    if seed == bad_seed:
        with (Path(folder) / "attempts").open("a") as attempts:
            attempts.write("x")
        raise ZeroDivisionError("a bad day")
    return ridge(members, seed)
