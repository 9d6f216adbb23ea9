"""docs/cost.md: what layers cost that nobody here has run, from counted operations and measured rates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from noshadow.accuracy import records_to_check
from noshadow.curvature import CURVATURES, Size, choose
from noshadow.curvature.choose import PATIENCE
from noshadow.curvature.iterative import system_work

TEMPLATE = Path(__file__).parent / "cost_template.md"
MACHINES = 8
CORES = 2
STEPS = 20  # of a system


class Job(NamedTuple):
    name: str
    size: Size


HEADS = [
    Job("CIFAR-100, ResNet-18", Size(50_000, 513, 100, "softmax")),
    Job("ImageNet-1k, MobileNet", Size(1_281_167, 1281, 1000, "softmax")),
    Job("ImageNet-1k, ResNet-50", Size(1_281_167, 2049, 1000, "softmax")),
    Job("ImageNet-21k, ResNet-50", Size(14_197_122, 2049, 21_841, "softmax")),
]
MANY = [
    Job("100 M records, 65 × 10", Size(100_000_000, 65, 10, "softmax")),
    Job("100 M records, 769 × 2", Size(100_000_000, 769, 2, "softmax")),
    Job("100 M records, 2049 × 1000", Size(100_000_000, 2049, 1000, "softmax")),
]


def operations(name: str, size: Size) -> float:
    """The formulas of the page."""
    n, p = float(size.n), size.columns
    m = max(1, size.outputs - 1)  # of classes, one direction says nothing
    if name == "dense":
        return n * (p * m) ** 2 + float(p * m) ** 3
    if name == "blocks":
        return 4 * n * p**2 * m + 2.0 * p**3 * m
    return n * (12 * p**2 + 34 * p * m + (74 * m**2 if m > 1 else 0)) + 20.0 * p**3 + 20.0 * m**3


def bytes_of(size: Size) -> float:
    return float(size.n) * (4 * (size.columns - 1) + 4 * size.outputs + 8)


def cost_page(scale: dict[str, Any], streaming: dict[str, Any]) -> str:
    row = scale["imagenet"]
    head, ours = row["head"], row["side by side"]["kronecker"]
    measured = Size(head["n"], head["columns"], head["outputs"], "softmax")
    rate = operations("kronecker", measured) / ours["seconds"]
    largest = streaming["growth"][-1]
    micro = largest["processor_seconds"] / largest["records"] * 1e6
    stream = Size(largest["records"], streaming["columns"], streaming["outputs"], "softmax")
    own_rate = operations("dense", stream) / (largest["processor_seconds"] / CORES)
    width = stream.outputs - 1
    packed = 8 * (stream.columns * (stream.columns + 1) // 2) * (width * (width + 1) // 2) / 1e6
    return TEMPLATE.read_text(encoding="utf-8").format(
        columns=measured.columns,
        outputs=measured.outputs,
        n=measured.n,
        measured_seconds=_duration(ours["seconds"]),
        measured_operations=_power(operations("kronecker", measured)),
        rate=rate / 1e9,
        stream_columns=stream.columns,
        stream_outputs=stream.outputs,
        stream_n=stream.n,
        micro=micro,
        patience=_power(PATIENCE),
        heads=_heads(rate),
        records=_records(rate, own_rate),
        ray=_ray(streaming),
        packed=packed,
        sent=64 * packed,
    )


def _heads(rate: float) -> str:
    lines = [
        "| head | P × m | n | records on disk | `auto` takes, of 64 GiB | needs | operations | one machine | 8 such "
        "cores | check, at the least |",
        "|---|---|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for name, size in HEADS:
        chosen = choose("auto", size, 64.0).name
        work, check = operations(chosen, size), 2 * records_to_check(size) * STEPS * system_work(size)
        lines.append(
            f"| {name} | {size.columns:,} × {size.outputs:,} | {size.n:,} | {bytes_of(size) / 1e9:,.1f} GB | {chosen} "
            f"| {CURVATURES[chosen].memory(size):,.1f} GiB | {_power(work)} | {_duration(work / rate)} "
            f"| {_duration(work / rate * CORES / 8)} | {_duration(check / rate)} |"
        )
    return "\n".join(lines)


def _records(rate: float, dense_rate: float) -> str:
    lines = [
        f"| layer | on disk | read | curvature | operations | one machine | {MACHINES} machines |",
        "|---|--:|--:|---|--:|--:|--:|",
    ]
    for name, size in MANY:
        chosen = choose("auto", size, 8.0).name
        work, passes = operations(chosen, size), 4 if chosen == "dense" else 5
        seconds = work / (dense_rate if chosen == "dense" else rate)
        lines.append(
            f"| {name} | {bytes_of(size) / 1e9:,.0f} GB | {passes * bytes_of(size) / 1e12:.2g} TB | {chosen} "
            f"| {_power(work)} | {_duration(seconds)} | {_duration(seconds / MACHINES)} |"
        )
    return "\n".join(lines)


def _ray(streaming: dict[str, Any]) -> str:
    if "ray" not in streaming:
        return ""
    one, two = streaming["ray"][:2]
    return (
        f" Measured: {one['records']:,} records take {one['seconds_to_score']:.0f} s on one worker and "
        f"{two['seconds_to_score']:.0f} s on two, {one['seconds_to_score'] / two['seconds_to_score']:.2f}×."
    )


def _power(value: float) -> str:
    digits, exponent = f"{value:.0e}".split("e")
    return f"{digits}·10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(int(exponent)))}"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}" if seconds >= 10 * size else f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.1g} s"
