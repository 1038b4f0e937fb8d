"""Actions to rows and back, without loss.

A NULL column is an absent field; `null_fields` marks the ones that were written as
`null`, and `extra` keeps what this version doesn't know.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import pyarrow as pa

from delkalakedb.catalog.backend import Row
from delkalakedb.model.actions import UNSET, Add, DeletionVector, Remove, dv_id
from delkalakedb.model.codec import action_to_dict, decode_struct, encode_struct

__all__ = [
    "ADD_COLUMNS",
    "FILES_SCHEMA",
    "FILE_COLUMNS",
    "add_from_row",
    "columns_to_batch",
    "file_row",
    "hash_path",
    "remove_fields",
    "remove_from_row",
    "to_batch",
]

# What `add_from_row` takes, in this order.
ADD_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "modification_time_ms",
    "data_change",
    "stats",
    "tags",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
    "null_fields",
    "extra",
)
FILE_COLUMNS = (
    *ADD_COLUMNS,
    "num_records",
    "added_version",
    "file_id",
    "table_id",
    "path_hash",
    "dv_id",
)
FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size_bytes", pa.int64()),
        ("modification_time_ms", pa.int64()),
        ("data_change", pa.bool_()),
        ("stats", pa.string()),
        ("tags", pa.string()),
        ("deletion_vector", pa.string()),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("clustering_provider", pa.string()),
        ("null_fields", pa.int16()),
        ("extra", pa.string()),
        ("num_records", pa.int64()),
        ("added_version", pa.int64()),
        ("file_id", pa.int64()),
    ]
)
# Bit i of `null_fields` is the i-th of these.
_OPTIONAL = (
    "stats",
    "tags",
    "deletion_vector",
    "base_row_id",
    "default_row_commit_version",
    "clustering_provider",
)
_BITS = [(1 << i, name) for i, name in enumerate(_OPTIONAL)]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


def hash_path(path: str) -> int:
    """A 64-bit key for a path of any length; equal hashes are compared in full."""
    digest = blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def file_row(
    add: Add,
    *,
    table_id: int,
    file_id: int,
    version: int,
    path_hash: int,
    num_records: int | None,
) -> Row:
    """The `FILE_COLUMNS` of a file that lives from `version` on."""
    nulls = 0
    for bit, name in _BITS:
        if getattr(add, name) is None:
            nulls |= bit
    stats, extra = _value(add.stats), add.extra
    if stats and "\0" in stats:
        # Postgres has no NUL in text; escaped, as JSON, it is kept.
        stats, extra = None, {**extra, "stats": stats}
    return (
        add.path,
        _encode(add.partition_values).decode(),
        add.size,
        add.modification_time,
        add.data_change,
        stats,
        _json(add.tags),
        encode_struct(add.deletion_vector).decode() if add.deletion_vector else None,
        _value(add.base_row_id),
        _value(add.default_row_commit_version),
        _value(add.clustering_provider),
        nulls,
        _json(extra or UNSET),
        num_records,
        version,
        file_id,
        table_id,
        path_hash,
        dv_id(add),
    )


def add_from_row(row: Sequence[Any]) -> Add:
    """The add action whose `ADD_COLUMNS` a row starts with."""
    values = dict(zip(ADD_COLUMNS, row, strict=False))
    nulls = values["null_fields"]
    optional: dict[str, Any] = {
        name: None if nulls & bit else _parsed(name, values[name])
        for bit, name in _BITS
    }
    extra = _decode(values["extra"]) if values["extra"] else {}
    if "stats" in extra:
        optional["stats"] = extra.pop("stats")
    return Add(
        path=values["path"],
        partition_values=_decode(values["partition_values"]),
        size=values["size_bytes"],
        modification_time=values["modification_time_ms"],
        data_change=bool(values["data_change"]),
        extra=extra,
        **optional,
    )


def remove_fields(remove: Remove) -> str:
    """What a remove action says beyond path, time and data change."""
    body = dict(action_to_dict(remove)["remove"])
    del body["path"], body["dataChange"]
    if body.get("deletionTimestamp") is not None:
        del body["deletionTimestamp"]
    return _encode(body).decode()


def remove_from_row(row: Sequence[Any]) -> Remove:
    """The remove action of an ended row; without `remove_fields` it is derived."""
    (
        path,
        partition_values,
        size,
        _stats,
        _tags,
        vector,
        base_row_id,
        commit_version,
        deletion_ms,
        data_change,
        fields,
    ) = row
    if fields is None:
        body = {
            "extendedFileMetadata": True,
            "partitionValues": _decode(partition_values),
            "size": size,
            "deletionVector": _decode(vector) if vector else None,
            "baseRowId": base_row_id,
            "defaultRowCommitVersion": commit_version,
        }
        body = {name: value for name, value in body.items() if value is not None}
    else:
        body = _decode(fields)
    body |= {"path": path, "dataChange": bool(data_change)}
    if deletion_ms is not None:
        body["deletionTimestamp"] = deletion_ms
    return decode_struct(_encode(body), Remove)


def to_batch(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as Arrow."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return columns_to_batch(columns, schema)


def columns_to_batch(
    columns: Sequence[Sequence[Any]], schema: pa.Schema
) -> pa.RecordBatch:
    """Columns as Arrow; SQLite's booleans are numbers."""
    arrays = [
        pa.array(
            map(bool, values) if pa.types.is_boolean(field.type) else values, field.type
        )
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _value(value: Any) -> Any:
    return None if value is UNSET else value


def _json(value: Any) -> str | None:
    return None if value is UNSET or value is None else _encode(value).decode()


def _parsed(name: str, value: Any) -> Any:
    if value is None:
        return UNSET
    if name == "tags":
        return _decode(value)
    if name == "deletion_vector":
        return decode_struct(value, DeletionVector)
    return value
