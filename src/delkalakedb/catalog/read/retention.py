"""Retention in the catalog: dropping versions that have expired.

The *floor* is the oldest version that is kept. It is never above a version that the
table's log retention covers, above the newest published version, or above the mirror's
newest checkpoint. Tombstones stay until they expire, because checkpoints and vacuum
need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from delkalakedb.catalog.engine import Backend, Run, Session, UndoneError
from delkalakedb.catalog.read.head import Head, find_kept, no_such_table
from delkalakedb.errors import TableNotFoundError, VersionNotFoundError
from delkalakedb.model.actions import Metadata, decode_struct
from delkalakedb.model.schema.properties import (
    TableProperties,
    check_values,
    log_cutoff_ms,
    parse_properties,
    tombstone_cutoff_ms,
)

if TYPE_CHECKING:
    import pyarrow as pa

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
    """How much of a table was dropped: all that only versions below `floor` need."""

    table: str
    floor: int
    versions: int
    files: int
    stats: int


class _Bounds(NamedTuple):
    """A row of `load_retention`: a locked table, and the limits of its floor."""

    table_id: int
    first_version: int
    metadata: str
    published_version: int
    checkpoint_version: int

    @property
    def action(self) -> Metadata:
        """The table's metaData action."""
        return decode_struct(self.metadata, Metadata)

    @property
    def properties(self) -> TableProperties:
        """The table's properties."""
        return parse_properties(self.action)


class _Dead(NamedTuple):
    """A row of `count_dead`: the files below the floor, and their bounds."""

    files: int
    stats: int


def expire_versions(
    backend: Backend,
    name: str,
    *,
    before_version: int | None = None,
    older_than_ms: int | None = None,
    now_ms: int,
    dry_run: bool = False,
) -> Expired:
    """Drop the versions of a table that have expired, in one transaction.

    Args:
        backend: the catalog's database.
        name: the table.
        before_version: keep at least this version and all later ones.
        older_than_ms: keep at least the states of this many last ms; the table's
            `delta.logRetentionDuration` is the minimum.
        now_ms: the time.
        dry_run: return what would be dropped, and drop nothing.
    """
    with suppress(UndoneError), backend.writing() as session:
        if backend.capabilities.table_locks:
            session.query("lock_table", {"name": name})
        found = session.rows(_Bounds, "load_retention", {"name": name})
        if not found:
            raise no_such_table(name, session)
        (bounds,) = found
        # Versions are kept rather than dropped by a retention that nobody asked for.
        check_values(bounds.action)
        floor = _floor(session, bounds, before_version, older_than_ms, now_ms)
        expired = _expire(session, name, bounds, floor, now_ms)
        if dry_run:
            raise UndoneError
    return expired


@dataclass(frozen=True, slots=True)
class Due:
    """How many versions and files of a table retention and vacuum would delete."""

    expired_versions: int
    expired_tombstones: int


def count_due(session: Session, name: str, now_ms: int) -> Due:
    """Count the expired versions of a table, and its tombstones of unneeded files.

    The tombstones of files that the last vacuum deleted don't count.
    """
    (bounds,) = session.rows(_Bounds, "load_retention", {"name": name})
    key = {"table_id": bounds.table_id}
    cutoff_ms = tombstone_cutoff_ms(bounds.properties, now_ms)
    (vacuumed_ms,) = session.values("load_vacuum_time", key)
    # A vacuum deletes the files whose tombstones have expired when it starts.
    done_ms = -1 if vacuumed_ms is None else vacuumed_ms - (now_ms - cutoff_ms)
    at = {"timestamp_ms": cutoff_ms, "first": 0, "end": 2**62}
    (kept,) = session.values("load_version_at", key | at) or [-1]
    limits = {"after_ms": done_ms, "cutoff_ms": cutoff_ms, "floor": kept}
    (tombstones,) = session.values("count_tombstones", key | limits)
    floor = _floor(session, bounds, None, None, now_ms)
    return Due(floor - bounds.first_version, tombstones)


def while_kept(
    backend: Backend, head: Head, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield `batches`, the files at a head's version.

    Raise `VersionNotFoundError` or `TableNotFoundError` if the version expired, or the
    table was dropped, before all batches were read. The latest version doesn't expire.
    """
    found = False
    for batch in batches:
        found = found or batch.num_rows > 0
        yield batch
    if head.version != head.current_version or (head.num_files and not found):
        check_kept(backend, head)


def check_known(backend: Backend, head: Head) -> None:
    """Raise an error if a version expired whose files are in memory.

    No version expires while its head is in memory, because a write drops the heads.
    """
    sure = head.version == head.current_version
    if backend.capabilities.keeps_heads:
        versions = (None, head.version)
        kept = any(find_kept(backend, head.name, v) is head for v in versions)
        sure = kept and not backend.is_gone()
    if not sure:
        check_kept(backend, head)


def check_kept(backend: Backend, head: Head) -> None:
    """Raise an error if a version expired since its head was loaded.

    It is a `VersionNotFoundError`, or `TableNotFoundError` if the table was dropped.
    """
    with backend.reading() as session:
        oldest = session.values("load_first_version", {"table_id": head.table_id})
    if not oldest:
        raise TableNotFoundError(
            f"{head.name}: the table was dropped since it was opened"
        )
    if oldest[0] > head.version:
        raise VersionNotFoundError(
            f"{head.name}: version {head.version} has expired since it was opened; the "
            f"oldest is version {oldest[0]}"
        )


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
    params = {"table_id": bounds.table_id, "timestamp_ms": cutoff_ms}
    kept = session.values("load_version_at", params | {"first": 0, "end": 2**62})
    limits: list[int] = [*(kept or [-1])]
    limits += [bounds.published_version, bounds.checkpoint_version]
    if before_version is not None:
        limits.append(before_version)
    return max(bounds.first_version, min(limits))


def _expire(
    session: Session, name: str, bounds: _Bounds, floor: int, now_ms: int
) -> Expired:
    key = {"table_id": bounds.table_id, "floor": floor}
    tombstones_ms = tombstone_cutoff_ms(bounds.properties, now_ms)
    (dead,) = session.rows(_Dead, "count_dead", key)
    session.apply(
        [
            *(Run(statement, key) for statement in _DELETES),
            Run("delete_files", key | {"tombstones_ms": tombstones_ms}),
            Run("move_floor", key),
        ]
    )
    (left,) = session.rows(_Dead, "count_dead", key)
    versions = floor - bounds.first_version
    return Expired(name, floor, versions, dead.files - left.files, dead.stats)
