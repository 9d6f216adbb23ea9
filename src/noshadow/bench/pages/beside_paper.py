"""Where our numbers and the paper's are further apart than the target models spread, and what may explain it.

The rule: two means differ if they are more than 2 √(our std² + the paper's std²) apart, both over target models. An
estimate from one target has no std and counts as 0. The reasons are put together from what the result says of itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from noshadow import evaluate
from noshadow.bench.pages.markdown import Ours, ours
from noshadow.bench.paper import TABLE_1, TABLE_5, Estimate
from noshadow.bench.result import HEADLINE, RECALLS, SPEARMAN, Result
from noshadow.bench.setting import Setting, all_settings

__all__ = [
    "DEVIATIONS",
    "FEW",
    "NEAR_CHANCE",
    "NO_CORRELATION",
    "Pair",
    "is_closed_form",
    "known_setting",
    "pairs",
    "paper_sizes",
    "reasons",
    "sought",
]

DEVIATIONS = 2.0
FEW = 10  # records of a top so small that each one counts
NEAR_CHANCE = 1.5  # what LiRA finds again, below so many times what a random order reaches, is hardly more than that
NO_CORRELATION = 0.1


@dataclass(frozen=True)
class Pair:
    """One of our numbers beside the paper's, and what LiRA again and a perfect score reach: percent or correlations."""

    table: int
    score: str
    number: str
    ours: Ours
    paper: Estimate
    again: float
    perfect: float | None = None

    @property
    def deviations(self) -> float:
        """How far apart they are in √(our std² + the paper's std²)."""
        return evaluate.deviations_apart(self.ours[0], self.ours[1] or 0.0, *self.paper)

    @property
    def differs(self) -> bool:
        return self.deviations > DEVIATIONS


def known_setting(result: Result) -> Setting | None:
    """The setting that a result is of, if this noshadow has it."""
    return all_settings().get(result.setting)


def paper_sizes(result: Result) -> dict[str, int]:
    """How many shadows, targets, records in the pool and epochs the paper has; nothing for a setting of our own."""
    setting = known_setting(result)
    if setting is None or not setting.in_paper:
        return {}
    scale = setting.scales["paper"]
    epochs = {"epochs": setting.recipe_at(scale).epochs} if setting.model is not None else {}
    return {"shadows": scale.shadows, "targets": scale.targets, "pool": scale.pool, **epochs}


def is_closed_form(result: Result) -> bool:
    setting = known_setting(result)
    return setting is not None and setting.model is None


def sought(result: Result, metric: str) -> int:
    """How many of a target's members a recall is about."""
    return evaluate.share_size(RECALLS[metric][0], result.members)


def pairs(result: Result) -> list[Pair]:
    """Every number of the paper's Tables 1 and 5 that the result has too."""
    name, lira = result.setting, result.lira

    def printed() -> Iterator[tuple[int, str, str, Estimate | None]]:
        for score, value in TABLE_1.get(name, {}).items():
            yield 1, score, HEADLINE, value
        for score, row in TABLE_5.get(name, {}).items():
            for metric, cell in row.items():
                yield 5, score, metric, cell

    return [
        Pair(
            table,
            score,
            metric,
            ours(lira.scores[score].metrics[metric], metric),
            paper,
            ours(lira.ceiling.metrics[metric], metric)[0],
            None if lira.oracle is None else ours(lira.oracle.metrics[metric], metric)[0],
        )
        for table, score, metric, paper in printed()
        if paper is not None and score in lira.scores
    ]


def reasons(result: Result, found: list[Pair]) -> list[str]:
    """What may explain the differences found, one sentence or two each."""
    setting = known_setting(result)
    if setting is None:
        return []
    scale = list(_of_scale(result, setting))
    rest = [] if scale else [_same_scale(setting)]
    return [*scale, *rest, *_of_noise(result, found), *_of_gradient(result, found)]


