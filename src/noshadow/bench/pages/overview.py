"""The page in front: all settings side by side. And the README's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noshadow.bench.pages.beside_paper import DEVIATIONS, is_closed_form, pairs, paper_sizes, sought
from noshadow.bench.pages.figures import RECALL_OF_ALL
from noshadow.bench.pages.markdown import (
    CONFIDENCE,
    PERFECT,
    beside,
    best,
    ceiling_cell,
    cell,
    difference_cell,
    duration,
    mean_cell,
    percent_pair,
    table,
    two_figures,
)
from noshadow.bench.pages.section import Section
from noshadow.bench.paper import TABLE_1, TABLE_4
from noshadow.bench.result import HEADLINE, NETWORK, Result
from noshadow.evaluate import Summary

__all__ = [
    "COLUMNS",
    "NOISY",
    "PHASES",
    "README_COLUMNS",
    "SECTIONS",
    "Results",
    "ahead_of_exposure",
    "beyond_table",
    "link",
    "readme_table",
]

NOISY = 0.25  # where LiRA finds less than this of its own top again, it is said to be unsure of it

COLUMNS = ("loss", "gradient_norm", "newton", "influence", "leave_one_out", "mean_trace", "trace_iqr", "exposure")
README_COLUMNS = ("loss", "newton", "leave_one_out", "mean_trace", "trace_iqr", "exposure")
PHASES = {
    "model": "one model",
    "shadows": "shadow models",
    "targets": "targets",
    "attacks": "attacks",
    "scores": "scores, one target",
    NETWORK: "full network, one target",
}

Results = Sequence[Result]


def link(result: Result) -> str:
    """The title, leading to the setting's page."""
    return f"[{result.title}](experiments/{result.setting}.md)"


def _introduction(results: Results) -> list[str]:
    versions = sorted({", ".join(f"{name} {v}" for name, v in result.versions.items()) for result in results})
    machines = sorted({f"{r.machine['cores']} cores ({r.machine['processor']})" for r in results})
    return [
        "# Experiments",
        "",
        "<!-- written by noshadow bench --pages; do not edit -->",
        "",
        "The paper's experiments, run again: does a score from one model find the records that an attack with many "
        "shadow models exposes? Each setting has a page with all its numbers and figures. To run them yourself:",
        "",
        "```sh",
        "noshadow bench all --scale cpu   # --scale paper: as many models, records and epochs as in the paper",
        "```",
        "",
        f"Made on {' and '.join(machines)} with {'; '.join(versions)}.",
    ]


def _how_to_read(results: Results) -> list[str]:
    return [
        "## How to read the numbers",
        "",
        "- The truth is an attack's success rate on each record over the shadow models, each attacked with the others; "
        "equal rates are ordered by the separation d̂′. Rankings are over the members of a target model, which is none "
        "of the shadow models. Numbers are mean ± standard deviation over the targets, recalls in percent.",
        "- **LiRA again** is what the attack reaches as a score of itself: half of the shadow models against the other "
        "half, mean ± standard deviation over random halvings. It is no bound: both halves are noisier than the truth, "
        "which is from all models, and a score of one model has no such noise. Where it is low, the attack is unsure "
        "of its own top; how much of it can be found all the same, the perfect score says.",
        f"- **{PERFECT.capitalize()}** is what a score would reach that knows how exposed each record is, against a "
        "truth as noisy as ours: studies are simulated whose records differ as ours do, mean ± standard deviation over "
        "them. It is the ceiling, up to the luck of our one study, which the deviation measures. Shokri's attack is "
        "not simulated; – stands where it was not measured.",
        "- The scores assume the ridge Λ = nλ where weight decay λ is part of the objective: in the closed form and "
        "with SGD. For Adam and AdamW, which do not minimise such an objective, it is 0, as in the paper's formulas.",
        "- *In italics, below ours:* the number that the paper prints. **Bold:** the best of ours, and those that the "
        f"targets do not tell from it: the paired difference over targets is within its {100 * CONFIDENCE:.0f} % "
        "interval. Where that is all of them, none is bold.",
    ]


def _what_was_run(results: Results) -> list[str]:
    rows = []
    for result in results:
        paper, fit = paper_sizes(result), result.fit
        rows.append(
            [
                link(result),
                beside(result.shadows, paper.get("shadows")),
                beside(result.targets, paper.get("targets")),
                beside(result.pool, paper.get("pool")),
                "–" if is_closed_form(result) else beside(result.recipe["epochs"], paper.get("epochs")),
                result.backbone or "–",
                f"{fit.loss_of_members:.3g} / {fit.loss_of_others:.3g}",
                percent_pair(fit.accuracy_on_members, fit.accuracy_on_others),
                f"{result.lira.summary['auc']:.3f}",
            ]
        )
    head = ["data, model", "shadow models", "targets", "pool", "epochs", "backbone"]
    head += ["loss in / out", "accuracy in / out, %", "LiRA AUC"]
    notes = [f"- {result.title}: {result.note}." for result in results if result.note]
    return [
        "## What was run",
        "",
        "In brackets the paper's number where ours is another. The fit is that of the targets, on their members and on "
        "the other records of the pool. A target is trained on half of the pool.",
        "",
        *table(head, rows, left=1),
        *(["", "What differs from the paper:", "", *notes] if notes else []),
    ]


