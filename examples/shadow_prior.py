"""A few shadow models, used well: a score of one model as the prior of eight.

Small networks on digits, each trained on a random half. The truth is LiRA with 64 of them. Against it: the score of one
model, eight other models alone, and both together (``attacks.with_prior``). Run it with

    python examples/shadow_prior.py

It takes less than a minute on a laptop and needs no download.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import nn

import noshadow
from noshadow import attacks, evaluate, shadow

Floats = npt.NDArray[np.float64]
RECORDS, FEW, MANY, EPOCHS = 600, 8, 64, 20


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class Found:
    """Recall of the truth's top 5 % in the top 5 % of each ranking."""

    score: float
    models: float
    together: float


def compare(seed: int = 0) -> Found:
    """Train, attack, predict, compare."""
    pixels, classes = load_digits(return_X_y=True)
    x = torch.tensor(pixels[:RECORDS] / 16.0, dtype=torch.float32)
    y = torch.tensor(classes[:RECORDS])
    recipe = shadow.Recipe(
        epochs=EPOCHS, batch_size=32, optimizer="sgd", learning_rate=0.1, momentum=0.9, weight_decay=2e-4
    )
    trainer = shadow.TorchTrainer(network, (x, y), recipe, head="softmax")
    with tempfile.TemporaryDirectory() as folder:
        study = shadow.Study(trainer, RECORDS, FEW + MANY, seed, store=folder, targets=y, head="softmax")
        result = study.run("serial", progress=False)
        signal, inside = attacks.signal(result.outputs, y, "softmax"), result.membership
    truth = attacks.lira(signal[FEW:], inside[FEW:], progress=False)
    predicted = one_model(x, y, seed)
    few = attacks.with_prior(signal[:FEW], inside[:FEW], predicted)

    def recall(score: Floats) -> float:
        return evaluate.recall(score, truth.success_rate, top=0.05, keep=0.05, tiebreak=truth.tiebreak)

    measured = np.nan_to_num(few.measured, nan=float(np.nanmin(few.measured)))  # nothing is known: last
    return Found(recall(predicted), recall(measured), recall(few.shift))


def one_model(x: torch.Tensor, y: torch.Tensor, seed: int) -> Floats:
    """The exposure of every record in one model that was trained on all of them, with a trace."""
    torch.manual_seed(seed)
    model, trace = network(), noshadow.Trace()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        trace.update(model, (x, y))
    return noshadow.audit(model, (x, y), trace=trace, optimizer=optimizer).table["exposure"].to_numpy()


def main() -> None:
    found = compare()
    print(f"Of the 5 % that LiRA with {MANY} models exposes most, among the 5 % ranked highest by")
    print(f"  the score of one model            {found.score:.0%}")
    print(f"  {FEW} other models alone             {found.models:.0%}")
    print(f"  both together                     {found.together:.0%}")


if __name__ == "__main__":
    main()
