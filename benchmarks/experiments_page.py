"""docs/experiments.md and the README's table from the results of ``noshadow bench``: no number is typed by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from experiments_differences import DEVIATIONS, HEADLINE, Ours, Pair, estimate, pairs, reasons, sought
from noshadow.bench.figures import ATTACK_NAMES, sentences_table, title_of
from noshadow.bench.measure import RECALLS
from noshadow.bench.paper import SETTINGS, TABLE_1, TABLE_4, TABLE_5, Estimate
from noshadow.bench.setting import all_settings

Result = Mapping[str, Any]
COLUMNS = ("loss", "gradient_norm", "newton", "influence", "leave_one_out", "mean_trace", "trace_iqr")
NETWORK = "network_influence"
PERFECT = "a perfect score"
CONFIDENCE = 0.95  # with which the targets tell two scores apart
FIGURES = {"lira": 2, "rmia": 5, "shokri": 6}
PHASES = {
    "model": "one model",
    "shadows": "shadow models",
    "targets": "targets",
    "attacks": "attacks",
    "scores": "scores, one target",
    NETWORK: "full network, one target",
}


def page(results: Sequence[Result], figures: Collection[str]) -> str:
    """The page's Markdown; ``figures``: the names of the files in docs/figures."""
    ordered = in_order(results)
    sections = [
        _introduction(ordered),
        _what_was_run(ordered),
        _headline(ordered),
        _curves(figures),
        *(_attack(ordered, attack) for attack in ATTACK_NAMES),
        _differences(ordered),
        _times(ordered),
        _network(ordered, figures),
        _records(ordered, figures),
    ]
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def readme_table(results: Sequence[Result]) -> str:
    """The few columns that the README shows."""
    scores = ("loss", "influence", "newton", "leave_one_out", "mean_trace", "trace_iqr")
    rows = []
    for result in in_order(results):
        lira, seconds = result["attacks"]["lira"], result["seconds"]
        found = {name: lira["scores"][name][HEADLINE] for name in scores if name in lira["scores"]}
        best = _best(found, HEADLINE)
        cells = [_cell(found.get(name), None, name in best, HEADLINE) for name in scores]
        ceilings = [_bare(lira["ceiling"], HEADLINE), _ceiling(lira.get("oracle"), HEADLINE)]
        times = [_duration(seconds["scores"]), _duration(seconds["shadows"])]
        rows.append([title_of(result), str(sought(result, HEADLINE)), *cells, *ceilings, *times])
    head = ["data, model", "sought", *(f"`{name}`" for name in scores), "LiRA again", PERFECT]
    head += ["scoring takes", "shadow models take"]
    return "\n".join(_table(head, rows, left=1))


def in_order(results: Sequence[Result]) -> list[Result]:
    """The paper's settings in its order, then the others."""
    order = {name: number for number, name in enumerate(SETTINGS)}
    return sorted(results, key=lambda result: (order.get(result["setting"], len(order)), result["setting"]))


