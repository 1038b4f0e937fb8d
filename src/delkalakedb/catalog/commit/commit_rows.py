"""The rows that one commit writes, and the head that it makes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from delkalakedb.catalog.commit.outcome import Committed
from delkalakedb.catalog.engine import Actor, FileRow, Insert, Row, Run, Write, listed
from delkalakedb.catalog.read import (
    FILES_PER_TABLE,
    STAT_TABLES,
    Head,
    StatColumn,
    file_columns,
    leaves_of,
    remove_fields,
)
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    UnknownAction,
    action_to_dict,
    dv_id,
    encode_struct,
    known,
)
from delkalakedb.model.log import Staged
from delkalakedb.model.new_actions import (
    final_commit_info,
    in_commit_timestamp,
    with_timestamp_enablement,
)
from delkalakedb.model.rules.conflicts import is_blind_append, isolation_of
from delkalakedb.model.rules.protocol import asks_for_fence, fenced
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.stats import data_entry, parse_stats, partition_entry
from delkalakedb.model.stats.values import Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.model.stats.stats import Entries, Stats

_A = TypeVar("_A", bound=Action)
# files; of fewer, the index entries are made sooner one by one
_MANY = 200
# The kinds in the order of a log entry, and the field by which a kind is sorted.
_ORDER: dict[type[Any], str | None] = {
    CommitInfo: None,
    Protocol: None,
    Metadata: None,
    Txn: "app_id",
    DomainMetadata: "domain",
    Remove: None,
    Add: None,
    Cdc: None,
    UnknownAction: None,
}


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A live file at a path that a commit mentions."""

    file_id: int
    dv_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RemovedAll:
    """The files that an overwrite had seen and removes without naming them.

    These are the files of `read_version`, and files that the transaction added since.
    """

    read_version: int
    first_own: int
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CommitRows:
    """A commit as it is written: the head after it, its outcome, its rows."""

    head: Head
    committed: Committed
    writes: list[Write]


class ByKind:
    """The actions of a commit, sorted into kinds."""

    def __init__(self, actions: Iterable[Action]) -> None:
        self._kinds: defaultdict[type[Any], list[Any]] = defaultdict(list)
        for action in actions:
            self._kinds[type(action)].append(action)

    def of(self, kind: type[_A]) -> list[_A]:
        """Return the actions of one kind, in order."""
        return self._kinds.get(kind, [])

    def one(self, kind: type[_A]) -> _A | None:
        """Return the only action of a kind, or None if the commit has none."""
        return next(iter(self.of(kind)), None)

    def put(self, action: Action) -> None:
        """Make an action the only one of its kind."""
        self._kinds[type(action)] = [action]

    def in_order(self) -> tuple[Action, ...]:
        """Return the actions in the order in which `load_commits` has them."""
        return tuple(
            action
            for kind, name in _ORDER.items()
            for action in _sorted_by(name, self.of(kind))
        )


def _sorted_by(name: str | None, actions: list[Action]) -> list[Action]:
    return actions if name is None else sorted(actions, key=attrgetter(name))


def commit_writes(
    head: Head,
    actions: ByKind,
    live: Mapping[str, Sequence[LiveFile]],
    new: NewFiles,
    *,
    removed_all: RemovedAll | None,
    transaction_id: str,
    actor: Actor,
) -> CommitRows:
    """Return the rows that a commit writes.

    Args:
        head: the head as the commit makes it, but for the totals and the file counter.
        actions: the actions as they are committed.
        live: the live files at the paths of the commit's adds and removes.
        new: the commit's adds.
        removed_all: the files that `remove_all` removes.
        transaction_id: the commit's own id.
        actor: the user and host that commit.
    """
    adds = new.adds
    ended = list(_ended(adds, actions.of(Remove), live))
    gone, gone_bytes = len(ended), sum(file.size_bytes for file, _ in ended)
    removed = sum(remove is not None for _, remove in ended)
    if removed_all is not None:
        gone += removed_all.files
        removed += removed_all.files
        gone_bytes += removed_all.size_bytes
    added_bytes = sum(add.size for add in adds)
    columns, inserts = _add_writes(head, new)
    after = replace(
        head,
        stat_columns=columns,
        next_file=head.next_file + len(adds),
        num_files=head.num_files - gone + len(adds),
        size_bytes=head.size_bytes - gone_bytes + added_bytes,
    )
    info = actions.of(CommitInfo)[0].fields
    committed = Committed(
        table=head.name,
        version=head.version,
        timestamp_ms=head.timestamp_ms,
        transaction_id=transaction_id,
        operation=_text(info.get("operation")) or "",
        num_added_files=len(adds),
        num_removed_files=removed,
        added_bytes=added_bytes,
        removed_bytes=gone_bytes,
        table_id=head.table_id,
    )
    others = actions.of(UnknownAction)
    state_changed = head.version in (head.metadata_version, head.protocol_version)
    writes = [
        _version_row(after, committed, gone_bytes, info, others, actor),
        *state_writes(after, actions),
        *_remove_writes(after, ended, removed_all),
        *inserts,
        _move_head(after),
    ]
    if state_changed or columns != head.stat_columns:
        writes.append(_set_state(after))
    return CommitRows(after, committed, writes)