def _headline(results: Results) -> list[str]:
    rows = []
    for result in results:
        lira, printed = result.lira, TABLE_1.get(result.setting, {})
        found = {name: row.metrics[HEADLINE] for name, row in lira.scores.items() if name != NETWORK}
        bold = best(found, HEADLINE)
        others = [name for name in found if name not in COLUMNS]
        top = max(others, key=lambda name: found[name].mean) if others else None
        cells = [cell(found.get(name), printed.get(name), name in bold, HEADLINE) for name in COLUMNS]
        other = "–" if top is None else f"`{top}`<br>{cell(found[top], None, top in bold, HEADLINE)}"
        ceilings = [ceiling_cell(lira.ceiling, HEADLINE), ceiling_cell(lira.oracle, HEADLINE)]
        rows.append([link(result), str(sought(result, HEADLINE)), *cells, other, *ceilings])
    head = ["data, model", "sought", *(f"`{name}`" for name in COLUMNS), "best of the others", "LiRA again", PERFECT]
    return [
        "## Table 1: LiRA's top 1 % in a score's top 5 %",
        "",
        "Recall in percent; a random order reaches 5. Sought: the records in the top 1 % of a target's members. The "
        "best of the others is chosen with the truth in hand, and flattered by that.",
        "",
        *table(head, rows, left=1),
        "",
        _verdict(results),
    ]


def beyond_table(results: Results) -> list[str]:
    """What the training run adds: exposure beside the Newton score, and the predicted rates; none without exposure."""
    rows = []
    for result in results:
        found = {name: row.metrics[HEADLINE] for name, row in result.lira.scores.items()}
        if "exposure" not in found:
            continue
        own, newton = found["exposure"].values, found["newton"].values
        others = [found.get(f"exposure, {name}") for name in ("rerun", "both runs", "checkpoints")]
        cells = ["–" if other is None else f"{100 * other.mean:.1f}" for other in others]
        rates = "–" if result.rates is None else f"{result.rates.error.mean:.3f}"
        ceilings = [mean_cell(result.lira.ceiling, HEADLINE), mean_cell(result.lira.oracle, HEADLINE)]
        rows.append(
            [
                link(result),
                f"{100 * newton.mean():.1f}",
                f"{100 * own.mean():.1f}",
                difference_cell(own, newton),
                *cells,
                *ceilings,
                rates,
            ]
        )
    head = ["data, model", "`newton`", "`exposure`", "ahead by", "of a rerun", "of both", "of 4 checkpoints"]
    return table([*head, "LiRA again", PERFECT, "rates off by"], rows, left=1) if rows else []


def _beyond(results: Results) -> list[str]:
    rows = beyond_table(results)
    if not rows:
        return []
    return [
        "## Beyond the paper: what the training run remembers",
        "",
        "`exposure` from the trace of the target itself, of a rerun with another seed, of both runs as one, and of "
        "four checkpoints, in percent found; the paired difference to `newton` with its 95 % interval (bootstrap over "
        "targets). *Rates off by*: mean over tenths of the members of |predicted − measured success rate|. "
        "[How it was made, and where it fails](beyond.md).",
        "",
        *rows,
    ]


def _verdict(results: Results) -> str:
    """How often the paper's scores beat the loss, here and in the paper."""

    def ahead(values: Mapping[str, float]) -> bool:
        return max(values["newton"], values["influence"]) > values["loss"]

    ours = [{name: row.metrics[HEADLINE].mean for name, row in result.lira.scores.items()} for result in results]
    paper = [{name: value[0] for name, value in row.items()} for row in TABLE_1.values()]
    return (
        f"`newton` or `influence` is ahead of `loss` in {sum(map(ahead, ours))} of {len(ours)} settings here, in "
        f"{sum(map(ahead, paper))} of {len(paper)} in the paper."
    )


def _curves(results: Results) -> list[str]:
    return ["## Recall at every share", "", "Those of RMIA and Shokri's attack are on the settings' pages."]


def _differences(results: Results) -> list[str]:
    compared = {result.setting: pairs(result) for result in results}
    differing = {name: sum(pair.differs for pair in found) for name, found in compared.items()}
    total, many = sum(map(len, compared.values())), sum(differing.values())
    rows = [
        [link(result), str(len(compared[result.setting])), str(differing[result.setting])]
        for result in results
        if compared[result.setting]
    ]
    return [
        "## Where we differ from the paper",
        "",
        f"The rule: our mean and the paper's differ if they are more than {DEVIATIONS:g} √(our std² + the paper's "
        "std²) apart; a number from one target counts with std 0. These are deviations over targets. Targets share one "
        "pool and one truth, and the noise of the truth comes on top, so that some would differ by chance alone. Of "
        f"{total} numbers of Tables 1 and 5, {many} differ; the settings' pages say which, and what may explain it.",
        "",
        *table(["data, model", "numbers compared", "that differ"], rows, left=1),
    ]