def _introduction(results: Sequence[Result]) -> list[str]:
    versions = sorted({", ".join(f"{name} {v}" for name, v in result["versions"].items()) for result in results})
    machines = sorted({f"{r['machine']['cores']} cores ({r['machine']['processor']})" for r in results})
    return [
        "# Experiments",
        "",
        "<!-- written by benchmarks/experiments.py; do not edit -->",
        "",
        "The paper's experiments, run again: does a score from one model find the records that an attack with many "
        "shadow models exposes? To run them yourself:",
        "",
        "```sh",
        "noshadow bench all --scale cpu   # --scale paper: as many models, records and epochs as in the paper",
        "```",
        "",
        f"Made on {' and '.join(machines)} with {'; '.join(versions)}. Written by `benchmarks/experiments.py` from "
        "`benchmarks/results/experiments/`, one file a setting.",
        "",
        "How to read the tables:",
        "",
        "- The truth is an attack's success rate a record over the shadow models, each attacked with the others; equal "
        "rates are ordered by the separation d̂′. Rankings are over the members of a target model, which is none of the "
        "shadow models. Numbers are mean ± standard deviation over the targets, recalls in percent.",
        "- **LiRA again** (RMIA, Shokri again) is what the attack reaches as a score of itself: half of the shadow "
        "models against the other half, mean ± standard deviation over random halvings. It is no bound: both halves "
        "are noisier than the truth, which is from all models, and a score of one model has no such noise. Where it is "
        "low, the truth is mostly noise.",
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


def _what_was_run(results: Sequence[Result]) -> list[str]:
    rows = []
    for result in results:
        setting = all_settings()[result["setting"]]
        paper = setting.scales["paper"]
        epochs = _beside(result["recipe"]["epochs"], setting.recipe_at(paper).epochs) if setting.model else "–"
        fit, attack = result["fit"], result["attacks"]["lira"]["attack"]
        rows.append(
            [
                f"`{result['setting']}`",
                title_of(result),
                _beside(result["shadows"], paper.shadows),
                _beside(result["targets"], paper.targets),
                _beside(result["pool"], paper.pool),
                epochs,
                result["backbone"] or "–",
                f"{fit['loss of members']:.3g} / {fit['loss of others']:.3g}",
                f"{100 * fit['accuracy on members']:.1f} / {100 * fit['accuracy on others']:.1f}"
                if "accuracy on members" in fit
                else "–",
                f"{attack['auc']:.3f}",
            ]
        )
    head = ["setting", "data, model", "shadow models", "targets", "pool", "epochs", "backbone"]
    head += ["loss in / out", "accuracy in / out, %", "LiRA AUC"]
    notes = [f"- `{result['setting']}`: {result['note']}." for result in results if result["note"]]
    return [
        "## What was run",
        "",
        "In brackets the paper's number where ours is another. The fit is that of the targets, on their members and on "
        "the other records of the pool. A target is trained on half of the pool.",
        "",
        *_table(head, rows, left=2),
        *(["", "What differs from the paper:", "", *notes] if notes else []),
    ]


def _headline(results: Sequence[Result]) -> list[str]:
    rows = []
    for result in results:
        lira, printed = result["attacks"]["lira"], TABLE_1.get(result["setting"], {})
        found = {name: row[HEADLINE] for name, row in lira["scores"].items() if name != NETWORK}
        best = _best(found, HEADLINE)
        others = [name for name in found if name not in COLUMNS]
        top = max(others, key=lambda name: found[name]["mean"]) if others else None
        cells = [_cell(found.get(name), printed.get(name), name in best, HEADLINE) for name in COLUMNS]
        other = "–" if top is None else f"`{top}`<br>{_cell(found[top], None, top in best, HEADLINE)}"
        ceilings = [_ceiling(lira["ceiling"], HEADLINE), _ceiling(lira.get("oracle"), HEADLINE)]
        rows.append([title_of(result), str(sought(result, HEADLINE)), *cells, other, *ceilings])
    head = ["data, model", "sought", *(f"`{name}`" for name in COLUMNS), "best of the others", "LiRA again", PERFECT]
    return [
        "## Table 1: LiRA's top 1 % in a score's top 5 %",
        "",
        "Recall in percent; a random order reaches 5. Sought: the records in the top 1 % of a target's members. The "
        "best of the others is chosen with the truth in hand, and flattered by that.",
        "",
        *_table(head, rows, left=1),
        "",
        _verdict(results),
    ]


def _verdict(results: Sequence[Result]) -> str:
    """How often the paper's scores beat the loss, here and in the paper."""

    def ahead(values: Mapping[str, float]) -> bool:
        return max(values["newton"], values["influence"]) > values["loss"]

    ours = [{name: row[HEADLINE]["mean"] for name, row in r["attacks"]["lira"]["scores"].items()} for r in results]
    paper = [{name: value[0] for name, value in row.items()} for row in TABLE_1.values()]
    return (
        f"`newton` or `influence` is ahead of `loss` in {sum(map(ahead, ours))} of {len(ours)} settings here, in "
        f"{sum(map(ahead, paper))} of {len(paper)} in the paper."
    )


def _curves(figures: Collection[str]) -> list[str]:
    shown = [(attack, f"recall-{attack}") for attack in FIGURES if f"recall-{attack}.png" in figures]
    if not shown:
        return []
    lines = [
        "## Figures 2, 5 and 6: recall at every share",
        "",
        "Recall of an attack's top k among a score's top k. Solid: mean over the targets, shaded ± 1 standard "
        "deviation; dashed: the first target alone; grey: the attack again (dash-dotted) and, where it was measured, a "
        "perfect score (solid); dotted: a random order. A recall of 0 lies on the lower edge.",
    ]
    for attack, name in shown:
        lines += ["", f"{ATTACK_NAMES[attack]} (Figure {FIGURES[attack]}):", "", _image(name, figures)]
    return lines


def _attack(results: Sequence[Result], attack: str) -> list[str]:
    lira = attack == "lira"
    numbers = [*(name for name in RECALLS if name != HEADLINE or not lira), "spearman"]
    title = "Table 5: LiRA" if lira else f"The same for {ATTACK_NAMES[attack]}"
    lines = [f"## {title}", ""]
    lines += [
        "Recall of LiRA's top share among as many of a score's top, and the rank correlation."
        if lira
        else "The paper has this attack in figures only, without numbers. `recall of top 1% at 5%` is as in Table 1."
    ]
    for result in results:
        table = _score_table(result, attack, numbers)
        if lira:
            lines += ["", f"### {title_of(result)}", "", *table]
        else:
            summary = f"<details><summary>{title_of(result)}</summary>"
            lines += ["", summary, "", *table, "", "</details>"]
    return lines


def _score_table(result: Result, attack: str, numbers: Sequence[str]) -> list[str]:
    measured = result["attacks"][attack]
    printed = TABLE_5.get(result["setting"], {}) if attack == "lira" else {}
    found = measured["scores"]
    whole = {name: row for name, row in found.items() if name != NETWORK}  # that one may be of one target alone
    best = {number: _best({name: row[number] for name, row in whole.items()}, number) for number in numbers}
    rows = [
        [f"`{name}`", *(_cell(row[n], printed.get(name, {}).get(n), name in best[n], n) for n in numbers)]
        for name, row in found.items()
    ]
    for label, ceiling in ((f"{ATTACK_NAMES[attack]} again", measured["ceiling"]), (PERFECT, measured.get("oracle"))):
        rows.append([label, *(_ceiling(ceiling, number) for number in numbers)])
    return _table(["score", *numbers], rows, left=1)


def _differences(results: Sequence[Result]) -> list[str]:
    compared = {result["setting"]: pairs(result) for result in results}
    differing = {name: [pair for pair in found if pair.differs] for name, found in compared.items()}
    total, many = sum(map(len, compared.values())), sum(map(len, differing.values()))
    lines = [
        "## Where we differ from the paper",
        "",
        f"The rule: our mean and the paper's differ if they are more than {DEVIATIONS:g} √(our std² + the paper's "
        "std²) apart; a number from one target counts with std 0. These are deviations over targets. Targets share one "
        "pool and one truth, and the noise of the truth comes on top, so that some would differ by chance alone. Of "
        f"{total} numbers of Tables 1 and 5, {many} differ.",
    ]
    for result in results:
        found = differing[result["setting"]]
        if not found:
            continue
        rows = [_difference_row(pair) for pair in found]
        head = ["table", "score", "number", "ours", "paper", "deviations apart"]
        lines += [
            "",
            f"### {title_of(result)}: {len(found)} of {len(compared[result['setting']])}",
            "",
            *_table([*head, "LiRA again", PERFECT], rows, left=3),
            "",
            "What may explain it:",
            "",
            *(f"- {reason}" for reason in reasons(result, found)),
        ]
    same = [title_of(result) for result in results if compared[result["setting"]] and not differing[result["setting"]]]
    return lines + (["", f"No difference by this rule: {'; '.join(same)}."] if same else [])


def _difference_row(pair: Pair) -> list[str]:
    ours, paper = (_estimate(value, pair.number) for value in (pair.ours, pair.paper))
    ceilings = ["–" if value is None else _estimate((value, None), pair.number) for value in (pair.again, pair.perfect)]
    return [str(pair.table), f"`{pair.score}`", pair.number, ours, paper, f"{pair.deviations:.1f}", *ceilings]


def _times(results: Sequence[Result]) -> list[str]:
    shown = [phase for phase in PHASES if any(result["seconds"].get(phase) is not None for result in results)]
    rows = []
    for result in results:
        ours, paper = result["seconds"], TABLE_4.get(result["setting"], {})
        cells = [_times_cell(ours.get(phase), paper.get(phase)) for phase in shown]
        printed = f"<br>*{_figures(paper['shadows'] / paper['scores'])}×*" if paper else ""
        rows.append([title_of(result), str(result["shadows"]), *cells, f"{_figures(ours['speedup'])}×{printed}"])
    closed = [title_of(result) for result in results if all_settings()[result["setting"]].model is None]
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
        *_table(["data, model", "shadow models run", *(PHASES[phase] for phase in shown), "speed-up"], rows, left=1),
    ]


