"""The rows of many commits, or of a checkpoint, made column by column."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from delkalakedb.catalog.commit import (
    INFO_COLUMNS,
    ByKind,
    advanced,
    index_rows,
    info_values,
    state_writes,
)
from delkalakedb.catalog.engine import Actor, Insert, Run, Session, Write
from delkalakedb.catalog.load.adoption import (
    Entry,
    Tombstone,
    audited,
    indexed,
    live_files,
    timestamp_of,
    tombstone_inserts,
    transaction_of,
)
from delkalakedb.catalog.read import (
    ADD_COLUMNS,
    FILES_PER_TABLE,
    Head,
    StatColumn,
    add_from_row,
    file_columns,
    hash_path,
    hash_utf8,
    remove_fields,
)
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    Metadata,
    Protocol,
    Remove,
    UnknownAction,
    action_to_dict,
    decode_struct,
    dv_id,
    known,
)
from delkalakedb.model.log import FileKey
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.stats.stats import parse_stats

_USUAL = frozenset({Add, Remove, CommitInfo})
_NOTHING = ByKind(())
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
# files whose statistics are in memory at once
_TOGETHER = 10_000
# the id and the size of a file
_Life = tuple[int, int]


def history_writes(
    session: Session, head: Head, entries: Sequence[Entry], actor: Actor, limit: int
) -> tuple[Head, list[Write]]:
    """Return the head after `entries`, and the writes that the entries need.

    Args:
        session: a transaction that blocks other writers of the table.
        head: the head before the entries.
        entries: commits, in order and without a gap.
        actor: the user and host that load the commits.
        limit: how many columns have their bounds indexed once the metadata changes.
    """
    files = _Files(head, _live_files(session, head, entries))
    versions = _Versions(head, files, actor, limit)
    for entry in entries:
        versions.append(entry)
    writes = [*versions.writes(), *files.writes(head.version)]
    return replace(versions.head, stat_columns=files.index()), writes


def base_writes(head: Head, actions: Iterable[Action]) -> tuple[Head, list[Write]]:
    """Return the head with a part of a checkpoint's files, and the writes of the part.

    The version of the head stays.
    """
    files = _Files(head, {})
    for action in actions:
        files.apply(action, head.version)
    after = replace(files.counted(head), stat_columns=files.index())
    return after, files.writes(head.version - 1)


def state_rows(head: Head, actions: Iterable[Action]) -> list[Insert]:
    """Return the rows of a checkpoint's actions other than files."""
    return list(state_writes(head, ByKind(actions)))


def _live_files(
    session: Session, head: Head, entries: Iterable[Entry]
) -> dict[FileKey, _Life]:
    if not head.num_files:
        return {}
    hashes = {
        hash_path(action.path)
        for entry in entries
        for action in entry.actions
        if isinstance(action, Add | Remove)
    }
    found = live_files(session, head, hashes)
    return {(file.path, file.dv_id): (file.file_id, file.size_bytes) for file in found}


class _End(NamedTuple):
    removed_version: int | None = None
    deletion_timestamp_ms: int | None = None
    remove_data_change: bool | None = None
    remove_fields: str | None = None


_ALIVE = _End()


