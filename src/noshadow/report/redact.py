"""From an audit to what may be shown of it. This is the only module of the report that sees the audit.

A private report names the most exposed records. A public one holds aggregates alone: bands and tables of classes and
groups with small cells suppressed (``suppress``), and those facts of the metadata that ``PUBLIC_FACTS`` lists. Neither
an id, nor a text, nor a feature, nor a path, nor the digest of the data, by which somebody who has them could confirm
them, nor a note, which may name records, gets past this module then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.bands import BANDS, NOT_RATED, band_index
from noshadow.errors import InputError
from noshadow.gate import Verdict
from noshadow.report import bins
from noshadow.report.breakdowns import LABEL, MOST_ROWS, breakdowns, group_columns, has_classes, label, others
from noshadow.report.items import item, shorten
from noshadow.report.reasons import difficulty, reason, standings
from noshadow.report.shown import EXPOSED_FROM, RANKED_SHARE, Cloud, Item, Range, Record, Shown, Strip
from noshadow.report.suppress import SMALLEST, is_small, merge, merge_ordered
from noshadow.report.verify import checked_verification

__all__ = ["MOST_RECORDS", "PUBLIC_FACTS", "Audited", "redact"]

MOST_RECORDS = 100
_MARKED = 40  # dots in the map
_SHOWN_SCORES = ("attack_accuracy", "attack_tpr", "exposure", "leverage", "loss", "mean_trace")

PUBLIC_FACTS = (
    *("noshadow", "date", "head", "records", "features", "outputs", "trace", "calibration", "curvature"),
    *("curvature_exact", "accuracy", "stationarity", "linearity", "ranked_by", "verification"),
)
"""The metadata that say nothing of any record."""
_PUBLIC_PROVENANCE = ("weights_sha256", "versions")


class Audited(Protocol):
    """What is read of an audit."""

    @property
    def table(self) -> pd.DataFrame: ...
    @property
    def metadata(self) -> dict[str, Any]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def ranking(self) -> str: ...


def redact(
    audit: Audited,
    *,
    public: bool = False,
    verdict: Verdict | None = None,
    show: Callable[[Any], Any] | str | None = None,
    verified: Mapping[str, Any] | None = None,
    count: int = MOST_RECORDS,
) -> Shown:
    """What may be shown.

    public   aggregates only
    verdict  what a policy says of the audit
    show     what to show of a record besides its numbers: the name of a column, or a function of the record's id that
             gives a text or an image
    verified what an attack said of the same model (``checked_verification``)
    count    how many of the most exposed records are named
    """
    table, facts = audit.table, dict(audit.metadata)
    if verified is not None:
        facts["verification"] = checked_verification(verified)
    if not len(table):
        raise InputError("audit: it has no records, so that there is nothing to report")
    if public and show is not None:
        raise InputError("show: a public report shows no records; leave it out, or make a private one")
    flagged = table["flagged"].to_numpy(dtype=bool)
    rates = table["attack_accuracy"].to_numpy(dtype=np.float64) if "attack_accuracy" in table else None
    places = None if rates is None else band_index(rates, flagged)
    order = _order(table, audit.ranking, rates, flagged)
    ranges = None if places is None else _ranges(places, public)
    exposed = _exposed(places, order, len(table))
    counted: int | None = int(exposed.sum())
    if public and not _may_count(ranges, exposed):
        counted = None
    tables, left_out = breakdowns(table, facts, exposed, rates, public, counted is not None)
    common: dict[str, Any] = {
        "public": public,
        "records": len(table),
        "ranges": ranges,
        "exposed": counted,
        "few": counted is None and bool(is_small(int(exposed.sum()))),
        "breakdowns": tables,
        "groups_left_out": left_out,
        "flagged": _flagged_count(flagged, places, public),
    }
    if public:
        return Shown(facts=_public_facts(facts), highest=None, verdict=_public_verdict(verdict), **common)
    top = order[:count]
    scores = [name for name in _SHOWN_SCORES if name in table]
    strips, ends = _strips(table, facts, rates, audit.ranking)
    groups = group_columns(table)
    return Shown(
        facts=facts,
        highest=None if rates is None or np.isnan(rates).all() else float(np.nanmax(np.where(flagged, 1.0, rates))),
        notes=tuple(audit.notes),
        top=tuple(_records(table, facts, places, top, scores, tuple(groups.values()), show)),
        columns=tuple(scores),
        group_names=tuple(groups),
        cloud=_cloud(table, audit.ranking, order[:_MARKED]),
        strips=strips,
        strip_ends=ends,
        agreement=bins.agreement(table, _scores(table)),
        verdict=None if verdict is None else (verdict.met, verdict.sentence),
        **common,
    )


def _order(table: pd.DataFrame, ranking: str, rates: Any, flagged: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows, most exposed first: flagged ones, then by predicted rate where there is one, then by the score."""
    score = np.nan_to_num(table[ranking].to_numpy(dtype=np.float64), nan=-np.inf)
    rated = np.zeros(len(table)) if rates is None else np.nan_to_num(rates, nan=0.0)
    return np.lexsort((np.arange(len(table)), -score, -rated, ~flagged))