def _times_cell(ours: float | None, paper: float | None) -> str:
    cells = ["–" if ours is None else _duration(ours), *([] if paper is None else [f"*{_duration(paper)}*"])]
    return "<br>".join(cells)


def _network(results: Sequence[Result], figures: Collection[str]) -> list[str]:
    having = [result for result in results if NETWORK in result["attacks"]["lira"]["scores"]]
    if not having:
        return []
    numbers = [*RECALLS, "spearman"]
    rows = []
    for result in having:
        scores, printed = result["attacks"]["lira"]["scores"], TABLE_5.get(result["setting"], {})
        covered = len(scores[NETWORK][HEADLINE]["values"])
        for name, seconds in ((NETWORK, NETWORK), ("influence", "scores")):
            cells = [_cell(_first(scores[name][n], covered), printed.get(name, {}).get(n), False, n) for n in numbers]
            time = result["seconds"][seconds]
            rows.append([title_of(result), f"`{name}`", str(covered), *cells, "–" if time is None else _duration(time)])
    lines = [
        "## Full-network influence",
        "",
        "∇ℓᵀH⁻¹∇ℓ over all parameters by conjugate gradients, beside the influence in the last layer of the same "
        "targets. The paper prints the same row for both of its settings, so that the one of CIFAR-10 is left out. "
        "Seconds are for one target.",
        "",
        *_table(["data, model", "score", "targets", *numbers, "takes"], rows, left=2),
    ]
    for result in having:
        facts = result.get(NETWORK) or {}
        told = ", ".join(f"{name} {_fact(value)}" for name, value in facts.items() if not isinstance(value, dict))
        lines += ["", f"{title_of(result)}: {told}."] if told else []
    if "recall-network.png" in figures:
        lines += ["", "The curves of Figure 2 with it (Figure 3):", "", _image("recall-network", figures)]
    return lines


