"""Tables whose Parquet files DuckDB reads itself, without pyarrow.

DuckDB gets the paths of the files that a query needs, the table's columns and types,
and the partition values that the log has. It finds a column in a file by name, converts
the values of a file that was written before the column's type was widened, and sets a
column that a file lacks to NULL. Partition columns in a file are ignored.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from delkalakedb.catalog import Files, Snapshot
from delkalakedb.deltalake import odd_files
from delkalakedb.model.rules.features import Use
from delkalakedb.model.rules.protocol import unread_features
from delkalakedb.model.schema.partition import parse_partition_value
from delkalakedb.query.duck import literal, quoted, types_of
from delkalakedb.storage import local_folder

# files; DuckDB opens a list of 100,000 paths in 2 s
_MOST_FILES = 10_000
# DuckDB takes these in a path for a pattern.
_PATTERN = frozenset("*?[]{}\\")


@dataclass(frozen=True)
class ParquetFiles:
    """Files of a version that DuckDB can read, all below one folder."""

    folder: str
    paths: Sequence[str]
    files: Files

    def create_view(self, connection: Any, name: str, schema: pa.Schema) -> None:
        """Create a view of the rows, with the columns of a schema."""
        table = self.files.snapshot.table
        there = [
            f for f in table.schema.fields if f.name not in table.partition_columns
        ]
        types = dict(zip(schema.names, types_of(schema), strict=True))
        stored = ", ".join(
            f"{literal(f.name)}: {{name: {literal(f.name)}, "
            f"type: {literal(types[f.name])}, default_value: NULL}}"
            for f in there
        )
        connection.execute(f"SET VARIABLE {name} = ?", [self.paths])
        columns = {f.name: quoted(f.name) for f in there}
        for i, (column, values) in enumerate(self._partitions()):
            variable, kind = f"{name}_{i}", types[column]
            # A single value is a constant, by which DuckDB simplifies the query.
            at = "(file_index + 1)::BIGINT"
            if len(set(values)) == 1:
                values, at = values[:1], "1"
            connection.execute(f"SET VARIABLE {variable} = ?::{kind}[]", [values])
            columns[column] = f"getvariable('{variable}')[{at}]"
        selected = ", ".join(f"{columns[n]} AS {quoted(n)}" for n in schema.names)
        # A file's statistics leave out NaN, which DuckDB takes for the greatest number.
        # Conditions on floating-point columns take 1.4 times as long.
        connection.execute(
            f"CREATE TEMP VIEW {name} AS SELECT {selected} FROM read_parquet("
            f"getvariable('{name}'), hive_partitioning = false, can_have_nan = true, "
            f"schema = MAP {{{stored}}})"
        )

    def _partitions(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each partition column with its value in each of the files."""
        table = self.files.snapshot.table
        if not table.partition_columns:
            return
        texts = self.files.table["partition_values"].to_pylist()
        parsed = cache(msgspec.json.decode)
        for field in table.schema.fields:
            if field.name in table.partition_columns:
                value = cache(parse_partition_value)
                yield (
                    field.name,
                    [value(parsed(text).get(field.name), field.type) for text in texts],
                )


def are_plain(snapshot: Snapshot) -> bool:
    """Return whether a version's rows are those of local Parquet files."""
    table = snapshot.table
    return (
        len(table.partition_columns) < len(table.schema.fields)
        and local_folder(table.location) is not None
        and not unread_features(snapshot.protocol, snapshot.metadata, Use.DATASET)
        and not odd_files(snapshot)
    )


def parquet_files(files: Files) -> ParquetFiles | None:
    """Return files of a plain version for DuckDB, or None if it can't read them all."""
    folder = local_folder(files.snapshot.table.location)
    if folder is None or not 0 < files.table.num_rows <= _MOST_FILES or files.outside:
        return None
    folder = os.path.realpath(folder)
    paths = [f"{folder}/{path}" for path in files.paths()]
    if not _PATTERN.isdisjoint("".join(paths)) or not all(_readable(paths)):
        return None
    return ParquetFiles(folder, paths, files)


def _readable(paths: Sequence[str]) -> Iterator[bool]:
    """Yield for each path whether it is of a file, and no link is on the way."""
    real = cache(os.path.realpath)
    for path in paths:
        parent = os.path.dirname(path)
        try:
            path.encode()
            kind = os.lstat(path).st_mode
        except (OSError, ValueError):
            yield False
        else:
            yield stat.S_ISREG(kind) and real(parent) == parent
