"""Data files of the formats that are taken: Parquet, Arrow IPC, CSV and JSON lines."""

import glob
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.table.duck import Query, open_duckdb, quoted, run_query

__all__ = [
    "DataFile",
    "file_schema",
    "find_files",
    "inspect_file",
    "kind_of_file",
    "open_file",
]

_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
_COMPRESSED = (".gz", ".zst")
_READERS = {"csv": "read_csv", "jsonl": "read_json"}
_LAYOUTS = {
    "csv": "header = true, allow_quoted_nulls = false",
    "jsonl": "format = 'newline_delimited'",
}
_TYPED = {"csv": "types", "jsonl": "columns"}


@dataclass(frozen=True)
class DataFile:
    """A file, and the columns that it says it has."""

    path: str
    kind: str
    schema: pa.Schema


def find_files(patterns: Sequence[str]) -> list[str]:
    """The files that paths and patterns name."""
    found: list[str] = []
    for pattern in patterns:
        exact = Path(pattern).is_file()
        paths = [pattern] if exact else sorted(glob.glob(pattern, recursive=True))
        files = [path for path in paths if Path(path).is_file()]
        if not files:
            raise StorageError(f"{pattern}: there is no such file")
        found += files
    return found


def file_schema(path: str) -> pa.Schema:
    """The columns of a file."""
    return inspect_file(path, None).schema


def kind_of_file(path: str) -> str:
    """The format that a file's name says."""
    suffixes = [s.lower() for s in Path(path).suffixes if s.lower() not in _COMPRESSED]
    kind = _KINDS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise DeltaError(
            f"{path}: its name doesn't say its format; give --format, one of "
            f"{', '.join(dict.fromkeys(_KINDS.values()))}"
        )
    return kind


def inspect_file(path: str, kind: str | None) -> DataFile:
    """A file with its columns; its format is by default what its name says."""
    kind = kind or kind_of_file(path)
    try:
        if kind not in _READERS:
            return DataFile(path, kind, _dataset(path, kind).schema)
        sql = (
            f"SELECT * FROM {_READERS[kind]}(?, {_LAYOUTS[kind]}, sample_size = -1) "
            "LIMIT 0"
        )
        with (
            open_duckdb(sealed=False) as connection,
            run_query(connection, Query(sql, [path])) as rows,
        ):
            return DataFile(path, kind, rows.schema)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise DeltaError(f"{path}: not readable as {kind}: {error}") from error


def _dataset(path: str, kind: str) -> ds.Dataset:
    layout = "parquet" if kind == "parquet" else "ipc"
    return ds.dataset(path, format=layout, partitioning=None)


@contextmanager
def open_file(file: DataFile, schema: pa.Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """The rows of a file, as far as possible in the types of a schema."""
    if file.kind not in _READERS:
        yield _dataset(file.path, file.kind).to_batches()
        return
    there = pa.schema([f for f in schema if f.name in file.schema.names])
    with open_duckdb(sealed=False) as connection:
        kinds = dict(zip(there.names, _types(connection, there), strict=True))
        # A number of JSON would become a decimal by way of a double.
        exact = kinds if file.kind == "csv" else {n: _exact(kinds[n]) for n in kinds}
        types = ", ".join(f"{_text(n)}: {_text(kind)}" for n, kind in exact.items())
        columns = ", ".join(f"{quoted(n)}::{kind}" for n, kind in kinds.items())
        sql = (
            f"SELECT {columns} FROM {_READERS[file.kind]}"
            f"(?, {_LAYOUTS[file.kind]}, {_TYPED[file.kind]} = {{{types}}})"
        )
        with run_query(connection, Query(sql, [file.path])) as rows:
            yield (batch.rename_columns(there.names) for batch in rows.batches)


def _exact(kind: str) -> str:
    return "VARCHAR" if kind.startswith("DECIMAL") else kind


def _types(connection: Any, schema: pa.Schema) -> list[str]:
    """The types of columns, in DuckDB's words."""
    connection.register("types_of", schema.empty_table())
    return [row[1] for row in connection.sql("DESCRIBE types_of").fetchall()]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
