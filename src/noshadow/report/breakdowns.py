"""Who is exposed: the records by class and by the user's own groups, with small cells suppressed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from noshadow.report.items import shorten
from noshadow.report.shown import Breakdown, Row
from noshadow.report.suppress import merge, overlaps, withhold

__all__ = ["LABEL", "MOST_ROWS", "breakdowns", "group_columns", "has_classes", "label", "others"]

MOST_ROWS = 15
_MOST_BREAKDOWNS = 6
LABEL = 60
"""Characters of an id, a class, a group."""


def group_columns(table: pd.DataFrame) -> dict[str, str]:
    """What the user's groups are called, and their columns."""
    names = [str(name) for name in table.columns if name == "group" or str(name).startswith("group_")]
    return {name.removeprefix("group_") if name != "group" else "group": name for name in names}


def has_classes(table: pd.DataFrame) -> bool:
    if "target" not in table:
        return False
    # classifiers have these columns; heads, which would bring torch, are not asked
    classifies = "nearest_class" in table or "entropy" in table
    return classifies or not pd.api.types.is_numeric_dtype(table["target"])


def label(value: Any, names: Mapping[str, str] | None = None) -> str:
    """A class or group as people write it; ``names``: what to call those that it has."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "(none)"
    text = str(value)
    plain = str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else text
    named = (names or {}).get(text, (names or {}).get(plain, plain))
    return shorten(str(named), LABEL)


def breakdowns(
    table: pd.DataFrame,
    facts: Mapping[str, Any],
    exposed: NDArray[np.bool_],
    rates: Any,
    public: bool,
    counted: bool,
) -> tuple[tuple[Breakdown, ...], tuple[str, ...]]:
    """A table of the classes and of each of the groups, and the groups that there is no room for."""
    columns = [("class", "target")] if has_classes(table) else []
    columns += group_columns(table).items()
    left_out = tuple(title for title, _ in columns[_MOST_BREAKDOWNS:])
    found = []
    for title, column in columns[:_MOST_BREAKDOWNS]:
        values, uniques = pd.factorize(table[column], use_na_sentinel=False)
        sizes = np.bincount(values, minlength=len(uniques))
        hits = np.bincount(values, weights=exposed, minlength=len(uniques))
        # in public the largest: which rows are there must not tell what they would say
        importance = sizes.astype(np.float64) if public else hits / np.maximum(sizes, 1) + sizes / (sizes.sum() * 1e6)
        merged = merge(values.astype(np.int64), importance, MOST_ROWS)
        class_names = facts.get("class_names") if column == "target" else None
        names = [label(uniques[value], class_names) for value in merged.kept]
        found.append((title, names + ([others(merged.merged)] if merged.merged else []), merged))
    if not found:
        return (), ()
    tables = [merged.codes for _, _, merged in found]
    gram = overlaps(tables)
    of_table = np.repeat(np.arange(len(tables)), [int(codes.max()) + 1 for codes in tables])
    counts = np.concatenate([np.bincount(codes, weights=exposed) for codes in tables]).astype(np.int64)
    hidden = withhold(counts, of_table, gram) if counted else np.ones(len(counts), dtype=bool)
    made = []
    for place, (title, names, merged) in enumerate(found):
        inside = (of_table == place).nonzero()[0]
        means: list[float | None] = [None] * len(inside)
        if rates is not None and not public:
            means = _means(merged.codes, rates, len(inside))
        lines = tuple(
            Row(name, int(gram[row, row]), None if hidden[row] else int(counts[row]), mean)
            for name, row, mean in zip(names, inside, means, strict=True)
        )
        made.append(Breakdown(title, lines, merged.merged, bool((~hidden[inside]).any())))
    return tuple(made), left_out


def others(count: int) -> str:
    return f"{count:,} others together"


def _means(codes: NDArray[np.int64], rates: NDArray[np.float64], rows: int) -> list[float | None]:
    known = np.isfinite(rates)
    sizes = np.bincount(codes[known], minlength=rows)
    sums = np.bincount(codes[known], weights=rates[known], minlength=rows)
    return [float(total / size) if size else None for total, size in zip(sums, sizes, strict=True)]
