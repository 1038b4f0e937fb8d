"""Lists of files for Spark's own Parquet reader, in the form of a file sink's log.

Spark reads a folder with such a log without listing anything: the files may be
anywhere. A list is read by the driver alone, in a classic session on this very
machine, so it is written to a temporary folder here. A Connect server that is
elsewhere needs a folder that it can read, too: `spark.delkalakedb.lists` names it.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING
from weakref import finalize

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.spark.session import is_connect, spark_url
from delkalakedb.storage import Store, canonical_location, open_store
from delkalakedb.workspace.folder import folder_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LISTS", "write_list"]

LISTS = "spark.delkalakedb.lists"
_LOG = "_spark_metadata/0"
# The lists that a process keeps for classic sessions, which have read them already.
_KEPT = 64
_STALE_SECONDS = 7 * 24 * 3600
_BATCH_ROWS = 10_000


def write_list(
    spark: "SparkSession",
    uris: pa.ChunkedArray,
    files: pa.Table,
    storage_options: Mapping[str, str] | None = None,
) -> str:
    """Write the list of some files; gives the URL that Spark reads them by."""
    home = _home()
    name = _write(home.path, uris, files)
    place = spark.conf.get(LISTS, None)
    if place is not None:
        return _shared(place, home.path / name, storage_options)
    if not is_connect(spark):
        home.forget_old(name)
    return spark_url(canonical_location(str(home.path / name)))


class _Home:
    """The folder of this process's lists; it goes when the process ends."""

    def __init__(self) -> None:
        self.path = folder_of(self, "delkalakedb-lists")
        self._names: dict[str, None] = {}

    def forget_old(self, newest: str) -> None:
        self._names.pop(newest, None)
        self._names[newest] = None
        while len(self._names) > _KEPT:
            oldest = next(iter(self._names))
            del self._names[oldest]
            shutil.rmtree(self.path / oldest, ignore_errors=True)


def _home() -> _Home:
    # A forked process makes its own: that of its parent ends with the parent.
    return _home_of(os.getpid())


@cache
def _home_of(pid: int) -> _Home:
    return _Home()


def _write(home: Path, uris: pa.ChunkedArray, files: pa.Table) -> str:
    """Write a list under the name of what it says: the same one is kept once."""
    digest = hashlib.sha256()
    draft = Path(mkdtemp(prefix="draft-", dir=home))
    log = draft / _LOG
    log.parent.mkdir()
    with log.open("wb") as out:
        for part in _lines(uris, files):
            digest.update(part)
            out.write(part)
    name = digest.hexdigest()
    try:
        draft.rename(home / name)
    except OSError:  # it is there already
        shutil.rmtree(draft)
    return name


def _lines(uris: pa.ChunkedArray, files: pa.Table) -> Iterator[bytes]:
    yield b"v1"
    listed = files.select(["size_bytes", "modification_time_ms"])
    for batch in listed.append_column("uri", uris).to_batches(_BATCH_ROWS):
        sizes, times, paths = (column.cast(pa.string()) for column in batch.columns)
        lines = pc.binary_join_element_wise(
            '\n{"path":"',
            paths,
            '","size":',
            sizes,
            ',"isDir":false,"modificationTime":',
            times,
            ',"blockReplication":1,"blockSize":134217728,"action":"add"}',
            "",
        )
        yield "".join(lines.to_pylist()).encode()


def _shared(place: str, folder: Path, storage_options: Mapping[str, str] | None) -> str:
    store = _store(canonical_location(place), tuple((storage_options or {}).items()))
    # Of this process alone, which removes it when it ends.
    name = f"{folder.parent.name}/{folder.name}"
    path = f"{name}/{_LOG}"
    if not store.exists(path):
        store.put_file(path, folder / _LOG)
        finalize(_home(), store.delete, path)
    return f"{spark_url(store.url)}/{name}"


@cache
def _store(url: str, storage_options: tuple[tuple[str, str], ...]) -> Store:
    """The store of shared lists, without those that nobody came to remove."""
    store = open_store(url, dict(storage_options))
    before_ms = (time.time() - _STALE_SECONDS) * 1000
    store.delete_many(
        found.path
        for found in list(store.list())
        if found.path.endswith(_LOG) and found.last_modified_ms < before_ms
    )
    return store
