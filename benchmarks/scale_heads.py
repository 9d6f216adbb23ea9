"""The heads that ``scale.py`` measures: made ones of realistic confidence, and those of networks that were trained.

A head is made once and kept in the working folder, because features of a backbone and a thousand classes take minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import noshadow

CIFAR = "cifar100_10k.npz"
BACKBONE = "efficientnet-lite0"


@dataclass(frozen=True)
class Head:
    """A linear head on the records that it was trained on: features (n, p), logits (n, m), classes (n,), its
    parameters (p + 1, m), the constant last, and Λ."""

    features: Tensor
    outputs: Tensor
    targets: Tensor
    coefficients: Tensor
    ridge: float

    @property
    def layer(self) -> noshadow.LastLayer:
        return noshadow.LastLayer(
            self.features, self.outputs, self.targets, ridge=self.ridge, coefficients=self.coefficients
        )

    def facts(self) -> dict[str, Any]:
        p = torch.softmax(self.outputs.double(), 1)
        return {
            "n": len(self.features),
            "columns": self.features.shape[1] + 1,
            "outputs": self.outputs.shape[1],
            "ridge": self.ridge,
            "mean_confidence": float(p.amax(1).mean()),
            "accuracy": float((p.argmax(1) == self.targets).double().mean()),
        }


def kept(name: str, work: Path, make: Callable[[], Head]) -> Head:
    """A head from the working folder, where it is made once."""
    path = work / f"{name}.npz"
    if not path.exists():
        head = make()
        arrays = {key: value.numpy() for key, value in vars(head).items() if isinstance(value, Tensor)}
        temporary = path.with_name(f"making-{path.name}")
        np.savez(temporary, ridge=head.ridge, **arrays)
        temporary.rename(path)
    with np.load(path) as arrays:
        found = {key: torch.from_numpy(arrays[key]) for key in arrays.files if key != "ridge"}
        return Head(**found, ridge=float(arrays["ridge"]))


def structured(n: int, p: int, m: int, confidence: float, ridge: float, seed: int = 0) -> Head:
    """Class means and noise with a heavy-tailed spectrum behind a ReLU; columns of unequal size; logits of linear
    discriminants at the temperature of that mean confidence, labels drawn from them: the head is calibrated, so that
    its accuracy is about its confidence, and stationary up to sampling."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    latent = min(512, p)
    spectrum = torch.arange(1, latent + 1) ** -0.5
    mixing = normal(latent, p) * (spectrum / spectrum.square().sum().sqrt()).unsqueeze(1)
    size = torch.exp(0.5 * normal(p))
    means = 0.8 * normal(m, latent)
    of_class = torch.randint(0, m, (n,), generator=generator)
    x = torch.empty(n, p)
    for start in range(0, n, 5000):
        inner = means[of_class[start : start + 5000]]
        inner = inner + normal(*inner.shape)
        x[start : start + 5000] = torch.relu(inner @ mixing + 0.1 * normal(len(inner), p)) * size
    center = x.mean(0)
    counts = torch.bincount(of_class, minlength=m).clamp(min=1)
    classes = torch.zeros(m, p).index_add_(0, of_class, x - center) / counts[:, None]
    within = (x - center).T @ (x - center) / n - (classes.T * counts / n) @ classes
    spread = within.double() + 0.05 * float(within.diagonal().mean()) * torch.eye(p, dtype=torch.float64)
    theta = torch.linalg.solve(spread, classes.T.double())
    bias = -0.5 * (classes.double() * theta.T).sum(1) - center.double() @ theta
    z = (x @ theta.float()).double() + bias
    low, high = 1e-3, 10.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        mean = float(torch.softmax(middle * z[:4000], 1).amax(1).mean())
        low, high = (middle, high) if mean < confidence else (low, middle)
    z *= low
    y = torch.empty(n, dtype=torch.int64)
    for start in range(0, n, 5000):
        part = z[start : start + 5000]
        y[start : start + 5000] = torch.multinomial(torch.softmax(part, 1), 1, generator=generator).flatten()
    return Head(x, z, y, low * torch.cat([theta, bias[None]]), ridge)


def digits(weight_decay: float) -> Head:
    """A network of one hidden layer of 128 on scikit-learn's digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    inputs, labels = torch.tensor(x / 16.0, dtype=torch.float32), torch.tensor(y)
    return _trained(inputs, labels, 128, 10, weight_decay, epochs=60, batch=64, rate=0.1)


def cifar100_network(data: Path, n: int, work: Path) -> Head:
    """A hidden layer of 512 on the frozen features of a backbone, trained with weight decay on n images."""
    x, y = cifar100_features(data, n, work)
    return _trained(x, y, 512, 100, 5e-4, epochs=40, batch=128, rate=0.05)


def cifar100_probe(data: Path, n: int, work: Path) -> Head:
    """A linear layer on the frozen features of a backbone, trained with weight decay on n images."""
    x, y = cifar100_features(data, n, work)
    return _trained(x, y, None, 100, 5e-4, epochs=60, batch=128, rate=0.05)


def cifar100_features(data: Path, n: int, work: Path) -> tuple[Tensor, Tensor]:
    """Features (n, 1280) of CIFAR-100's first n images, and their fine labels."""
    from noshadow.bench.backbones import image_features

    with np.load(data / CIFAR) as arrays:
        images, labels = arrays["x_train"][:n], arrays["y_train"][:n]
    path = work / f"cifar100-features-{n}.npy"
    if not path.exists():
        with open(path.with_suffix(".making"), "wb") as file:
            np.save(file, image_features(BACKBONE, images, progress=False))
        path.with_suffix(".making").rename(path)
    return torch.from_numpy(np.load(path)), torch.from_numpy(labels.astype(np.int64)).flatten()


def _trained(
    x: Tensor, y: Tensor, hidden: int | None, m: int, weight_decay: float, epochs: int, batch: int, rate: float
) -> Head:
    """SGD with momentum and a cosine schedule; the head as the network has it after the last epoch."""
    torch.manual_seed(0)
    body = nn.Identity() if hidden is None else nn.Sequential(nn.Linear(x.shape[1], hidden), nn.ReLU())
    head = nn.Linear(x.shape[1] if hidden is None else hidden, m)
    parameters = [*body.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=rate, momentum=0.9, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            F.cross_entropy(head(body(x[rows])), y[rows]).backward()
            optimizer.step()
        schedule.step()
    with torch.no_grad():
        features = body(x)
        theta = torch.cat([head.weight.T, head.bias[None]])
        return Head(features, head(features), y, theta, weight_decay * len(x))
