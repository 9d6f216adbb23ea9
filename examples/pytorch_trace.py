"""A PyTorch network, its trace, one rerun: which training images could an attacker expose, and how surely?

A 64-64-10 network on 1,200 of scikit-learn's digits, some of them mislabelled: the records that a network has to
memorise, and that attacks find. Its run is traced; the same recipe with another seed, and the images that neither
model saw, calibrate the success rates. Run it with

    python examples/pytorch_trace.py

It takes some seconds on a laptop and needs no download. It writes audit.parquet into a folder of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import noshadow

MEMBERS, EPOCHS, MISLABELLED = 1200, 60, 36


def digits() -> tuple[TensorDataset, TensorDataset, set[int]]:
    """Training records, held-out records, and which of the former carry a wrong label."""
    pixels, classes = load_digits(return_X_y=True)
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(pixels / 16.0, dtype=torch.float32)[order]
    labels = torch.tensor(classes)[order]
    labels[:MISLABELLED] = (labels[:MISLABELLED] + 3) % 10
    members, others = slice(0, MEMBERS), slice(MEMBERS, None)
    return (
        TensorDataset(images[members], labels[members]),
        TensorDataset(images[others], labels[others]),
        set(range(MISLABELLED)),
    )


def train(data: TensorDataset, seed: int) -> tuple[nn.Module, torch.optim.Optimizer, noshadow.Trace]:
    """A network, its optimizer and its trace: one line in an ordinary loop."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)
    trace = noshadow.Trace()
    for _ in range(EPOCHS):
        for images, labels in DataLoader(data, batch_size=64, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        trace.update(model, data)
    return model, optimizer, trace


def audits() -> dict[str, noshadow.Audit]:
    """The audit with ever more to go by."""
    data, held_out, _ = digits()
    model, optimizer, trace = train(data, seed=1)
    rerun, _, trace_of_rerun = train(data, seed=2)
    both = {"optimizer": optimizer, "rerun": rerun, "held_out": held_out}
    return {
        "the final model": noshadow.audit(model, data, optimizer=optimizer),
        "a trace of a rerun": noshadow.audit(model, data, trace=trace_of_rerun, **both),
        "a trace of its own run": noshadow.audit(model, data, trace=trace, **both),
    }


def main() -> None:
    found, wrong = audits(), digits()[2]
    print(f"Of {len(wrong)} mislabelled images, among the {len(wrong)} most exposed by")
    for name, audit in found.items():
        hits = wrong & set(audit.top(len(wrong))["id"])
        print(f"  {name:24} {len(hits)}")
    best = found["a trace of its own run"]
    print("\nThe most exposed:")
    print(best.top(8)[["id", "target", "loss", "exposure", "attack_accuracy"]].to_string(index=False))
    folder = Path(tempfile.mkdtemp(prefix="noshadow-"))
    print(f"\nAll {len(best.table):,} records: {best.save(folder / 'audit.parquet')}")


if __name__ == "__main__":
    main()
