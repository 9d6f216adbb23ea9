"""What there is to say, in sentences: the finding, how far to trust it, where it comes from. From what may be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noshadow.report.items import shorten
from noshadow.report.shown import EXPOSED_FROM, NOT_RATED_KIND, RANKED_SHARE, Shown
from noshadow.spread_sources import SPREAD_SOURCES, Level, SpreadSource

__all__ = [
    "FEW_HELD_OUT",
    "HOW_TO_GET_RATES",
    "LEFT_OPEN",
    "TOLD_FROM_CHANCE",
    "Statement",
    "Summary",
    "finding",
    "percent",
    "provenance",
    "summarise",
    "trust",
]

HOW_TO_GET_RATES = (
    "To get rates, audit again with held_out=, some hundreds of records that the model was not trained on, and rerun=, "
    "a second model trained the same way with another seed."
)
FEW_HELD_OUT = 100
"""With fewer of them rates are called rough, as the notes of an audit do."""
LEFT_OPEN = 0.05
"""Likewise where chance leaves more of the mean rate open."""
TOLD_FROM_CHANCE = 2.0
"""Likewise where held-out records lose more than members by fewer standard errors."""
_CONVERGED = 0.1  # stationarity, in gradients of a typical record


@dataclass(frozen=True)
class Statement:
    """One reason to trust the report more or less. ``level`` is said in words beside it."""

    name: str
    level: Level
    text: str


@dataclass(frozen=True)
class Summary:
    """The sentences of one report."""

    finding: str
    detail: str
    trust: tuple[Statement, ...]
    provenance: tuple[tuple[str, str], ...]
    numerics: tuple[tuple[str, str], ...]
    exposed_means: str


def summarise(shown: Shown) -> Summary:
    """All that differs from report to report."""
    sentence, detail = finding(shown)
    numerics = tuple((name, shorten(_plain(value), 400)) for name, value in shown.facts.items() if name != "provenance")
    means = (
        "an attacker is right about at least three times in four (bands “high” and “near certain”)"
        if shown.rated
        else f"are among the {RANKED_SHARE:.0%} ranked highest".replace("%", " %")
    )
    return Summary(sentence, detail, trust(shown), provenance(shown), () if shown.public else numerics, means)


def percent(share: float, digits: int = 1) -> str:
    """``1.3 %``; never 0 % of something, nor 100 % of less than all.

    >>> percent(0.0128), percent(0.00001), percent(0.99999), percent(1.0)
    ('1.3 %', 'under 0.1 %', 'over 99.9 %', '100 %')
    """
    least = 10.0**-digits
    value = 100.0 * share
    if 0 < value < least:
        return f"under {least:g} %"
    if 100.0 - least < value < 100.0:
        return f"over {100.0 - least:g} %"
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") + " %" if "." in f"{value:.{digits}f}" else f"{value:.0f} %"


def _records(count: int) -> str:
    return f"{count:,} training record{'' if count == 1 else 's'}"


def finding(shown: Shown) -> tuple[str, str]:
    """The finding in one sentence, and what belongs to it."""
    n = shown.records
    if shown.ranges is None:
        return (
            f"The {_records(n)} are ranked by how exposed they are; how often an attack on them would succeed is not "
            "known.",
            f"This audit has no predicted success rates, so that it cannot say how many records are at risk, nor be "
            f"held against a policy. {HOW_TO_GET_RATES}",
        )
    coin = "where a coin is right half of the time"
    unknown = next((part.count for part in shown.ranges if part.kinds == (NOT_RATED_KIND,)), 0)
    rest = f" {unknown:,} records could not be rated and count as neither." if unknown else ""
    if shown.exposed is None:
        together = "Bands with fewer than 10 records are put together with the next."
        if shown.few:
            text = (
                f"Fewer than 10 of {_records(n)} are exposed: an attacker is right about each of them at least 75 % of"
            )
            return f"{text} the time, {coin}.", together + rest
        return (
            f"Of {_records(n)}: {'; '.join(f'{part.count:,} {part.name}' for part in shown.ranges)}.",
            together + rest,
        )
    if shown.exposed == 0 and unknown == n:
        return (
            f"None of the {_records(n)} could be rated: how often an attack on them would succeed is not known.",
            HOW_TO_GET_RATES,
        )
    if shown.exposed == 0 and unknown:
        return (
            f"Of {_records(n)} {unknown:,} could not be rated; none of the other {n - unknown:,} is predicted to be "
            f"exposed: an attacker is right less than 75 % of the time on each of those, {coin}.",
            _highest(shown),
        )
    if shown.exposed == 0:
        text = f"None of the {_records(n)} is predicted to be exposed: an attacker is right less than 75 % of the time"
        return f"{text} on each, {coin}.", _highest(shown) + rest
    certain = next((part.count for part in shown.ranges if part.kinds[0] == EXPOSED_FROM + 1), 0)
    one = shown.exposed == 1
    level = 90 if certain == shown.exposed else 75
    within = f" ({certain:,} of them: at least 90 %)" if 0 < certain < shown.exposed else ""
    text = (
        f"{shown.exposed:,} of {_records(n)} ({percent(shown.exposed / n)}) {'is' if one else 'are'} exposed: an "
        f"attacker is right about {'it' if one else 'each of them'} at least {level} % of the time{within}, {coin}."
    )
    return text, _highest(shown) + rest


def _highest(shown: Shown) -> str:
    return "" if shown.highest is None else f"The highest predicted success rate is {percent(shown.highest, 0)}."


def trust(shown: Shown) -> tuple[Statement, ...]:
    """How far to trust it: a statement for each thing that the answer rests on."""
    facts = shown.facts
    made = [_evidence(facts), _rates(facts), _converged(facts), _curvature(facts), _flagged(shown), _verified(facts)]
    return tuple(one for one in made if one is not None)


def _evidence(facts: Mapping[str, Any]) -> Statement:
    kind, name = facts.get("trace", "none"), "Training run"
    if kind == "mean outputs":
        return Statement(
            name, "firm", "A trace of training was used: what the final model hides of a record, the run remembers."
        )
    if kind == "losses":
        return Statement(name, "fair", "Only the losses of training were kept; a trace of the outputs ranks better.")
    stationarity = facts.get("stationarity")
    if facts.get("linearity") is not None and stationarity is not None and stationarity < _CONVERGED:
        return Statement(
            name,
            "fair",
            "No trace. The last layer has converged; if the features before it were trained, some records hide.",
        )
    return Statement(
        name,
        "weak",
        "No trace: judged by the final model alone, which hides the records it has memorised. Some are missed.",
    )


def _rates(facts: Mapping[str, Any]) -> Statement:
    calibration, name = facts.get("calibration"), "Predicted rates"
    if calibration is None:
        return Statement(name, "weak", "None: this is a ranking, without a scale.")
    others = f"{calibration['held_out']:,} held-out records" if calibration.get("held_out") else "held-out records"
    source = SPREAD_SOURCES.get(str(calibration.get("source")), SpreadSource("weak", "Of unknown origin."))
    level, text = source.level, source.said.format(others=others)
    few = 0 < (calibration.get("held_out") or 0) < FEW_HELD_OUT or (calibration.get("margin") or 0.0) > LEFT_OPEN
    gap_errors = calibration.get("gap_errors")
    few = few or (gap_errors is not None and gap_errors < TOLD_FROM_CHANCE)
    if level == "firm" and few:
        level, text = "fair", f"{text} So few leave the rates rough; some hundreds make them steady."
    if calibration.get("scale") == 0.0:
        level, text = (
            "weak",
            "Held-out records fit as well as members do: either nothing leaks, or they were trained on.",
        )
    return Statement(name, level, text)


def _converged(facts: Mapping[str, Any]) -> Statement | None:
    value, name = facts.get("stationarity"), "Convergence"
    if value is None:
        return None
    figure = f"{value:.2g} typical record gradients are left over (stationarity)"
    if value < _CONVERGED:
        return Statement(name, "firm", f"The last layer is at its optimum, as the formulas assume: {figure}.")
    return Statement(
        name, "fair", f"The last layer stopped before its optimum, as networks do: {figure}. The ranking holds."
    )


def _curvature(facts: Mapping[str, Any]) -> Statement | None:
    name, exact, off = "Arithmetic", facts.get("curvature_exact"), facts.get("accuracy")
    if exact is None:
        return None
    if exact:
        return Statement(name, "firm", "Exact: no approximation of the model's curvature.")
    if off is None:
        return Statement(name, "weak", f"Approximate curvature ({facts.get('curvature')}), its error was not measured.")
    level: Level = "fair" if off["top_kept"] >= 0.8 else "weak"
    text = (
        f"Approximate curvature ({facts.get('curvature')}): scores are off by {percent(off['median_error'], 0)} in the "
        f"median; {percent(off['top_kept'], 0)} of the most exposed are the right ones."
    )
    if off.get("stable"):
        level, text = "firm", f"{text[:-1]}, and the top was scored exactly."
    return Statement(name, level, text)


def _flagged(shown: Shown) -> Statement | None:
    if shown.flagged == 0:
        return None
    count = "Fewer than 10 records" if shown.flagged is None else _records(shown.flagged).replace(" training", "")
    one = shown.flagged == 1
    return Statement(
        "Flagged",
        "fair",
        f"{count} {'decides its' if one else 'decide their'} own fit alone, and {'is' if one else 'are'} counted as "
        "near certain.",
    )


def _verified(facts: Mapping[str, Any]) -> Statement:
    found, name = facts.get("verification"), "Checked by an attack"
    if not found:
        return Statement(name, "weak", "Not verified on this model: no shadow-model attack was run against it.")
    again = found.get("ceiling")
    ceiling = "" if again is None else f"; that attack finds {percent(again, 0)} of its own with other models"
    top, keep = (percent(found.get(key, share)) for key, share in (("top", 0.01), ("keep", 0.05)))
    text = (
        f"{found['attack']} with {found['models']:,} shadow models was run: {percent(found['recall'], 0)} of the {top} "
        f"that it exposes most are in the top {keep} here{ceiling}."
    )
    return Statement(name, "firm" if found["recall"] >= 0.8 * (again or 1.0) else "fair", text)


def provenance(shown: Shown) -> tuple[tuple[str, str], ...]:
    """Where the numbers come from."""
    facts = shown.facts
    origin = facts.get("provenance") or {}
    versions = origin.get("versions") or {}
    rows = [
        ("Model", facts.get("model")),
        (
            "Audited layer",
            f"{facts.get('head')}, {facts.get('features', 0):,} features × {facts.get('outputs', 0):,} outputs",
        ),
        ("Training records", f"{shown.records:,}"),
        ("Weights, SHA-256", origin.get("weights_sha256")),
        ("Data, SHA-256", origin.get("data_sha256")),
        ("Command", origin.get("command")),
        ("Audited", facts.get("date")),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in versions.items()) or f"noshadow {facts.get('noshadow')}",
        ),
    ]
    kept = ("Weights, SHA-256", "Data, SHA-256") if not shown.public else ()
    return tuple(
        (name, shorten(str(value)) if value else "not recorded") for name, value in rows if value or name in kept
    )


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)):
        return "; ".join(_plain(part) for part in value) or "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