class _Files:
    """The rows of files that the actions of a log add and remove."""

    def __init__(self, head: Head, live: dict[FileKey, _Life]) -> None:
        self._table_id = head.table_id
        self._first = head.table_id * FILES_PER_TABLE
        self._next = self._first + head.next_file
        self._columns = head.stat_columns
        self._metadata = head.metadata
        self._live = live
        self._adds: list[Add] = []
        self._ids: list[int] = []
        self._born: list[int] = []
        self._index: list[Insert] = []
        self._num_records: list[int | None] = []
        # by file id, of files in the database and of new ones
        self._ends: dict[int, _End] = {}
        self._tombstones: list[Tombstone] = []
        self.num_files, self.size_bytes = head.num_files, head.size_bytes
        self.begin()

    def apply(self, action: Action, version: int) -> None:
        """Apply one action of a version."""
        if isinstance(action, Add):
            self._add(action, version)
        elif isinstance(action, Remove):
            self._remove(action, version)

    def begin(self) -> None:
        """Begin to count the files of a version."""
        self.added = self.removed = self.added_bytes = self.removed_bytes = 0

    def counted(self, head: Head) -> Head:
        """Return `head` with the totals and the file counter after the actions."""
        return replace(
            head,
            next_file=self._next - self._first,
            num_files=self.num_files,
            size_bytes=self.size_bytes,
        )

    def change_metadata(self, head: Head) -> None:
        """Index the files of later actions by the metadata of `head`."""
        self.index()
        self._metadata = head.metadata
        self._columns = head.stat_columns

    def index(self) -> tuple[StatColumn, ...]:
        """Index the files that aren't indexed yet.

        Return the indexed columns, with the classes of all files.
        """
        for start in range(len(self._num_records), len(self._adds), _TOGETHER):
            self._index_some(slice(start, start + _TOGETHER))
        return self._columns

    def _index_some(self, which: slice) -> None:
        adds, ids = self._adds[which], self._ids[which]
        stats = [parse_stats(known(add.stats)) for add in adds]
        self._num_records += [s.num_records if s else None for s in stats]
        values = [add.partition_values for add in adds]
        index = index_rows(self._columns, self._metadata, values, stats)
        self._columns, inserts = index.columns, index.inserts(0, ids)
        born = dict(zip(ids, self._born[which], strict=True))
        self._index += [_with_versions(insert, born) for insert in inserts]

    def writes(self, after: int) -> list[Write]:
        """Return the writes for the files; `after` is the version before the first."""
        self.index()
        new = set(self._ids)
        old = [[i, *end] for i, end in self._ends.items() if i not in new]
        writes: list[Write] = []
        if old:
            removes = msgspec.json.encode(old).decode()
            writes.append(Run("end_files", {"removes": removes}))
        if self._adds:
            writes += [Insert("dl_files", self._rows()), *self._index]
        writes += tombstone_inserts(self._table_id, self._tombstones)
        if self._ends:
            params = {"table_id": self._table_id, "after": after}
            writes += [Run("end_number_stats", params), Run("end_text_stats", params)]
        return writes

    def _add(self, add: Add, version: int) -> None:
        key = (add.path, dv_id(add))
        if (life := self._live.pop(key, None)) is not None:
            self._end(life, _End(version))
        self._live[key] = (self._next, add.size)
        self._adds.append(add)
        self._ids.append(self._next)
        self._born.append(version)
        self._next += 1
        self.added += 1
        self.added_bytes += add.size
        self.num_files += 1
        self.size_bytes += add.size

    def _remove(self, remove: Remove, version: int) -> None:
        life = self._live.pop((remove.path, dv_id(remove)), None)
        if life is None:
            self._tombstones.append(Tombstone(self._next, version, remove))
            self._next += 1
        else:
            self.removed += 1
            deleted_ms = known(remove.deletion_timestamp)
            fields = remove_fields(remove)
            self._end(life, _End(version, deleted_ms, remove.data_change, fields))

    def _end(self, life: _Life, end: _End) -> None:
        file_id, size_bytes = life
        self._ends[file_id] = end
        self.removed_bytes += size_bytes
        self.num_files -= 1
        self.size_bytes -= size_bytes

    def _rows(self) -> dict[str, Sequence[Any]]:
        ends = [self._ends.get(file_id, _ALIVE) for file_id in self._ids]
        return {
            **file_columns(self._adds),
            **_end_columns(ends),
            "file_id": self._ids,
            "table_id": [self._table_id] * len(self._ids),
            "path_hash": [hash_path(add.path) for add in self._adds],
            "num_records": self._num_records,
            "added_version": self._born,
        }


def _end_columns(ends: Sequence[_End]) -> dict[str, Sequence[Any]]:
    if all(end is _ALIVE for end in ends):
        return {}
    return dict(zip(_End._fields, zip(*ends, strict=True), strict=True))


def _with_versions(insert: Insert, born: dict[int, int]) -> Insert:
    versions = [born[file_id] for file_id in insert.columns["file_id"]]
    return Insert(insert.table, {**insert.columns, "added_version": versions})


class _Versions:
    """The rows of versions, and of their actions other than files."""

    def __init__(self, head: Head, files: _Files, actor: Actor, limit: int) -> None:
        self._head = head
        self._version = head.version
        self._timestamp_ms = head.timestamp_ms
        self._files = files
        self._same = {"table_id": head.table_id, **msgspec.structs.asdict(actor)}
        self._limit = limit
        self._stamped = _is_stamped(head)
        self._rows: list[dict[str, Any]] = []
        self._state: list[Insert] = []

    @property
    def head(self) -> Head:
        """The head after the last version."""
        return replace(
            self._files.counted(self._head),
            version=self._version,
            current_version=self._version,
            timestamp_ms=self._timestamp_ms,
        )

    def append(self, entry: Entry) -> None:
        """Append the next version."""
        # Fast for a commit that has only files, as most commits do.
        others = [a for a in entry.actions if type(a) not in _USUAL]
        actions = ByKind(others) if others else _NOTHING
        if actions.one(Metadata) or actions.one(Protocol):
            self._change_state(actions)
        self._files.begin()
        for action in entry.actions:
            self._files.apply(action, entry.version)
        info = next((a for a in entry.actions if isinstance(a, CommitInfo)), None)
        timestamp_ms = max(entry.modified_ms, self._timestamp_ms + 1)
        if self._stamped and entry.sha256 is not None:
            head = self.head
            timestamp_ms = timestamp_of(head, head, info, entry.modified_ms)
        self._version, self._timestamp_ms = entry.version, timestamp_ms
        self._rows.append(self._row(actions, entry, info))
        if others:
            self._state += state_writes(self.head, actions)

    def writes(self) -> list[Write]:
        """Return the writes for the versions."""
        names = self._rows[0]
        columns = {name: [row[name] for row in self._rows] for name in names}
        return [Insert("dl_table_versions", columns), *_merged(self._state)]

    def _change_state(self, actions: ByKind) -> None:
        """Apply the metadata and the protocol of the next version."""
        # The version and the timestamp are set by `append`.
        head = advanced(self.head, actions, self._timestamp_ms)
        if actions.of(Metadata):
            columns = self._files.index()
            head = indexed(replace(head, stat_columns=columns), self._limit)
            self._files.change_metadata(head)
            self._stamped = _is_stamped(head)
        self._head = head

    def _row(
        self, actions: ByKind, entry: Entry, info: CommitInfo | None
    ) -> dict[str, Any]:
        files, fields = self._files, audited(info)
        given = fields.get("operation")
        operation = given if isinstance(given, str) else ""
        others = [action_to_dict(other) for other in actions.of(UnknownAction)]
        return {
            **self._same,
            "version": entry.version,
            "timestamp_ms": self._timestamp_ms,
            "transaction_id": transaction_of(info),
            "operation": operation.replace("\0", ""),
            **dict(zip(INFO_COLUMNS, info_values(fields), strict=True)),
            "metadata_version": self._head.metadata_version,
            "protocol_version": self._head.protocol_version,
            "num_added_files": files.added,
            "num_removed_files": files.removed,
            "added_bytes": files.added_bytes,
            "removed_bytes": files.removed_bytes,
            "num_files": files.num_files,
            "size_bytes": files.size_bytes,
            # The whole commitInfo, because the columns have only the fields that fit.
            "commit_info": info and _encode(info.fields).decode(),
            "other_actions": _encode(others).decode() if others else None,
            "published_sha256": entry.sha256,
        }


