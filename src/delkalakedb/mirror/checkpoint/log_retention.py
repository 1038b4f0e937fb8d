"""Log retention: write due checkpoints, then delete expired log entries."""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import PATIENCE_S, Mirror, Outbox
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.mirror.checkpoint.checkpoint import (
    Checkpoint,
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.model.actions import Metadata, decode_commit
from delkalakedb.model.new_actions import in_commit_timestamp_of
from delkalakedb.model.paths import (
    CHECKPOINT,
    COMPACTED,
    ENTRY,
    LOG,
    SIDECARS,
    STAGED,
    commit_path,
)
from delkalakedb.model.schema.properties import (
    TableProperties,
    log_cutoff_ms,
    midnight_ms,
    parse_properties,
)
from delkalakedb.model.times import DAY_MS
from delkalakedb.storage import ObjectMeta, Store
from delkalakedb.storage.log import LogFiles, list_log, read_sidecars
from delkalakedb.telemetry import log_event


def clean_log(
    store: Store, metadata: Metadata, published_version: int, now_ms: int
) -> list[str]:
    """Delete the expired files of a table's log, and return their paths.

    Args:
        store: the table's location.
        metadata: the table's latest metadata, whose properties say what expires.
        published_version: the newest version in the mirror; later files are kept.
        now_ms: the time.
    """
    store.delete_leftovers(LOG)
    properties = parse_properties(metadata)
    cutoff_ms = log_cutoff_ms(properties, now_ms)
    if cutoff_ms is None or published_version < 0:
        return []
    log = list_log(store)
    cut = _cut(store, log, properties, published_version, cutoff_ms)
    # Before a protected version checkpoints go all at once or not at all.
    if cut is None or cut < properties.require_checkpoint_protection_before_version:
        return []
    if cut <= min([*log.commits, *log.checkpoints]):
        return []
    files = list(store.list(LOG))
    # Versions last: while there is one, the next cleanup knows what is left to do.
    paths = [
        *_orphans(store, files, cut, now_ms),
        *_staged(files, cut),
        *_expired(files, cut, published_version),
    ]
    store.delete_many(paths)
    return paths


def _cut(
    store: Store,
    log: LogFiles,
    properties: TableProperties,
    published_version: int,
    cutoff_ms: int,
) -> int | None:
    checkpoints = sorted(v for v in log.checkpoints if v <= published_version)
    time_of = _time_of(store, log, properties)
    expired = bisect_right(checkpoints, cutoff_ms, key=time_of)
    return checkpoints[expired - 1] if expired else None


def _time_of(
    store: Store, log: LogFiles, properties: TableProperties
) -> Callable[[int], int]:
    times = log.times_ms()
    stamped = properties.enable_in_commit_timestamps
    since = properties.in_commit_timestamp_enablement_version or 0

    def time_of(version: int) -> int:
        if stamped and version >= since and version in log.commits:
            return _in_commit_timestamp(store, version) or times[version]
        return times[version]

    return time_of


def _in_commit_timestamp(store: Store, version: int) -> int | None:
    first = next(decode_commit(store.get(commit_path(version))), None)
    return in_commit_timestamp_of(first)


def _expired(files: Iterable[ObjectMeta], cut: int, published: int) -> Iterator[str]:
    for file in files:
        entry = ENTRY.fullmatch(file.path) or CHECKPOINT.fullmatch(file.path)
        compacted = COMPACTED.fullmatch(file.path)
        if (entry and int(entry[1]) < cut) or (
            compacted and int(compacted[1]) <= cut and int(compacted[2]) <= published
        ):
            yield file.path


def _staged(files: Iterable[ObjectMeta], cut: int) -> Iterator[str]:
    for file in files:
        if (staged := STAGED.fullmatch(file.path)) and int(staged[1]) <= cut:
            yield file.path


def _orphans(
    store: Store, files: Sequence[ObjectMeta], cut: int, now_ms: int
) -> list[str]:
    """List the sidecars that no checkpoint needs, neither kept nor being written."""
    old_ms = midnight_ms(now_ms) - DAY_MS
    old = [
        file.path
        for file in files
        if file.path.startswith(f"{SIDECARS}/") and file.last_modified_ms < old_ms
    ]
    if not old:
        return []
    needed = {
        sidecar
        for file in files
        if (match := CHECKPOINT.fullmatch(file.path)) and int(match[1]) >= cut
        for sidecar in read_sidecars(store, file.path)
    }
    return [path for path in old if path not in needed]


_log = logging.getLogger("delkalakedb.mirror")
# At least so many files go into a checkpoint each second.
_FILES_PER_S = 10_000


def make_checkpoint(
    catalog: Catalog, mirror: Mirror, version: int, store: Store
) -> Checkpoint | None:
    """Make a due checkpoint and delete expired log files; return the checkpoint.

    Return None if another process has the claim, if the table is read-only here, or if
    the checkpoint failed. A failure is only logged and retried later, because readers
    don't need the checkpoint.
    """
    if catalog.log(mirror.name).head().read_only is not None:
        return None
    outbox, settings = Outbox(catalog._backend), catalog.settings.mirror
    if not outbox.claim_checkpoint(mirror, version, settings.lease):
        return None
    started_ms = now_ms()
    patience_s = PATIENCE_S + mirror.num_files / _FILES_PER_S
    try:
        with outbox.keeping_claim(mirror, version, settings.lease, patience_s):
            checkpoint = write_checkpoint(
                catalog, mirror.name, version, store, started_ms, mirror.table_id
            )
            write_last_checkpoint(store, checkpoint)
            clean_log(store, mirror.metadata, version, started_ms)
    except (DeltalakeDBError, OSError, pa.ArrowException) as error:
        message = f"{mirror.name}: no checkpoint of version {version} yet: {error}"
        log_event(_log, logging.WARNING, message, event="checkpoint failed")
        outbox.postpone_checkpoint(mirror, settings.retry.backoff_max)
        return None
    outbox.mark_checkpoint(mirror, version)
    message = f"{mirror.name}: checkpoint of version {version}"
    fields = {"actions": checkpoint.size, "bytes": checkpoint.size_bytes}
    log_event(_log, logging.INFO, message, event="checkpoint", **fields)
    return checkpoint
