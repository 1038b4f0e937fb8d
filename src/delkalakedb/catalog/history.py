"""The rows of many commits of a log at once, by column.

What adopting does for one commit, in few statements for thousands: nothing is
renumbered, no conflict rule applies, and a commitInfo stays word for word. The actions
count in the order of the log, as they do for who replays it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec

from delkalakedb.catalog.adopt import (
    Entry,
    as_add,
    audited,
    indexed,
    timestamp_of,
    transaction_of,
)
from delkalakedb.catalog.backend import Insert, Row, Run, Session, Write
from delkalakedb.catalog.commit import (
    INFO_COLUMNS,
    Actor,
    ByKind,
    info_values,
    state_writes,
)
from delkalakedb.catalog.head import FILES_PER_TABLE, Head
from delkalakedb.catalog.rebased import advanced
from delkalakedb.catalog.rows import file_columns, hash_path, remove_fields
from delkalakedb.catalog.statcolumns import StatColumn, index_files
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    UnknownAction,
    dv_id,
    known,
)
from delkalakedb.model.codec import action_to_dict
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.replay import FileKey
from delkalakedb.model.stats import parse_stats

__all__ = ["base_writes", "history_writes", "state_rows"]

_USUAL = frozenset({Add, Remove, CommitInfo})
_NOTHING = ByKind(())
_encode = msgspec.json.Encoder().encode
# Files whose statistics are in memory at once.
_TOGETHER = 10_000
# A file's id and its size.
_Life = tuple[int, int]


def history_writes(
    session: Session, head: Head, entries: Sequence[Entry], actor: Actor, limit: int
) -> tuple[Head, list[Write]]:
    """The head after the entries, which follow it, and what must be written for them.

    Args:
        session: a transaction in which nobody else writes to the table.
        head: the head before the entries.
        entries: commits, in order and without a gap.
        actor: who brings them in.
        limit: how many columns have their bounds indexed, where the metadata changes.
    """
    actions = [action for entry in entries for action in entry.actions]
    files = _Files(head, _live_files(session, head, actions))
    versions = _Versions(head, files, actor, limit)
    for entry in entries:
        versions.append(entry)
    writes = [*versions.writes(), *files.writes(head.version)]
    return replace(versions.head, stat_columns=files.index()), writes


def base_writes(head: Head, actions: Iterable[Action]) -> tuple[Head, list[Write]]:
    """The same for a part of a checkpoint's file actions; the version stays."""
    files = _Files(head, {})
    for action in actions:
        files.apply(action, head.version)
    after = replace(files.counted(head), stat_columns=files.index())
    return after, files.writes(head.version - 1)


def state_rows(head: Head, actions: Iterable[Action]) -> list[Insert]:
    """The rows of what a checkpoint holds beside files, at the head's version."""
    return list(state_writes(head, ByKind(actions)))


def _live_files(
    session: Session, head: Head, actions: Iterable[Action]
) -> dict[FileKey, _Life]:
    hashes = {hash_path(a.path) for a in actions if isinstance(a, Add | Remove)}
    if not hashes or not head.num_files:
        return {}
    wanted = msgspec.json.encode(list(hashes)).decode()
    params = {"after": head.version, "hashes": wanted}
    return {
        (path, vector): (file_id, size_bytes)
        for file_id, path, vector, size_bytes, removed, *_ in session.query(
            "load_files_at_paths", params
        )
        if file_id // FILES_PER_TABLE == head.table_id and removed is None
    }


class _Files:
    """The lives of files that begin and end, in the order of the log."""

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
        # By file id: the ends of files that are in the database, and of new ones.
        self._ends: dict[int, Row] = {}
        self._tombstones: list[tuple[int, int, Remove]] = []
        self.num_files, self.size_bytes = head.num_files, head.size_bytes
        self.begin()

    def apply(self, action: Action, version: int) -> None:
        """One action of a version."""
        if isinstance(action, Add):
            self._add(action, version)
        elif isinstance(action, Remove):
            self._remove(action, version)

    def begin(self) -> None:
        """A version's files are counted from here on."""
        self.added = self.removed = self.added_bytes = self.removed_bytes = 0

    def counted(self, head: Head) -> Head:
        """The head after the files."""
        return replace(
            head,
            next_file=self._next - self._first,
            num_files=self.num_files,
            size_bytes=self.size_bytes,
        )

    def change_metadata(self, head: Head) -> None:
        """What comes from here on is indexed as the head says."""
        self.index()
        self._metadata = head.metadata
        self._columns = head.stat_columns

    def index(self) -> tuple[StatColumn, ...]:
        """Index what isn't yet; the columns, with the classes that it brings."""
        for start in range(len(self._num_records), len(self._adds), _TOGETHER):
            self._index_some(slice(start, start + _TOGETHER))
        return self._columns

    def _index_some(self, which: slice) -> None:
        adds, ids = self._adds[which], self._ids[which]
        stats = [parse_stats(known(add.stats)) for add in adds]
        self._num_records += [s.num_records if s else None for s in stats]
        values = [add.partition_values for add in adds]
        self._columns, inserts = index_files(
            self._columns, self._metadata, 0, ids, values, stats
        )
        born = dict(zip(ids, self._born[which], strict=True))
        self._index += [_with_versions(insert, born) for insert in inserts]

    def writes(self, after: int) -> list[Write]:
        """All that must be written; `after` is the version before the first."""
        self.index()
        new = set(self._ids)
        old = [[i, *end] for i, end in self._ends.items() if i not in new]
        writes: list[Write] = []
        if old:
            removes = msgspec.json.encode(old).decode()
            writes.append(Run("end_files", {"removes": removes}))
        if self._adds:
            writes += [Insert("dl_files", self._rows()), *self._index]
        if self._tombstones:
            writes.append(Insert("dl_files", self._tombstone_rows()))
        if self._ends:
            params = {"table_id": self._table_id, "after": after}
            writes += [Run("end_number_stats", params), Run("end_text_stats", params)]
        return writes

    def _add(self, add: Add, version: int) -> None:
        key = (add.path, dv_id(add))
        if (life := self._live.pop(key, None)) is not None:
            self._end(life, (version, None, None, None))
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
            self._tombstones.append((self._next, version, remove))
            self._next += 1
        else:
            self.removed += 1
            self._end(life, (version, *_end(remove)))

    def _end(self, life: _Life, end: Row) -> None:
        file_id, size_bytes = life
        self._ends[file_id] = end
        self.removed_bytes += size_bytes
        self.num_files -= 1
        self.size_bytes -= size_bytes

    def _rows(self) -> dict[str, Sequence[Any]]:
        ends = [self._ends.get(file_id, _ALIVE) for file_id in self._ids]
        return {
            **file_columns(self._adds),
            **self._keys(self._ids, self._adds),
            **_end_columns(ends),
            "num_records": self._num_records,
            "added_version": self._born,
        }

    def _tombstone_rows(self) -> dict[str, Sequence[Any]]:
        ids = [file_id for file_id, *_ in self._tombstones]
        removes = [remove for *_, remove in self._tombstones]
        ends = [(version, *_end(remove)) for _, version, remove in self._tombstones]
        return {
            **file_columns([as_add(remove) for remove in removes]),
            **self._keys(ids, removes),
            **_end_columns(ends),
        }

    def _keys(
        self, ids: Sequence[int], files: Sequence[Add | Remove]
    ) -> dict[str, Sequence[Any]]:
        return {
            "file_id": ids,
            "table_id": [self._table_id] * len(ids),
            "path_hash": [hash_path(file.path) for file in files],
        }


