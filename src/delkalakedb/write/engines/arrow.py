"""Appends of a few rows that have the table's own types, written here.

delta-rs takes five milliseconds for one row, although such rows need only Parquet and
statistics. Appends with casts, constraints, generated or mapped columns, nested types
or write options are left to delta-rs.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.clock import now_ms
from delkalakedb.errors import StorageError
from delkalakedb.model.actions import (
    Add,
    CommitInfo,
    Metadata,
    Protocol,
    decode_struct,
    encode_struct,
    known,
)
from delkalakedb.model.new_actions import NewFile, new_commit_info
from delkalakedb.model.paths import NULL_FOLDER, Values, file_path
from delkalakedb.model.rules.features import Use, features_for
from delkalakedb.model.rules.protocol import active_features
from delkalakedb.model.schema.partition import format_partition_value
from delkalakedb.model.schema.properties import all_understood
from delkalakedb.model.schema.schema import Column, Field, parse_schema
from delkalakedb.model.stats.footer import columns_with_nan, file_stats
from delkalakedb.model.stats.json_arrays import arrow_type
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.model.stats.values import INTEGRAL
from delkalakedb.write.engines.deltars import explained
from delkalakedb.write.files import remove_leftovers
from delkalakedb.write.operation import Operation, Staging, Target

# bytes, rows and files of one append; for more, delta-rs is as fast
_MOST_BYTES = 1 << 20
_MOST_ROWS = 10_000
_MOST_FILES = 8
_DIVIDING = frozenset({*INTEGRAL, "boolean", "date", "string"})
Groups = list[tuple[Values, pa.Table]]
"""Rows, by the values of their partition."""
_Texts = tuple[str | None, ...]


@dataclass(frozen=True)
class ArrowAppend:
    """The engine that appends a few rows which have the table's own types.

    Args:
        groups: the rows.
        measured: the columns that get statistics.
    """

    groups: Groups
    measured: Sequence[Column]

    def stage(self, target: Target, operation: Operation[None]) -> Staging[None]:
        """Write a file for each partition's rows."""
        started, snapshot = time.monotonic(), target.base
        data, adds = dict[str, bytes](), list[Add]()
        for values, rows in self.groups:
            path = file_path(f"part-00000-{uuid4()}-c000.snappy.parquet", values)
            own = rows.drop_columns(list(values))
            data[path], stats = _parquet(own, self.measured)
            adds.append(NewFile(path, values, len(data[path]), now_ms(), stats).add())
        # Here, because no other operation may remove a killed one's workspace for long.
        with suppress(OSError):
            remove_leftovers(target.files.work)
        try:
            target.files.put(data)
        except (OSError, StorageError):
            what = operation.title(target)
            with explained(what, target.files.work, target.location):
                raise
        count = sum(rows.num_rows for _, rows in self.groups)
        info = _commit_info(snapshot.metadata, count, adds, started)
        return Staging(target, operation, None, [[info, *adds]], [*data])


def split_small(snapshot: Snapshot, data: Any) -> tuple[ArrowAppend | None, Any]:
    """Return the engine that appends `data` if it can; else `data`, unread.

    The stream that is returned begins with the rows that were read from `data`.
    """
    shape = _shape_of(snapshot)
    if shape is None:
        return None, data
    reader = pa.RecordBatchReader.from_stream(data)
    if not _has_types(reader.schema, shape):
        return None, reader
    rows, rest = _few(reader)
    if rows is None or not rows.num_rows or _has_wrong_null(rows, shape.fields):
        return None, rest
    rows = rows.cast(pa.schema(zip(rows.column_names, shape.kinds, strict=True)))
    try:
        groups = _groups(rows, shape.partitions)
    except (OverflowError, ValueError):
        # Python has no such date.
        return None, rest
    # delta-rs has a rule for the text that stands for null in folders' names.
    odd = any(NULL_FOLDER in values.values() for values, _ in groups)
    if odd or len(groups) > _MOST_FILES:
        return None, rest
    return ArrowAppend(groups, shape.measured), None


@dataclass(frozen=True)
class _Shape:
    """What an append needs to know of a table."""

    fields: Sequence[Field]
    kinds: Sequence[pa.DataType | None]
    partitions: Sequence[Field]
    measured: Sequence[Column]


def _shape_of(snapshot: Snapshot) -> _Shape | None:
    """Return the shape of a table that asks for nothing but Parquet and statistics."""
    return _parse_shape(
        encode_struct(snapshot.protocol), encode_struct(snapshot.metadata)
    )


@lru_cache(maxsize=64)
def _parse_shape(protocol_json: bytes, metadata_json: bytes) -> _Shape | None:
    metadata = decode_struct(metadata_json, Metadata)
    protocol = decode_struct(protocol_json, Protocol)
    fields = parse_schema(metadata.schema_string).fields
    by_name = {field.name: field for field in fields}
    if not {*metadata.partition_columns} < {*by_name}:
        return None
    partitions = [by_name[name] for name in metadata.partition_columns]
    is_plain = (
        active_features(protocol, metadata) <= features_for(Use.SMALL_APPEND)
        and all_understood(known(metadata.configuration) or {})
        and all(field.metadata.keys() <= {"comment"} for field in fields)
        and all(field.type in _DIVIDING for field in partitions)
    )
    if not is_plain:
        return None
    kinds = [
        pa.binary() if field.type == "binary" else arrow_type(field.type)
        for field in fields
    ]
    return _Shape(fields, kinds, partitions, measured_columns(metadata))


def _has_types(schema: pa.Schema, shape: _Shape) -> bool:
    names = [field.name for field in shape.fields]
    return schema.names == names and all(map(_is_of, schema.types, shape.kinds))


def _is_of(given: pa.DataType, kind: pa.DataType | None) -> bool:
    return given == kind or given in _VARIANTS.get(kind, ())


_VARIANTS = {
    pa.string(): (pa.large_string(), pa.string_view()),
    pa.binary(): (pa.large_binary(), pa.binary_view()),
}


def _few(reader: pa.RecordBatchReader) -> tuple[pa.Table | None, pa.RecordBatchReader]:
    """Return the rows if they are few, else None, and a reader of all rows."""
    seen, rest = list[pa.RecordBatch](), iter(reader)
    try:
        for batch in rest:
            seen.append(batch)
            if _is_much(seen):
                return None, _joined(reader.schema, seen, rest)
    except Exception as error:
        # delta-rs reads the source again and raises the error, as for any other source.
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
    """Yield a partition column as the log has it, empty texts as delta-rs has them."""
    for value in column.to_pylist():
        yield format_partition_value(value, kind)


def _parquet(rows: pa.Table, measured: Sequence[Column]) -> tuple[bytes, str]:
    """Return the rows as a Parquet file, and their statistics."""
    sink, footers = pa.BufferOutputStream(), list[pq.FileMetaData]()
    pq.write_table(rows, sink, store_schema=False, metadata_collector=footers)
    with_nan = [*columns_with_nan(rows, measured)]
    return sink.getvalue().to_pybytes(), file_stats(footers[0], measured, with_nan)


def _commit_info(
    metadata: Metadata, rows: int, adds: Sequence[Add], started: float
) -> CommitInfo:
    """Return the commitInfo that delta-rs writes."""
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
    return new_commit_info(
        "WRITE", parameters, metrics, engine_info=CLIENT, timestamp_ms=now_ms()
    )
