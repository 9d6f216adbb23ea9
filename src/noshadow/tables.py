"""Tables on disk: parquet with its facts inside, or csv with them beside it. For their owner's eyes alone.

A spreadsheet takes a cell that starts with = + - @ for a formula and runs it. Names and labels come from the data,
so in a .csv such a text gets a ' in front of it, which spreadsheets do not show and ``load_table`` takes off again;
numbers and .parquet are as they are.

The facts carry a checksum over themselves; those beside a .csv one of the .csv too, and the pages of a .parquet have
their own. What was altered is refused, not read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from noshadow.errors import FileError, InputError
from noshadow.files import atomic_path, check_output, file_digest, write_text

__all__ = ["METADATA_KEY", "STARTS_A_FORMULA", "TABLES", "load_table", "save_table", "without_formulas"]

METADATA_KEY = "noshadow"
"""Where the facts lie in the schema of a parquet file, as JSON."""
TABLES = (".parquet", ".csv")
STARTS_A_FORMULA = tuple("=+-@\t\r\n−＝＋－＠")  # the last five are taken for ASCII by some
_TEXT = "text"
_SEAL, _COLUMNS, _MISSING, _CONTENT = _OWN = ("sha256", "columns", "missing", "table_sha256")


def save_table(table: pd.DataFrame, facts: dict[str, Any], path: str | Path, argument: str = "path") -> Path:
    """Write a table: .parquet with the facts in its schema, or .csv with them beside it in .csv.json.

    ``argument`` is what messages call the path. Columns hold numbers, yes and no, times, or text.
    """
    target = check_output(path, TABLES, argument)
    kinds = {str(name): _kind(str(name), column, argument) for name, column in table.items()}
    try:
        if target.suffix.lower() == ".parquet":
            text = _sealed({**facts, _COLUMNS: kinds})
            arrow = pa.Table.from_pandas(table, preserve_index=False)
            arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), METADATA_KEY.encode(): text})
            with atomic_path(target) as temporary:
                pq.write_table(arrow, temporary, write_page_checksum=True)
        else:
            with atomic_path(target) as temporary:
                # texts in quotes: a carriage return in one of them would begin a new row, with a formula perhaps
                without_formulas(table).to_csv(temporary, index=False, quoting=csv.QUOTE_NONNUMERIC)
                digest = file_digest(temporary)
            beside = {_COLUMNS: kinds, _MISSING: _missing(table, kinds), _CONTENT: digest}
            write_text(_beside(target), _sealed({**facts, **beside}) + "\n")
    except OSError as error:
        raise FileError(f"{argument}: {target} could not be written ({error.strerror or error})") from None
    except (UnicodeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{argument}: the table cannot be written ({reason}); pass text or numbers") from None
    return target


def load_table(path: str | Path, argument: str = "path") -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table and the facts that ``save_table`` wrote, value for value and type for type."""
    file = Path(path)
    if file.suffix.lower() not in TABLES:
        raise InputError(f"{argument}: {str(path)!r} must end in {' or '.join(TABLES)}")
    try:
        found = _load_parquet(file) if file.suffix.lower() == ".parquet" else _load_csv(file)
    except OSError as error:
        if error.strerror is None:  # pyarrow's, of the content
            raise _unusable(argument, path, error) from None
        raise FileError(f"{argument}: {path} cannot be read ({error.strerror})") from None
    except Exception as error:  # pyarrow's, JSON's, UTF-8's and those of values that are none
        raise _unusable(argument, path, error) from None
    for name in _OWN:
        found[1].pop(name, None)
    return found


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The table, a ' before each text (column names too) that a spreadsheet would take for a formula."""
    return _renamed(table, _harmless)


def _renamed(table: pd.DataFrame, change: Callable[[Any], Any]) -> pd.DataFrame:
    columns = {}
    for name, column in table.items():
        is_text = not (pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column))
        columns[change(name)] = column.astype(object).map(change) if is_text else column
    found: pd.DataFrame = pd.DataFrame(columns)
    return found


def _harmless(value: Any) -> Any:
    return "'" + value if isinstance(value, str) and _is_formula(value) else value


def _as_it_was(value: Any) -> Any:
    return value[1:] if isinstance(value, str) and value.startswith("'") and _is_formula(value[1:]) else value


def _is_formula(text: str) -> bool:
    """Also with ' before it: one more is put there then, so that the way back is clear."""
    return text.lstrip("'").startswith(STARTS_A_FORMULA)


