"""Layers larger than memory: how time and resident memory grow with n, and a run that is killed and goes on.

    python benchmarks/streaming.py FOLDER [--records 10000000] [--ray] [--output results/streaming.json]

Writes shards of 250,000 records with 64 float32 features and 10 outputs into FOLDER, once. Each measurement is a
process of its own on one thread, of which the system reports processor time and peak resident memory: the layer is
opened from the shards (which reads and checks all of it) and all default scores are computed. Then a run with a store
is killed in the middle of its second pass and resumed; with --ray, one Ray worker is compared with two.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES, SHARD = 64, 10, 250_000
RIDGE = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(options.folder, json.loads(options.child))))
        return
    shards = options.records // SHARD
    _generate(options.folder, shards)
    sizes = sorted({max(1, shards // 8), max(1, shards // 4), max(1, shards // 2), shards})
    result: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "columns": FEATURES + 1,
        "outputs": CLASSES,
        "growth": [],
    }
    for count in sizes:
        result["growth"].append(_measure(options.folder, {"shards": count}))
        print(json.dumps(result["growth"][-1]), flush=True)
    result["in_memory"] = _measure(options.folder, {"shards": sizes[0], "in_memory": True})
    print(json.dumps(result["in_memory"]), flush=True)
    result["killed"] = _killed(options.folder, sizes[len(sizes) // 2 - 1])
    print(json.dumps(result["killed"]), flush=True)
    if options.ray:
        result["ray"] = [_measure(options.folder, {"shards": sizes[0], "ray": workers}) for workers in (1, 2)]
        print(json.dumps(result["ray"]), flush=True)
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _generate(folder: Path, shards: int) -> None:
    """Features of a trained network's kind: correlated, a few directions strong; targets drawn from the outputs."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(FEATURES, FEATURES)) * np.geomspace(1, 0.05, FEATURES)
    theta = rng.normal(size=(FEATURES, CLASSES)) * 0.4
    for k in range(shards):
        path = folder / f"shard-{k:05d}"
        if (path / "targets.npy").exists():
            continue
        path.mkdir(parents=True, exist_ok=True)
        own = np.random.default_rng((1, k))
        x = np.maximum(0, own.normal(size=(SHARD, FEATURES)) @ mixing).astype(np.float32)
        z = (x @ theta).astype(np.float32)
        y = (z + own.gumbel(size=z.shape)).argmax(1)
        for name, values in {"features": x, "outputs": z, "targets": y}.items():
            np.save(path / f"{name}.npy", values)


def _measure(folder: Path, case: dict[str, Any], kill_when: Any = None) -> dict[str, Any]:
    command = [sys.executable, __file__, str(folder), "--child", json.dumps(case)]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    )
    if kill_when is not None:
        while child.poll() is None and not kill_when():
            time.sleep(0.05)
        child.send_signal(signal.SIGKILL)
        child.wait()
        return {}
    output, _ = child.communicate()
    if child.returncode:
        raise SystemExit(f"{case} failed with {child.returncode}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def _child(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    import warnings

    import noshadow

    warnings.simplefilter("ignore")
    paths = [folder / f"shard-{k:05d}" for k in range(case["shards"])]
    start = time.perf_counter()
    if case.get("in_memory"):
        arrays = [np.concatenate([np.load(path / f"{name}.npy") for path in paths]) for name in _NAMES]
        layer = noshadow.LastLayer(*arrays, ridge=RIDGE)
    else:
        layer = noshadow.LastLayer.open(paths, ridge=RIDGE, progress=False)
    opened = time.perf_counter()
    if case.get("ray"):
        from noshadow.passes.ray_tasks import RayTasks

        tasks = RayTasks(workers=case["ray"])
        _warm(tasks, case["ray"])
        opened = time.perf_counter()
    engine = "ray" if case.get("ray") else None
    frame = noshadow.score(layer, progress=False, store=case.get("store"), engine=engine)
    done, busy = time.perf_counter(), time.process_time()
    status = Path("/proc/self/status").read_text(encoding="utf-8")  # getrusage counts the parent's too
    resident = next(int(line.split()[1]) / 2**10 for line in status.splitlines() if line.startswith("VmHWM"))
    digest = hashlib.sha256()
    for name in frame:
        digest.update(np.ascontiguousarray(frame[name].to_numpy()).data)
    return {
        **case,
        "records": layer.n,
        "seconds_to_open": round(opened - start, 2),
        "seconds_to_score": round(done - opened, 2),
        "processor_seconds": round(busy, 2),
        "resident_MB": round(resident),
        "table_MB": round(frame.shape[0] * frame.shape[1] * 8 / 2**20),
        "means": {name: float(value) for name, value in frame.mean().items()},
        "digest": digest.hexdigest()[:16],
    }


_NAMES = ("features", "outputs", "targets")


def _warm(tasks: Any, workers: int) -> None:
    """Every worker has started and imported noshadow before the clock does."""
    import torch

    from noshadow.layer import LastLayer

    def wait(layer: Any) -> dict[str, Any]:
        time.sleep(3)
        return {"done": torch.zeros(())}

    layer = LastLayer(np.ones((2 * workers, 1)), np.zeros(2 * workers), np.zeros(2 * workers), "squared")
    list(tasks(layer, wait, [slice(k, k + 1) for k in range(2 * workers)]))


def _killed(folder: Path, shards: int) -> dict[str, Any]:
    import shutil

    stores = [folder / "store-killed", folder / "store-whole"]
    for store in stores:
        shutil.rmtree(store, ignore_errors=True)
    case = {"shards": shards, "store": str(stores[0])}
    start = time.perf_counter()

    def halfway() -> bool:
        """A quarter of the blocks of the second pass are added up."""
        return any(stores[0].glob("hessian-*-4-00000.safetensors"))

    _measure(folder, case, halfway)
    killed_after = time.perf_counter() - start
    kept = sorted(path.name for path in stores[0].glob("hessian-*"))
    resumed = _measure(folder, case)
    whole = _measure(folder, {**case, "store": str(stores[1])})
    for store in stores:
        shutil.rmtree(store)
    return {
        "records": whole["records"],
        "killed_after_seconds": round(killed_after, 2),
        "kept_of_the_second_pass": len(kept),
        "resumed_processor_seconds": resumed["processor_seconds"],
        "whole_processor_seconds": whole["processor_seconds"],
        "resident_MB": [resumed["resident_MB"], whole["resident_MB"]],
        "same_bits": resumed["digest"] == whole["digest"],
    }


if __name__ == "__main__":
    main()
