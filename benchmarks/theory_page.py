"""docs/theory.md from theory_page.md and the results of theory.py: no number on the page is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).with_suffix(".md")


def page(results: dict[str, Any]) -> str:
    """The page's Markdown."""
    speed, series, tests = results["speed"], results["expansion"], results["tests"]
    california, control = results["california"], results["control"]
    ranks = control["spearman"]
    return TEMPLATE.read_text(encoding="utf-8").format(
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
