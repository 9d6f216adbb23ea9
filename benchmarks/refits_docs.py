"""The part of docs/small.md on linear and logistic regressions, from the results of ``refits.py``."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
WITHIN = 0.02


def refits_section(results: dict[str, Row]) -> list[str]:
    refits = min(row["refits"] for row in results.values())
    return [
        "## Linear and logistic regressions",
        "",
        f"`python benchmarks/refits.py`: scikit-learn's estimators on {refits:,} random halves of a pool, and eight "
        "further halves that are audited. A converged model needs no trace, no rerun and no held-out record: the rates "
        "are read off the one fit. Rates are those of the lowest and of the highest tenth of the members, predicted "
        "and LiRA's, and how far they are apart on average over all tenths.",
        "",
        "| data, model | records | columns | head | predicted | LiRA's | off by | looked at |",
        "|---|--:|--:|---|--:|--:|--:|---|",
        *(_line(name, row) for name, row in results.items()),
        "",
        _verdict(results),
    ]


def _line(name: str, row: Row) -> str:
    spans = [f"{row[side][0]:.2f} … {row[side][-1]:.2f}" for side in ("predicted", "measured")]
    when = "before" if row["looked_at"] else "**after**"
    cells = [name, f"{row['records']:,}", str(row["columns"]), row["head"], *spans, f"{row['error']:.3f}", when]
    return f"| {' | '.join(cells)} |"


def _verdict(results: dict[str, Row]) -> str:
    right = sum(row["error"] <= WITHIN for row in results.values())
    over = {name: row["predicted"][-1] - row["measured"][-1] for name, row in results.items()}
    worst = max(over, key=lambda name: abs(over[name]))
    top = sum(over.values()) / len(over)
    return (
        f"Off by at most {WITHIN} on {right} of {len(results)}. The highest tenth is predicted {abs(top):.3f} too "
        f"{'high' if top > 0 else 'low'} on average; furthest off is it on *{worst}*, by {abs(over[worst]):.2f}."
    )
