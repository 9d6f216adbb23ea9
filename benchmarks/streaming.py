"""Layers larger than memory: how time and resident memory grow with n, and a run that is killed and goes on.

    python benchmarks/streaming.py FOLDER [PART ...] [--records 10000000] [--output benchmarks/results/streaming.json]

    growth     an eighth, a quarter, half and all of the records
    in_memory  an eighth of them, read into memory first
    killed     an eighth of them with a store, killed in the middle of the second pass and resumed, beside one in one go
    killed_all the same of all of them, to be compared with growth
    ray        an eighth of them on one Ray worker, on two, and on two of which one is killed in the middle

Writes shards of 250,000 records with 64 float32 features and 10 outputs into FOLDER, once. Each measurement is a
process of its own on one thread, of which the system reports processor time and peak resident memory: the layer is
opened from the shards (which reads and checks all of it) and all default scores are computed. A part is kept in the
output as soon as it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, CLASSES, SHARD = 64, 10, 250_000
RIDGE = 1.0
RESULTS = Path(__file__).resolve().parent / "results" / "streaming.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_child(options.folder, json.loads(options.child))))
        return
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    shards = options.records // SHARD
    for part in options.parts:
        _generate(options.folder, shards if part in ("growth", "killed_all") else max(1, shards // 8))
        found = PARTS[part](options.folder, shards)
        print(part, json.dumps(found), flush=True)
        result = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else {}
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
        result |= {"machine": machine, "columns": FEATURES + 1, "outputs": CLASSES, part: found}
        options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _growth(folder: Path, shards: int) -> list[dict[str, Any]]:
    sizes = sorted({max(1, shards // 8), max(1, shards // 4), max(1, shards // 2), shards})
    return [_measure(folder, {"shards": count}) for count in sizes]


def _in_memory(folder: Path, shards: int) -> dict[str, Any]:
    return _measure(folder, {"shards": max(1, shards // 8), "in_memory": True})


def _on_ray(folder: Path, shards: int) -> list[dict[str, Any]]:
    count = max(1, shards // 8)
    flag = folder / "a-worker-died"
    flag.unlink(missing_ok=True)
    cases: list[dict[str, Any]] = [{"ray": 1}, {"ray": 2}, {"ray": 2, "kill": str(flag)}]
    found = [_measure(folder, {"shards": count, **case}) for case in cases]
    if not flag.exists():
        raise SystemExit("no worker was killed")
    flag.unlink()
    return [*found[:2], {**found[2], "kill": True}]


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
        if case.get("kill"):
            object.__setattr__(layer, "source", _dying(layer.source, case["kill"], layer.n // 2))
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


def _dying(source: Any, flag: str, row: int) -> Any:
    """The source, of which the first worker that reads a row kills itself, once. Sent to workers by value."""

    class Dying(type(source)):
        def read(self, rows: slice) -> Any:
            if os.getpid() != self.driver and rows.start <= row < rows.stop:
                try:
                    os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            return super().read(rows)

    one = object.__new__(Dying)
    one.__dict__.update(source.__dict__, driver=os.getpid())
    return one


def _killed(folder: Path, shards: int) -> dict[str, Any]:
    """An eighth of the records, and the same in one go with a store of its own: bit by bit."""
    found = _interrupted(folder, max(1, shards // 8))
    whole = _with_store(folder, max(1, shards // 8), "store-whole")
    return {
        **{name: value for name, value in found.items() if name not in ("means", "digest")},
        "whole_processor_seconds": whole["processor_seconds"],
        "resident_MB": [found["resident_MB"], whole["resident_MB"]],
        "same_bits": found["digest"] == whole["digest"],
    }


def _interrupted(folder: Path, shards: int) -> dict[str, Any]:
    """A run with a store, killed when half of the blocks of the second pass are added up, and run again."""
    store = folder / "store-killed"

    def halfway() -> bool:
        return any(store.glob("hessian-*-5-00000.safetensors"))

    start = time.perf_counter()
    _measure(folder, {"shards": shards, "store": str(store)}, halfway)
    killed_after = time.perf_counter() - start
    kept = sorted(path.name for path in store.glob("hessian-*"))
    resumed = _with_store(folder, shards, "store-killed")
    return {
        "records": resumed["records"],
        "killed_after_seconds": round(killed_after, 2),
        "kept_of_the_second_pass": len(kept),
        "resumed_processor_seconds": resumed["processor_seconds"],
        "resident_MB": resumed["resident_MB"],
        "means": resumed["means"],
        "digest": resumed["digest"],
    }


def _with_store(folder: Path, shards: int, name: str) -> dict[str, Any]:
    found = _measure(folder, {"shards": shards, "store": str(folder / name)})
    shutil.rmtree(folder / name)
    return found


PARTS: dict[str, Any] = {
    "growth": _growth,
    "in_memory": _in_memory,
    "killed": _killed,
    "killed_all": _interrupted,
    "ray": _on_ray,
}

if __name__ == "__main__":
    main()
