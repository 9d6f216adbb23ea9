"""What a trace costs: ``Trace.update(model, data)`` against a plain evaluation pass over the same data, as a ratio.

    python benchmarks/trace_cost.py

Both run in turn, several times, on one core; the ratio is that of the medians of the processor's time. A plain pass
reads a DataLoader in order, in evaluation mode and without gradients, and keeps the outputs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from noshadow import Trace

REPEATS = 9


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


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so that the processor's time is what is compared, whatever else the machine does
    for name, (model, shape, n, m) in cases().items():
        x, y = torch.randn(n, *shape), torch.randint(0, m, (n,))
        in_memory, by_row = TensorDataset(x, y), Rows(x, y)
        times: dict[str, list[float]] = {"trace of rows": [], "rows": [], "trace of tensors": [], "tensors": []}
        of_rows, of_tensors = Trace(), Trace()
        for _ in range(REPEATS):
            times["trace of rows"].append(seconds(of_rows.update, model, by_row))
            times["rows"].append(seconds(plain_pass, model, by_row))
            times["trace of tensors"].append(seconds(of_tensors.update, model, in_memory))
            times["tensors"].append(seconds(sliced_pass, model, in_memory))
        middle = {what: statistics.median(values) for what, values in times.items()}
        print(
            f"{name}: {middle['trace of rows'] / middle['rows']:.2f} of a plain pass over records "
            f"({middle['rows'] * 1e3:.0f} ms), {middle['trace of tensors'] / middle['tensors']:.2f} of the quickest "
            f"pass over tensors ({middle['tensors'] * 1e3:.0f} ms)"
        )


if __name__ == "__main__":
    main()
