"""Checkpoints, `_last_checkpoint` and `<version>.crc`, from the catalog's rows.

A checkpoint is the whole state of a version in Parquet.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import Mirror
from delkalakedb.catalog.read import FILES_SCHEMA, Head, load_files, load_tombstones
from delkalakedb.errors import MirrorError
from delkalakedb.mirror.checkpoint.checkpoint_rows import (
    FILE_COLUMNS,
    Layout,
    mixed_rows,
    rows,
)
from delkalakedb.model.actions import (
    Action,
    CheckpointMetadata,
    Sidecar,
    Txn,
    checksum,
    encode_struct,
    known,
)
from delkalakedb.model.paths import LAST_CHECKPOINT, SIDECARS, checkpoint_path
from delkalakedb.model.rules.features import IN_COMMIT_TIMESTAMP, V2_CHECKPOINT
from delkalakedb.model.rules.protocol import (
    active_features,
    check_checkpointable,
    supported_features,
)
from delkalakedb.model.schema.properties import parse_properties, tombstone_cutoff_ms
from delkalakedb.storage import ObjectNotFoundError, Store
from delkalakedb.telemetry import MAKE_CHECKPOINT, measured

_log = logging.getLogger("delkalakedb.mirror")

_CHUNK_ROWS = 100_000
_CHUNK_BYTES = 64_000_000
_Batches = Iterator[pa.RecordBatch]


def load_others(catalog: Catalog, head: Head, now_ms: int) -> list[Action]:
    """Load the actions that aren't about files."""
    log = catalog.log(head.name, head.identity)
    retention_ms = parse_properties(head.metadata).set_transaction_retention_ms
    since_ms = None if retention_ms is None else now_ms - retention_ms
    txns = log.txns(head.version).values()
    return [
        head.protocol,
        head.metadata,
        *(txn for txn in txns if _is_kept(txn, since_ms)),
        *log.domains(head.version).values(),
    ]


def _is_kept(txn: Txn, since_ms: int | None) -> bool:
    # As in Delta Spark: where txns expire, one without a time has.
    updated_ms = known(txn.last_updated)
    return since_ms is None or (updated_ms is not None and updated_ms > since_ms)


def load_file_rows(
    catalog: Catalog, head: Head, layout: Layout, schema: pa.Schema, now_ms: int
) -> _Batches:
    """Load the file actions as rows: unexpired tombstones, then live files."""
    cutoff_ms = tombstone_cutoff_ms(parse_properties(head.metadata), now_ms)
    for files in _chunks(load_tombstones(catalog._backend, head, cutoff_ms)):
        yield rows(schema, "remove", layout.removes(files))
    columns = pa.schema([FILES_SCHEMA.field(name) for name in FILE_COLUMNS])
    for files in _chunks(load_files(catalog._backend, head, columns)):
        yield rows(schema, "add", layout.adds(files))


def _chunks(batches: _Batches) -> _Batches:
    """Yield the rows in larger batches, and load the next batch in the background."""
    joined = _joined(batches)
    with ThreadPoolExecutor(1, "checkpoint") as thread:
        fetched = thread.submit(next, joined, None)
        while (chunk := fetched.result()) is not None:
            fetched = thread.submit(next, joined, None)
            yield chunk


def _joined(batches: _Batches) -> _Batches:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        for start in range(0, len(batch), _CHUNK_ROWS):
            waiting.append(batch.slice(start, _CHUNK_ROWS))
            if _is_enough(waiting):
                yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
                waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _is_enough(batches: Sequence[pa.RecordBatch]) -> bool:
    return (
        sum(map(len, batches)) >= _CHUNK_ROWS
        or sum(batch.nbytes for batch in batches) >= _CHUNK_BYTES
    )


