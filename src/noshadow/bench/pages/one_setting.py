"""The page of one setting: what it is, how its models were trained, what each score finds, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from noshadow.bench.pages.beside_paper import (
    DEVIATIONS,
    Pair,
    is_closed_form,
    known_setting,
    pairs,
    paper_sizes,
    reasons,
    sought,
)
from noshadow.bench.pages.figures import BUDGET, IMAGES, RECALL, RELIABILITY, SCATTER, target_name
from noshadow.bench.pages.markdown import (
    ATTACK_NAMES,
    PERFECT,
    beside,
    best,
    ceiling_cell,
    cell,
    difference_cell,
    duration,
    escaped,
    estimate,
    fact,
    percent_pair,
    table,
    two_figures,
)
from noshadow.bench.pages.section import Section
from noshadow.bench.paper import TABLE_1, TABLE_4, TABLE_5, Estimate
from noshadow.bench.result import HEADLINE, METRICS, NETWORK, RatesFound, Result, ShownRecord
from noshadow.evaluate import Summary
from noshadow.heads import get_head

__all__ = ["OPTIMIZERS", "PHASES", "SECTIONS"]

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
PHASES = {
    "model": "training one shadow model",
    "shadows": "training all shadow models",
    "targets": "training all targets",
    "attacks": "LiRA, RMIA and Shokri",
    "scores": "all scores of one target",
    "exposure": "`exposure` alone, of one target",
    NETWORK: "full-network influence of one target",
}


def _what(result: Result) -> list[str]:
    setting, count = known_setting(result), sought(result, HEADLINE)
    differs = f" What differs from the paper: {result.note}." if result.note else ""
    return [
        f"# {result.title}",
        "",
        "<!-- written by noshadow bench --pages; do not edit -->",
        "",
        f"The setting `{result.setting}` of the [experiments](../experiments.md): which members of one trained model "
        f"does an attack with {result.shadows} shadow models expose, and which score of that model alone finds them? "
        f"The model is trained with {get_head(result.head).loss_name} on {result.members:,} of a pool of "
        f"{result.pool:,} records; sought are the {count} of them that LiRA exposes most, its top 1 %.{differs}",
        "",
        "```sh",
        f"noshadow bench {result.setting} --scale {result.scale}",
        "```",
        *(["", "Not one of the paper's settings."] if setting is not None and not setting.in_paper else []),
    ]


def _training(result: Result) -> list[str]:
    paper, fit, lira = paper_sizes(result), result.fit, result.lira.summary
    rows = [
        ["shadow models", beside(result.shadows, paper.get("shadows"))],
        ["targets, none of them a shadow model", beside(result.targets, paper.get("targets"))],
        ["records of the pool, half of them in each model", beside(result.pool, paper.get("pool"))],
        ["inputs of the last layer", f"{result.features:,}"],
        *([["backbone, frozen or fine-tuned", result.backbone]] if result.backbone else []),
        ["training", _recipe(result)],
        ["loss of members / of the others", f"{fit.loss_of_members:.3g} / {fit.loss_of_others:.3g}"],
    ]
    if fit.accuracy_on_members is not None:
        accuracies = percent_pair(fit.accuracy_on_members, fit.accuracy_on_others)
        rows.append(["accuracy on members / on the others, %", accuracies])
    if "auc" in lira and "success_rate" in lira:
        rows.append(["LiRA's AUC / success rate over all records", f"{lira['auc']:.3f} / {lira['success_rate']:.3f}"])
    return [
        "## How the models were trained",
        "",
        *table(["", "here (in the paper, where it is another)"], rows, left=2),
    ]


def _recipe(result: Result) -> str:
    """The recipe in words."""
    recipe = result.recipe
    decay = f"weight decay {recipe['weight_decay']:g}"
    if is_closed_form(result):
        return f"in closed form, {decay}"
    optimizer = OPTIMIZERS.get(recipe["optimizer"], recipe["optimizer"])
    words = [
        f"{beside(recipe['epochs'], paper_sizes(result).get('epochs'))} epochs of {optimizer}",
        f"batches of {recipe['batch_size']}",
        f"learning rate {recipe['learning_rate']:g}",
        decay,
    ]
    words += [f"momentum {recipe['momentum']:g}"] if recipe.get("momentum") else []
    words += [f"{recipe['schedule']} schedule"] if recipe.get("schedule", "constant") != "constant" else []
    words += [f"augmentation {recipe['augment']}"] if recipe.get("augment") else []
    return ", ".join(words)


def _lira(result: Result) -> list[str]:
    return [
        "## What the scores find of LiRA's exposed records",
        "",
        *_score_table(result, "lira"),
        "",
        f"`{HEADLINE}`: how much of LiRA's top 1 % lies in a score's top 5 % (Table 1 of the paper); a random order "
        "reaches 5. `recall@k`: of the top k in the top k (Table 5). Recalls in percent, mean ± standard deviation "
        "over targets; *in italics* what the paper prints; **bold** the best of ours and those that the targets do not "
        "tell from it, unless that is all of them.",
        "",
        *_ceilings(result),
    ]


def _ceilings(result: Result) -> list[str]:
    """What the last rows of the table mean, with their numbers."""
    lira = result.lira
    whole = {name: row.metrics[HEADLINE] for name, row in lira.scores.items() if name != NETWORK}
    first = max(whole, key=lambda name: whole[name].mean)
    again = 100 * lira.ceiling.metrics[HEADLINE].mean
    lines = [
        "What the ceilings mean:",
        "",
        f"- **LiRA again**: one half of the shadow models finds {again:.1f} % of what the other half exposes. It is no "
        "bound: both halves are noisier than the truth, which comes from all models. Where it is low, the truth is "
        "mostly noise.",
    ]
    if lira.oracle is None:
        lines.append(f"- **{PERFECT.capitalize()}**, one that knows how exposed each record is, was not measured here.")
    else:
        most = 100 * lira.oracle.metrics[HEADLINE].mean
        lines.append(
            f"- **{PERFECT.capitalize()}**, one that knows how exposed each record is, would find {most:.1f} %: the "
            "truth of so many models is itself uncertain, and more cannot be found but by luck."
        )
    return [*lines, f"- The best score of one model here, `{first}`, finds {100 * whole[first].mean:.1f} %."]


_SOURCES = {
    "rerun": "from the trace of the target, one rerun with another seed and the records that it was not trained on",
    "converged": "from the law of a converged head, without a rerun",
}


def _rates(result: Result) -> list[str]:
    rates = result.rates
    if rates is None:
        return []
    pairs = zip(rates.predicted, rates.measured, strict=True)
    rows = [[f"{n}", f"{p:.3f}", f"{m:.3f}"] for n, (p, m) in enumerate(pairs, 1)]
    return [
        "## Predicted success rates",
        "",
        f"`attack_accuracy` of one model, {_SOURCES.get(rates.source, rates.source)}, beside the success rate of LiRA "
        f"with {result.shadows} shadow models. Calibration error, the mean over tenths of the members of |predicted − "
        f"measured|: **{rates.error.mean:.3f}**"
        + (f" ± {rates.error.std:.3f} over targets." if len(rates.error.values) > 1 else "."),
        "",
        *table(["tenth of the members", "predicted", "measured"], rows, left=0),
        *_shift(rates),
    ]


def _shift(rates: RatesFound) -> list[str]:
    """Predicted against measured size of the shift."""
    if rates.power is None or rates.distance is None:
        return []
    rows = [
        [f"{n}", f"{p:.2f}", f"{d:.2f}"] for n, (p, d) in enumerate(zip(rates.power, rates.distance, strict=True), 1)
    ]
    return [
        "",
        "The shift itself, in spreads of the attack's statistic: predicted d′ (`attack_power`) and LiRA's separation, "
        "medians of tenths by prediction.",
        "",
        *table(["tenth of the members", "predicted d′", "LiRA's separation"], rows, left=0),
    ]


def _beyond(result: Result) -> list[str]:
    """The exposure beside the Newton score, of the same targets."""
    scores = result.lira.scores
    if "exposure" not in scores or "newton" not in scores:
        return []
    rows = []
    for name in (name for name in scores if name.startswith("exposure")):
        values = scores[name].metrics[HEADLINE].values
        newton = scores["newton"].metrics[HEADLINE].values[: len(values)]
        rows.append([f"`{name}`", str(len(values)), f"{100 * values.mean():.1f}", difference_cell(values, newton)])
    return [
        "## Exposure beside the Newton score",
        "",
        "The same targets, and the paired difference with its 95 % interval (bootstrap over targets), in points of "
        f"`{HEADLINE}`. *Rerun*: the trace is that of a second run with another seed; *checkpoints*: the mean of four.",
        "",
        *table(["score", "targets", "found, %", "ahead of `newton` by"], rows, left=1),
    ]


def _budget(result: Result) -> list[str]:
    found = result.budget
    if found is None:
        return []
    rows = [
        [str(count), f"{100 * both:.1f} ± {100 * error:.1f}", "–" if own is None else f"{100 * own:.1f}"]
        for count, both, error, own in zip(found.models, found.together, found.errors, found.alone, strict=True)
    ]
    return [
        "## A few shadow models, used well",
        "",
        "How many of LiRA's most exposed are found with so many shadow models: with the exposure as their prior "
        "(`attacks.with_prior`; 0 models: the exposure alone), and by LiRA alone. The truth is LiRA on "
        f"{found.reference} other shadow models, fewer than above; ± is the error over draws of models.",
        "",
        *table(["shadow models", "with the exposure, %", "LiRA alone, %"], rows, left=0),
    ]


def _other_attacks(result: Result) -> list[str]:
    others = [name for name in result.attacks if name != "lira"]
    lines = ["## The same for other attacks", "", "The paper has them in figures only."] if others else []
    for name in others:
        summary = f"<details><summary>{ATTACK_NAMES[name]}</summary>"
        lines += ["", summary, "", *_score_table(result, name), "", "</details>"]
    return lines


def _score_table(result: Result, attack: str) -> list[str]:
    found = result.attacks[attack]
    whole = {name: row for name, row in found.scores.items() if name != NETWORK}  # that one may be of fewer targets
    bold = {metric: best({name: row.metrics[metric] for name, row in whole.items()}, metric) for metric in METRICS}
    rows = []
    for name, row in found.scores.items():
        cells = [
            cell(row.metrics[m], _printed(result, name, m) if attack == "lira" else None, name in bold[m], m)
            for m in METRICS
        ]
        rows.append([f"`{name}`", *cells])
    for label, ceiling in ((f"{ATTACK_NAMES[attack]} again", found.ceiling), (PERFECT, found.oracle)):
        if ceiling is not None:
            rows.append([f"*{label}*", *(ceiling_cell(ceiling, metric) for metric in METRICS)])
    return table(["score", *METRICS], rows, left=1)


def _printed(result: Result, score: str, metric: str) -> Estimate | None:
    """The paper's number."""
    if metric == HEADLINE:
        return TABLE_1.get(result.setting, {}).get(score)
    return TABLE_5.get(result.setting, {}).get(score, {}).get(metric)


