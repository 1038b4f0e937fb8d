"""Actions as rows and back, without loss, and the commits that the rows make.

A NULL column is an absent field. `null_fields` marks the fields that were written as
`null`, and `extra` keeps the fields that this version doesn't know.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from delkalakedb.catalog.engine import Backend, Session
from delkalakedb.catalog.read.head import Head, load_head
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    action_from_dict,
    action_to_dict,
    decode_struct,
    encode_struct,
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
# the columns of `add_from_row`, in this order
ADD_COLUMNS = tuple(FILES_SCHEMA.names[:13])
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
_TOMBSTONE_COLUMNS = tuple(TOMBSTONES_SCHEMA.names)
# Bit i of `null_fields` is set if the i-th of these fields is null.
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
    """Return a 64-bit hash of a path.

    Two paths may have one hash, so a lookup by hash also compares the path.
    """
    return hash_utf8(path.encode("utf-8", "surrogatepass"))


def hash_utf8(path: bytes) -> int:
    """Return the hash of a path that is given as UTF-8."""
    digest = blake2b(path, digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def live_rows(files: pa.RecordBatch | pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the number of live rows of each file, null without statistics.

    Deletion vectors count only if `files` has their column.
    """
    named = "deletion_vector" in files.schema.names
    if not named or files["deletion_vector"].null_count == len(files):
        return files["num_records"]
    vectors = files["deletion_vector"].to_pylist()
    gone = [decode_struct(v, DeletionVector).cardinality if v else 0 for v in vectors]
    return pc.subtract(files["num_records"], pa.array(gone, pa.int64()))


def file_columns(adds: Sequence[Add]) -> dict[str, Sequence[Any]]:
    """Return the `ADD_COLUMNS` of `adds`, and the ids of their deletion vectors."""
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
    """Return the stored values of an optional field: NULL if it is absent or null."""
    if msgspec.UNSET in values:
        values = [None if value is msgspec.UNSET else value for value in values]
    if name == "tags":
        return [None if value is None else _encode(value).decode() for value in values]
    if name == "deletion_vector":
        return [value and encode_struct(value).decode() for value in values]
    return values


def _without_nul(
    columns: dict[str, Sequence[Any]], extras: Sequence[dict[str, Any]]
) -> dict[str, Sequence[Any]]:
    """Move statistics that contain a NUL to `extra`, where JSON escapes it.

    Postgres has no NUL in a text.
    """
    odd = {i: s for i, s in enumerate(columns["stats"]) if s and "\0" in s}
    if not odd:
        return columns
    moved = {i: _encode({**extras[i], "stats": s}).decode() for i, s in odd.items()}
    stats = [None if i in odd else s for i, s in enumerate(columns["stats"])]
    extra = [moved.get(i, e) for i, e in enumerate(columns["extra"])]
    return columns | {"stats": stats, "extra": extra}


def add_from_row(row: Sequence[Any]) -> Add:
    """Return the add action of a row that starts with `ADD_COLUMNS`."""
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
    """Return the fields of `remove` besides path, time and data change, as JSON."""
    body = dict(action_to_dict(remove)["remove"])
    del body["path"], body["dataChange"]
    if body.get("deletionTimestamp") is not None:
        del body["deletionTimestamp"]
    return _encode(body).decode()


def remove_from_row(row: Sequence[Any]) -> Remove:
    """Return the remove action of a row with the columns of `TOMBSTONES_SCHEMA`.

    Without `remove_fields` the action is made of the columns of the file.
    """
    values = dict(zip(_TOMBSTONE_COLUMNS, row, strict=True))
    if values["remove_fields"] is None:
        vector = values["deletion_vector"]
        body = {
            "extendedFileMetadata": True,
            "partitionValues": _decode(values["partition_values"]),
            "size": values["size_bytes"],
            "deletionVector": _decode(vector) if vector else None,
            "baseRowId": values["base_row_id"],
            "defaultRowCommitVersion": values["default_row_commit_version"],
        }
        body = {name: value for name, value in body.items() if value is not None}
    else:
        body = _decode(values["remove_fields"])
    body |= {"path": values["path"], "dataChange": bool(values["remove_data_change"])}
    if values["deletion_timestamp_ms"] is not None:
        body["deletionTimestamp"] = values["deletion_timestamp_ms"]
    return decode_struct(_encode(body), Remove)


def _parsed(name: str, value: Any) -> Any:
    if value is None:
        return msgspec.UNSET
    if name == "tags":
        return _decode(value)
    if name == "deletion_vector":
        return decode_struct(value, DeletionVector)
    return value


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A commit of the catalog: its actions as published, and the head after it."""

    head: Head
    transaction_id: str
    actions: tuple[Action, ...]


class _CommitRow(NamedTuple):
    version: int
    timestamp_ms: int
    transaction_id: str
    num_files: int
    size_bytes: int
    commit_info: str | None
    other_actions: str | None


class _Logged(NamedTuple):
    version: int
    action: Action


def _struct(kind: type[Any], version: int, action: str) -> _Logged:
    return _Logged(version, decode_struct(action, kind))


# in the order in which actions are published
_PARTS: dict[str, Callable[..., _Logged]] = {
    "load_protocols_since": partial(_struct, Protocol),
    "load_metadata_since": partial(_struct, Metadata),
    "load_txns_since": partial(_struct, Txn),
    "load_domains_since": partial(_struct, DomainMetadata),
    "load_removes_since": lambda version, *row: _Logged(version, remove_from_row(row)),
    "load_adds_since": lambda version, *row: _Logged(version, add_from_row(row)),
    "load_cdc_since": partial(_struct, Cdc),
}


def load_commits(
    backend: Backend, name: str, after: int, upto: int, within: Session | None = None
) -> Iterator[LoggedCommit]:
    """Yield the commits after a version in order, loaded in two round trips.

    Args:
        backend: the catalog's database.
        name: the table.
        after: the version before the first commit.
        upto: the version of the last commit.
        within: the session to use, instead of a new one.
    """
    with nullcontext(within) if within else backend.reading() as session:
        head = load_head(session, name, after + 1)
        window = {"table_id": head.table_id, "after": after, "upto": upto}
        kinds: dict[str, Callable[..., Any]] = {"load_commits_since": _CommitRow}
        kinds |= _PARTS
        asked = [(kind, statement, window) for statement, kind in kinds.items()]
        commits, *parts = session.rows_many(asked)
    found: defaultdict[int, list[Action]] = defaultdict(list)
    for logged in chain.from_iterable(parts):
        found[logged.version].append(logged.action)
    for commit in commits:
        ratified = _logged(head, commit, found.pop(commit.version, []))
        head = ratified.head
        yield ratified


def _logged(head: Head, commit: _CommitRow, actions: list[Action]) -> LoggedCommit:
    for action in actions:
        if isinstance(action, Metadata):
            head = replace(head, metadata=action, metadata_version=commit.version)
        elif isinstance(action, Protocol):
            head = replace(head, protocol=action, protocol_version=commit.version)
    head = replace(
        head,
        version=commit.version,
        timestamp_ms=commit.timestamp_ms,
        num_files=commit.num_files,
        size_bytes=int(commit.size_bytes),
    )
    # An adopted commit may have no commitInfo.
    info = commit.commit_info
    first = [CommitInfo(_decode(info))] if info else []
    last = map(action_from_dict, _decode(commit.other_actions or "[]"))
    return LoggedCommit(head, commit.transaction_id, (*first, *actions, *last))