def _of_scale(result: Result, setting: Setting) -> Iterator[str]:
    """Where the run is smaller than the paper's, or another one."""
    paper = setting.scales["paper"]
    if result.pool != paper.pool:
        yield (
            f"The pool has {result.pool:,} records, not {paper.pool:,}. Models of fewer records may memorise more "
            "of each, and the top shares hold fewer."
        )
    if result.backbone != paper.backbone:
        yield (
            f"The backbone is {result.backbone}, not {paper.backbone}: other features, other leverages. The numbers "
            "may move either way."
        )
    if result.shadows < paper.shadows:
        yield (
            f"LiRA has {result.shadows} shadow models, not {paper.shadows}. Its success rates are noisier, which "
            "may lower every recall."
        )
    recipe = setting.recipe_at(paper).fingerprint()
    own = result.recipe
    other = [f"{key} {own.get(key)}, not {value}" for key, value in recipe.items() if own.get(key) != value]
    if other and setting.model is not None:
        yield f"The training is another one ({'; '.join(other)}), which may leave the models less or more overfitted."
    if result.targets < paper.targets:
        yield f"There are {result.targets} targets, not {paper.targets}: our deviations are themselves uncertain."


def _same_scale(setting: Setting) -> str:
    if setting.model is None:
        return (
            "The numbers of models and records are the paper's. Its text has a closed-form ridge regression, its table "
            "a linear layer trained with Adam; ours is the closed form, and its ridge may be another."
        )
    return (
        "The numbers of models and records and the recipe are the paper's. What it does not state may differ: the "
        "preparation of the data, the initialisation, where dropout sits, the variant of LiRA."
    )


def _of_noise(result: Result, found: list[Pair]) -> Iterator[str]:
    """What the ceilings, the sizes of the tops and the number of targets say."""
    for score in dict.fromkeys(pair.score for pair in found if pair.ours[1] is None):
        yield f"`{score}` is of one target only, which may not be typical."
    for number in dict.fromkeys(pair.number for pair in found):
        here = [pair for pair in found if pair.number == number]
        again, perfect = here[0].again, here[0].perfect
        if number == SPEARMAN:
            if again < NO_CORRELATION:
                most = evaluate.noiseless_correlation(again) if perfect is None else perfect
                weak = all(abs(pair.ours[0]) < NO_CORRELATION for pair in here)
                yield (
                    f"Spearman: two halves of our shadow models rank the records with a correlation of {again:.3f} "
                    f"only, so that a score without any noise would reach about {most:.2f}. "
                    + ("Both correlations may be mostly noise." if weak else "The paper's truth may be noisier still.")
                )
            continue
        top, keep = RECALLS[number]
        records = sought(result, number)
        if again < NEAR_CHANCE * 100 * keep:
            yield (
                f"{number}: LiRA finds {again:.1f} % of its own top again with other shadow models, a random order "
                f"{100 * keep:g} %. Our number and the paper's may be mostly noise."
            )
        elif perfect is not None and any(pair.ours[0] < pair.paper[0] and pair.paper[0] > perfect for pair in here):
            yield (
                f"{number}: the paper's is above what a perfect score would reach here, {perfect:.1f} %: noise in our "
                "success rates may be all there is to it."
            )
        elif perfect is None and any(pair.ours[0] < pair.paper[0] and pair.paper[0] > again for pair in here):
            yield (
                f"{number}: the paper's is above what LiRA finds again, {again:.1f} %: noise in our success rates may "
                "be all there is to it."
            )
        if records <= FEW:
            yield (
                f"{number}: the top {100 * top:g} % of {result.members:,} members "
                f"{'is one record' if records == 1 else f'are {records} records'}; each found or missed is "
                f"{100 / records:.0f} points."
            )


def _of_gradient(result: Result, found: list[Pair]) -> Iterator[str]:
    """The paper's gradient norm is at times that in the outputs, which shows: it equals the loss."""
    printed = TABLE_5[result.setting]
    if printed["gradient_norm"] != printed["loss"] or "gradient_norm" not in {pair.score for pair in found}:
        return
    metrics = result.lira.scores["output_gradient_norm"].metrics
    wanted = [pair for pair in found if pair.score == "gradient_norm"]
    again = [
        Pair(pair.table, "output_gradient_norm", pair.number, ours(metrics[pair.number], pair.number), pair.paper, 0.0)
        for pair in wanted
    ]
    left = [pair.number for pair in again if pair.differs]
    yield (
        "The paper's `gradient_norm` is that in the outputs, since it equals its `loss` in every column; ours is that "
        "in the last layer's parameters. Our `output_gradient_norm` "
        + (f"differs in {', '.join(left)}." if left else "does not differ from the paper's by the rule.")
    )