def _exposed(places: Any, order: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    if places is not None:
        return np.asarray(places >= EXPOSED_FROM)
    found = np.zeros(n, dtype=bool)
    found[order[: round(RANKED_SHARE * n)]] = True
    return found


def _ranges(places: NDArray[np.int64], public: bool) -> tuple[Range, ...]:
    """The bands with their counts; in public small ones put together with their neighbours."""
    names = [*(band.name for band in BANDS), NOT_RATED]  # what nothing is known of goes with the worst
    counts = np.bincount(np.where(places < 0, len(BANDS), places), minlength=len(names))
    parts = merge_ordered(counts.tolist()) if public else [[place] for place in range(len(names))]
    found = []
    for part in parts:
        count = int(counts[part].sum())
        if part == [len(BANDS)] and count == 0:
            continue
        bands = [BANDS[place] for place in part if place < len(BANDS)]
        meaning = bands[-1].meaning if len(part) == 1 and bands else ""
        ends = (bands[0].low, bands[-1].high) if bands else (float("nan"), float("nan"))
        kept = tuple(names[place] for place in part if place < len(BANDS) or counts[place])
        kinds = tuple(place for place in part if place < len(BANDS) or counts[place])
        found.append(Range(kept, kinds, *ends, meaning, count, count / len(places)))
    return tuple(found)


def _may_count(ranges: tuple[Range, ...] | None, exposed: NDArray[np.bool_]) -> bool:
    """Whether the number of exposed records may be told: it follows from the bands as they are published."""
    if ranges is None:
        return not (is_small(int(exposed.sum())) or is_small(int((~exposed).sum())))
    apart = all(len(BANDS) not in part.kinds or len(part.kinds) == 1 for part in ranges)
    return apart and any(part.kinds[0] == EXPOSED_FROM for part in ranges)


def _flagged_count(flagged: NDArray[np.bool_], places: Any, public: bool) -> int | None:
    """How many are flagged; not in public where few are, or few of the band that they are counted in are not."""
    count = int(flagged.sum())
    others = 0 if places is None else int((places == len(BANDS) - 1).sum()) - count
    return None if public and (is_small(count) or (count > 0 and is_small(others))) else count


def _scores(table: pd.DataFrame) -> list[str]:
    """The columns that are scores."""
    others = ("id", "target", "flagged", "nearest_class", "group")
    return [
        str(name)
        for name in table.columns
        if name not in others
        and not str(name).startswith(("target_", "group_"))
        and pd.api.types.is_float_dtype(table[name])
    ]


def _records(
    table: pd.DataFrame,
    facts: Mapping[str, Any],
    places: Any,
    rows: NDArray[np.int64],
    scores: list[str],
    groups: tuple[str, ...],
    show: Callable[[Any], Any] | str | None,
) -> list[Record]:
    if isinstance(show, str) and show not in table:
        raise InputError(f"show: the audit has no column {show!r}; it has {', '.join(map(str, table.columns))}")
    part: Any = table.iloc[rows]
    names = facts.get("class_names")
    while_training = difficulty(table) == "mean_trace"
    classes = has_classes(table)
    found = []
    for rank, (cells, standing, row) in enumerate(
        zip(part.to_dict("records"), standings(table, rows), rows, strict=True)
    ):
        place = None if places is None else int(places[row])
        target = cells.get("target", "")
        found.append(
            Record(
                rank=rank + 1,
                name=label(cells["id"]),
                target=label(target, names) if classes else _number(target),
                groups=tuple(label(cells[name]) for name in groups),
                scores={name: float(cells[name]) for name in scores},
                kind=place if place is not None and place >= 0 else None,
                band="" if place is None else BANDS[place].name if place >= 0 else NOT_RATED,
                flagged=bool(cells["flagged"]),
                reason=reason(standing, bool(cells["flagged"]), while_training),
                nearest=label(cells["nearest_class"], names) if "nearest_class" in cells else "",
                item=_item(cells, show),
            )
        )
    return found


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else shorten(str(value), LABEL)


def _item(cells: Mapping[str, Any], show: Callable[[Any], Any] | str | None) -> Item | None:
    if show is None:
        return None
    return item(cells[show]) if isinstance(show, str) else item(show(cells["id"]))


def _cloud(table: pd.DataFrame, ranking: str, marked: NDArray[np.int64]) -> Cloud | None:
    error = difficulty(table)
    if error is None or "leverage" not in table:
        return None
    leverage, hard, score = (table[name].to_numpy(dtype=np.float64) for name in ("leverage", error, ranking))
    return bins.cloud(leverage, hard, score, marked, error)


def _strips(
    table: pd.DataFrame, facts: Mapping[str, Any], rates: Any, ranking: str
) -> tuple[tuple[Strip, ...], tuple[float, float]]:
    """A strip per class: of the predicted rate, or without one of the logarithm of the score."""
    ends = (0.5, 1.0)
    if not has_classes(table):
        return (), ends
    values = rates
    if values is None:
        score = table[ranking].to_numpy(dtype=np.float64)
        known = score > 0
        if not known.any():
            return (), ends
        values = np.log10(score, where=known, out=np.full(len(score), np.nan))
        ends = (float(np.nanquantile(values, 0.01)), float(np.nanmax(values)))
        if ends[0] >= ends[1]:
            return (), ends
    codes, labels = pd.factorize(table["target"], use_na_sentinel=False)
    sizes = np.bincount(codes, minlength=len(labels))
    rows = merge(codes.astype(np.int64), sizes.astype(np.float64), MOST_ROWS)
    names = [label(labels[value], facts.get("class_names")) for value in rows.kept]
    names += [others(rows.merged)] if rows.merged else []
    return bins.strips(values, rows.codes, names, ends), ends


def _public_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: facts[name] for name in PUBLIC_FACTS if name in facts}
    found["date"] = str(facts.get("date", ""))[:10]
    provenance = facts.get("provenance") or {}
    found["provenance"] = {name: provenance[name] for name in _PUBLIC_PROVENANCE if name in provenance}
    return found


def _public_verdict(verdict: Verdict | None) -> tuple[bool, str] | None:
    """Whether the policy is met; by how many records it is missed is not said.

    Nor how many it allows where those are 1 to 9: "met" would say of a small count that it is at most so many.
    """
    if verdict is None:
        return None
    allowed = f"fewer than {SMALLEST}" if is_small(verdict.allowed) else f"{verdict.allowed:,}"
    return verdict.met, (
        f"The policy allows {allowed} records that have a predicted success rate above "
        f"{verdict.policy.fail_above:.12g} or are fully exposed: {'met' if verdict.met else 'not met'}{verdict.rough}."
    )
