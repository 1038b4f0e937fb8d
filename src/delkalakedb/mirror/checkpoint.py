"""Checkpoints: a version's whole state in Parquet, from the catalog's rows.

Nothing is replayed. Files go from SQL to Parquet in chunks, so a table of any size
takes the memory of a few of them; a version's files never change, so several queries
see the same state.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.head import Head
from delkalakedb.errors import MirrorError
from delkalakedb.mirror.checkpoint_rows import Layout, mixed_rows
from delkalakedb.mirror.checkpoint_state import load_file_rows, load_others
from delkalakedb.model.actions import CheckpointMetadata, Metadata, Sidecar
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import check_checkpointable, supported_features
from delkalakedb.storage import Store
from delkalakedb.storage.segment import LOG

if TYPE_CHECKING:
    from delkalakedb.config import Settings

__all__ = [
    "Checkpoint",
    "checkpoint_due",
    "checkpoint_interval",
    "write_checkpoint",
]

_SIDECAR_ROWS = 500_000
_Batches = Iterator[pa.RecordBatch]


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


def checkpoint_interval(metadata: Metadata, settings: "Settings") -> int:
    """Every how many versions a table gets a checkpoint."""
    asked = parse_properties(metadata).checkpoint_interval
    return asked or settings.mirror.checkpoint_interval


def checkpoint_due(published: int, last_checkpoint: int, interval: int) -> int | None:
    """The newest published version that ends an interval, unless it has its own.

    As delta-rs counts: an interval of 10 ends with versions 9 and 19, none with 0.
    """
    due = (published + 1) // interval * interval - 1
    return due if due > max(last_checkpoint, 0) else None


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

    It is of the V2 form, with sidecars, where the table's protocol allows that and its
    `delta.checkpointPolicy`, or the caller, asks for it. Written again it has the same
    content.

    Args:
        catalog: where the table is.
        name: the table.
        version: what to write.
        store: the table's location.
        now_ms: the time that tells which tombstones have expired.
        table_id: the table's id, in case another one has the name by now.
        v2: whether sidecars are wanted whatever the policy.
    """
    head = catalog.log(name).head(version)
    if table_id not in (None, head.table_id):
        raise MirrorError(f"{name}: another table has that name now")
    check_checkpointable(head.protocol)
    with TemporaryDirectory(prefix="checkpoint-") as folder:
        target = _Target(store, Path(folder) / "rows.parquet")
        write = _write_v2 if _is_v2(head, asked=v2) else _write_v1
        return write(catalog, head, target, now_ms)


def _write_v1(
    catalog: Catalog, head: Head, target: "_Target", now_ms: int
) -> Checkpoint:
    layout = Layout(head.metadata)
    others = mixed_rows(layout.v1, load_others(catalog, head, now_ms))
    files = load_file_rows(catalog, head, layout, layout.v1, now_ms)
    path = f"{LOG}/{head.version:020}.checkpoint.parquet"
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
    path = f"{LOG}/{head.version:020}.checkpoint.{uuid4()}.parquet"
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
    return asked and "v2Checkpoint" in supported_features(head.protocol)


def _sidecars(target: _Target, schema: pa.Schema, files: _Batches) -> Iterator[_Put]:
    for first in files:
        path = f"{LOG}/_sidecars/{uuid4()}.parquet"
        yield target.put(path, schema, _part(chain([first], files)))


def _part(files: _Batches) -> _Batches:
    """The first batches of many, enough for a sidecar."""
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
