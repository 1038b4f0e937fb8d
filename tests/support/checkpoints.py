"""Tables that only their checkpoint tells of."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb import Catalog
from delkalakedb.mirror.checkpoint.checkpoint import (
    Checkpoint,
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.model.actions import encode_commit
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.paths import commit_path
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader

STRUCT = {"delta.checkpoint.writeStatsAsStruct": "true"}
TEXTLESS = {"delta.checkpoint.writeStatsAsJson": "false"}
V2 = {"delta.checkpointPolicy": "v2"}


def publish_from(catalog: Catalog, name: str, store: Store, first: int) -> None:
    """The log's entries from a version on."""
    for version in range(first, catalog.table(name).version + 1):
        store.put(
            commit_path(version), encode_commit(catalog.log(name).commit(version))
        )


def write_alone(
    catalog: Catalog,
    folder: Path,
    version: int | None = None,
    *,
    name: str = "t",
    now_ms: int = 0,
) -> Checkpoint:
    """A table in a folder: a checkpoint, and no commit before it."""
    if version is None:
        version = catalog.table(name).version
    store = open_store(str(folder))
    publish_from(catalog, name, store, version)
    checkpoint = write_checkpoint(catalog, name, version, store, now_ms)
    write_last_checkpoint(store, checkpoint)
    return checkpoint


def take_in(catalog: Catalog, folder: Path) -> None:
    """Ratify as table `t` what a plain table's log has."""
    log = FileTxnLogReader(open_store(str(folder)))
    for version in log.versions():
        actions = log.commit(version)
        catalog.commit(
            Staged("t", actions, Reads(version=version - 1))
            if version
            else Staged("t", actions, location=str(folder))
        )


def read_rows(folder: Path, path: str) -> pa.Table:
    """The rows of one of a checkpoint's files."""
    return pq.read_table(folder / path)


def read_kind(folder: Path, path: str, kind: str) -> list[dict[str, Any]]:
    """The actions of one kind in one of a checkpoint's files."""
    return read_rows(folder, path)[kind].drop_null().to_pylist()
