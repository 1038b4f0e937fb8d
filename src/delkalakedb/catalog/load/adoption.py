"""Adoption: making a version of a commit that a foreign writer put into the log.

Readers of the log have seen the commit already. So adoption keeps the commit as it is:
version, row ids and commitInfo stay, and no conflict rule applies. The commit must be
the next version after the last published one, with a protocol that this package
supports.
"""

import math
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import msgspec
from msgspec.structs import replace

from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.commit import (
    ByKind,
    Lease,
    LiveFile,
    NewFiles,
    Outbox,
    advanced,
    commit_writes,
)
from delkalakedb.catalog.engine import (
    CLIENT,
    Actor,
    FileRow,
    HeadRow,
    Insert,
    Run,
    Session,
    Write,
    event,
)
from delkalakedb.catalog.load.staged_table import locked
from delkalakedb.catalog.read import (
    FILES_PER_TABLE,
    Head,
    file_columns,
    hash_path,
    parse_head,
    remove_fields,
    revise,
)
from delkalakedb.clock import pauses
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
from delkalakedb.model.log import FileKey, Staged
from delkalakedb.model.new_actions import in_commit_timestamp_of
from delkalakedb.model.paths import check_inside
from delkalakedb.model.rules.protocol import check_adoptable
from delkalakedb.model.schema.properties import parse_properties

