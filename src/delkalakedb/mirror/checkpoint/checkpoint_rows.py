"""The rows of a checkpoint as Arrow, with typed statistics and partition values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.read import ADD_COLUMNS
from delkalakedb.model.actions import Action, Metadata, Protocol, action_to_dict
from delkalakedb.model.schema.partition import PartitionValue, parse_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.json_arrays import (
    arrow_type,
    json_type,
    parse_texts,
    typed,
)
from delkalakedb.model.stats.stats import measured_columns

# Small enough for its JSON to stay in the processor's cache.
_SLICE_ROWS = 4_000
_Leaf = Callable[[str], pa.DataType | None]


class StatsParser:
    """Statistics as `stats_parsed` has them: of the columns that the table names.

    `type` is None where no statistics are collected at all.
    """

    def __init__(self, metadata: Metadata) -> None:
        columns = measured_columns(metadata)
        self._written = _stats_type(columns, json_type)
        self.type = _stats_type(columns, arrow_type)

    def parse(self, texts: pa.Array) -> pa.Array:
        """Parse a batch of `stats`; a missing text or invalid JSON becomes null."""
        starts = range(0, len(texts), _SLICE_ROWS)
        return pa.concat_arrays(
            [self._parse(texts.slice(start, _SLICE_ROWS)) for start in starts]
        )

    def _parse(self, texts: pa.Array) -> pa.StructArray:
        values = typed(parse_texts(texts, self._written), self.type)
        return pa.StructArray.from_arrays(
            values.flatten(), fields=list(self.type), mask=pc.is_null(texts)
        )


def partition_type(metadata: Metadata) -> pa.StructType:
    """Return the type of `partitionValues_parsed`."""
    columns = _partition_columns(metadata)
    # Unlike statistics, partition values may be binary.
    return pa.struct(
        {name: arrow_type(kind) or pa.binary() for name, kind in columns.items()}
    )


def partition_parser(
    metadata: Metadata,
) -> Callable[[Mapping[str, str | None]], dict[str, PartitionValue | None]]:
    """Return a function that converts a file's partition values to their types."""
    columns = _partition_columns(metadata)

    def parse(values: Mapping[str, str | None]) -> dict[str, PartitionValue | None]:
        return {
            name: parse_partition_value(values.get(name), kind)
            for name, kind in columns.items()
        }

    return parse


def _partition_columns(metadata: Metadata) -> dict[str, str]:
    fields = {f.name: f for f in parse_schema(metadata.schema_string).fields}
    chosen = [fields[name] for name in metadata.partition_columns]
    return {field.physical_name: field.type for field in chosen}


def _stats_type(columns: Sequence[Column], leaf: _Leaf) -> pa.StructType:
    # No bounds of booleans, as in Delta Spark and delta-rs; JSON may have them.
    bounded = [c for c in columns if c.type != "boolean" and leaf(c.type)]
    bounds = _nested([(c.physical, leaf(c.type)) for c in bounded])
    counts = _nested([(c.physical, pa.int64()) for c in columns])
    fields = {
        "numRecords": pa.int64(),
        "minValues": bounds,
        "maxValues": bounds,
        "nullCount": counts,
        "tightBounds": pa.bool_(),
    }
    # Parquet has no empty structs.
    return pa.struct({name: kind for name, kind in fields.items() if kind})


def _nested(
    leaves: Sequence[tuple[tuple[str, ...], pa.DataType]],
) -> pa.StructType | None:
    """Return the struct type with `leaves` at their paths; None without leaves."""
    below: dict[str, list[tuple[tuple[str, ...], pa.DataType]]] = {}
    for (name, *rest), kind in leaves:
        below.setdefault(name, []).append((tuple(rest), kind))
    fields = {
        name: group[0][1] if group[0][0] == () else _nested(group)
        for name, group in below.items()
    }
    return pa.struct(fields) if fields else None


# The columns of the catalog's files that adds are made of: here null is absent.
FILE_COLUMNS = tuple(name for name in ADD_COLUMNS if name != "null_fields")

_STRINGS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.field("element", pa.string()))
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
        "maxRowIndex": pa.int64(),
    }
)
# What a remove says beyond path and time; neither statistics nor tags.
_ENDED = pa.struct(
    {
        "extendedFileMetadata": pa.bool_(),
        "partitionValues": _STRINGS,
        "size": pa.int64(),
        "deletionVector": _VECTOR,
        "baseRowId": pa.int64(),
        "defaultRowCommitVersion": pa.int64(),
    }
)
_REMOVE = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        *_ENDED,
    ]
)
_FILELESS = {
    "metaData": pa.struct(
        {
            "id": pa.string(),
            "name": pa.string(),
            "description": pa.string(),
            "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
            "schemaString": pa.string(),
            "partitionColumns": _NAMES,
            "createdTime": pa.int64(),
            "configuration": _STRINGS,
        }
    ),
    "protocol": pa.struct(
        {
            "minReaderVersion": pa.int32(),
            "minWriterVersion": pa.int32(),
            "readerFeatures": _NAMES,
            "writerFeatures": _NAMES,
        }
    ),
    "txn": pa.struct(
        {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}
    ),
    "domainMetadata": pa.struct(
        {"domain": pa.string(), "configuration": pa.string(), "removed": pa.bool_()}
    ),
}
_V2 = {
    "checkpointMetadata": pa.struct({"version": pa.int64(), "tags": _STRINGS}),
    "sidecar": pa.struct(
        {
            "path": pa.string(),
            "sizeInBytes": pa.int64(),
            "modificationTime": pa.int64(),
            "tags": _STRINGS,
        }
    ),
}
_decode = msgspec.json.decode
# How a column of adds is made of the catalog's.
_Make = Callable[[pa.RecordBatch], pa.Array]


