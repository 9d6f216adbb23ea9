"""Tables on disk: parquet with its facts inside, or csv with them beside it. For their owner's eyes alone.

A spreadsheet takes a cell that starts with = + - @ for a formula and runs it. Names and labels come from the data,
so in a .csv such a text gets a ' in front of it, which spreadsheets do not show; numbers and .parquet are as they are.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from noshadow.files import atomic_path, check_output, write_text

__all__ = ["METADATA_KEY", "STARTS_A_FORMULA", "TABLES", "save_table", "without_formulas"]

METADATA_KEY = "noshadow"
"""Where the facts lie in the schema of a parquet file, as JSON."""
TABLES = (".parquet", ".csv")
STARTS_A_FORMULA = tuple("=+-@\t\r\n−＝＋－＠")  # the last five are taken for ASCII by some


def save_table(table: pd.DataFrame, facts: dict[str, Any], path: str | Path, argument: str = "path") -> Path:
    """Write a table: .parquet with the facts in its schema, or .csv with them beside it in .csv.json.

    ``argument`` is what messages call the path.
    """
    target = check_output(path, TABLES, argument)
    text = json.dumps(facts, indent=2)
    if target.suffix.lower() == ".parquet":
        arrow = pa.Table.from_pandas(table, preserve_index=False)
        arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), METADATA_KEY.encode(): text})
        with atomic_path(target) as temporary:
            pq.write_table(arrow, temporary)
    else:
        with atomic_path(target) as temporary:
            # texts in quotes: a carriage return in one of them would begin a new row, with a formula perhaps
            without_formulas(table).to_csv(temporary, index=False, quoting=csv.QUOTE_NONNUMERIC)
        write_text(target.with_name(target.name + ".json"), text + "\n")
    return target


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The table, a ' before each text (column names too) that a spreadsheet would take for a formula."""
    columns = {}
    for name, column in table.items():
        is_text = not (pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column))
        columns[_harmless(name)] = column.astype(object).map(_harmless) if is_text else column
    harmless: pd.DataFrame = pd.DataFrame(columns)
    return harmless


def _harmless(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and value.startswith(STARTS_A_FORMULA) else value