def _times(results: Results) -> list[str]:
    shown = [phase for phase in PHASES if any(getattr(result.seconds, phase) is not None for result in results)]
    rows = []
    for result in results:
        ours, paper = result.seconds, TABLE_4.get(result.setting, {})
        cells = []
        for phase in shown:
            theirs = paper.get(phase)
            cells.append(duration(getattr(ours, phase)) + ("" if theirs is None else f"<br>*{duration(theirs)}*"))
        shadows, scores = paper.get("shadows"), paper.get("scores")
        printed = f"<br>*{two_figures(shadows / scores)}×*" if shadows and scores else ""
        rows.append([link(result), str(result.shadows), *cells, f"{two_figures(ours.speedup)}×{printed}"])
    closed = [result.title for result in results if is_closed_form(result)]
    return [
        "## Table 4: what it costs",
        "",
        "Ours are times of one CPU core, for as many models as were run; *the paper's* are of a V100. Attacks are "
        "LiRA, RMIA and Shokri together; scores are all of ours for one target, in the paper influence and Newton. The "
        "speed-up is the time of the shadow models over that of the scores. A target keeps its losses of every epoch "
        "and its features, which may make it slower to train than a shadow model.",
        *(
            [f"A closed-form fit ({'; '.join(closed)}) takes next to no time, and there is little to be saved."]
            if closed
            else []
        ),
        "",
        *table(["data, model", "shadow models run", *(PHASES[phase] for phase in shown), "speed-up"], rows, left=1),
    ]


def readme_table(results: Results) -> str:
    """The few columns that the README shows, and what to know of single rows."""
    rows = []
    for result in results:
        lira = result.lira
        found = _readme_scores(result)
        bold = best(found, HEADLINE)
        cells = [cell(found.get(name), None, name in bold, HEADLINE) for name in README_COLUMNS]
        ceilings = [mean_cell(lira.ceiling, HEADLINE), ceiling_cell(lira.oracle, HEADLINE)]
        times = [duration(result.seconds.scores), duration(result.seconds.shadows)]
        rows.append([result.title, str(sought(result, HEADLINE)), *cells, *ceilings, *times])
    head = ["data, model", "sought", *(f"`{name}`" for name in README_COLUMNS), "LiRA again", PERFECT]
    lines = table([*head, "scoring takes", "shadow models take"], rows, left=1)
    remarks = _readme_remarks(results)
    return "\n".join([*lines, *(["", *remarks] if remarks else [])])


def _readme_scores(result: Result) -> dict[str, Summary]:
    scores = result.lira.scores
    return {name: scores[name].metrics[HEADLINE] for name in README_COLUMNS if name in scores}


def _readme_remarks(results: Results) -> list[str]:
    """Which rows to read with care: those smaller than the paper's, those that LiRA is unsure of, those that tie."""
    noisy = [result for result in results if result.lira.ceiling.metrics[HEADLINE].mean < NOISY]
    smaller = [
        result
        for result in results
        if any(have < paper_sizes(result).get(name, have) for name, have in _sizes(result).items())
    ]
    ties = [result for result in results if not best(_readme_scores(result), HEADLINE)]
    behind = [result for result in results if ahead_of_exposure(result)]
    said = {
        "Fewer models, records or epochs than in the paper": smaller,
        f"LiRA finds less than {100 * NOISY:.0f} % of its own top again": noisy,
        "The targets do not tell the scores apart": ties,
        "Another score finds more than `exposure`": behind,
    }
    return [f"- {what}: {'; '.join(result.title for result in which)}." for what, which in said.items() if which]


def _sizes(result: Result) -> dict[str, int]:
    sizes = {"shadows": result.shadows, "targets": result.targets, "pool": result.pool}
    return sizes if is_closed_form(result) else {**sizes, "epochs": int(result.recipe["epochs"])}


def ahead_of_exposure(result: Result) -> dict[str, float]:
    """The scores that find more of LiRA's top than ``exposure``, by what they find; rounding apart."""
    own = result.lira.scores.get("exposure")
    if own is None:
        return {}
    found = {name: row.metrics[HEADLINE].mean for name, row in result.lira.scores.items() if name != NETWORK}
    most = own.metrics[HEADLINE].mean + 0.005
    return {name: mean for name, mean in found.items() if mean > most and not name.startswith("exposure")}


SECTIONS: tuple[Section[Results], ...] = (
    Section("introduction", _introduction),
    Section("headline", _headline),
    Section("beyond", _beyond),
    Section("curves", _curves, (RECALL_OF_ALL,)),
    Section("how to read", _how_to_read),
    Section("what was run", _what_was_run),
    Section("differences", _differences),
    Section("times", _times),
)
"""The page, from top to bottom."""
