"""Parquet files: a column of lists for features and outputs, of numbers or lists for targets; a row group at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noshadow.errors import FileError, name_rows
from noshadow.sources.checksums import Checksums
from noshadow.sources.flat import Stamp
from noshadow.sources.tables import Column, Columns

__all__ = ["ParquetTable", "parquet_columns", "parquet_names"]


def parquet_names(path: Path) -> list[str]:
    """The columns of a file but for the index that pandas keeps there."""
    import pyarrow.parquet as pq

    with open(path, "rb") as file:
        names = pq.read_schema(file).names
    return [name for name in names if not name.startswith("__index_level_")]


def parquet_columns(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Those columns of a file that are there, as pandas has them."""
    import pyarrow.parquet as pq

    with open(path, "rb") as stream:
        file = pq.ParquetFile(stream)
        held = [name for name in names if name in file.schema_arrow.names]
        table = file.read(columns=held)
    return {name: table.column(name).to_pandas() for name in held}


class ParquetTable:
    """The columns of those names. Memory is that of one row group, which is kept for the rows that come next."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.name = path, str(path)
        self._stamp: Stamp | None = None
        self._checksums = {name: Checksums() for name in names}
        file = self._open()
        try:
            self.n = int(file.metadata.num_rows)
            held = [name for name in names if name in file.schema_arrow.names]
            if not held:
                found = ", ".join(file.schema_arrow.names[:10]) or "nothing"
                raise FileError(f"records: {path} has none of the columns {', '.join(names)}; it has {found}")
            groups = [file.metadata.row_group(k).num_rows for k in range(file.metadata.num_row_groups)]
            self._ends = np.cumsum(groups).tolist() if groups else []
            first = next(file.iter_batches(batch_size=1, columns=held), None) if self.n else None
        except FileError:
            raise
        except Exception as error:  # pyarrow has its own
            raise self._damaged(error) from None
        finally:
            file.close()
        self._kept: tuple[int, dict[str, Tensor]] | None = None
        self.columns: Columns = {}
        if first is not None:
            rows = {name: self._tensor(name, first.column(first.schema.get_field_index(name)), 0) for name in held}
            self.columns = {name: Column(one.dtype, tuple(one.shape[1:])) for name, one in rows.items()}

    def read(self, rows: slice, names: Sequence[str]) -> dict[str, Tensor]:
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        begin = 0
        for group, end in enumerate(self._ends):
            start, stop = max(rows.start, begin), min(rows.stop, end)
            if start < stop:
                held = self._group(group, begin)
                for name in names:
                    parts[name].append(held[name][start - begin : stop - begin])
            begin = end
        return {name: part[0] if len(part) == 1 else torch.cat(part) for name, part in parts.items()}

    def _group(self, group: int, first_row: int) -> dict[str, Tensor]:
        if self._kept is None or self._kept[0] != group:
            self._kept = None  # not two of them at a time
            file = self._open()
            try:
                table = file.read_row_group(group, columns=list(self.columns))
            except Exception as error:
                raise self._damaged(error) from None
            finally:
                file.close()
            found = {name: self._tensor(name, table.column(name).combine_chunks(), first_row) for name in self.columns}
            for name, values in found.items():
                here = Column(values.dtype, tuple(values.shape[1:]))
                if here != self.columns[name]:
                    raise FileError(
                        f"records: row group {group} of {self.path} holds {name!r} with {here}, the first one with "
                        f"{self.columns[name]}"
                    )
                content = values.reshape(-1).view(torch.uint8).numpy() if values.numel() else b""
                self._checksums[name].check(group, content, f"{self.path}: the values of {name} in row group {group}")
            self._kept = group, found
        return self._kept[1]

    def _tensor(self, name: str, column: Any, first_row: int) -> Tensor:
        """A column of numbers, or of lists of numbers of one length, without nulls."""
        import pyarrow as pa

        if isinstance(column, pa.ChunkedArray):  # combine_chunks() of no rows, or of more than fits one array
            column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        width: int | None = None
        if column.null_count:
            bad = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) + first_row
            raise FileError(f"records: {name} is null in {name_rows(bad.tolist())} (counted from 0) of {self.path}")
        if pa.types.is_fixed_size_list(column.type):
            width = column.type.list_size
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            lengths = np.diff(column.offsets.to_numpy())
            width = int(lengths[0]) if len(lengths) else 0
            bad = np.flatnonzero(lengths != width) + first_row
            if len(bad):
                raise FileError(
                    f"records: {name} has lists of another length than {width} in {name_rows(bad.tolist())} (counted "
                    f"from 0) of {self.path}"
                )
        values = column if width is None else column.flatten()
        kind = values.type
        if values.null_count or not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            what = "nulls" if values.null_count else str(kind)
            raise FileError(f"records: {name} in {self.path} holds {what}; it must hold numbers, or lists of them")
        array = values.to_numpy(zero_copy_only=False)
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            if array.dtype.itemsize == 8 and array.size and int(array.max()) > np.iinfo(np.int64).max:
                raise FileError(f"records: {name} in {self.path} holds numbers from 2⁶³ on; save them as float64")
            array = array.astype(np.int64)
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        return tensor if width is None else tensor.reshape(len(column), width)

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        try:
            with open(self.path, "rb") as file:
                stamp = Stamp.of(file.fileno())
            if stamp != (self._stamp or stamp):
                raise FileError(
                    f"records: {self.path} was written to since the layer was opened; open it again when the file is "
                    "at rest"
                )
            self._stamp = stamp
            return pq.ParquetFile(self.path, page_checksum_verification=True)
        except FileError:
            raise
        except OSError as error:
            if error.strerror is None:  # pyarrow's, of the content
                raise self._damaged(error) from None
            raise FileError(f"records: {self.path} cannot be read ({error.strerror})") from None
        except Exception as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> FileError:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return FileError(f"records: {self.path} is no Parquet file that can be read, or it is damaged ({reason})")