def _kind(name: str, column: pd.Series[Any], argument: str) -> str:
    """What a column holds, as the facts say it; what no file gives back as it is is refused."""
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "biuf" and kind.itemsize <= 8:
        return str(kind)
    if pd.api.types.is_datetime64_any_dtype(kind):
        return str(kind)
    held = pd.api.types.infer_dtype(column.astype(object), skipna=True)
    if held not in ("string", "empty"):
        raise InputError(f"{argument}: column {name!r} holds values of kind {held}; pass them as text, or as numbers")
    return _TEXT


def _missing(table: pd.DataFrame, kinds: dict[str, str]) -> dict[str, list[int]]:
    """Rows without a text, which in a .csv look like those of an empty one."""
    rows = {name: np.flatnonzero(table[name].isna()).tolist() for name, kind in kinds.items() if kind == _TEXT}
    return {name: some for name, some in rows.items() if some}


def _sealed(facts: dict[str, Any]) -> str:
    """The facts as JSON with a checksum over them."""
    return json.dumps({**facts, _SEAL: _checksum(facts)}, indent=2)


def _opened(text: str | bytes) -> dict[str, Any]:
    facts = json.loads(text)
    if not isinstance(facts, dict) or _SEAL not in facts:
        raise ValueError("it says nothing of what noshadow saves")
    if facts[_SEAL] != _checksum({name: value for name, value in facts.items() if name != _SEAL}):
        raise ValueError("its facts fail their checksum: it is damaged, or was altered")
    return facts


def _checksum(facts: dict[str, Any]) -> str:
    plain = json.loads(json.dumps(facts))  # as they will be read: keys are texts
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _load_parquet(file: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    with open(file, "rb") as stream:  # a folder is not taken for a data set
        arrow = pq.ParquetFile(stream, page_checksum_verification=True).read()
    text = (arrow.schema.metadata or {}).get(METADATA_KEY.encode())
    if text is None:
        raise ValueError("it is a table of others, without noshadow's facts")
    facts = _opened(text)
    if list(facts[_COLUMNS]) != arrow.column_names:
        raise ValueError("its columns are not those that were saved")
    columns = {name: arrow.column(name).to_pandas() for name in facts[_COLUMNS]}
    return _typed(columns, facts), facts


def _load_csv(file: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    content = file.read_bytes()
    beside = _beside(file)
    if not beside.is_file():
        raise ValueError(f"{beside.name} is not beside it")
    facts = _opened(beside.read_bytes())
    if facts.get(_CONTENT) != hashlib.sha256(content).hexdigest():
        raise ValueError("it fails its checksum: it is damaged, or was altered")
    cells = pd.read_csv(io.BytesIO(content), dtype=object, keep_default_na=False)
    cells.columns = pd.Index([_as_it_was(name) for name in cells.columns])
    columns: dict[str, Any] = {}
    for name, kind in facts[_COLUMNS].items():
        column = cells[name].astype(object)
        if kind == _TEXT:
            column = column.map(_as_it_was).astype(object)
            column.iloc[facts[_MISSING].get(name, [])] = None
        columns[name] = column
    return _typed(columns, facts), facts


def _typed(columns: dict[str, Any], facts: dict[str, Any]) -> pd.DataFrame:
    """Columns in the types that they had."""
    table: pd.DataFrame = pd.DataFrame(
        {name: _column(columns[name], kind) for name, kind in facts[_COLUMNS].items()}, copy=False
    )
    return table


def _column(values: Any, kind: str) -> Any:
    if kind == _TEXT:
        return pd.Series([None if missing else value for value, missing in zip(values, values.isna(), strict=True)])
    written = values.dtype == object  # a .csv, where every cell is text
    if kind.startswith("datetime64"):
        return pd.to_datetime(values, format="ISO8601" if written else None).astype(kind)
    if not written:
        return values.astype(kind)
    if kind == "bool":
        return values.map({"True": True, "False": False}.__getitem__).astype(bool)
    whole = np.dtype(kind).kind in "iu"
    return np.array([int(text) if whole else float(text or "nan") for text in values], dtype=kind)


def _unusable(argument: str, path: str | Path, error: Exception) -> FileError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return FileError(f"{argument}: {path} is not a table that noshadow saved, or it is damaged ({reason})")


def _beside(file: Path) -> Path:
    return file.with_name(file.name + ".json")
