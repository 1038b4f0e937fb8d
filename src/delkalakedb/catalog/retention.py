"""Retention in the catalog: versions that nobody is promised any more are dropped.

The *floor* is the oldest version that is kept; it and all after it stay as they are.
It never passes a version that the table's log retention still promises, nor one that
isn't published or that a reader of the mirror needs: its newest checkpoint. Tombstones
stay until they expire, as the mirror's checkpoints and vacuum need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delkalakedb.catalog.backend import Backend, Run, Session
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.names import no_such_table
from delkalakedb.errors import TableNotFoundError, VersionNotFoundError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.properties import TableProperties, parse_properties
from delkalakedb.model.retention import log_cutoff_ms, tombstone_cutoff_ms

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Expired", "check_kept", "check_known", "expire_versions", "while_kept"]

_DELETES = (
    "delete_versions",
    "delete_cdc_files",
    "delete_metadata",
    "delete_protocols",
    "delete_txns",
    "delete_domains",
    "delete_number_stats",
    "delete_text_stats",
)


@dataclass(frozen=True, slots=True)
class Expired:
    """What was dropped of a table: everything that only versions below `floor` need."""

    table: str
    floor: int
    versions: int
    files: int
    stats: int


@dataclass(frozen=True, slots=True)
class _Bounds:
    """A locked table, and what keeps its floor down."""

    table_id: int
    first_version: int
    properties: TableProperties
    published_version: int
    checkpoint_version: int


class _UndoneError(Exception):
    """Rolls back a dry run."""

    def __init__(self, expired: Expired) -> None:
        super().__init__(expired)
        self.expired = expired


def expire_versions(
    backend: Backend,
    name: str,
    *,
    before_version: int | None = None,
    older_than_ms: int | None = None,
    now_ms: int,
    dry_run: bool = False,
) -> Expired:
    """Drop the versions of a table that have expired: all of them, or none.

    Args:
        backend: the catalog's database.
        name: the table.
        before_version: keep this version and all after it, if not more.
        older_than_ms: keep every state of this last stretch of time, if not more; the
            least is the table's `delta.logRetentionDuration`.
        now_ms: the time.
        dry_run: only say what would be dropped.
    """
    try:
        with backend.writing() as session:
            if backend.capabilities.table_locks:
                session.query("lock_table", {"name": name})
            bounds = _load(session, name)
            floor = _floor(session, bounds, before_version, older_than_ms, now_ms)
            expired = _expire(session, name, bounds, floor, now_ms)
            if dry_run:
                raise _UndoneError(expired)
            return expired
    except _UndoneError as undone:
        return undone.expired


def while_kept(
    backend: Backend, head: Head, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The files at a head's version; an error where it was gone before all were read.

    The latest version doesn't expire, only one that was superseded for the whole
    retention; if its table is dropped, nothing is found of it.
    """
    found = False
    for batch in batches:
        found = found or batch.num_rows > 0
        yield batch
    if head.version != head.current_version or (head.num_files and not found):
        check_kept(backend, head)


def check_known(backend: Backend, head: Head) -> None:
    """Refuse a version that is gone, before its files are given from memory.

    None goes while its head is kept, which is until the next write.
    """
    heads = backend.heads
    if heads is None:
        sure = head.version == head.current_version
    else:
        versions = (None, head.version)
        kept = any(heads.find((head.name, version)) is head for version in versions)
        sure = kept and not backend.is_gone()
    if not sure:
        check_kept(backend, head)


def check_kept(backend: Backend, head: Head) -> None:
    """Refuse a version that has expired, or was dropped, since its head was loaded."""
    with backend.reading() as session:
        rows = session.query("load_first_version", {"table_id": head.table_id})
    if not rows:
        raise TableNotFoundError(f"{head.name}: it was dropped since it was opened")
    if rows[0][0] > head.version:
        raise VersionNotFoundError(
            f"{head.name}: version {head.version} has expired since it was opened; the "
            f"oldest is version {rows[0][0]}"
        )


def _load(session: Session, name: str) -> _Bounds:
    rows = session.query("load_retention", {"name": name})
    if not rows:
        raise no_such_table(name)
    table_id, first_version, metadata, published, checkpoint = rows[0]
    properties = parse_properties(decode_struct(metadata, Metadata))
    return _Bounds(table_id, first_version, properties, published, checkpoint)


def _floor(
    session: Session,
    bounds: _Bounds,
    before_version: int | None,
    older_than_ms: int | None,
    now_ms: int,
) -> int:
    cutoff_ms = log_cutoff_ms(bounds.properties, now_ms)
    if cutoff_ms is None:
        return bounds.first_version
    if older_than_ms is not None:
        cutoff_ms = min(cutoff_ms, now_ms - older_than_ms)
    limits = [
        _version_at(session, bounds.table_id, cutoff_ms),
        bounds.published_version,
        bounds.checkpoint_version,
    ]
    if before_version is not None:
        limits.append(before_version)
    return max(bounds.first_version, min(limits))


def _version_at(session: Session, table_id: int, timestamp_ms: int) -> int:
    params = {"table_id": table_id, "timestamp_ms": timestamp_ms}
    params |= {"first": 0, "end": 2**62}
    rows = session.query("load_version_at", params)
    return int(rows[0][0]) if rows else -1


def _expire(
    session: Session, name: str, bounds: _Bounds, floor: int, now_ms: int
) -> Expired:
    key = {"table_id": bounds.table_id, "floor": floor}
    tombstones_ms = tombstone_cutoff_ms(bounds.properties, now_ms)
    files, stats = session.query("count_dead", key)[0]
    session.apply(
        [
            *(Run(statement, key) for statement in _DELETES),
            Run("delete_files", key | {"tombstones_ms": tombstones_ms}),
            Run("move_floor", key),
        ]
    )
    left, _ = session.query("count_dead", key)[0]
    versions = floor - bounds.first_version
    return Expired(name, floor, versions, files - left, stats)
