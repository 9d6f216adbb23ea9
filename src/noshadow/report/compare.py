"""Two audits of one data set, before and after a defence: which records moved, and by how much.

Records are matched by id. What is compared is the predicted success rate; where one of the audits has none, the place
in the ranking, which says nothing of how many records are at risk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.bands import BANDS, NOT_RATED, band_index
from noshadow.errors import InputError, name_rows
from noshadow.report.breakdowns import label
from noshadow.report.items import shorten
from noshadow.report.redact import Audited
from noshadow.report.render import page
from noshadow.report.shown import EXPOSED_FROM
from noshadow.report.summarise import percent

__all__ = ["MOST_MOVED", "Comparison", "Moved", "compare", "comparison_page"]

MOST_MOVED = 25
"""Records that are named, of those that rose most and of those that fell most."""
_ALIKE = {"head": "heads", "ranked_by": "rankings", "trace": "kinds of trace", "features": "numbers of features"}
_SAME_TARGETS = 0.5  # share of the matched records that must have the target they had


@dataclass(frozen=True)
class Moved:
    """A record in both audits: its rate (or place in the ranking, 0 … 1) and band, before and after."""

    name: str
    before: float
    after: float
    kinds: tuple[int, int] | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed.

    matched         records in both audits; the others are in one alone
    moves           (5, 5) matched records by band before (rows) and after (columns), the last: not rated; None without
                    rates
    mean, error     of the paired differences after − before, and its standard error over records
    rose, fell      the records that moved most
    exposed         in the bands from "high" on: before, after, and of the matched those that left and that entered
    """

    rated: bool
    matched: int
    only_before: int
    only_after: int
    moves: NDArray[np.int64] | None
    mean: float
    error: float
    up: int
    down: int
    exposed: tuple[int, int, int, int] | None
    rose: tuple[Moved, ...]
    fell: tuple[Moved, ...]
    concerns: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Did it help?"""
        if self.exposed is None:
            return (
                "One of the audits has no predicted rates: only places in the ranking are compared, which cannot tell "
                "whether fewer records are at risk."
            )
        before, after, left, entered = self.exposed
        points = f"{abs(100 * self.mean):.1f} points {'lower' if self.mean < 0 else 'higher'}"
        spread = f" (± {100 * self.error:.1f})" if np.isfinite(self.error) else ""  # one record has none
        verb = "fewer" if after < before else "more" if after > before else "as many"
        return (
            f"{verb[0].upper()}{verb[1:]} records are exposed: {after:,} after, {before:,} before. Of the records in "
            f"both audits {left:,} left the exposed bands and {entered:,} entered them; the predicted success rate is "
            f"{points} on average{spread}."
        )


def compare(before: Audited, after: Audited) -> Comparison:
    """What changed from one audit to the other."""
    first, second = (_by_id(audit, name) for audit, name in ((before, "before"), (after, "after")))
    places = second.get_indexer(first)
    rows, columns = (places >= 0).nonzero()[0], places[places >= 0]
    if not len(rows):
        raise InputError(
            f"compare: no record is in both audits, whose ids are {first.inferred_type} before, {second.inferred_type} "
            "after; records are matched by id: audit both with the same ids="
        )
    concerns = _concerns(before, after, rows, columns)
    rated = all("attack_accuracy" in audit.table for audit in (before, after))
    x, y = (_measure(audit, rated) for audit in (before, after))
    moves = exposed = kinds = None
    if rated:
        bands = [band_index(v, a.table["flagged"].to_numpy(dtype=bool)) for v, a in ((x, before), (y, after))]
        kinds = np.stack([bands[0][rows], bands[1][columns]], 1)
        coded = np.where(kinds < 0, len(BANDS), kinds)
        moves = np.bincount(coded[:, 0] * 5 + coded[:, 1], minlength=25).reshape(5, 5)
        inside = kinds >= EXPOSED_FROM
        left, entered = int((inside[:, 0] & ~inside[:, 1]).sum()), int((~inside[:, 0] & inside[:, 1]).sum())
        exposed = int((bands[0] >= EXPOSED_FROM).sum()), int((bands[1] >= EXPOSED_FROM).sum()), left, entered
    difference = y[columns] - x[rows]
    known = np.isfinite(difference)
    if not known.any():
        raise InputError("compare: no record has a predicted rate in both audits, so that there is nothing to compare")
    order = np.argsort(np.where(known, difference, 0.0), kind="stable")
    named = [
        Moved(shorten(str(first[rows[k]]), 60), float(x[rows[k]]), float(y[columns[k]]), _pair(kinds, k))
        for k in (*order[:MOST_MOVED], *order[::-1][:MOST_MOVED])
    ]
    change = difference[known]
    return Comparison(
        rated=rated,
        matched=len(rows),
        only_before=len(first) - len(rows),
        only_after=len(second) - len(columns),
        moves=moves,
        mean=float(change.mean()),
        error=float(change.std(ddof=1) / np.sqrt(len(change))) if len(change) > 1 else float("nan"),
        up=int((change > 0).sum()),
        down=int((change < 0).sum()),
        exposed=exposed,
        rose=tuple(one for one in named[len(named) // 2 :] if one.after > one.before),
        fell=tuple(one for one in named[: len(named) // 2] if one.after < one.before),
        concerns=concerns,
    )


def _pair(kinds: NDArray[np.int64] | None, row: int) -> tuple[int, int] | None:
    return None if kinds is None else (int(kinds[row, 0]) % 5, int(kinds[row, 1]) % 5)


def _by_id(audit: Audited, name: str) -> pd.Index[Any]:
    ids: pd.Index[Any] = pd.Index(audit.table["id"])
    if not ids.is_unique:
        alike = np.flatnonzero(ids == ids[ids.duplicated()][0]).tolist()
        raise InputError(f"compare: {name}, {name_rows(alike)} (counted from 0) have one id; ids must be unique")
    if not len(ids):
        raise InputError(f"compare: the audit {name} has no records")
    return ids


def _measure(audit: Audited, rated: bool) -> NDArray[np.float64]:
    if rated:
        return audit.table["attack_accuracy"].to_numpy(dtype=np.float64)
    return np.asarray(audit.table[audit.ranking].rank(pct=True).to_numpy(dtype=np.float64))


def _concerns(before: Audited, after: Audited, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> tuple[str, ...]:
    """Why like may not be compared with like; ids that name other records are refused."""
    said = []
    if "target" in before.table and "target" in after.table:
        same = _same_targets(before.table["target"].iloc[rows], after.table["target"].iloc[columns])
        if same < _SAME_TARGETS:
            raise InputError(
                f"compare: only {same:.0%} of the records with one id have one target before and after: the ids name "
                "different records. Audit both with ids= that stay with their records"
            )
        if same < 1.0:
            said.append(f"{percent(1.0 - same)} of the matched records have another target after than before.")
    if all(_are_positions(audit.table["id"]) for audit in (before, after)):
        said.append(
            "The ids are row numbers: this compares the same records only if both audits had them in one order."
        )
    alone = [len(audit.table) - len(rows) for audit in (before, after)]
    if any(alone):
        said.append(
            f"The audits are not of the same records: {alone[0]:,} are in the first alone, {alone[1]:,} in the second "
            "alone. The exposed are counted over all of each audit; look at the records in both."
        )
    unknown = [_unrated(audit) for audit in (before, after)]
    if any(unknown):
        said.append(
            f"Records without a predicted rate count as not exposed: {unknown[0]:,} before, {unknown[1]:,} after."
        )
    for name, words in _ALIKE.items():
        pair = [audit.metadata.get(name) for audit in (before, after)]
        if pair[0] != pair[1]:
            said.append(f"The audits differ in their {words}: {pair[0]} before, {pair[1]} after.")
    sources = [(audit.metadata.get("calibration") or {}).get("source", "none") for audit in (before, after)]
    if sources[0] != sources[1]:
        said.append(f"The rates rest on different calibrations: {sources[0]} before, {sources[1]} after.")
    return tuple(said)


def _same_targets(old: pd.Series[Any], new: pd.Series[Any]) -> float:
    """The share of records with one target, also where one file has 1 and the other 1.0, True or "1"."""
    numeric = [pd.api.types.is_numeric_dtype(values) for values in (old, new)]
    if all(numeric):
        pair = [values.to_numpy(dtype=np.float64) for values in (old, new)]
    else:
        pair = [np.array([label(value) for value in values], dtype=object) for values in (old, new)]
    return float(np.mean(pair[0] == pair[1]))


def _unrated(audit: Audited) -> int:
    """Records whose rate is not known, in an audit that has rates."""
    if "attack_accuracy" not in audit.table:
        return 0
    return int((audit.table["attack_accuracy"].isna() & ~audit.table["flagged"]).sum())


def _are_positions(ids: pd.Series[Any]) -> bool:
    return pd.api.types.is_integer_dtype(ids) and bool((ids.to_numpy() == np.arange(len(ids))).all())


def comparison_page(found: Comparison, before: str, after: str) -> str:
    """The comparison as HTML; ``before`` and ``after`` are what the audits are called."""
    names = [*(band.name for band in BANDS), NOT_RATED]
    kinds = range(len(names))
    if found.moves is not None and not (found.moves[-1].any() or found.moves[:, -1].any()):
        kinds = range(len(BANDS))
    values: dict[str, Any] = {"found": found, "before": before, "after": after, "names": names, "kinds": list(kinds)}
    values["after_counts"] = [] if found.moves is None else found.moves.sum(0).tolist()
    return page("compare.html.j2", values)