# seconds between two attempts to take a lease
_PAUSES_S = 0.02, 0.2
_MAX_BIGINT = 2**63 - 1
_Live = Mapping[str, Sequence[LiveFile]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit in the log."""

    version: int
    actions: tuple[Action, ...]
    modified_ms: int
    sha256: str | None


class Tombstone(NamedTuple):
    """A removed file that the catalog has no add of."""

    file_id: int
    version: int
    remove: Remove


@contextmanager
def hold_mirror(catalog: Catalog, name: str) -> Iterator[Lease]:
    """Hold the lease on a table's log, so that no other process publishes or adopts.

    The lease is renewed until the block ends. Raise `MirrorError` if the lease isn't
    free within `mirror.wait` seconds.
    """
    outbox = Outbox(catalog._backend)
    settings = catalog.settings.mirror
    deadline = time.monotonic() + settings.wait
    waits = pauses(*_PAUSES_S, jitter=0.5)
    while not isinstance(
        lease := outbox.take(name, settings.lease, early=True, settling=True), Lease
    ):
        if time.monotonic() > deadline:
            owner = lease.lease_owner or "another process"
            raise MirrorError(f"{name}: {owner} is writing to the log; try again")
        time.sleep(next(waits))
    try:
        with outbox.keeping(lease, math.inf):
            yield lease
    finally:
        outbox.release(lease)


def adopt_entry(
    catalog: Catalog, lease: Lease, entry: Entry, *, outside_files: bool = False
) -> None:
    """Make `entry` the next version of the table, already published.

    `outside_files` allows files outside the table's location.
    """
    actor = Actor(catalog._backend.db_user(), None, None, CLIENT)
    limit = catalog.settings.stats.indexed_columns
    with locked(catalog, Staged(lease.mirror.name, ())) as session:
        named = {"name": lease.mirror.name}
        (latest,), (published,) = session.rows_many(
            [(HeadRow, "load_latest", named), (int, "load_published_version", named)]
        )
        head = parse_head(session, latest)
        _check_next(head, published, entry)
        files = (a for a in entry.actions if isinstance(a, Add | Remove))
        hashes = {file.path: hash_path(file.path) for file in files}
        live: dict[str, list[LiveFile]] = {}
        for row in live_files(session, head, hashes.values()):
            if row.path in hashes:
                file = LiveFile(row.file_id, row.dv_id, row.size_bytes)
                live.setdefault(row.path, []).append(file)
        _check_protocol(head, entry, live, outside_files)
        key = {"table_id": head.table_id, "version": entry.version}
        if not session.query("mark_adopted", key | {"fence": lease.fence}):
            raise MirrorError(
                f"{head.name}: the lease on the log was lost; adopt again"
            )
        noted = event("adopt", head.name, version=entry.version)
        session.apply([*_writes(head, entry, live, hashes, actor, limit), noted])


def _check_next(head: Head, published: int, entry: Entry) -> None:
    if head.version > published:
        ratified = _span(published + 1, head.version)
        raise MirrorError(
            f"{head.name}: the log has a version {entry.version} of a foreign writer, "
            f"but {ratified} ratified here and not published. Versions are never "
            "renumbered: take the entry out of the log with mirror.adopt(uri, "
            "discard=True), which keeps a copy, and write it through the catalog"
        )
    if entry.version != head.version + 1:
        raise MirrorError(
            f"{head.name}: version {entry.version} can't be adopted after version "
            f"{head.version}"
        )


def _check_protocol(head: Head, entry: Entry, live: _Live, outside_files: bool) -> None:
    # A new protocol isn't compared with the one before it, because features may have
    # been dropped by the rules, and delta-rs omits the features that it implies.
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
        NewFiles(actions.of(Add), hashes),
        removed_all=None,
        transaction_id=transaction_of(info),
        actor=actor,
    )
    first = head.table_id * FILES_PER_TABLE + previous.next_file
    tombstones = [
        Tombstone(file_id, head.version, remove)
        for file_id, remove in enumerate(unknown, first)
    ]
    key = {"table_id": head.table_id, "version": head.version}
    said = msgspec.json.encode(info.fields).decode() if info else None
    original = key | {"commit_info": said, "sha256": entry.sha256}
    return [
        *rows.writes,
        *tombstone_inserts(head.table_id, tombstones),
        Run("keep_original", original),
    ]


def live_files(session: Session, head: Head, hashes: Collection[int]) -> list[FileRow]:
    """Return the live files of the head's table whose paths have one of `hashes`."""
    if not hashes:
        return []
    wanted = msgspec.json.encode(list(hashes)).decode()
    params = {"after": head.version, "hashes": wanted}
    return [
        row
        for row in session.rows(FileRow, "load_files_at_paths", params)
        if row.file_id // FILES_PER_TABLE == head.table_id
        and row.removed_version is None
    ]


def _is_unknown(action: Action, files: Set[FileKey]) -> TypeGuard[Remove]:
    """Return whether `action` removes a file that isn't one of `files`."""
    return isinstance(action, Remove) and (action.path, dv_id(action)) not in files


def tombstone_inserts(table_id: int, files: Sequence[Tombstone]) -> list[Insert]:
    """Return the inserts of the tombstones of a table."""
    if not files:
        return []
    removes = [file.remove for file in files]
    columns = file_columns([_as_add(remove) for remove in removes]) | {
        "removed_version": [file.version for file in files],
        "deletion_timestamp_ms": [known(r.deletion_timestamp) for r in removes],
        "remove_data_change": [remove.data_change for remove in removes],
        "remove_fields": [remove_fields(remove) for remove in removes],
        "file_id": [file.file_id for file in files],
        "table_id": [table_id] * len(removes),
        "path_hash": [hash_path(remove.path) for remove in removes],
    }
    return [Insert("dl_files", columns)]


def _as_add(remove: Remove) -> Add:
    """Return an add action with the fields of `remove`."""
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
    """Return `head` with the indexed columns that its new metadata asks for."""
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
    """Return the timestamp of a version in the log.

    It is the in-commit timestamp if the table's properties ask for it, else the
    modification time of the log entry.
    """
    configuration = known(head.metadata.configuration) or {}
    if not parse_properties(configuration).enable_in_commit_timestamps:
        return max(modified_ms, previous.timestamp_ms + 1)
    stamp = in_commit_timestamp_of(info)
    if stamp is None:
        raise ProtocolError(
            f"{head.name}: version {head.version} in the log can't be adopted: it has "
            "no in-commit timestamp, which the table's properties ask for"
        )
    return stamp


def transaction_of(info: CommitInfo | None) -> str:
    """Return the transaction id in a commitInfo, else a new one."""
    given = info.fields.get("txnId") if info else None
    usable = isinstance(given, str) and given and "\0" not in given
    return str(given if usable else uuid.uuid4())


def audited(info: CommitInfo | None) -> dict[str, Any]:
    """Return the fields of a commitInfo that fit into the columns of a version."""
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
