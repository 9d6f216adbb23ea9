"""Does DP-SGD keep its promise? Canaries chosen from one model, against the ε that Opacus claims.

A softmax classifier of digits, trained by DP-SGD with three amounts of noise. Eighty canaries, records that the model
was not trained on under labels that it finds absurd, are chosen by ``noshadow.canaries`` from one model without noise.
Each is in each of the models with probability ½; LiRA over the models gives a lower bound on ε that holds with 95 %
confidence. It must lie below what is claimed, and how far below says how much an attacker of this kind falls short of
the worst case. Run it with

    pip install . opacus
    python examples/dp_audit.py

It takes less than a minute on a laptop and needs no download.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noshadow
from noshadow import attacks

warnings.filterwarnings("ignore", module="opacus")  # that its random numbers are not cryptographic
warnings.filterwarnings("ignore", message="Full backward hook is firing")  # Opacus expects it

MODELS, CANARIES, MEMBERS = 16, 80, 300
EPOCHS, BATCH, DELTA, CONFIDENCE = 15, 100, 1e-5, 0.95
Labelled = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Found:
    """What Opacus claims, what the attack shows, and how good the models are on records that nobody trained on."""

    claimed: float
    shown: float
    success_rate: float
    accuracy: float


def digits() -> tuple[Labelled, Labelled, Labelled]:
    """Training records, candidates for canaries, test records."""
    pixels, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(pixels))
    x, y = torch.tensor(pixels[order] / 16.0, dtype=torch.float32), torch.tensor(classes[order])
    ends = (0, MEMBERS, MEMBERS + 400, len(x))
    first, second, third = ((x[a:b], y[a:b]) for a, b in pairwise(ends))
    return first, second, third


def train(data: Labelled, noise: float, seed: int) -> tuple[nn.Module, float]:
    """A model and the ε that it has spent: ∞ without noise."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Linear(64, 10)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    if noise:
        engine = PrivacyEngine(accountant="prv")
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
        )
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            if len(inputs):  # Poisson sampling may draw none
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
    return model, engine.get_epsilon(DELTA) if noise else math.inf


def choose(members: Labelled, candidates: Labelled) -> Labelled:
    """Canaries from one model that has seen none of them."""
    model, _ = train(members, noise=0.0, seed=0)

    def layer(data: Labelled) -> noshadow.LastLayer:
        with torch.no_grad():
            return noshadow.LastLayer(data[0], model(data[0]), data[1], head="softmax", ridge=1.0)

    found = noshadow.canaries(layer(members), CANARIES, candidates=layer(candidates))
    return candidates[0][found.rows], torch.tensor(found.targets)


def audit(members: Labelled, canaries: Labelled, test: Labelled, noise: float) -> Found:
    """Train with a random half of the canaries, many times, and attack."""
    inside = np.random.default_rng(1).random((MODELS, CANARIES)) < 0.5
    outputs: list[npt.NDArray[np.float32]] = []
    accuracies, claimed = [], 0.0
    for seed, some in enumerate(inside):
        data = tuple(torch.cat([own, new[torch.tensor(some)]]) for own, new in zip(members, canaries, strict=True))
        model, spent = train((data[0], data[1]), noise, seed)
        claimed = max(claimed, spent)
        with torch.no_grad():
            outputs.append(model(canaries[0]).numpy())
            accuracies.append(float((model(test[0]).argmax(1) == test[1]).float().mean()))
    signal = attacks.signal(np.stack(outputs), canaries[1], "softmax")
    found = attacks.lira(signal, inside, progress=False)
    shown = found.epsilon_lower_bound(CONFIDENCE, DELTA)
    return Found(claimed, shown, float(found.success_rate.mean()), float(np.mean(accuracies)))


def compare(noises: tuple[float, ...] = (0.0, 0.5, 2.0)) -> dict[float, Found]:
    """The audit for each amount of noise."""
    members, candidates, test = digits()
    canaries = choose(members, candidates)
    return {noise: audit(members, canaries, test, noise) for noise in noises}


def main() -> None:
    print(f"{'noise':>5} {'ε claimed':>10} {'ε at least':>11} {'success rate':>13} {'accuracy':>9}")
    for noise, found in compare().items():
        print(
            f"{noise:5.1f} {found.claimed:10.2f} {found.shown:11.2f} {found.success_rate:13.3f} {found.accuracy:9.2f}"
        )


if __name__ == "__main__":
    main()
