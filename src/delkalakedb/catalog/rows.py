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
from delkalakedb.model.actions import UNSET, Add, DeletionVector, Remove
from delkalakedb.model.codec import action_to_dict, decode_struct, encode_struct

__all__ = [
    "ADD_COLUMNS",
    "FILES_SCHEMA",
    "TOMBSTONES_SCHEMA",
    "add_from_row",
    "columns_to_batch",
    "file_columns",
    "hash_path",
    "hash_utf8",
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
TOMBSTONES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size_bytes", pa.int64()),
        ("deletion_vector", pa.string()),
        ("base_row_id", pa.int64()),
        ("default_row_commit_version", pa.int64()),
        ("deletion_timestamp_ms", pa.int64()),
        ("remove_data_change", pa.bool_()),
        ("remove_fields", pa.string()),
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
    return hash_utf8(path.encode("utf-8", "surrogatepass"))


def hash_utf8(path: bytes) -> int:
    """The same for a path's UTF-8."""
    digest = blake2b(path, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def file_columns(adds: Sequence[Add]) -> dict[str, Sequence[Any]]:
    """The `ADD_COLUMNS` of files, and the ids of their deletion vectors."""
    given = {name: [getattr(add, name) for add in adds] for name in _OPTIONAL}
    extras = [add.extra for add in adds]
    nulls = [0] * len(adds)
    for bit, name in _BITS:
        if None in given[name]:
            nulls = [
                n | bit if value is None else n
                for n, value in zip(nulls, given[name], strict=True)
            ]
    vectors = given["deletion_vector"]
    columns: dict[str, Sequence[Any]] = {
        "path": [add.path for add in adds],
        "partition_values": [_encode(add.partition_values).decode() for add in adds],
        "size_bytes": [add.size for add in adds],
        "modification_time_ms": [add.modification_time for add in adds],
        "data_change": [add.data_change for add in adds],
        **{name: _present(name, values) for name, values in given.items()},
        "null_fields": nulls,
        "extra": [_encode(extra).decode() if extra else None for extra in extras],
        "dv_id": [vector.unique_id if vector else "" for vector in vectors],
    }
    return _without_nul(columns, extras)


def _present(name: str, values: list[Any]) -> list[Any]:
    """An optional field's values as they are stored; neither absent nor null is."""
    if UNSET in values:
        values = [None if value is UNSET else value for value in values]
    if name == "tags":
        return [None if value is None else _encode(value).decode() for value in values]
    if name == "deletion_vector":
        return [value and encode_struct(value).decode() for value in values]
    return values


def _without_nul(
    columns: dict[str, Sequence[Any]], extras: Sequence[dict[str, Any]]
) -> dict[str, Sequence[Any]]:
    """Postgres has no NUL in text; such statistics are kept escaped, as JSON."""
    odd = {i: s for i, s in enumerate(columns["stats"]) if s and "\0" in s}
    if not odd:
        return columns
    moved = {i: _encode({**extras[i], "stats": s}).decode() for i, s in odd.items()}
    stats = [None if i in odd else s for i, s in enumerate(columns["stats"])]
    extra = [moved.get(i, e) for i, e in enumerate(columns["extra"])]
    return columns | {"stats": stats, "extra": extra}


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


def _parsed(name: str, value: Any) -> Any:
    if value is None:
        return UNSET
    if name == "tags":
        return _decode(value)
    if name == "deletion_vector":
        return decode_struct(value, DeletionVector)
    return value
