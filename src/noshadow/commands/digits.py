"""What ``noshadow demo`` trains and audits: a small network on half of scikit-learn's handwritten digits.

Model number k (``--seed k``) is target model k of a shadow study over all 1,797 digits: its half, its seed and the seed
of its rerun come from the study's plan. The digits of the other half are held out, and the shadow models of
``digits_shadows``, trained by the same function on other halves, say how far the audit is right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from noshadow.audit import audit
from noshadow.findings import Audit
from noshadow.progress import progress_bar
from noshadow.shadow import ModelKey, Plan
from noshadow.shadow.work import limited_threads
from noshadow.trace import Trace

__all__ = ["RECIPE", "Demo", "Digits", "Trained", "load", "plan", "run_demo", "train", "train_both"]

# As such a network is usually trained. Steps are small enough that every run ends well: with ten times as large ones,
# one run read 80 % of its own digits. How well an audit agrees with an attack was no reason for any of it.
RECIPE = {"hidden": 64, "epochs": 40, "batch_size": 32, "rate": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
"""Of one hidden layer of ReLU units, by SGD on the mean cross-entropy."""


class Digits(NamedTuple):
    """images (N, 64) from 0, paper, to 1, ink; labels (N,) 0 … 9."""

    images: Tensor
    labels: Tensor


@functools.cache
def load() -> Digits:
    """The 1,797 digits that come with scikit-learn, 8 × 8 pixels each."""
    pixels, labels = load_digits(return_X_y=True)
    return Digits(torch.tensor(pixels / 16.0, dtype=torch.float64), torch.tensor(labels, dtype=torch.int64))


def plan() -> Plan:
    """Who is a member of which model, and its seed."""
    return Plan(len(load().labels), seed=0)


def train(
    members: NDArray[np.int64], seed: int, after_epoch: Callable[[nn.Module], None] = lambda model: None
) -> nn.Sequential:
    """A network trained on some of the digits; ``after_epoch`` is called with it after each epoch.

    In double precision, so that other processors, which round otherwise, train the same model.
    """
    images, labels = (part[members] for part in load())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, int(RECIPE["hidden"])), nn.ReLU(), nn.Linear(int(RECIPE["hidden"]), 10))
        model.double()
        optimizer = torch.optim.SGD(
            model.parameters(), RECIPE["rate"], RECIPE["momentum"], weight_decay=RECIPE["weight_decay"]
        )
        for _ in range(int(RECIPE["epochs"])):
            for batch in torch.split(torch.randperm(len(images)), int(RECIPE["batch_size"])):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(images[batch]), labels[batch]))
                optimizer.step()
            after_epoch(model)
    return model


@dataclass(frozen=True, eq=False)
class Trained:
    """The audited model, what its training remembers, and its rerun with another seed.

    members, others  (n,), (k,) rows of the digits that both were trained on, and of the rest
    """

    model: nn.Sequential
    trace: Trace
    rerun: nn.Sequential
    members: NDArray[np.int64]
    others: NDArray[np.int64]

    def share_right(self, rows: NDArray[np.int64]) -> float:
        """Share of some digits that the model reads as they are labelled."""
        images, labels = (part[rows] for part in load())
        with torch.no_grad():
            return float((self.model(images).argmax(1) == labels).double().mean())


def train_both(seed: int) -> Trained:
    """The model with a trace, and its rerun."""
    key, again = ModelKey("target", seed), ModelKey("rerun", seed)
    drawn = plan()
    members, others = drawn.members(key), np.flatnonzero(~drawn.mask(key))
    images, labels = (part[members] for part in load())
    trace = Trace()
    with progress_bar("Training on digits", 2 * int(RECIPE["epochs"])) as advance:

        def remember(model: nn.Module) -> None:
            trace.update(model, (images, labels))
            advance()

        model = train(members, drawn.seed_of(key), remember)
        rerun = train(members, drawn.seed_of(again), lambda _: advance())
    return Trained(model, trace, rerun, members, others)


@dataclass(frozen=True, eq=False)
class Demo:
    """The audit, and what else there is to show.

    images      (n, 8, 8) of the members, in the order of the audit's table; from 0, paper, to 1, ink
    facts       how the model was trained, and how well it reads
    """

    audit: Audit
    images: NDArray[np.float64]
    facts: dict[str, Any]

    def picture(self, name: Any) -> NDArray[np.uint8]:
        """The digit of that id, dark on white, four points to a pixel."""
        ink = load().images[int(name)].reshape(8, 8).numpy()
        return np.kron(np.rint(255.0 * (1.0 - ink)), np.ones((4, 4))).astype(np.uint8)


def run_demo(seed: int = 0) -> Demo:
    """Train, train once more with another seed, audit; on one thread, as more would only wait for each other."""
    with limited_threads(1):
        return _run(seed)


def _run(seed: int) -> Demo:
    trained = train_both(seed)
    digits = load()
    members, others = ((digits.images[rows], digits.labels[rows]) for rows in (trained.members, trained.others))
    result = audit(
        trained.model,
        members,
        ids=trained.members.tolist(),
        trace=trained.trace,
        rerun=trained.rerun,
        held_out=others,
        weight_decay=RECIPE["weight_decay"],
    )
    facts = {
        "digits": len(members[0]) + len(others[0]),
        "held_out": len(others[0]),
        **RECIPE,
        "right_on_members": trained.share_right(trained.members),
        "right_on_others": trained.share_right(trained.others),
    }
    return Demo(result, members[0].reshape(-1, 8, 8).numpy(), facts)