def _is_stamped(head: Head) -> bool:
    configuration = known(head.metadata.configuration) or {}
    return parse_properties(configuration).enable_in_commit_timestamps


def _merged(inserts: Iterable[Insert]) -> list[Insert]:
    """Return one insert for each table, with the rows of `inserts`."""
    rows: defaultdict[str, list[Insert]] = defaultdict(list)
    for insert in inserts:
        rows[insert.table].append(insert)
    return [
        Insert(
            table,
            {
                name: [value for insert in some for value in insert.columns[name]]
                for name in some[0].columns
            },
        )
        for table, some in rows.items()
    ]


def named(adds: pa.RecordBatch) -> pa.RecordBatch:
    """Return `adds` with a column for each of `ADD_COLUMNS`."""
    columns = dict(zip(ADD_COLUMNS, adds.columns, strict=False))
    columns["null_fields"] = pa.repeat(pa.scalar(0, pa.int16()), len(adds))
    columns["extra"] = pa.nulls(len(adds), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def adds_of(adds: pa.RecordBatch) -> list[Add]:
    """Return the add actions of `adds`."""
    columns = [column.to_pylist() for column in named(adds).columns]
    return [add_from_row(row) for row in zip(*columns, strict=True)]


def batch_writes(head: Head, adds: pa.RecordBatch) -> tuple[Head, list[Write]]:
    """Return the head with more files of a checkpoint, and the writes of the files."""
    files = named(adds)
    paths = files["path"].cast(pa.binary()).to_pylist()
    vectors = _vector_ids(files["deletion_vector"])
    if _is_odd(files, paths, vectors):
        return base_writes(head, adds_of(adds))
    stats = [parse_stats(text) for text in files["stats"].to_pylist()]
    first = head.table_id * FILES_PER_TABLE + head.next_file
    ids = pa.array(range(first, first + len(adds)))
    values = _partition_values(files["partition_values"].to_pylist())
    index = index_rows(head.stat_columns, head.metadata, values, stats)
    rows = {
        name: column
        for name, column in zip(files.schema.names, files.columns, strict=True)
        if column.null_count < len(column)
    }
    rows |= {
        "dv_id": vectors,
        "num_records": [known.num_records if known else None for known in stats],
        "added_version": pa.repeat(head.version, len(adds)),
        "file_id": ids,
        "table_id": pa.repeat(head.table_id, len(adds)),
        "path_hash": list(map(hash_utf8, paths)),
    }
    after = replace(
        head,
        stat_columns=index.columns,
        next_file=head.next_file + len(adds),
        num_files=head.num_files + len(adds),
        size_bytes=head.size_bytes + pc.sum(files["size_bytes"]).as_py(),
    )
    return after, [Insert("dl_files", rows), *index.inserts(head.version, ids)]


def _is_odd(
    files: pa.RecordBatch, paths: Sequence[bytes], vectors: Sequence[str]
) -> bool:
    """Return whether a file is listed twice, or statistics contain a NUL."""
    keys: Sequence[object] = paths
    if any(vectors):
        keys = list(zip(paths, vectors, strict=True))
    nul = pc.any(pc.match_substring(files["stats"], "\0")).as_py()
    return len(set(keys)) < len(keys) or bool(nul)


def _vector_ids(vectors: pa.Array) -> list[str]:
    if vectors.null_count == len(vectors):
        return [""] * len(vectors)
    return [
        decode_struct(vector, DeletionVector).unique_id if vector else ""
        for vector in vectors.to_pylist()
    ]


def _partition_values(texts: Sequence[str]) -> list[dict[str, str | None]]:
    """Return the partition values of each file, parsed once for each partition."""
    values = {text: _decode(text) for text in set(texts)}
    return [values[text] for text in texts]
