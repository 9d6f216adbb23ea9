"""Tables on disk: parquet with its facts inside, or csv with them beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from noshadow.errors import InputError
from noshadow.files import atomic_path, write_text

METADATA_KEY = "noshadow"
"""Where the facts lie in the schema of a parquet file, as JSON."""


def save_table(table: pd.DataFrame, facts: dict[str, Any], path: str | Path, argument: str = "path") -> Path:
    """Write a table: .parquet with the facts in its schema, or .csv with them beside it in .csv.json.

    ``argument`` is what messages call the path.
    """
    target = Path(path)
    if target.suffix not in (".parquet", ".csv"):
        raise InputError(f"{argument}: {str(path)!r} must end in .parquet or .csv")
    if not target.parent.is_dir():
        raise InputError(f"{argument}: the folder {str(target.parent)!r} does not exist")
    text = json.dumps(facts, indent=2)
    if target.suffix == ".parquet":
        arrow = pa.Table.from_pandas(table, preserve_index=False)
        arrow = arrow.replace_schema_metadata({**(arrow.schema.metadata or {}), METADATA_KEY.encode(): text})
        with atomic_path(target) as temporary:
            pq.write_table(arrow, temporary)
    else:
        with atomic_path(target) as temporary:
            table.to_csv(temporary, index=False)
        write_text(target.with_name(target.name + ".json"), text + "\n")
    return target