def _first(summary: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A summary of the first targets only, so that scores of some and of all targets can stand side by side."""
    values = summary["values"][:count]
    mean = sum(values) / len(values)
    spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
    return {"mean": mean, "std": spread, "values": values}


def _records(results: Sequence[Result], figures: Collection[str]) -> list[str]:
    lines: list[str] = []
    for kind, title, text in (
        (
            "images",
            "Figure 7: the most and the least exposed images",
            "Members of the first target by influence and by newton.",
        ),
        (
            "scatter",
            "Figure 8: loss against influence",
            "Members of the first target, log-log, coloured by LiRA's success rate; what is too small for the axes "
            "lies on their edge.",
        ),
    ):
        names = [f"{result['setting']}-{kind}" for result in results]
        images = [_image(name, figures) for name in names if f"{name}.png" in figures]
        if images:
            lines += [f"## {title}", "", text, *(line for image in images for line in ("", image)), ""]
    tables = [(result, sentences_table(result)) for result in results]
    tables = [(result, table) for result, table in tables if table]
    if tables:
        lines += [
            "## Table 6: the most exposed sentences",
            "",
            "Members of the first target, LiRA's success rate beside.",
        ]
        for result, table in tables:
            lines += ["", f"### {title_of(result)}", "", table]
    return lines[:-1] if lines and not lines[-1] else lines


def _image(name: str, figures: Collection[str]) -> str:
    picture = f"![{name}](figures/{name}.png)"
    return f"[{picture}](figures/{name}.svg)" if f"{name}.svg" in figures else picture


def _cell(ours: Mapping[str, Any] | None, paper: Estimate | None, bold: bool, number: str) -> str:
    """Our number, and the paper's below."""
    mine = "–" if ours is None else _estimate(estimate(ours, number), number)
    mine = f"**{mine}**" if bold else mine
    return mine if paper is None else f"{mine}<br>*{_estimate(paper, number)}*"


def _best(found: Mapping[str, Mapping[str, Any]], number: str) -> set[str]:
    """The score with the highest mean and those like it; none if that is all of them.

    Alike are scores that are printed alike, or that a paired t-test over the targets does not tell apart.
    """
    values = {name: np.array(summary["values"]) for name, summary in found.items()}
    printed = {name: _bare({number: summary}, number) for name, summary in found.items()}
    first = max(values, key=lambda name: float(values[name].mean()))
    alike = {name for name in values if printed[name] == printed[first] or not _ahead(values[first] - values[name])}
    return alike if len(alike) < len(values) else set()


def _ahead(differences: np.ndarray) -> bool:
    """Whether differences (T,) are above 0 on the whole; one target tells nothing."""
    n = len(differences)
    if n < 2:
        return False
    error = differences.std(ddof=1) / n**0.5
    return bool(differences.mean() > stats.t.ppf((1.0 + CONFIDENCE) / 2.0, n - 1) * error)


def _ceiling(measured: Mapping[str, Any] | None, number: str) -> str:
    return "–" if measured is None else _estimate(estimate(measured[number], number), number)


def _bare(measured: Mapping[str, Any] | None, number: str) -> str:
    """A ceiling without its deviation."""
    return "–" if measured is None else _estimate((estimate(measured[number], number)[0], None), number)


def _estimate(value: Ours, number: str) -> str:
    digits = 3 if number == "spearman" else 1
    mean, std = value
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _beside(ours: int, paper: int) -> str:
    return f"{ours:,}" if ours == paper else f"{ours:,} ({paper:,})"


def _fact(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figures(value: float) -> str:
    """Two significant figures, in full."""
    digits = max(0, len(f"{value:.0f}") - 2)
    return f"{round(value, -digits):,.0f}"


def _duration(seconds: float) -> str:
    """In the unit that suits it, two significant figures or three."""
    for size, unit in ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms")):
        if seconds >= 0.995 * size or unit == "ms":
            value = seconds / size
            return f"{value:.0f} {unit}" if value >= 9.95 else f"{value:.1f} {unit}"
    raise AssertionError(seconds)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A Markdown table; the first ``left`` columns hold text, the others numbers."""
    ruler = ["---"] * left + ["--:"] * (len(head) - left)
    return ["| " + " | ".join(line) + " |" for line in (head, ruler, *rows)]