def _differences(result: Result) -> list[str]:
    compared = pairs(result)
    differing = [pair for pair in compared if pair.differs]
    if not compared:
        return []
    lines = [
        "## Where we differ from the paper",
        "",
        f"In {len(differing)} of {len(compared)} numbers our mean and the paper's are more than {DEVIATIONS:g} √(our "
        "std² + the paper's std²) apart, deviations over targets; a number from one target counts with std 0.",
    ]
    if not differing:
        return lines
    head = ["table", "score", "number", "ours", "paper", "deviations apart", "LiRA again", PERFECT]
    return [
        *lines,
        "",
        *table(head, [_difference_row(pair) for pair in differing], left=3),
        "",
        "What may explain it:",
        "",
        *(f"- {reason}" for reason in reasons(result, differing)),
    ]


def _difference_row(pair: Pair) -> list[str]:
    numbers = [estimate(value, pair.number) for value in (pair.ours, pair.paper)]
    ceilings = ["–" if value is None else estimate((value, None), pair.number) for value in (pair.again, pair.perfect)]
    return [str(pair.table), f"`{pair.score}`", pair.number, *numbers, f"{pair.deviations:.1f}", *ceilings]


def _cost(result: Result) -> list[str]:
    seconds, paper = result.seconds, TABLE_4.get(result.setting, {})
    rows = [
        [label, duration(getattr(seconds, phase)), duration(paper.get(phase))]
        for phase, label in PHASES.items()
        if getattr(seconds, phase) is not None
    ]
    return [
        "## What it costs",
        "",
        f"Times of one CPU core ({result.shadows} shadow models, {result.targets} targets); the paper's are of a V100. "
        f"The shadow models take {two_figures(seconds.speedup)} times as long as the scores."
        + (
            " A fit in closed form takes next to no time, and there is little to be saved."
            if is_closed_form(result)
            else ""
        ),
        "",
        *table(["", "here", "in the paper"], rows, left=1),
    ]


