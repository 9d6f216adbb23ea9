"""Where the records of a layer lie: in memory, in files of any size, or in chunks that are made anew in each pass.

rows          a chunk of records, checked; what a layer asks of a source
arrays        in memory
tables        the arrays of records as they are stored, in one shard or in several
flat          .npy and safetensors files: rows at a place that is known
csr           sparse features of a file
parquet       Parquet files, a row group at a time
chunks        a source of chunks that can be read again and again
find          the table of a path, of several, or of chunks
streamed      a table as a source
tensor_files  safetensors files that are written row by row, with a checksum
"""

from noshadow.sources.arrays import Arrays, OtherOutputs
from noshadow.sources.find import find_table
from noshadow.sources.rows import Rows, Source, check_rows
from noshadow.sources.streamed import Streamed
from noshadow.sources.tables import Column, Table

__all__ = ["Arrays", "Column", "OtherOutputs", "Rows", "Source", "Streamed", "Table", "check_rows", "find_table"]
