"""What ``noshadow demo`` shows: a small network on handwritten digits, trained and audited."""

from __future__ import annotations

from typing import Any, cast

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from noshadow.audit import Audit, audit
from noshadow.progress import progress_bar

__all__ = ["run_demo"]

_EPOCHS = 40
_POLISH = 300
_WEIGHT_DECAY = 1e-3


def run_demo(seed: int = 0) -> Audit:
    """Train a 64-64-10 network on the digits and audit it."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16.0, dtype=torch.float64)
    labels = torch.tensor(digits, dtype=torch.int64)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).double()
        head = nn.Linear(64, 10).double()
        _train(nn.Sequential(body, head), images, labels)
    with torch.no_grad():
        features = body(images)
    _converge(head, features, labels)
    model = nn.Sequential(body, head)
    return audit(model, TensorDataset(images, labels), weight_decay=_WEIGHT_DECAY)


def _train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=_WEIGHT_DECAY)
    with progress_bar("Training on digits", _EPOCHS) as advance:
        for _ in range(_EPOCHS):
            for batch in torch.split(torch.randperm(len(images)), 128):
                optimizer.zero_grad()
                torch.autograd.backward(nn.functional.cross_entropy(model(images[batch]), labels[batch]))
                optimizer.step()
            advance()


def _converge(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> None:
    """Train the last layer on, alone, until its gradient vanishes: there the scores are at their most exact."""
    optimizer = torch.optim.LBFGS(
        head.parameters(), max_iter=_POLISH, tolerance_grad=1e-9, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        penalty = head.weight.square().sum() + head.bias.square().sum()
        value = nn.functional.cross_entropy(head(features), labels) + 0.5 * _WEIGHT_DECAY * penalty
        torch.autograd.backward(value)
        return value

    cast(Any, optimizer).step(objective)
