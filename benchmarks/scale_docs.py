"""The sections of docs/benchmarks.md on large heads and on what scoring costs beside shadow models."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
TITLES = {
    "digits": "digits, one hidden layer",
    "digits, weight decay": "the same with weight decay 10⁻³",
    "network": "CIFAR-100, a hidden layer on frozen features",
    "probe": "CIFAR-100, a linear probe",
    "wide": "made",
}


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min"


def taken(row: Row) -> str:
    """Seconds by the clock; those of the cores where they were counted, which other work hardly changes."""
    return f"{seconds(row['core_seconds'])} of a core" if "core_seconds" in row else seconds(row["seconds"])


def scale_section(results: Row) -> list[str]:
    lines = [
        "## Large heads",
        "",
        "`python benchmarks/scale.py WORK --data DIR`. Newton scores of all records from each curvature, against exact "
        "ones: those of the dense Hessian where it fits, converged conjugate gradients elsewhere. Seconds are without "
        "the check of the error that `score` adds; *refined* is `score(refine=0.01)` as a whole.",
        "",
        "| head | p+1 × m | n | exact by | `auto` takes | curvature | seconds | Spearman | median error | 95 % "
        "| top 1 % kept | refined: top 1 % | refined: records | seconds |",
        "|---|---|--:|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, title in TITLES.items():
        row = results.get(name, {})
        head = row.get("head")
        for method in ("blocks", "kronecker"):
            found, again = row.get(f"{method} errors"), row.get(f"{method} refined")
            if head is None or found is None:
                continue
            timed = row.get(method) or row["side by side"][method]
            said = again["said"] if again else None
            some = "" if found["records"] == head["n"] else f" on {found['records']}"
            top = "not known" if found["top_1_percent_kept"] is None else f"{found['top_1_percent_kept']:.0%}"
            refined = f"{again['top_1_percent_kept']:.0%} | {said['refined']} | {taken(again)}" if said else "| |"
            lines.append(
                f"| {title} | {head['columns']} × {head['outputs']} | {head['n']:,} | {row['exact']['by']} "
                f"| {head['auto']} | {method} | {taken(timed)} | {found['spearman']:.4f}{some} "
                f"| {found['median_error']:.1%} | {found['error_95']:.1%} "
                f"| {top} | {refined} |"
            )
    note = ["", results["note"]] if "note" in results else []
    return [*lines, *note, *_tops(results), *_peers(results), *_text(results)]


def _tops(results: Row) -> list[str]:
    """How it is known which records are the exact top 1 %, where not all have converged scores."""
    lines: list[str] = []
    for name, title in TITLES.items():
        top = results.get(name, {}).get("exact", {}).get("top")
        if top is None:
            continue
        solved = results[name]["exact"]["records"]
        known = "which establishes them" if top["established"] else "**which does not establish them**"
        lines += [
            "",
            f"The exact top 1 % of *{title}* are {top['size']} records, the lowest of them at {top['edge']:.3g}: "
            f"{solved:,} records have converged scores, of the other {top['excluded_by_bound']:,} a bound says that "
            f"they are lower ({top['of_them_without_a_step']:,} without a step of conjugate gradients), {known}.",
        ]
    return lines


def _peers(results: Row) -> list[str]:
    lines: list[str] = []
    for name in ("wide", "imagenet"):
        row = results.get(name, {})
        if "side by side" in row:
            lines += ["", _times(row["head"], **row["side by side"])]
        errors = row.get("errors") or row.get("kronfluence errors")
        if errors:
            lines += ["", _errors(errors | row.get("newton errors", {}), row.get("kronfluence"))]
    return lines


def _times(head: Row, kronecker: Row, kronfluence: Row, **_: Any) -> str:
    build, newton, influence = (seconds(kronecker[f"{part}_seconds"]) for part in ("build", "newton", "influence"))
    each, fit = kronfluence["seconds_per_record"] * 1e3, seconds(kronfluence["fit_seconds"])
    per_newton, per_influence, in_all = (
        kronfluence[f"times_our{what}"] for what in ("_newton_per_record", "_influence_per_record", "s_in_all")
    )
    return (
        f"**{head['columns']} × {head['outputs']}, n = {head['n']:,}** (made; mean confidence "
        f"{head['mean_confidence']:.2f}, accuracy {head['accuracy']:.2f}; `auto` takes {head['auto']}): `kronecker` "
        f"takes {build} to build, {newton} for the Newton scores of all records and {influence} for their influences, "
        f"{kronecker['peak_gib']:.1f} GiB at the most. In the same run kronfluence fits its factors on "
        f"{kronfluence['fitted_on']:,} records in {fit} and takes {each:.3g} ms for the self-influence of a record "
        f"({kronfluence['scored']:,} of them): **{per_newton:.0f}×** our Newton score, {per_influence:.0f}× our "
        f"influence, and {in_all:.0f}× with what comes before counted on both sides, for all records."
    )


def _errors(errors: Row, peer: Row | None) -> str:
    def off(found: Row) -> str:
        return f"{found['median_error']:.1%} (95 %: {found['error_95']:.1%}, Spearman {found['spearman']:.3f})"

    ours, theirs = (errors[f"{who} influence"] for who in ("kronecker", "kronfluence"))
    text = (
        f"Influence of {ours['records']:,} records against exact answers, median error: `kronecker` {off(ours)}, "
        f"kronfluence {off(theirs)}."
    )
    if peer is not None:
        text += f" Its bases are those of all records, its eigenvalues those of {peer['eigenvalues_from']:,}."
    if "kronecker newton" in errors:
        found = errors["kronecker newton"]
        text += f" Newton scores of {found['records']} of them: {off(found)}."
    return text


def _text(results: Row) -> list[str]:
    row = results.get("text", {}).get("text")
    if row is None:
        return []
    said = row["audit"]["accuracy"]
    text = (
        f"**TF-IDF, {row['n']:,} texts × {row['columns']:,} columns**, a logistic regression: "
        f"{taken(row['audit'])} with the check of its error, {row['peak_gib']:.1f} GiB at the most. "
        f"Median error {said['median_error']:.1%}, Spearman {said['spearman']:.3f} on {said['sampled']} records."
    )
    if "refined" in row:
        again = row["refined"]
        text += f" With `refine=0.01`: {taken(again)}, {again['accuracy']['refined']} scored exactly."
    return ["", text]


RATE = 5e10  # operations of a core in a second, in a large product of double precision


def least_seconds(row: Row) -> float:
    """What exact scores cannot do without: a sum and a form of K·R products a record, K = P(P+1)/2, R = r(r+1)/2, and
    the inverse of a matrix of P·r rows, (P·r)³ operations."""
    n, columns, width = row["n"], row["columns"], max(1, row["outputs"] - 1)
    pairs = columns * (columns + 1) // 2 * (width * (width + 1) // 2)
    return float(4 * n * pairs + (columns * width) ** 3) / RATE


def settings_section(results: Row) -> list[str]:
    lines = [
        "## One target beside 200 shadow models",
        "",
        "`python benchmarks/settings_cost.py WORK --data DIR`. Core-seconds of scoring one target of each setting, and "
        "the share of what 200 shadow models of the setting take; the goal is a thousandth, 0.10 %. `kronecker` is "
        "without the check of its error that `score` adds: the error against the exact scores stands beside it. *At "
        f"least* is the share that the products alone take, of which exact scores are made, at {RATE:.0e} operations a "
        "second: where shadow models are linear layers themselves, that is what the goal is up against.",
        "",
        "| setting | n | p+1 × m | 200 shadows | all scores, `auto` | `exposure`, `auto` | exact, at least "
        "| `exposure`, `kronecker` | Spearman | median error |",
        "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in results.items():
        cells = [f"{one['seconds']:.3g} s, {one['of_200_shadows']:.2%}" for one in row["scores"].values()]
        cells.insert(2, f"{least_seconds(row) / row['seconds_of_200_shadows']:.2%}")
        last = row["scores"]["exposure, kronecker"]
        lines.append(
            f"| {name} | {row['n']:,} | {row['columns']} × {row['outputs']} | {seconds(row['seconds_of_200_shadows'])} "
            f"| {' | '.join(cells)} | {last['spearman']:.3f} | {last['median_error']:.0%} |"
        )
    return lines