def _network(result: Result) -> list[str]:
    scores = result.lira.scores
    if NETWORK not in scores or "influence" not in scores:
        return []
    covered = len(scores[NETWORK].metrics[HEADLINE].values)
    rows = []
    for name, seconds in ((NETWORK, result.seconds.network_influence), ("influence", result.seconds.scores)):
        first = {metric: Summary(summary.values[:covered]) for metric, summary in scores[name].metrics.items()}
        cells = [cell(first[metric], _printed(result, name, metric), False, metric) for metric in METRICS]
        rows.append([f"`{name}`", *cells, duration(seconds)])
    told = ", ".join(f"{name} {fact(value)}" for name, value in _plain(result.network_influence))
    return [
        "## Full-network influence",
        "",
        f"∇ℓᵀH⁻¹∇ℓ over all parameters by conjugate gradients, of {covered} target{'s' if covered > 1 else ''}, beside "
        "the influence in the last layer of the same. The time is for one target; that of the influence is for all "
        "scores.",
        "",
        *table(["score", *METRICS, "takes"], rows, left=1),
        *(["", f"How it was computed: {told}."] if told else []),
    ]


def _plain(facts: dict[str, Any] | None) -> Sequence[tuple[str, Any]]:
    return [(name.replace("_", " "), value) for name, value in (facts or {}).items() if not isinstance(value, dict)]


