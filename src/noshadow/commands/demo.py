"""``noshadow demo``: the main job, end to end, on data that scikit-learn ships."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from noshadow.audit import Audit, audit
from noshadow.commands.output import explained_errors, show_audit
from noshadow.progress import progress_bar

_EPOCHS = 30
_POLISH = 300
_WEIGHT_DECAY = 1e-3


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to save all records, .parquet or .csv.")] = Path(
        "noshadow-demo.parquet"
    ),
    top: Annotated[int, typer.Option(min=1, help="How many of the most exposed records to print.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the training run.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")] = False,
) -> None:
    """Train a small network on handwritten digits, audit it, and show its ten most exposed training images.

    No download: the 1,797 images come with scikit-learn. Takes a few seconds.
    """
    with explained_errors():
        result = run_demo(seed)
        saved = str(result.save(output))
        show_audit(result, top, as_json, saved)


def run_demo(seed: int = 0) -> Audit:
    """Train a 64-64-10 network on the digits and audit it."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16.0, dtype=torch.float64)
    labels = torch.tensor(digits, dtype=torch.int64)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).double()
        _train(model, images, labels)
    return audit(model, TensorDataset(images, labels), weight_decay=_WEIGHT_DECAY)


def _train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Stochastic gradient descent, then L-BFGS to a point where the gradient vanishes, as the theory assumes."""
    descent = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=_WEIGHT_DECAY)
    polish = torch.optim.LBFGS(
        model.parameters(), max_iter=_POLISH // 10, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
        polish.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        value = nn.functional.cross_entropy(model(images), labels) + 0.5 * _WEIGHT_DECAY * penalty
        torch.autograd.backward(value)
        return value

    with progress_bar("Training on digits", _EPOCHS + 10) as advance:
        for _ in range(_EPOCHS):
            for batch in torch.split(torch.randperm(len(images)), 128):
                descent.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(images[batch]), labels[batch]))
                descent.step()
            advance()
        for _ in range(10):
            cast(Any, polish).step(objective)
            advance()