def _ended(
    adds: Sequence[Add],
    removes: Sequence[Remove],
    live: Mapping[str, Sequence[LiveFile]],
) -> Iterator[tuple[LiveFile, Remove | None]]:
    """Yield the files that a commit ends, each with its remove.

    The remove is None for a file that the commit adds again.
    """
    files = {(path, f.dv_id): f for path, found in live.items() for f in found}
    for remove in removes:
        yield files[remove.path, dv_id(remove)], remove
    for add in adds:
        if (file := files.get((add.path, dv_id(add)))) is not None:
            yield file, None


def _version_row(
    head: Head,
    committed: Committed,
    removed_bytes: int,
    info: Mapping[str, Any],
    others: Sequence[UnknownAction],
    actor: Actor,
) -> Insert:
    values = _version_values(head, committed, removed_bytes, info, others, actor)
    return Insert("dl_table_versions", {name: [v] for name, v in values.items()})


INFO_COLUMNS = (
    "operation_parameters",
    "operation_metrics",
    "user_metadata",
    "engine_info",
    "read_version",
    "isolation_level",
    "is_blind_append",
)


def info_values(info: Mapping[str, Any]) -> Row:
    """Return the `INFO_COLUMNS` of a commitInfo."""
    return (
        _json(info.get("operationParameters")),
        _json(info.get("operationMetrics")),
        _text(info.get("userMetadata")),
        _text(info.get("engineInfo")),
        info.get("readVersion"),
        _text(info.get("isolationLevel")),
        info.get("isBlindAppend"),
    )


def _version_values(
    head: Head,
    committed: Committed,
    removed_bytes: int,
    info: Mapping[str, Any],
    others: Sequence[UnknownAction],
    actor: Actor,
) -> dict[str, Any]:
    """Return the columns of a version, including those from its commitInfo."""
    return {
        "table_id": head.table_id,
        "version": head.version,
        "timestamp_ms": head.timestamp_ms,
        "transaction_id": committed.transaction_id,
        "operation": committed.operation,
        **dict(zip(INFO_COLUMNS, info_values(info), strict=True)),
        "db_user": actor.db_user,
        "os_user": actor.os_user,
        "host": actor.host,
        "client": actor.client,
        "metadata_version": head.metadata_version,
        "protocol_version": head.protocol_version,
        "num_added_files": committed.num_added_files,
        "num_removed_files": committed.num_removed_files,
        "added_bytes": committed.added_bytes,
        "removed_bytes": removed_bytes,
        "num_files": head.num_files,
        "size_bytes": head.size_bytes,
        "commit_info": _json(info),
        "other_actions": _json([action_to_dict(o) for o in others] or None),
    }


def state_writes(head: Head, actions: ByKind) -> Iterator[Insert]:
    """Yield the inserts for all actions but files, each row with the action's JSON."""
    for table, columns, rows in (
        ("dl_metadata", (), [(_body(m),) for m in actions.of(Metadata)]),
        ("dl_protocols", (), [(_body(p),) for p in actions.of(Protocol)]),
        (
            "dl_txns",
            ("app_id", "txn_version"),
            [(t.app_id, t.version, _body(t)) for t in actions.of(Txn)],
        ),
        (
            "dl_domains",
            ("domain", "removed"),
            [(d.domain, d.removed, _body(d)) for d in actions.of(DomainMetadata)],
        ),
        (
            "dl_cdc_files",
            ("ordinal", "path", "size_bytes"),
            [(i, c.path, c.size, _body(c)) for i, c in enumerate(actions.of(Cdc))],
        ),
    ):
        if rows:
            keyed: list[Row] = [(head.table_id, head.version, *row) for row in rows]
            names = ("table_id", "version", *columns, "action")
            yield Insert.of_rows(table, names, keyed)


def _remove_writes(
    head: Head,
    ended: Sequence[tuple[LiveFile, Remove | None]],
    removed_all: RemovedAll | None,
) -> Iterator[Write]:
    key = {"table_id": head.table_id, "version": head.version}
    if ended:
        removes = [_ending(file.file_id, remove) for file, remove in ended]
        yield Run("remove_files", {"version": head.version, "removes": _json(removes)})
    if removed_all is not None:
        params = {
            "read_version": removed_all.read_version,
            "first_own": removed_all.first_own,
            "deletion_timestamp_ms": head.timestamp_ms,
            "data_change": True,
        }
        yield Run("remove_all_files", key | params)
    if ended or removed_all is not None:
        yield Run("remove_number_stats", key)
        yield Run("remove_text_stats", key)


