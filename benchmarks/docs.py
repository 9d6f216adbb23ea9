"""Write the pages of the measurements from the result files: numbers in the docs are never typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from core import GROWTH, PAPER_SHAPES, name
from cost import cost_page
from scale_docs import scale_section, settings_section
from small_docs import small_page

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
THEORY_PAGE = HERE.parent / "docs" / "theory.md"
COST_PAGE = HERE.parent / "docs" / "cost.md"
SMALL_PAGE = HERE.parent / "docs" / "small.md"
THEORY_TEMPLATE = HERE / "theory_template.md"


def read(results: str) -> dict:
    path = HERE / "results" / f"{results}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def peer_cell(other: dict | None, ours: float) -> str:
    if other is None:
        return "not measured"
    if other["seconds"] is None:
        return f"over {other['over_seconds']:.0f} s" if "over_seconds" in other else f"failed: {other['failed']}"
    times = other["seconds"] / ours
    return f"{other['seconds']:.1f} s ({times:.1f}×), off by {other['median_relative_error']:.1g}"


def core() -> list[str]:
    results = read("core")
    machine = results["machine"]
    lines = [
        "## Exact scores",
        "",
        f"`make bench`, {machine['cores']} cores, torch {machine['torch']}. All seven scores of every record, float64. "
        "A GEMM is one float64 matrix product of 2·n·((p+1)·m)² operations, measured in the same process. Beside it, "
        "the influence score alone from other libraries on the same head: their seconds, as a multiple of ours, and "
        "the median relative distance of their influence from the exact one.",
        "",
        "| n | p+1 | m | head | seconds | GEMMs | goal | peak GiB | kronfluence (EK-FAC) | laplace-torch (full) "
        "| captum |",
        "|--:|--:|--:|---|--:|--:|--:|--:|---|---|---|",
    ]
    growth = ["| n | seconds | microseconds per record | peak GiB |", "|--:|--:|--:|--:|"]
    for key in map(name, PAPER_SHAPES + GROWTH):
        entry = results["ours"][key]
        n, columns, m, head = (part.split("=")[-1] for part in key.split())
        peers = results["peers"].get(key)
        if peers:
            cells = [
                peer_cell(peers.get(peer), entry["seconds"]) for peer in ("kronfluence", "laplace-torch", "captum")
            ]
            goal = f"≤ {entry['goal']}" if entry["goal"] else ""
            lines.append(
                f"| {int(n):,} | {columns} | {m} | {head} | {entry['seconds']:.2f} | {entry['ratio']:.2f} | {goal} "
                f"| {entry['peak_gib']:.2f} | {' | '.join(cells)} |"
            )
        else:
            each = entry["seconds"] / int(n) * 1e6
            growth.append(f"| {int(n):,} | {entry['seconds']:.2f} | {each:.1f} | {entry['peak_gib']:.2f} |")
    notes = ["", "The cost grows linearly in the number of records; here with p+1 = 65 and m = 10:", "", *growth]
    slower = [
        (key, peer)
        for key, peers in results["peers"].items()
        for peer, other in peers.items()
        if other["seconds"] is not None and other["seconds"] < results["ours"][key]["seconds"]
    ]
    for key, peer in slower:
        other, ours = results["peers"][key][peer], results["ours"][key]["seconds"]
        notes += [
            "",
            f"On {key}, {peer} is faster than noshadow ({other['seconds']:.1f} s against {ours:.1f} s). It gives the "
            f"influence only, and one that is {other['median_relative_error']:.0%} off in the median.",
        ]
    return lines + notes + [line for key in results.get("measured_again", {}) for line in again(results, key)]


def again(results: dict, key: str) -> list[str]:
    """A row that was measured twice says so, with what the first measurement gave."""
    first = results["measured_again"][key]
    ours = first["ours"]
    others = [f"{peer} {other['seconds']:.1f} s" for peer, other in first["peers"].items() if other["seconds"]]
    return [
        "",
        f"The row {key} was measured twice, the second time after the machine had been slow in the first: that gave "
        + ", ".join([f"{ours['seconds']:.1f} s for noshadow ({ours['ratio']:.2f} GEMMs)", *others])
        + ".",
    ]


def attacks() -> list[str]:
    results = read("attacks")
    lines = [
        "## Attacks",
        "",
        "`python benchmarks/attacks.py`, each in a process of its own, on one thread. Peak memory includes the imports "
        "and the inputs.",
        "",
        "| attack | models | records | population | seconds | peak MB | of which imports and inputs |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for case in results["speed"]:
        population = f"{case['population']:,}" if "population" in case else ""
        lines.append(
            f"| {case['attack']} | {case['models']} | {case['records']:,} | {population} | {case['seconds']:.2f} "
            f"| {case['peak_mb']:.0f} | {case['of_which_imports_and_inputs_mb']:.0f} |"
        )
    first = results["convergence"][0]
    lines += [
        "",
        "LiRA's success rate on the Gaussian linear model, where the optimum is known in closed form "
        f"({first['optimum']:.4f}), by the number of shadow models:",
        "",
        "| models | variance per record | fixed variance | auto | gap to the optimum | standard error |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['models']} | {row['per_sample']:.4f} | {row['fixed']:.4f} | {row['auto']:.4f} | {row['gap']:.4f} "
        f"| {row['standard_error']:.4f} |"
        for row in results["convergence"]
    ]
    return lines


def shadow() -> list[str]:
    results = read("shadow")
    energy = results["energy"]
    lines = [
        "## Shadow models",
        "",
        f"`python benchmarks/shadow.py --data DIR`. The paper's UCI Energy network, {energy['models']} models of "
        f"{energy['epochs']} epochs: {energy['seconds_one_by_one']:.0f} s one by one, {energy['seconds_stacked']:.0f} "
        f"s as one stack, **{energy['speedup']:.1f}×**. Seconds per model for other sizes, and the one chosen:",
        "",
        "| setting | " + " | ".join(results["stacks"]["energy"]["seconds_a_model"]) + " | chosen | over one by one |",
        "|---|" + "--:|" * (len(results["stacks"]["energy"]["seconds_a_model"]) + 2),
    ]
    for setting, row in results["stacks"].items():
        times = " | ".join(f"{seconds:.3f}" for seconds in row["seconds_a_model"].values())
        chosen = f"{row['chosen_at_once']} | {row['chosen_speedup_over_one_by_one']:.1f}×"
        lines.append(f"| {setting} | {times} | {chosen} |")
    workers = results["workers"]
    lines += [
        "",
        f"Two worker processes instead of one: {workers['speedup']:.2f}× (median over rounds; in the same rounds, two "
        f"busy loops got {', '.join(f'{cores:.2f}' for cores in workers['cores_to_be_had'])} cores).",
    ]
    return lines


def streaming() -> list[str]:
    results = read("streaming")
    killed, one = results["killed"], results["in_memory"]
    same = next(row for row in results["growth"] if row["records"] == one["records"])
    lines = [
        "## Layers larger than memory",
        "",
        f"`python benchmarks/streaming.py FOLDER`, one thread of {results['machine']}; {results['columns']} columns × "
        f"{results['outputs']} outputs, all default scores, read from .npy shards. Each row is a process of its own. "
        "Resident memory is the peak that the system reports, imports included; the table of scores that is returned "
        "is part of it, and all that grows with n.",
        "",
        "| records | processor seconds | microseconds per record | resident MB | of which the table |",
        "|--:|--:|--:|--:|--:|",
    ]
    for row in results["growth"]:
        each = row["processor_seconds"] / row["records"] * 1e6
        lines.append(
            f"| {row['records']:,} | {row['processor_seconds']:.1f} | {each:.1f} | {row['resident_MB']:,} "
            f"| {row['table_MB']:,} |"
        )
    lines += [
        "",
        f"The same {one['records']:,} records in memory: {one['processor_seconds']:.1f} processor seconds, "
        f"{one['resident_MB']:,} MB, {'the same bits' if one['digest'] == same['digest'] else 'OTHER NUMBERS'}.",
        "",
        f"{killed['records']:,} records with a store, killed in the second of the three passes and run again: "
        f"{killed['resumed_processor_seconds']:.1f} processor seconds instead of "
        f"{killed['whole_processor_seconds']:.1f}, {'the same bits' if killed['same_bits'] else 'OTHER NUMBERS'}.",
    ]
    if "killed_all" in results:
        again, whole = results["killed_all"], results["growth"][-1]
        shared = set(again["means"]) & set(whole["means"])
        off = max(abs(again["means"][name] / whole["means"][name] - 1) for name in shared)
        lines += [
            "",
            f"{again['records']:,} records with a store, killed in the middle of the second pass and run again: "
            f"{again['resident_MB']:,} MB resident, the mean of every score that of the run in one go to {off:.0e}.",
        ]
    if "ray" in results:
        one, two, killed = (row["seconds_to_score"] for row in results["ray"])
        same = len({row["digest"] for row in results["ray"]}) == 1
        lines += [
            "",
            f"{results['ray'][0]['records']:,} records on one Ray worker: {one:.1f} s by the clock; on two: {two:.1f} "
            f"s, **{one / two:.2f}×**; on two, one of them killed in the middle: {killed:.1f} s, {one / killed:.2f}×; "
            f"{'the same bits' if same else 'OTHER NUMBERS'} each time. Opening it and starting Ray come before.",
        ]
    return lines


def theory_page(results: dict[str, Any]) -> str:
    """docs/theory.md from its template: no number on it is typed by hand."""
    speed, series, tests = results["speed"], results["expansion"], results["tests"]
    california, control = results["california"], results["control"]
    ranks = control["spearman"]
    return THEORY_TEMPLATE.read_text(encoding="utf-8").format(
        slope=series["slope"],
        expansion=_table(
            ["n − p", "exact", "error of the expansion"],
            [
                [str(k), f"{gap:.6g}", f"{error:.2e}"]
                for k, gap, error in zip(series["k"], series["exact"], series["error"], strict=True)
            ],
        ),
        threshold=tests["threshold"],
        optimal=tests["optimal"],
        spearman=_ranks(california),
        calibration=_calibration(california),
        ceiling=_ceiling(california, "LiRA again"),
        ceiling_separation=_ceiling(california, "LiRA again separation"),
        spread=california["spread_ratio"],
        largest=california["largest_leverage"],
        trimmed=california["trimmed"],
        trimmed_spread=california["trimmed_spread_ratio"],
        trimmed_sandwich=california["trimmed_sandwich_ratio"],
        control_ceiling=_ceiling(control, "LiRA again"),
        control=_calibration(control),
        control_spread=control["spread_ratio"],
        control_prediction=_figure(ranks["prediction"]),
        control_small=_figure(ranks["LiRA 200"]),
        control_again=_figure(ranks["LiRA again"]),
        points=speed["points"],
        levels=speed["levels"],
        cores=speed["cores"],
        threshold_seconds=speed["seconds"]["threshold"],
        optimal_seconds=speed["seconds"]["optimal"],
        gap_seconds=speed["seconds"]["expected_gap"],
        success_seconds=speed["seconds"]["success_rate"],
        **{
            name: california[name]
            for name in ("pool", "n", "p", "models", "targets", "refit_seconds", "prediction_seconds")
        },
    )


def _ranks(result: dict[str, Any]) -> str:
    models = f"{result['models']:,}"
    found = result["spearman"]
    rows = [
        ["the theory, one model", "prediction", "prediction against separation"],
        ["LiRA with 200 models", "LiRA 200", "LiRA 200 separation"],
        [f"LiRA again, {models} other models", "LiRA again", "LiRA again separation"],
    ]
    return _table(
        [
            "ranking by",
            f"Spearman with the success rate of LiRA {models}",
            f"with the separation d′ of LiRA {models}",
        ],
        [[label, _figure(found[first]), _figure(found[second])] for label, first, second in rows],
    )


def _calibration(result: dict[str, Any]) -> str:
    return _table(
        ["quantile of the prediction", "predicted", "fresh", "LiRA", "predicted d′", "LiRA d′"],
        [
            [
                f"{row['from']:.3g} – {row['to']:.3g}",
                *(f"{row[name]:.4f}" for name in ("predicted", "predicted_fresh", "observed")),
                *(f"{row[name]:.3f}" for name in ("predicted_separation", "observed_separation")),
            ]
            for row in result["calibration"]
        ],
    )


def _ceiling(result: dict[str, Any], name: str) -> float:
    """What a noiseless ranking could reach, from how well two noisy ones of the same kind agree."""
    return float(max(result["spearman"][name]["mean"], 0.0) ** 0.5)


def _figure(value: dict[str, float]) -> str:
    return f"{value['mean']:.3f} ± {value['std']:.3f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    from noshadow.files import write_text

    sections = [section() for results, section in SECTIONS.items() if read(results)]
    lines = ["# Benchmarks", "", "Written by `benchmarks/docs.py` from `benchmarks/results/`."]
    for section in sections:
        lines += ["", *section]
    write_text(PAGE, "\n".join(lines) + "\n", private=False)
    write_text(THEORY_PAGE, theory_page(read("theory")), private=False)
    write_text(COST_PAGE, cost_page(read("scale"), read("streaming")), private=False)
    write_text(SMALL_PAGE, small_page(read("small_studies"), read("refits")), private=False)
    print(PAGE, THEORY_PAGE, COST_PAGE, SMALL_PAGE, sep="\n")


def scale() -> list[str]:
    return scale_section(read("scale"))


def settings_cost() -> list[str]:
    return settings_section(read("settings_cost"))


def trace_cost() -> list[str]:
    results = read("trace_cost")
    lines = [
        "## Recording a run",
        "",
        "`python benchmarks/trace_cost.py`, one thread. Processor's time of `trace.update(model, data)` in that of a "
        f"plain evaluation pass over the same records that keeps the outputs, 256 at a time: medians of "
        f"{results['repeats']} pairs, the middle half of them beside it; the goal is {results['goal']}. Of tensors in "
        "memory the pass that it is held against is the quickest there is, slices without a loader: of a small model "
        "it is so short that losses, means and the checks of an epoch count.",
        "",
        "| model | data | plain pass | `trace.update` | middle half |",
        "|---|---|--:|--:|---|",
    ]
    return lines + [
        f"| {row['model']} | {row['data']} | {row['plain_seconds'] * 1e3:.0f} ms | {row['ratio']:.2f} "
        f"| {row['quartiles'][0]:.2f} – {row['quartiles'][1]:.2f} |"
        for row in results["rows"]
    ]


def exposure_cost() -> list[str]:
    results = read("exposure_cost")
    lines = [
        "## Everything beside one score",
        "",
        "`python benchmarks/exposure_cost.py`, one thread. Processor's time of `noshadow.score(layer, trace=, spread=, "
        "held_out=)`, all columns with those of the run and the predicted rates, in that of "
        f'`noshadow.score(layer, scores=["newton"])`: medians of {results["repeats"]} pairs; the goal is '
        f"{results['goal']}.",
        "",
        "| layer | n | `newton` alone | everything | middle half |",
        "|---|--:|--:|--:|---|",
    ]
    return lines + [
        f"| {row['layer']} | {row['n']:,} | {row['plain_seconds']:.2f} s | {row['ratio']:.2f} "
        f"| {row['quartiles'][0]:.2f} – {row['quartiles'][1]:.2f} |"
        for row in results["rows"]
    ]


SECTIONS = {
    "core": core,
    "scale": scale,
    "settings_cost": settings_cost,
    "trace_cost": trace_cost,
    "exposure_cost": exposure_cost,
    "streaming": streaming,
    "attacks": attacks,
    "shadow": shadow,
}

if __name__ == "__main__":
    main()