class Layout:
    """The Parquet schemas of the actions of a table.

    `files` is the schema of file actions, `v1` the schema of a classic checkpoint, and
    `v2` the schema of a checkpoint with sidecars.
    """

    def __init__(self, metadata: Metadata) -> None:
        columns = list(_add_columns(metadata))
        add = pa.struct([(name, kind) for name, kind, _ in columns])
        self._makers = [make for _, _, make in columns]
        self.files = pa.schema({"add": add, "remove": _REMOVE})
        self.v1 = pa.schema([*self.files, *pa.schema(_FILELESS)])
        self.v2 = pa.schema([*self.v1, *pa.schema(_V2)])

    def adds(self, files: pa.RecordBatch) -> pa.StructArray:
        """Return the adds of live files, which are given by `FILE_COLUMNS`."""
        columns = [make(files) for make in self._makers]
        return _struct(self.files.field("add").type, columns)

    def removes(self, files: pa.RecordBatch) -> pa.StructArray:
        """Return the removes of tombstones, as `load_tombstones` returns them."""
        # Without fields of its own a remove repeats those of the add.
        derived = [
            pa.repeat(pa.scalar(value=True), len(files)),
            _decoded(files["partition_values"], _decode, _STRINGS),
            files["size_bytes"],
            _decoded(files["deletion_vector"], _decode, _VECTOR),
            files["base_row_id"],
            files["default_row_commit_version"],
        ]
        given = _decoded(files["remove_fields"], _decode, _ENDED)
        columns = [
            files["path"],
            files["deletion_timestamp_ms"],
            files["remove_data_change"],
            *pc.coalesce(given, _struct(_ENDED, derived)).flatten(),
        ]
        return _struct(_REMOVE, columns)


def rows(schema: pa.Schema, kind: str, actions: pa.StructArray) -> pa.RecordBatch:
    """Return actions of one kind as rows, with nulls in the other kinds' columns."""
    columns = [
        actions if field.name == kind else pa.nulls(len(actions), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def mixed_rows(schema: pa.Schema, actions: Sequence[Action]) -> pa.RecordBatch:
    """Return a few actions of any kind as one batch."""
    bodies = [_body(action) for action in actions]
    columns = [
        pa.array([body.get(field.name) for body in bodies], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _add_columns(metadata: Metadata) -> Iterator[tuple[str, pa.DataType, _Make]]:
    yield from _ADD
    asked = parse_properties(metadata)
    if asked.checkpoint_write_stats_as_json:
        yield "stats", pa.string(), _stats
    if asked.checkpoint_write_stats_as_struct:
        parser = StatsParser(metadata)
        yield "stats_parsed", parser.type, lambda files: parser.parse(_stats(files))
        if metadata.partition_columns:
            parse, kind = partition_parser(metadata), partition_type(metadata)
            make = _decoder("partition_values", lambda text: parse(_decode(text)), kind)
            yield "partitionValues_parsed", kind, make


def _stats(files: pa.RecordBatch) -> pa.Array:
    """Return the statistics of files, from `extra` if a column can't hold the text."""
    stats, extra = files["stats"], files["extra"]
    if extra.null_count == len(extra):
        return stats
    odd = _decoded(extra, lambda text: _decode(text).get("stats"), pa.string())
    return pc.coalesce(stats, odd)


def _decoded(
    texts: pa.Array, decode: Callable[[str], Any], kind: pa.DataType
) -> pa.Array:
    """Return the decoded texts; equal texts are decoded once."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), kind)
    encoded = texts.dictionary_encode()
    distinct = [decode(text) for text in encoded.dictionary.to_pylist()]
    return pa.array(distinct, kind).take(encoded.indices)


def _decoder(name: str, decode: Callable[[str], Any], kind: pa.DataType) -> _Make:
    return lambda files: _decoded(files[name], decode, kind)


def _struct(kind: pa.StructType, columns: Sequence[pa.Array]) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _body(action: Action) -> dict[str, Any]:
    line = action_to_dict(action)
    if isinstance(action, Metadata):
        # Absent in JSON they are empty; readers take a null in Parquet as it is.
        body = line["metaData"]
        body["configuration"] = body.get("configuration") or {}
        body["format"]["options"] = body["format"].get("options") or {}
    if isinstance(action, Protocol):
        # An empty list is allowed in JSON, but here only where features are listed.
        for name, listing in (("Reader", 3), ("Writer", 7)):
            if line["protocol"][f"min{name}Version"] < listing:
                line["protocol"].pop(f"{name.lower()}Features", None)
    return line


_ADD: tuple[tuple[str, pa.DataType, _Make], ...] = (
    ("path", pa.string(), itemgetter("path")),
    ("partitionValues", _STRINGS, _decoder("partition_values", _decode, _STRINGS)),
    ("size", pa.int64(), itemgetter("size_bytes")),
    ("modificationTime", pa.int64(), itemgetter("modification_time_ms")),
    ("dataChange", pa.bool_(), itemgetter("data_change")),
    ("tags", _STRINGS, _decoder("tags", _decode, _STRINGS)),
    ("deletionVector", _VECTOR, _decoder("deletion_vector", _decode, _VECTOR)),
    ("baseRowId", pa.int64(), itemgetter("base_row_id")),
    ("defaultRowCommitVersion", pa.int64(), itemgetter("default_row_commit_version")),
    ("clusteringProvider", pa.string(), itemgetter("clustering_provider")),
)