def _ending(file_id: int, remove: Remove | None) -> Row:
    if remove is None:
        return (file_id, None, None, None)
    timestamp = known(remove.deletion_timestamp)
    return (file_id, timestamp, remove.data_change, remove_fields(remove))


def _add_writes(
    head: Head, new: NewFiles
) -> tuple[tuple[StatColumn, ...], list[Insert]]:
    """Return the rows of new files, and the indexed columns with their new classes."""
    if not new.adds:
        return head.stat_columns, []
    size = len(new.adds)
    first = head.table_id * FILES_PER_TABLE + head.next_file
    file_ids = range(first, first + size)
    files = new.columns | {
        "added_version": [head.version] * size,
        "file_id": file_ids,
        "table_id": [head.table_id] * size,
    }
    index = new.index(head.stat_columns, head.metadata)
    indexed = index.inserts(head.version, file_ids)
    return index.columns, [Insert("dl_files", files), *indexed]


def _move_head(head: Head) -> Run:
    return Run(
        "move_head",
        {
            "table_id": head.table_id,
            "version": head.version,
            "next_file": head.next_file,
            "timestamp_ms": head.timestamp_ms,
            "num_files": head.num_files,
            "size_bytes": head.size_bytes,
        },
    )


def _set_state(head: Head) -> Run:
    return Run(
        "set_state",
        {
            "table_id": head.table_id,
            "metadata_version": head.metadata_version,
            "protocol_version": head.protocol_version,
            "stat_columns": _json(head.stat_columns),
            "metadata": _body(head.metadata),
            "protocol": _body(head.protocol),
        },
    )


def _body(action: Any) -> str:
    return encode_struct(action).decode()


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _text(value: Any) -> str | None:
    # Postgres has no NUL in text; the commitInfo beside it keeps the value as it is.
    if isinstance(value, str):
        return value.replace("\0", "")
    return _json(value)


def rebased(head: Head, staged: Staged, now_ms: int) -> tuple[Head, ByKind]:
    """Return the head after the commit, and the actions as that version has them."""
    first = head.version < 0
    version = head.version + 1
    timestamp_ms = in_commit_timestamp(now_ms, None if first else head.timestamp_ms)
    actions = ByKind(staged.actions)
    if metadata := actions.one(Metadata):
        if asks_for_fence(metadata):
            before = actions.one(Protocol) or head.protocol
            protocol, metadata = fenced(before, metadata)
            actions.put(protocol)
        previous = None if first else head.metadata
        metadata = with_timestamp_enablement(metadata, previous, version, timestamp_ms)
        actions.put(metadata)
    return advanced(head, actions, timestamp_ms), actions


def advanced(head: Head, actions: ByKind, timestamp_ms: int) -> Head:
    """Return the head at the next version, except for its totals of files."""
    version = head.version + 1
    metadata, protocol = actions.one(Metadata), actions.one(Protocol)
    return replace(
        head,
        version=version,
        current_version=version,
        timestamp_ms=timestamp_ms,
        metadata=metadata or head.metadata,
        metadata_version=version if metadata else head.metadata_version,
        protocol=protocol or head.protocol,
        protocol_version=version if protocol else head.protocol_version,
    )


def commit_info(
    actions: ByKind,
    staged: Staged,
    head: Head,
    transaction_id: str,
    participants: Sequence[Mapping[str, object]] = (),
) -> CommitInfo:
    """Return the staged commitInfo with what only the commit itself knows."""
    configuration = known(head.metadata.configuration) or {}
    return final_commit_info(
        actions.of(CommitInfo),
        transaction_id=transaction_id,
        timestamp_ms=head.timestamp_ms,
        stamped=parse_properties(configuration).enable_in_commit_timestamps,
        blind_append=is_blind_append(staged),
        isolation_level=isolation_of(configuration, staged).value,
        read_version=staged.reads.version,
        participants=participants,
    )


def empty_head(staged: Staged, table_id: int, now_ms: int) -> Head:
    """Return the head of a new table, one step before its first version."""
    assert staged.location is not None
    actions = ByKind(staged.actions)
    return Head(
        table_id=table_id,
        name=staged.table,
        location=staged.location,
        created_at_ms=now_ms,
        current_version=-1,
        first_version=0,
        next_file=0,
        version=-1,
        timestamp_ms=-1,
        num_files=0,
        size_bytes=0,
        metadata_version=0,
        protocol_version=0,
        stat_columns=(),
        metadata=actions.of(Metadata)[0],
        protocol=actions.of(Protocol)[0],
    )


