"""Adopt: a commit that someone else put into the log becomes a version.

Every reader of the log takes it for true already. So it is kept as it is: nothing is
renumbered, no conflict rule applies, and its commitInfo stays word for word. It has
to be the next version after the last published one, and one that can be honoured here.
"""

import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import msgspec

from delkalakedb.catalog.backend import Insert, Run, Session, Write
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.commit import Actor, ByKind, LiveFile, commit_writes
from delkalakedb.catalog.head import FILES_PER_TABLE, Head, parse_head
from delkalakedb.catalog.outbox import Lease, Outbox
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.catalog.rebased import advanced
from delkalakedb.catalog.rows import file_columns, hash_path, remove_fields
from delkalakedb.catalog.statcolumns import revise
from delkalakedb.catalog.transaction import lock_queries
from delkalakedb.errors import MirrorError, ProtocolError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    Metadata,
    Protocol,
    Remove,
    dv_id,
    known,
)
from delkalakedb.model.paths import check_inside
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import check_adoptable
from delkalakedb.model.replay import FileKey
from delkalakedb.model.txnlog import Staged

__all__ = [
    "Entry",
    "adopt_entry",
    "as_add",
    "audited",
    "hold_mirror",
    "indexed",
    "timestamp_of",
    "transaction_of",
]

