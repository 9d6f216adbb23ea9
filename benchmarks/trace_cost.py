"""What a trace costs: ``Trace.update(model, data)`` against a plain evaluation pass over the same data, as a ratio.

    python benchmarks/trace_cost.py [--output results/trace_cost.json]

Both run in turn, now the one first and now the other, on one thread; a ratio is the median over the pairs of that of
the processor's time. A plain pass reads a DataLoader in order, in evaluation mode and without gradients, and keeps the
outputs; the quickest takes slices of tensors in memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from noshadow import Trace

REPEATS = 25
GOAL = 1.1


class Rows(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Records that are read one by one."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


def plain_pass(model: nn.Module, data: Dataset[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """What anybody writes."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(x) for x, _ in DataLoader(data, batch_size=256)])
    model.train()
    return outputs


def sliced_pass(model: nn.Module, data: TensorDataset) -> torch.Tensor:
    """The quickest there is: slices of tensors in memory."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(x) for x in data.tensors[0].split(256)])
    model.train()
    return outputs


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    start = time.process_time()
    call(*arguments)
    return time.process_time() - start


def cases() -> dict[str, tuple[nn.Module, tuple[int, ...], int, int]]:
    """Models, shapes of an input, records and classes."""
    cnn = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return {
        "MLP 64-128-10, 20,000 records": (
            nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)),
            (64,),
            20_000,
            10,
        ),
        "MLP 512-1024-100, 20,000 records": (
            nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 100)),
            (512,),
            20_000,
            100,
        ),
        "CNN on 32 × 32 images, 4,000 records": (cnn, (3, 32, 32), 4_000, 10),
    }


def paired(ours: Callable[[], Any], plain: Callable[[], Any], repeats: int = REPEATS) -> dict[str, float]:
    """Processor's seconds of a plain call, and the median ratio of pairs, in changing order."""
    ours(), plain()
    ratios, times = [], []
    for turn in range(repeats):
        first, second = (seconds(call) for call in ((ours, plain) if turn % 2 else (plain, ours)))
        own, other = (first, second) if turn % 2 else (second, first)
        ratios.append(own / other)
        times.append(other)
    lower, _, upper = statistics.quantiles(ratios, n=4)
    middle = statistics.median(ratios)
    return {"plain_seconds": statistics.median(times), "ratio": middle, "quartiles": [lower, upper]}


def measured() -> list[dict[str, Any]]:
    rows = []
    for name, (model, shape, n, m) in cases().items():
        x, y = torch.randn(n, *shape), torch.randint(0, m, (n,))
        in_memory, by_row = TensorDataset(x, y), Rows(x, y)
        loader = DataLoader(by_row, batch_size=256)
        passes = {
            "a Dataset": (by_row, lambda data=by_row, model=model: plain_pass(model, data)),
            "a DataLoader": (loader, lambda data=by_row, model=model: plain_pass(model, data)),
            "tensors": (in_memory, lambda data=in_memory, model=model: sliced_pass(model, data)),
        }
        for what, (data, plain) in passes.items():
            trace = Trace()
            found = paired(lambda trace=trace, data=data, model=model: trace.update(model, data), plain)
            rows.append({"model": name, "data": what, **found})
            print(f"{name}, {what}: {found['ratio']:.3f} of {found['plain_seconds'] * 1e3:.0f} ms", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "trace_cost.json")
    output = parser.parse_args().output
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so that the processor's time is what is compared, whatever else the machine does
    results = {"torch": torch.__version__, "repeats": REPEATS, "goal": GOAL, "rows": measured()}
    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