def last_adds(rows: Sequence[FileRow]) -> dict[str, Add]:
    """Return the newest add of each path that has row ids."""
    return {
        row.path: Add(
            path=row.path,
            partition_values={},
            size=row.size_bytes,
            modification_time=0,
            data_change=False,
            base_row_id=row.base_row_id,
            default_row_commit_version=row.default_row_commit_version,
        )
        for row in sorted(rows)
        if row.base_row_id is not None
    }


class NewFiles:
    """The adds of a commit, with everything of their rows that the head doesn't decide.

    Each part is made once, when it is first used.
    """

    def __init__(self, adds: Sequence[Add], hashes: Mapping[str, int]) -> None:
        self.adds = adds
        self._hashes = hashes
        self._index: tuple[tuple[object, ...], IndexRows] | None = None

    @cached_property
    def columns(self) -> dict[str, Sequence[Any]]:
        """The columns of `dl_files` that are the same at every version."""
        return file_columns(self.adds) | {
            "num_records": [s.num_records if s else None for s in self._stats],
            "path_hash": [self._hashes[add.path] for add in self.adds],
        }

    def index(self, columns: tuple[StatColumn, ...], metadata: Metadata) -> IndexRows:
        """Return the rows of the files in the index of the given columns."""
        made_from = columns, metadata
        if self._index is None or self._index[0] != made_from:
            values = [add.partition_values for add in self.adds]
            self._index = made_from, index_rows(columns, metadata, values, self._stats)
        return self._index[1]

    @cached_property
    def _stats(self) -> list[Stats | None]:
        return [parse_stats(known(add.stats)) for add in self.adds]


@dataclass(frozen=True, slots=True)
class IndexRows:
    """The rows of files in the index, except for the files' ids and version.

    `columns` are the indexed columns, with the width classes of these files.
    """

    columns: tuple[StatColumn, ...]
    _rows: Mapping[Kind, dict[str, Sequence[Any] | pa.Array]]

    def inserts(self, version: int, file_ids: Sequence[int] | pa.Array) -> list[Insert]:
        """Return the inserts of the rows."""
        found = []
        for kind, rows in self._rows.items():
            size = len(rows["column_id"])
            ids = {"file_id": _joined([file_ids] * (size // len(file_ids)))}
            versions = {"added_version": [version] * size}
            found.append(Insert(STAT_TABLES[kind], ids | rows | versions))
        return found


def index_rows(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
) -> IndexRows:
    """Return the rows of files in the index of the given columns."""
    leaves = leaves_of(metadata.schema_string)
    entries_of = _entries_of(partition_values, stats, set(metadata.partition_columns))
    found: dict[Kind, list[tuple[int, Entries]]] = {kind: [] for kind in Kind}
    result = []
    for column in columns:
        leaf = leaves.get((column.physical, column.unit))
        if column.until is None and leaf is not None:
            entries = entries_of(leaf)
            found[column.kind].append((column.column_id, entries))
            column = _with_classes(column, set(listed(entries[2])))
        result.append(column)
    rows = {kind: _rows(len(stats), some) for kind, some in found.items() if some}
    return IndexRows(tuple(result), rows)


def _entries_of(
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
    partitions: Set[str],
) -> Callable[[Column], Entries]:
    """Return a function that gives the index entries of all files for a column."""
    if len(stats) >= _MANY:
        from delkalakedb.model.stats.index import (
            FileStats,
            index_entries,
            partition_entries,
        )

        files = FileStats(stats)
        return lambda column: (
            partition_entries(column, partition_values)
            if column.path[0] in partitions
            else index_entries(column, files)
        )

    def entries(column: Column) -> Entries:
        each = map(partial(data_entry, column), stats)
        if column.path[0] in partitions:
            each = map(partial(partition_entry, column), partition_values)
        lo, hi, classes, has_null = zip(*each, strict=True)
        return lo, hi, classes, has_null

    return entries


def _rows(
    size: int, found: Sequence[tuple[int, Entries]]
) -> dict[str, Sequence[Any] | pa.Array]:
    parts = zip(*(entries for _, entries in found), strict=True)
    lo, hi, classes, has_null = map(_joined, parts)
    return {
        "column_id": [column_id for column_id, _ in found for _ in range(size)],
        "class": classes,
        "lo": lo,
        "hi": hi,
        "has_null": has_null,
    }


def _joined(parts: Sequence[Any]) -> Sequence[Any] | pa.Array:
    import pyarrow as pa

    if all(isinstance(part, pa.Array) for part in parts):
        return pa.concat_arrays(parts)
    return [value for part in parts for value in listed(part)]


def _with_classes(column: StatColumn, classes: set[int]) -> StatColumn:
    if classes <= column.classes:
        return column
    return replace(column, classes=column.classes | classes)