def _records(result: Result) -> list[str]:
    sentences = _sentences(result)
    if not sentences and not IMAGES.applies(result) and not SCATTER.applies(result):
        return []
    return ["## The records", *(["", *sentences] if sentences else [])]


def _sentences(result: Result) -> list[str]:
    """The sentences most exposed by newton and by influence, with LiRA's success rate (Table 6)."""
    left, right = (result.shown[f"highest {name}"] for name in ("newton", "influence"))
    if not left or left[0].text is None:
        return []
    rows = []
    for rank, pair in enumerate(zip(left, right, strict=True), 1):
        rows.append([str(rank), *(part for record in pair for part in _sentence(result, record))])
    lines = ["| rank | by `newton` | label | LiRA | by `influence` | label | LiRA |", "|--:|---|---|--:|---|---|--:|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    told = "The sentences of the first target that are most exposed, their label and LiRA's success rate beside."
    return [told, "", *lines]


def _sentence(result: Result, record: ShownRecord) -> list[str]:
    rate = f"{100 * record.lira_success_rate:.1f} %"
    return [escaped(record.text or ""), target_name(result, record.target), rate]


def _made_with(result: Result) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    machine = f"{result.machine['cores']} cores ({result.machine['processor']})"
    notes = [f"- {note}" for note in result.notes]
    return [
        "## Made with",
        "",
        f"{versions}; {machine}; seed {result.seed}.",
        *(["", "Notes of the run:", "", *notes] if notes else []),
    ]


SECTIONS: tuple[Section[Result], ...] = (
    Section("what", _what),
    Section("training", _training),
    Section("lira", _lira, (RECALL,)),
    Section("beyond", _beyond),
    Section("rates", _rates, (RELIABILITY,)),
    Section("budget", _budget, (BUDGET,)),
    Section("other attacks", _other_attacks),
    Section("full network", _network),
    Section("differences", _differences),
    Section("cost", _cost),
    Section("records", _records, (SCATTER, IMAGES)),
    Section("made with", _made_with),
)
"""The page, from top to bottom. A new section is a function and a line here; it is left out where it is empty."""
