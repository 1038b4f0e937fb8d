"""Formats of data files: Parquet, Arrow IPC, CSV, JSON lines; schemas of samples."""

import glob
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.errors import DeltaError, SchemaMismatchError, StorageError
from delkalakedb.query.duck import (
    Query,
    literal,
    open_duckdb,
    quoted,
    run_query,
    types_of,
)
from delkalakedb.write.engines.deltars import schema_from_arrow

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
class InputFile:
    """A data file, its format and its columns."""

    path: str
    kind: str
    schema: pa.Schema


def find_files(patterns: Sequence[str]) -> list[str]:
    """Return the files that paths and patterns name."""
    found: list[str] = []
    for pattern in patterns:
        exact = Path(pattern).is_file()
        paths = [pattern] if exact else sorted(glob.glob(pattern, recursive=True))
        files = [path for path in paths if Path(path).is_file()]
        if not files:
            raise StorageError(f"{pattern}: there is no such file")
        found += files
    return found


def kind_of_file(path: str) -> str:
    """Return the format that a file's name says."""
    suffixes = [s.lower() for s in Path(path).suffixes if s.lower() not in _COMPRESSED]
    kind = _KINDS.get(suffixes[-1]) if suffixes else None
    if kind is None:
        raise DeltaError(
            f"{path}: the file's name doesn't say its format; give --format, one of "
            f"{', '.join(dict.fromkeys(_KINDS.values()))}"
        )
    return kind


def inspect_file(path: str, kind: str | None) -> InputFile:
    """Return a file's format and columns; the format defaults to its extension's."""
    kind = kind or kind_of_file(path)
    try:
        if kind not in _READERS:
            return InputFile(path, kind, _dataset(path, kind).schema)
        sql = (
            f"SELECT * FROM {_READERS[kind]}(?, {_LAYOUTS[kind]}, sample_size = -1) "
            "LIMIT 0"
        )
        with (
            open_duckdb() as connection,
            run_query(connection, Query(sql, [path])) as rows,
        ):
            return InputFile(path, kind, rows.schema)
    except (ValueError, OSError, StorageError, pa.ArrowException) as error:
        raise DeltaError(f"{path}: not readable as {kind}: {error}") from error


def _dataset(path: str, kind: str) -> ds.Dataset:
    layout = "parquet" if kind == "parquet" else "ipc"
    return ds.dataset(path, format=layout, partitioning=None)


@contextmanager
def open_file(file: InputFile, schema: pa.Schema) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yield the rows of a file, as far as possible in the types of a schema."""
    if file.kind not in _READERS:
        yield _dataset(file.path, file.kind).to_batches()
        return
    there = pa.schema([f for f in schema if f.name in file.schema.names])
    with open_duckdb() as connection:
        kinds = dict(zip(there.names, types_of(there), strict=True))
        # Decimals are read as text, because DuckDB reads JSON's numbers as doubles.
        exact = kinds if file.kind == "csv" else {n: _exact(kinds[n]) for n in kinds}
        types = ", ".join(f"{literal(n)}: {literal(kind)}" for n, kind in exact.items())
        columns = ", ".join(f"{quoted(n)}::{kind}" for n, kind in kinds.items())
        sql = (
            f"SELECT {columns} FROM {_READERS[file.kind]}"
            f"(?, {_LAYOUTS[file.kind]}, {_TYPED[file.kind]} = {{{types}}})"
        )
        with run_query(connection, Query(sql, [file.path])) as rows:
            yield (batch.rename_columns(there.names) for batch in rows.batches)


def _exact(kind: str) -> str:
    return "VARCHAR" if kind.startswith("DECIMAL") else kind


# Delta's types have a sign: the smallest type that holds every value.
_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def sample_schema(path: str) -> str:
    """Return Delta's schema, as JSON, for a Parquet, Arrow, CSV or JSON lines file.

    Times get the unit of Delta, microseconds. A column with only nulls raises
    `SchemaMismatchError`, because it has no type.
    """
    schema = pa.schema(_fitting(inspect_file(path, None).schema, path))
    try:
        return schema_from_arrow(schema)
    except Exception as error:
        # delta-rs's message goes on with its own stack.
        problem = str(error).splitlines()[0].rpartition("error: ")[2]
        raise SchemaMismatchError(f"{path}: {problem}") from error


def _fitting(fields: Iterable[pa.Field], where: str) -> list[pa.Field]:
    return [_fitting_field(field, f"{where}: column {field.name}") for field in fields]


def _fitting_field(field: pa.Field, where: str) -> pa.Field:
    # Without its metadata, which belongs to the file, not to the table.
    return pa.field(field.name, _fitting_type(field.type, where), field.nullable)


def _fitting_type(kind: pa.DataType, where: str) -> pa.DataType:
    if pa.types.is_null(kind):
        raise SchemaMismatchError(f"{where}: it has only nulls, and so no type")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(_fitting(kind, where))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_fitting_field(kind.value_field, where))
    if pa.types.is_map(kind):
        return pa.map_(
            _fitting_type(kind.key_type, where), _fitting_field(kind.item_field, where)
        )
    return _SIGNED.get(kind, kind)