_SIDECAR_ROWS = 500_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that was written.

    Args:
        version: the version that it holds.
        path: where it is, below the table's location.
        sidecars: the files with its file actions; none of a classic checkpoint.
        size: how many actions it holds, those in sidecars included.
        num_adds: how many of them are live files.
        size_bytes: what it takes, sidecars included.
    """

    version: int
    path: str
    sidecars: tuple[str, ...]
    size: int
    num_adds: int
    size_bytes: int


def due_checkpoint(catalog: Catalog, mirror: Mirror, published: int) -> int | None:
    """Return the version that a checkpoint is due for, if any."""
    asked = parse_properties(mirror.metadata).checkpoint_interval
    interval = asked or catalog.settings.mirror.checkpoint_interval
    return checkpoint_due(published, mirror.checkpoint_version, interval)


def checkpoint_due(published: int, last_checkpoint: int, interval: int) -> int | None:
    """Return the newest version that ends an interval, unless it has a checkpoint.

    Count as delta-rs does: intervals of 10 end with versions 9 and 19, none with 0.
    """
    due = (published + 1) // interval * interval - 1
    return due if due > max(last_checkpoint, 0) else None


@contextmanager
def unharmed(name: str) -> Iterator[None]:
    """Log errors of a checkpoint instead of raising them, because readers need none.

    The next commit, or the reconciler, tries again.
    """
    try:
        yield
    except Exception:
        _log.exception("%s: no checkpoint yet", name)


def write_checkpoint(
    catalog: Catalog,
    name: str,
    version: int,
    store: Store,
    now_ms: int,
    table_id: int | None = None,
    *,
    v2: bool = False,
) -> Checkpoint:
    """Write a version's checkpoint; its commit must be published already.

    The checkpoint has the V2 form, with sidecars, if the table's protocol allows V2 and
    `delta.checkpointPolicy` or the caller asks for V2. A second checkpoint of the
    version has the same content.

    Args:
        catalog: where the table is.
        name: the table.
        version: the version.
        store: the table's location.
        now_ms: the time that decides which tombstones have expired.
        table_id: the table's id, in case another table has the name now.
        v2: write sidecars whatever the policy.
    """
    head = catalog.log(name).head(version)
    if table_id not in (None, head.table_id):
        raise MirrorError(f"{name}: another table has that name now")
    check_checkpointable(head.protocol)
    making = measured(MAKE_CHECKPOINT, engine=catalog._backend.engine, table=name)
    with making, TemporaryDirectory(prefix="checkpoint-") as folder:
        target = _Target(store, Path(folder) / "rows.parquet")
        write = _write_v2 if _is_v2(head, asked=v2) else _write_v1
        return write(catalog, head, target, now_ms)


def _write_v1(
    catalog: Catalog, head: Head, target: "_Target", now_ms: int
) -> Checkpoint:
    layout = Layout(head.metadata)
    others = mixed_rows(layout.v1, load_others(catalog, head, now_ms))
    files = load_file_rows(catalog, head, layout, layout.v1, now_ms)
    path = checkpoint_path(head.version)
    return _checkpoint(head, target.put(path, layout.v1, chain([others], files)))


def _write_v2(
    catalog: Catalog, head: Head, target: "_Target", now_ms: int
) -> Checkpoint:
    layout = Layout(head.metadata)
    files = load_file_rows(catalog, head, layout, layout.files, now_ms)
    sidecars = list(_sidecars(target, layout.files, files))
    actions = [
        CheckpointMetadata(version=head.version),
        *load_others(catalog, head, now_ms),
        *(_lead(sidecar, now_ms) for sidecar in sidecars),
    ]
    path = checkpoint_path(head.version, f".{uuid4()}")
    # Last: what it leads to must be there by then.
    main = target.put(path, layout.v2, [mixed_rows(layout.v2, actions)])
    return _checkpoint(head, main, *sidecars)


@dataclass(frozen=True, slots=True)
class _Put:
    path: str
    size: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Target:
    """A store, and the local file in which each object is made first."""

    store: Store
    local: Path

    def put(
        self, path: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> _Put:
        size = 0
        # Arrow's own form of the schema would only repeat Parquet's.
        with pq.ParquetWriter(self.local, schema, store_schema=False) as writer:
            for batch in batches:
                writer.write_batch(batch, row_group_size=len(batch))
                size += len(batch)
        self.store.put_file(path, self.local)
        return _Put(path, size, self.local.stat().st_size)


def _checkpoint(head: Head, main: _Put, *sidecars: _Put) -> Checkpoint:
    puts = (main, *sidecars)
    return Checkpoint(
        version=head.version,
        path=main.path,
        sidecars=tuple(file.path for file in sidecars),
        size=sum(file.size for file in puts),
        num_adds=head.num_files,
        size_bytes=sum(file.size_bytes for file in puts),
    )


def _is_v2(head: Head, *, asked: bool) -> bool:
    asked = asked or parse_properties(head.metadata).checkpoint_policy == "v2"
    return asked and V2_CHECKPOINT in supported_features(head.protocol)


def _sidecars(target: _Target, schema: pa.Schema, files: _Batches) -> Iterator[_Put]:
    for first in files:
        path = f"{SIDECARS}/{uuid4()}.parquet"
        yield target.put(path, schema, _part(chain([first], files)))


def _part(files: _Batches) -> _Batches:
    """Yield as many of the next batches as one sidecar takes."""
    size = 0
    while size < _SIDECAR_ROWS and (batch := next(files, None)) is not None:
        yield batch
        size += len(batch)


def _lead(file: _Put, now_ms: int) -> Sidecar:
    return Sidecar(
        path=file.path.rpartition("/")[2],
        size_in_bytes=file.size_bytes,
        modification_time=now_ms,
    )


def write_last_checkpoint(store: Store, checkpoint: Checkpoint) -> None:
    """Write `_last_checkpoint`, unless it names a newer checkpoint."""
    there = read_last_checkpoint(store)
    if there is not None and there > checkpoint.version:
        return
    hint: dict[str, Any] = {
        "version": checkpoint.version,
        "size": checkpoint.size,
        "sizeInBytes": checkpoint.size_bytes,
        "numOfAddFiles": checkpoint.num_adds,
    }
    hint["checksum"] = checksum(hint)
    store.put(LAST_CHECKPOINT, json.dumps(hint, separators=(",", ":")).encode())


def read_last_checkpoint(store: Store) -> int | None:
    """Read the version in `_last_checkpoint`; None if it can't be read."""
    try:
        hint = json.loads(store.get(LAST_CHECKPOINT), object_pairs_hook=_unique)
        version = hint["version"]
        intact = hint.get("checksum", given := checksum(hint)) == given
    except (ObjectNotFoundError, ValueError, TypeError, KeyError):
        return None
    return version if intact and type(version) is int else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def version_checksum(head: Head, transaction_id: str | None) -> bytes:
    """Return the version checksum; equal values give equal bytes."""
    totals: dict[str, Any] = {} if transaction_id is None else {"txnId": transaction_id}
    totals |= {
        "tableSizeBytes": head.size_bytes,
        "numFiles": head.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
    }
    if IN_COMMIT_TIMESTAMP in active_features(head.protocol, head.metadata):
        totals["inCommitTimestampOpt"] = head.timestamp_ms
    totals["metadata"] = msgspec.Raw(encode_struct(head.metadata))
    totals["protocol"] = msgspec.Raw(encode_struct(head.protocol))
    return msgspec.json.encode(totals)
