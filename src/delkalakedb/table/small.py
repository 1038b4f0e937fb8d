"""Appends of a few rows that have the table's own types, written here.

delta-rs takes five milliseconds for one row, and all that such rows need is Parquet
and statistics. Whatever asks for more is left to it: casts, constraints, generated or
mapped columns, nested types, and every option of a write.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.model.actions import Add, CommitInfo, Metadata, known
from delkalakedb.model.footers import file_stats
from delkalakedb.model.partition import format_partition_value
from delkalakedb.model.paths import NULL_FOLDER, Values, file_path, log_path
from delkalakedb.model.properties import all_understood
from delkalakedb.model.protocol import active_features
from delkalakedb.model.schema import Column, Field, parse_schema
from delkalakedb.model.stats import measured_columns
from delkalakedb.model.typed import arrow_type
from delkalakedb.model.values import FLOATING, INTEGRAL
from delkalakedb.workspace.failures import explained
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.folder import remove_leftovers
from delkalakedb.workspace.inplace import Work

__all__ = ["append", "split_small"]

_MOST_BYTES = 1 << 20
_MOST_ROWS = 10_000
_MOST_FILES = 8
# They ask nothing of the rows that are appended.
_HARMLESS = frozenset(
    {
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_DIVIDING = frozenset({*INTEGRAL, "boolean", "date", "string"})
Groups = list[tuple[Values, pa.Table]]
"""Rows by their partition."""
_Texts = tuple[str | None, ...]


def split_small(snapshot: Snapshot, data: Any) -> tuple[Groups | None, Any]:
    """The rows, if `append` can write them; else the data, none of it lost."""
    if not _is_plain(snapshot):
        return None, data
    fields = parse_schema(snapshot.metadata.schema_string).fields
    reader = pa.RecordBatchReader.from_stream(data)
    kinds = [_arrow_type(field) for field in fields]
    if not _has_types(reader.schema, fields, kinds):
        return None, reader
    rows, rest = _few(reader)
    if rows is None or not rows.num_rows or _has_wrong_null(rows, fields):
        return None, rest
    rows = rows.cast(pa.schema(zip(rows.column_names, kinds, strict=True)))
    try:
        groups = _groups(rows, _partitions(snapshot.metadata))
    except (OverflowError, ValueError):
        # A date that Python doesn't know.
        return None, rest
    # delta-rs has a rule for the text that stands for null in folders' names.
    odd = any(NULL_FOLDER in values.values() for values, _ in groups)
    return (None, rest) if odd or len(groups) > _MOST_FILES else (groups, None)


def append(
    snapshot: Snapshot, groups: Groups, storage_options: Mapping[str, str] | None
) -> Work[None]:
    """Write rows as files of the table, and say the commit that adds them."""
    started, table = time.monotonic(), snapshot.table
    files, adds = dict[str, bytes](), list[Add]()
    measured = measured_columns(snapshot.metadata)
    for values, rows in groups:
        path = file_path(f"part-00000-{uuid4()}-c000.snappy.parquet", values)
        data, stats = _parquet(rows.drop_columns(list(values)), measured)
        files[path] = data
        adds.append(_add(path, values, len(data), stats))
    place = table_files(table.location, storage_options)
    what = f"{table.name}: append on version {snapshot.version}"
    # Workspaces of operations that died: nobody else may come for long.
    with suppress(OSError):
        remove_leftovers(place.work)
    with explained(what, place.work, table.location):
        place.put(files)
    count = sum(rows.num_rows for _, rows in groups)
    info = _commit_info(snapshot.metadata, count, adds, started)
    return Work(None, [[info, *adds]], [*files])


def _is_plain(snapshot: Snapshot) -> bool:
    metadata = snapshot.metadata
    schema = parse_schema(metadata.schema_string)
    return (
        {*metadata.partition_columns} < {field.name for field in schema.fields}
        and active_features(snapshot.protocol, metadata) <= _HARMLESS
        and all_understood(known(metadata.configuration) or {})
        and all(field.metadata.keys() <= {"comment"} for field in schema.fields)
        and all(field.type in _DIVIDING for field in _partitions(metadata))
    )


def _partitions(metadata: Metadata) -> list[Field]:
    by_name = {f.name: f for f in parse_schema(metadata.schema_string).fields}
    return [by_name[name] for name in metadata.partition_columns]


def _arrow_type(field: Field) -> pa.DataType | None:
    return pa.binary() if field.type == "binary" else arrow_type(field.type)


def _has_types(
    schema: pa.Schema, fields: Sequence[Field], kinds: Sequence[pa.DataType | None]
) -> bool:
    names = [field.name for field in fields]
    return schema.names == names and all(map(_is_of, schema.types, kinds))


def _is_of(given: pa.DataType, kind: pa.DataType | None) -> bool:
    return given == kind or given in _VARIANTS.get(kind, ())


_VARIANTS = {
    pa.string(): (pa.large_string(), pa.string_view()),
    pa.binary(): (pa.large_binary(), pa.binary_view()),
}


def _few(reader: pa.RecordBatchReader) -> tuple[pa.Table | None, pa.RecordBatchReader]:
    """All rows if they are few; and in any case a reader of all of them."""
    seen, rest = list[pa.RecordBatch](), iter(reader)
    try:
        for batch in rest:
            seen.append(batch)
            if _is_much(seen):
                return None, _joined(reader.schema, seen, rest)
    except Exception as error:
        # For delta-rs to come upon, as with every other source that fails.
        return None, _joined(reader.schema, seen, _failing(error))
    table = pa.Table.from_batches(seen, reader.schema)
    return table, table.to_reader()


def _is_much(batches: Sequence[pa.RecordBatch]) -> bool:
    rows: int = sum(batch.num_rows for batch in batches)
    size_bytes: int = sum(batch.nbytes for batch in batches)
    return rows > _MOST_ROWS or size_bytes > _MOST_BYTES


def _joined(
    schema: pa.Schema, seen: Iterable[pa.RecordBatch], rest: Iterable[pa.RecordBatch]
) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, chain(seen, rest))


def _failing(error: Exception) -> Iterator[pa.RecordBatch]:
    raise error
    yield


def _has_wrong_null(rows: pa.Table, fields: Sequence[Field]) -> bool:
    return any(not f.nullable and rows[f.name].null_count for f in fields)


def _groups(rows: pa.Table, partitions: Sequence[Field]) -> Groups:
    if not partitions:
        return [({}, rows)]
    places: defaultdict[_Texts, list[int]] = defaultdict(list)
    columns = (_texts(rows[field.name], field.type) for field in partitions)
    for index, texts in enumerate(zip(*columns, strict=True)):
        places[texts].append(index)
    names = [field.name for field in partitions]
    return [
        (
            dict(zip(names, texts, strict=True)),
            rows if len(places) == 1 else rows.take(indices),
        )
        for texts, indices in places.items()
    ]


def _texts(column: pa.ChunkedArray, kind: str) -> Iterator[str | None]:
    """A partition column as the log has it, empty texts as delta-rs has them."""
    for value in column.to_pylist():
        yield format_partition_value(value, kind)


def _parquet(rows: pa.Table, measured: Sequence[Column]) -> tuple[bytes, str]:
    """A file of rows, and its statistics."""
    sink, footers = pa.BufferOutputStream(), list[pq.FileMetaData]()
    pq.write_table(rows, sink, store_schema=False, metadata_collector=footers)
    with_nan = [
        column.physical
        for column in measured
        if column.type in FLOATING and pc.any(pc.is_nan(rows[column.path[0]])).as_py()
    ]
    return sink.getvalue().to_pybytes(), file_stats(footers[0], measured, with_nan)


def _add(path: str, values: Values, size_bytes: int, stats: str) -> Add:
    return Add(
        path=log_path(path),
        partition_values=values,
        size=size_bytes,
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=stats,
    )


def _commit_info(
    metadata: Metadata, rows: int, adds: Sequence[Add], started: float
) -> CommitInfo:
    """As delta-rs says it."""
    parameters = {"mode": "Append"}
    if metadata.partition_columns:
        columns = msgspec.json.encode(metadata.partition_columns)
        parameters["partitionBy"] = columns.decode()
    metrics = {
        "num_added_files": len(adds),
        "num_removed_files": 0,
        "num_partitions": 0,
        "num_added_rows": rows,
        "execution_time_ms": int((time.monotonic() - started) * 1000),
        "num_retries": 0,
    }
    return CommitInfo(
        {
            "timestamp": int(time.time() * 1000),
            "operation": "WRITE",
            "operationParameters": parameters,
            "operationMetrics": metrics,
            "engineInfo": CLIENT,
        }
    )