_PAUSE_S = 0.05
_MAX_BIGINT = 2**63 - 1
_Live = Mapping[str, Sequence[LiveFile]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit as it lies in the log."""

    version: int
    actions: tuple[Action, ...]
    modified_ms: int
    sha256: str | None


@contextmanager
def hold_mirror(catalog: Catalog, name: str) -> Iterator[Lease]:
    """Hold the lease on a table's log: nobody else publishes, adopts or discards.

    Waits a bounded time (`mirror.wait`) for the present holder. The lease is renewed
    for as long as the block takes.
    """
    outbox = Outbox(catalog.backend)
    settings = catalog.settings.mirror
    deadline = time.monotonic() + settings.wait
    while not isinstance(
        lease := outbox.take(name, settings.lease, early=True, settling=True), Lease
    ):
        if time.monotonic() > deadline:
            owner = lease.lease_owner or "someone"
            raise MirrorError(f"{name}: {owner} is at work on the log; try again")
        time.sleep(_PAUSE_S)
    try:
        with outbox.keeping(lease, math.inf):
            yield lease
    finally:
        outbox.release(lease)


def adopt_entry(
    catalog: Catalog, lease: Lease, entry: Entry, *, outside_files: bool = False
) -> None:
    """Make the entry the next version, and published."""
    actor = Actor(catalog.backend.db_user(), None, None, CLIENT)
    limit = catalog.settings.stats.indexed_columns
    with catalog.backend.writing() as session:
        head, published = _lock(catalog, session, lease.mirror.name)
        _check_next(head, published, entry)
        live, hashes = _live_files(session, head, entry.actions)
        _check_protocol(head, entry, live, outside_files)
        key = {"table_id": head.table_id, "version": entry.version}
        if not session.query("mark_adopted", key | {"fence": lease.fence}):
            raise MirrorError(f"{head.name}: it took too long; adopt again")
        session.apply(_writes(head, entry, live, hashes, actor, limit))


def _lock(catalog: Catalog, session: Session, name: str) -> tuple[Head, int]:
    """The table's head, which nobody else moves now, and its published version."""
    statements = catalog.backend.statements
    wanted = ("load_latest", "load_published_version")
    locks = lock_queries(catalog.backend, [Staged(name, ())])
    asked = [(statements[statement], {"name": name}) for statement in wanted]
    *_, (latest,), ((published,),) = session.query_many([*locks, *asked])
    return parse_head(session, latest), published


def _check_next(head: Head, published: int, entry: Entry) -> None:
    if head.version > published:
        ratified = _span(published + 1, head.version)
        raise MirrorError(
            f"{head.name}: the log has a version {entry.version} of someone else, but "
            f"{ratified} ratified here and not published. Versions are never "
            "renumbered: take it out of the log with mirror.adopt(uri, discard=True), "
            "which keeps a copy, and write it again through the catalog"
        )
    if entry.version != head.version + 1:
        raise MirrorError(
            f"{head.name}: version {entry.version} can't be adopted after version "
            f"{head.version}"
        )


def _check_protocol(head: Head, entry: Entry, live: _Live, outside_files: bool) -> None:
    # Where it brings a protocol that one counts, not how it came about: features may
    # have been dropped by the rules, and delta-rs forgets those that it implied.
    brings_protocol = any(isinstance(action, Protocol) for action in entry.actions)
    before = None if brings_protocol else head.protocol
    had = {*live, *(file.dv_id for files in live.values() for file in files)}
    try:
        check_inside(entry.actions, head.location, had=had, outside_files=outside_files)
        check_adoptable(entry.actions, before, head.metadata, entry.version)
    except ProtocolError as error:
        raise ProtocolError(
            f"{head.name}: version {entry.version} in the log can't be adopted: {error}"
        ) from error


def _writes(
    previous: Head,
    entry: Entry,
    live: _Live,
    hashes: Mapping[str, int],
    actor: Actor,
    limit: int,
) -> list[Write]:
    files = {(path, file.dv_id) for path, found in live.items() for file in found}
    unknown = [a for a in entry.actions if _is_unknown(a, files)]
    actions = ByKind(a for a in entry.actions if not _is_unknown(a, files))
    info = actions.one(CommitInfo)
    head = advanced(previous, actions, 0)
    head = replace(
        indexed(head, limit) if actions.of(Metadata) else head,
        timestamp_ms=timestamp_of(head, previous, info, entry.modified_ms),
        next_file=previous.next_file + len(unknown),
    )
    actions.put(CommitInfo(audited(info)))
    rows = commit_writes(
        head,
        actions,
        live,
        hashes,
        removed_all=None,
        transaction_id=transaction_of(info),
        actor=actor,
    )
    key = {"table_id": head.table_id, "version": head.version}
    said = msgspec.json.encode(info.fields).decode() if info else None
    original = key | {"commit_info": said, "sha256": entry.sha256}
    return [
        *rows.writes,
        *_tombstones(previous, head.version, unknown, hashes),
        Run("keep_original", original),
    ]


def _live_files(
    session: Session, head: Head, actions: Iterable[Action]
) -> tuple[_Live, dict[str, int]]:
    """The live files at the paths of the actions, and the hashes of these paths."""
    hashes = {a.path: hash_path(a.path) for a in actions if isinstance(a, Add | Remove)}
    live: dict[str, list[LiveFile]] = {}
    wanted = msgspec.json.encode(list(hashes.values())).decode()
    params = {"after": head.version, "hashes": wanted}
    for row in session.query("load_files_at_paths", params) if hashes else ():
        file_id, path, vector, size_bytes, removed, *_ = row
        here = file_id // FILES_PER_TABLE == head.table_id and path in hashes
        if here and removed is None:
            live.setdefault(path, []).append(LiveFile(file_id, vector, size_bytes))
    return live, hashes


def _is_unknown(action: Action, files: Set[FileKey]) -> TypeGuard[Remove]:
    """Whether it removes a file that isn't live: a tombstone and nothing else."""
    return isinstance(action, Remove) and (action.path, dv_id(action)) not in files


def _tombstones(
    head: Head, version: int, removes: Sequence[Remove], hashes: Mapping[str, int]
) -> list[Insert]:
    """Rows of files that were never added, as far as the catalog knows."""
    if not removes:
        return []
    first = head.table_id * FILES_PER_TABLE + head.next_file
    columns = file_columns([as_add(remove) for remove in removes]) | {
        "removed_version": [version] * len(removes),
        "deletion_timestamp_ms": [known(r.deletion_timestamp) for r in removes],
        "remove_data_change": [remove.data_change for remove in removes],
        "remove_fields": [remove_fields(remove) for remove in removes],
        "file_id": range(first, first + len(removes)),
        "table_id": [head.table_id] * len(removes),
        "path_hash": [hashes[remove.path] for remove in removes],
    }
    return [Insert("dl_files", columns)]


def as_add(remove: Remove) -> Add:
    """What can be said of a file by its remove alone."""
    return Add(
        path=remove.path,
        partition_values=known(remove.partition_values) or {},
        size=known(remove.size) or 0,
        modification_time=0,
        data_change=remove.data_change,
        deletion_vector=remove.deletion_vector,
        base_row_id=remove.base_row_id,
        default_row_commit_version=remove.default_row_commit_version,
    )


def indexed(head: Head, limit: int) -> Head:
    """The head with the columns to index by its metadata, which is new."""
    columns = revise(
        head.stat_columns,
        head.metadata,
        table_id=head.table_id,
        version=head.version,
        limit=limit,
    )
    return replace(head, stat_columns=columns)


def timestamp_of(
    head: Head, previous: Head, info: CommitInfo | None, modified_ms: int
) -> int:
    """The time of a version in the log: in-commit, or by its file."""
    configuration = known(head.metadata.configuration) or {}
    if not parse_properties(configuration).enable_in_commit_timestamps:
        return max(modified_ms, previous.timestamp_ms + 1)
    stamp = info.fields.get("inCommitTimestamp") if info else None
    if not isinstance(stamp, int):
        raise ProtocolError(
            f"{head.name}: version {head.version} in the log can't be adopted: it has "
            "no in-commit timestamp, which the table's properties ask for"
        )
    return stamp


def transaction_of(info: CommitInfo | None) -> str:
    """The transaction id that a commit gave itself, else a new one."""
    given = info.fields.get("txnId") if info else None
    usable = isinstance(given, str) and given and "\0" not in given
    return str(given if usable else uuid.uuid4())


def audited(info: CommitInfo | None) -> dict[str, Any]:
    """The commitInfo without what doesn't fit the columns made of it."""
    fields = dict(info.fields) if info else {}
    read = fields.get("readVersion")
    if type(read) is not int or abs(read) > _MAX_BIGINT:
        fields.pop("readVersion", None)
    if not isinstance(fields.get("isBlindAppend"), bool):
        fields.pop("isBlindAppend", None)
    return fields


def _span(first: int, last: int) -> str:
    if first == last:
        return f"version {first} is"
    return f"versions {first} to {last} are"
