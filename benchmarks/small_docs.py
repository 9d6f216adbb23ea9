"""docs/small.md: small data and small models, from the results of ``small_studies.py`` and ``refits.py``."""

from __future__ import annotations

from typing import Any

from refits_docs import refits_section

Row = dict[str, Any]
WITHIN = 0.05


def small_page(results: dict[str, Row], refits: dict[str, Row]) -> str:
    fresh = {name: row for name, row in results.items() if not row["looked_at"]}
    return "\n".join(
        [
            "# Small data sets",
            "",
            "<!-- written by benchmarks/docs.py; do not edit -->",
            "",
            "`python benchmarks/small_studies.py WORK`: data that scikit-learn ships or makes, networks of one to "
            "three hidden layers, 128 shadow models on halves and 4 target models, each with a trace, a rerun and the "
            "other half as held-out records. Nothing of it is in the paper. All of it takes some minutes of one core.",
            "",
            "Found is how many of the 5 % of the members that LiRA exposes most are in the top 10 % of a score, in "
            "percent (a random order finds 10); with few records that is a handful, and a few points are luck. *LiRA "
            "again* is what LiRA finds of itself with other models. Rates are those of the lowest and of the highest "
            "tenth of the members, predicted and LiRA's, and how far they are apart on average over all tenths. What "
            "is predicted is the best attack; with 128 models LiRA falls short of it where rates are low "
            "([where it is known](benchmarks.md)).",
            "",
            *_table(results),
            "",
            *_verdict(results, fresh),
            "",
            "Where a network has about as many weights in its last layer as records, leverages near their maximum make "
            "the exposure of some records that are safe explode (*iris*), and the highest rates are too high. Where "
            "what is measured hardly differs from record to record (*hastie*, *quantiles*), LiRA does not find its own "
            "top again either.",
            "",
            *refits_section(refits),
            "",
        ]
    )


def _table(results: dict[str, Row]) -> list[str]:
    lines = [
        "| data | records | head, hidden layers | `loss` | `newton` | `exposure` | of a rerun | `mean_trace` "
        "| LiRA again | predicted | LiRA's | off by | looked at |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for name, row in results.items():
        found = [row["recall"][score] for score in ("loss", "newton", "exposure", "exposure, rerun", "mean_trace")]
        spans = [f"{row[side][0]:.2f} … {row[side][-1]:.2f}" for side in ("predicted", "measured")]
        cells = [
            name,
            f"{row['records']:,}",
            f"{row['head']}, {' + '.join(map(str, row['widths']))}",
            *(f"{100 * value:.0f}" for value in (*found, row["lira_again"])),
            *spans,
            f"{row['error']:.3f}",
            "before" if row["looked_at"] else "**after**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _verdict(results: dict[str, Row], fresh: dict[str, Row]) -> list[str]:
    def mean(rows: dict[str, Row]) -> float:
        return sum(row["error"] for row in rows.values()) / len(rows)

    ahead = sum(row["recall"]["exposure"] >= row["recall"]["newton"] for row in results.values())
    right = sum(row["error"] <= WITHIN for row in results.values())
    return [
        f"Predicted rates are off by {mean(results):.3f} on average, at most {WITHIN} on {right} of {len(results)}; on "
        f"those that were looked at only after scores and rates had been settled, by {mean(fresh):.3f}. `exposure` "
        f"finds as much as `newton` or more on {ahead} of {len(results)}.",
    ]