_ALIVE: Row = (None, None, None, None)
_ENDS = (
    "removed_version",
    "deletion_timestamp_ms",
    "remove_data_change",
    "remove_fields",
)


def _end(remove: Remove) -> Row:
    timestamp_ms = known(remove.deletion_timestamp)
    return (timestamp_ms, remove.data_change, remove_fields(remove))


def _end_columns(ends: Sequence[Row]) -> dict[str, Sequence[Any]]:
    if all(end is _ALIVE for end in ends):
        return {}
    return dict(zip(_ENDS, zip(*ends, strict=True), strict=True))


def _with_versions(insert: Insert, born: dict[int, int]) -> Insert:
    versions = [born[file_id] for file_id in insert.columns["file_id"]]
    return Insert(insert.table, {**insert.columns, "added_version": versions})


class _Versions:
    """The versions themselves, and all of them that isn't files."""

    def __init__(self, head: Head, files: _Files, actor: Actor, limit: int) -> None:
        self._head = head
        self._version = head.version
        self._timestamp_ms = head.timestamp_ms
        self._files = files
        self._actor = actor
        self._limit = limit
        self._stamped = _is_stamped(head)
        self._rows: list[Row] = []
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
        """The next version."""
        # Most have nothing but files: thousands of them are to be quick.
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
        """All that must be written for them."""
        versions = Insert.of_rows("dl_table_versions", _COLUMNS, self._rows)
        same = {"table_id": self._head.table_id, **asdict(self._actor)}
        columns = {name: [value] * len(self._rows) for name, value in same.items()}
        insert = Insert("dl_table_versions", {**columns, **versions.columns})
        return [insert, *_merged(self._state)]

    def _change_state(self, actions: ByKind) -> None:
        """The metadata and the protocol that count from the next version on."""
        # Its version and time come with its files.
        head = advanced(self.head, actions, self._timestamp_ms)
        if actions.of(Metadata):
            columns = self._files.index()
            head = indexed(replace(head, stat_columns=columns), self._limit)
            self._files.change_metadata(head)
            self._stamped = _is_stamped(head)
        self._head = head

    def _row(self, actions: ByKind, entry: Entry, info: CommitInfo | None) -> Row:
        files, fields = self._files, audited(info)
        operation = fields.get("operation")
        others = [action_to_dict(other) for other in actions.of(UnknownAction)]
        return (
            entry.version,
            self._timestamp_ms,
            transaction_of(info),
            operation.replace("\0", "") if isinstance(operation, str) else "",
            *info_values(fields),
            self._head.metadata_version,
            self._head.protocol_version,
            files.added,
            files.removed,
            files.added_bytes,
            files.removed_bytes,
            files.num_files,
            files.size_bytes,
            # Word for word, where the columns have only what fits them.
            info and _encode(info.fields).decode(),
            _encode(others).decode() if others else None,
            entry.sha256,
        )


_COLUMNS = (
    "version",
    "timestamp_ms",
    "transaction_id",
    "operation",
    *INFO_COLUMNS,
    "metadata_version",
    "protocol_version",
    "num_added_files",
    "num_removed_files",
    "added_bytes",
    "removed_bytes",
    "num_files",
    "size_bytes",
    "commit_info",
    "other_actions",
    "published_sha256",
)


def _is_stamped(head: Head) -> bool:
    configuration = known(head.metadata.configuration) or {}
    return parse_properties(configuration).enable_in_commit_timestamps


def _merged(inserts: Iterable[Insert]) -> list[Insert]:
    """The same rows, in one insert for each table."""
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
