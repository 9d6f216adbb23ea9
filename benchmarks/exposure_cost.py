"""What everything costs beside one score: all columns, with trace and rates, against ``newton`` alone, as a ratio.

    python benchmarks/exposure_cost.py [--output results/exposure_cost.json]

Both run in turn on one thread, now the one first and now the other; a ratio is the median over the pairs of that of the
processor's time. Features and labels are drawn; their values change nothing in what there is to compute.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch

import noshadow
from noshadow import LastLayer, Trace
from trace_cost import paired

REPEATS = 7
GOAL = 2.5
EPOCHS = 3
HELD_OUT = 1_000
CASES = {"257 × 10": (257, 10, 25_000), "65 × 10": (65, 10, 10_000), "129 × 1, squared": (129, 1, 8_256)}


def drawn(columns: int, m: int, n: int, seed: int) -> LastLayer:
    """Records of a layer with ``columns``, the constant included, as one model would give them."""
    fixed, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    theta = torch.randn((columns - 1, m), generator=fixed) * 2.0 / columns**0.5
    x = torch.randn((n, columns - 1), generator=own)
    outputs = x @ theta
    if m == 1:
        return LastLayer(x, outputs, outputs[:, 0] + 0.5 * torch.randn(n, generator=own), head="squared", ridge=1.0)
    targets = torch.distributions.Categorical(logits=outputs).probs.multinomial(1, generator=own).squeeze(1)
    return LastLayer(x, outputs, targets, head="softmax", ridge=1.0)


def traced(layer: LastLayer) -> Trace:
    trace = Trace(layer.head)
    for epoch in range(EPOCHS):
        trace.update(outputs=layer.outputs * (epoch + 1) / EPOCHS, targets=layer.targets)
    return trace


def measured() -> list[dict[str, Any]]:
    rows = []
    for name, (columns, m, n) in CASES.items():
        layer, held_out = drawn(columns, m, n, 1), drawn(columns, m, HELD_OUT, 2)
        trace = traced(layer)
        found = paired(
            lambda layer=layer, trace=trace, held_out=held_out: noshadow.score(
                layer, trace=trace, spread=(1.0, 1.0), held_out=held_out, progress=False
            ),
            lambda layer=layer: noshadow.score(layer, scores=["newton"], progress=False),
            REPEATS,
        )
        rows.append({"layer": name, "n": n, **found})
        print(f"{name}, n = {n:,}: {found['ratio']:.2f} of {found['plain_seconds']:.2f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "exposure_cost.json")
    output = parser.parse_args().output
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", noshadow.NoshadowWarning)
    results = {"torch": torch.__version__, "repeats": REPEATS, "goal": GOAL, "rows": measured()}
    output.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
