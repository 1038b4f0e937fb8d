"""Write DataFrames as data files, and make the commit that adds those files."""

import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, Self, TypeVar
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from delkalakedb.catalog.engine import CLIENT
from delkalakedb.clock import now_ms
from delkalakedb.errors import StorageError
from delkalakedb.model.actions import Add, Cdc, CommitInfo, Metadata, known
from delkalakedb.model.changes import CHANGE_TYPE as CHANGE_TYPE
from delkalakedb.model.new_actions import (
    NewFile,
    changed_state,
    new_commit_info,
    removed,
)
from delkalakedb.model.rules.protocol import check_writable
from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.footer import columns_with_nan, file_stats
from delkalakedb.model.stats.stats import measured_columns, parse_stats
from delkalakedb.settings import VectorSettings
from delkalakedb.spark.reader import Target
from delkalakedb.spark.schemas import (
    file_schema,
    is_mapped,
    physical_columns,
    physical_schema,
)
from delkalakedb.spark.writer.checks import violations_explained
from delkalakedb.spark.writer.evolution import evolved_protocol
from delkalakedb.spark.writer.file_options import FileOptions
from delkalakedb.spark.writer.placement import Places, places_of
from delkalakedb.storage import local_folder, open_store
from delkalakedb.write import private_folder, table_files
from delkalakedb.write.engines import FoundRows, Marking, Work, marking

T = TypeVar("T")
_CHANGES = "_change_data"

# the rows that tasks of `Upload` return, one for each file
_UPLOADED = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size", pa.int64()),
        ("modified_ms", pa.int64()),
        ("stats", pa.string()),
    ]
)
# bytes in memory; the default row group of Hadoop's Parquet writer
_GROUP_BYTES = 128 * 1024 * 1024
_Run = tuple[tuple[str, ...], pa.RecordBatch]


@dataclass(frozen=True)
class Upload:
    """The function that writes the rows of one task, sorted by partition, to a store.

    Args:
        location: the table's location.
        options: the options of the table's object store.
        places: the places of the table's files.
        measured: the columns that get statistics.
        physical: the schema with the field ids of column mapping, if the table has any.
        write_id: a text that is part of the names of all files.
        files: the sizes and the compression of files.
    """

    location: str
    options: Mapping[str, str] = field(repr=False)
    places: Places
    measured: Sequence[Column]
    physical: StructType | None
    write_id: str
    files: FileOptions = field(default_factory=FileOptions)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write `batches` as data files, and yield one row of `_UPLOADED` a file."""
        store = open_store(self.location, self.options)
        attempt, rows = uuid4().hex[:8], list[dict[str, Any]]()
        try:
            with TemporaryDirectory(prefix="delkalakedb-", dir=_scratch()) as folder:
                for texts, runs in groupby(self._runs(batches), itemgetter(0)):
                    for local, stats in self._written(
                        (batch for _, batch in runs), Path(folder)
                    ):
                        number = f"{len(rows):05d}"
                        name = f"part-{number}-{self.write_id}-{attempt}.parquet"
                        path, values = self.places.place(name, texts)
                        row = {
                            "path": path,
                            "partition_values": msgspec.json.encode(values).decode(),
                            "size": local.stat().st_size,
                            "modified_ms": now_ms(),
                            "stats": stats,
                        }
                        rows.append(row)
                        store.put_file(path, local)
                        local.unlink()
        except BaseException:
            # Spark retries the task, which then writes files with other names.
            with suppress(StorageError):
                store.delete_many(row["path"] for row in rows)
            raise
        yield pa.RecordBatch.from_pylist(rows, _UPLOADED)

    def _runs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Run]:
        """Split `batches` into runs of rows in one partition."""
        count = len(self.places.columns)
        for batch in batches:
            if not batch.num_rows:
                continue
            texts = batch.columns[:count]
            rest = batch.select(batch.schema.names[count:])
            starts = [0, *_changes(texts), batch.num_rows]
            for start, end in pairwise(starts):
                key = tuple(str(column[start]) for column in texts)
                yield key, rest.slice(start, end - start)

    def _written(
        self, batches: Iterable[pa.RecordBatch], folder: Path
    ) -> Iterator[tuple[Path, str]]:
        """Write the rows of one partition, and yield each file with its statistics."""
        file: _OpenFile | None = None
        for table in grouped(batches, self.files.group_bytes(_GROUP_BYTES)):
            rows = table.cast(file_schema(table.schema, self.physical))
            while rows.num_rows:
                if file is None:
                    codec = self.files.codec
                    file = _OpenFile(folder / uuid4().hex, rows.schema, codec)
                part = rows.slice(0, self.files.room(file.num_rows, rows))
                file.write(part, columns_with_nan(part, self.measured))
                rows = rows.slice(part.num_rows)
                if self.files.is_full(file.num_rows, file.size_bytes):
                    yield file.path, file.close(self.measured)
                    file = None
        if file is not None:
            yield file.path, file.close(self.measured)


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, path: Path, schema: pa.Schema, codec: str) -> None:
        self.path = path
        self.num_rows = 0
        self._with_nan: set[tuple[str, ...]] = set()
        self._writer = pq.ParquetWriter(
            path, schema, store_schema=False, compression=codec
        )

    @property
    def size_bytes(self) -> int:
        """The size of the file so far."""
        return self.path.stat().st_size

    def write(self, rows: pa.Table, with_nan: Iterable[tuple[str, ...]]) -> None:
        """Append `rows`, whose columns `with_nan` have NaNs."""
        self._writer.write_table(rows)
        self._with_nan.update(with_nan)
        self.num_rows += rows.num_rows

    def close(self, measured: Sequence[Column]) -> str:
        """Complete the file, and return the statistics of the columns `measured`."""
        self._writer.close()
        return file_stats(pq.read_metadata(self.path), measured, self._with_nan)


def new_file(
    path: str, partition_values: str, size: int, modified_ms: int, stats: str
) -> NewFile:
    """Return the file that a row of `_UPLOADED` describes."""
    values = msgspec.json.decode(partition_values)
    return NewFile(path, values, size, modified_ms, stats)


def _scratch() -> str | None:
    """Return a local folder of the executor, which Spark cleans after a killed task."""
    found = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next(filter(os.path.isdir, found), None)


def _changes(texts: Sequence[pa.Array]) -> list[int]:
    """Return the indexes of rows that are in another partition than the row before."""
    found: set[int] = set()
    for column in texts:
        differs = pc.not_equal(column[1:], column[:-1])
        found.update(i + 1 for i in pc.indices_nonzero(differs).to_pylist())
    return sorted(found)


def grouped(
    batches: Iterable[pa.RecordBatch], least_bytes: int = _GROUP_BYTES
) -> Iterator[pa.Table]:
    """Join `batches` to tables of at least `least_bytes`, except the last table."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= least_bytes:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


# footers that are read concurrently
_READERS = 8
_SETTINGS = {
    # Spark's default, INT96, has no statistics and is deprecated in Parquet.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Delta's calendar; before 4.0, Spark's default refuses dates before 1582.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}

_lock = Lock()
# by session id: the number of current writers, and the settings before the first one
_settings: dict[int, tuple[int, dict[str, str]]] = {}


def write_files(
    df: DataFrame,
    location: str,
    metadata: Metadata,
    storage_options: Mapping[str, str] | None = None,
    *,
    below: str = "",
    files: FileOptions | None = None,
) -> list[NewFile]:
    """Write rows as data files that no version refers to yet.

    If a file can't be written, the other new files are deleted.

    Args:
        df: the rows, in the columns and types of the table's schema.
        location: the table's location.
        metadata: the metadata of the version that the files are for.
        storage_options: the options of the table's object store, which executors get.
        below: the folder for all files; its files get no statistics.
        files: the sizes and the compression of files.
    """
    files = files or FileOptions()
    places = places_of(metadata, below)
    measured = [] if below else measured_columns(metadata)
    rows = df.select(*places.texts(), *physical_columns(df.columns, metadata))
    with violations_explained():
        # Spark's writer ends no file by its size.
        root = local_folder(location)
        if root is not None and files.target_bytes is None:
            return _write_and_rename(rows, Path(root), places, measured, files)
        schema = physical_schema(metadata) if is_mapped(metadata) else None
        options, write_id = dict(storage_options or {}), str(uuid4())
        files = files.completed(df.sparkSession, metadata)
        upload = Upload(location, options, places, measured, schema, write_id, files)
        return _upload(rows, upload)


def _write_and_rename(
    rows: DataFrame,
    root: Path,
    places: Places,
    measured: Sequence[Column],
    options: FileOptions,
) -> list[NewFile]:
    """Have Spark write `rows` to a private folder, and move the files to `root`."""
    with private_folder(table_files(str(root)).ensure_work()) as folder:
        out = folder / "out"
        with _as_delta_wants(rows.sparkSession):
            writer = rows.write.partitionBy(*places.text_names)
            writer = writer.options(**options.of_spark)
            # not as a URL, because Spark doesn't decode percent signs in a path
            writer.parquet(f"file:{out}")
        paths = [path for path in out.rglob("part-*") if path.is_file()]
        describe = partial(_describe, places, measured, out)
        with ThreadPoolExecutor(_READERS) as pool:
            files = list(pool.map(describe, paths, count()))
        described = zip(paths, files, strict=True)
        moves = [(path, file) for path, file in described if file]
        _move(moves, root)
    return [file for _, file in moves]


def _describe(
    places: Places, measured: Sequence[Column], out: Path, path: Path, number: int
) -> NewFile | None:
    footer = pq.read_metadata(path)
    if not footer.num_rows:
        return None
    folders = path.relative_to(out).parts[:-1]
    texts = [unquote(folder.partition("=")[2]) for folder in folders]
    # numbered, because several of Spark's folders may map to one of the table's
    name = re.sub(r"^part-\d+", f"part-{number:05d}", path.name)
    final, values = places.place(name, texts)
    stat, stats = path.stat(), file_stats(footer, measured)
    return NewFile(final, values, stat.st_size, stat.st_mtime_ns // 1_000_000, stats)


def _upload(rows: DataFrame, upload: Upload) -> list[NewFile]:
    """Have executors write `rows` to the object store."""
    if names := upload.places.text_names:
        rows = rows.sortWithinPartitions(*names)
    try:
        found = rows.mapInArrow(upload, from_arrow_schema(_UPLOADED)).collect()
    except BaseException:
        # Tasks that succeeded before another task failed have left files.
        with suppress(StorageError):
            store = open_store(upload.location, upload.options)
            paths = (file.path for file in store.list(upload.places.below))
            store.delete_many(path for path in paths if upload.write_id in path)
        raise
    return [new_file(**row.asDict()) for row in found]


def _move(moves: Sequence[tuple[Path, NewFile]], root: Path) -> None:
    try:
        for path, file in moves:
            target = root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(path, target)
    except OSError:
        for _, file in moves:
            with suppress(OSError):
                (root / file.path).unlink(missing_ok=True)
        raise


@contextmanager
def _as_delta_wants(session: SparkSession) -> Iterator[None]:
    """Have Spark write dates and timestamps as Delta wants them.

    The settings belong to the session, so the last of several concurrent writers
    restores them.
    """
    key = id(session)
    with _lock:
        found = _settings.get(key)
        writers, before = found or (
            0,
            {k: session.conf.get(k) or "" for k in _SETTINGS},
        )
        _set(session, _SETTINGS)
        _settings[key] = (writers + 1, before)
    try:
        yield
    finally:
        with _lock:
            writers, before = _settings.pop(key)
            if writers > 1:
                _settings[key] = (writers - 1, before)
            else:
                _set(session, before)


def _set(session: SparkSession, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        session.conf.set(key, value)


class Output:
    """The new files of one operation, which are deleted if the operation fails.

    Args:
        target: the version of the table that the operation replaces.
        metadata: the metadata of the new version, if it differs from the target's.
        features: features that the new version's protocol must support.
        files: the sizes and the compression of the new files.
    """

    def __init__(
        self,
        target: Target,
        metadata: Metadata | None = None,
        features: Collection[str] = (),
        files: FileOptions | None = None,
    ) -> None:
        self._files = files
        self._target = target
        self._metadata = metadata or target.metadata
        before = target.snapshot.protocol
        evolves = metadata is not None or features
        self._protocol = (
            evolved_protocol(before, self._metadata, features) if evolves else before
        )
        self.adds: list[Add] = []
        self.cdc: list[Cdc] = []
        self.new_paths: list[str] = []
        self._marks: Marking | None = None

    def __enter__(self) -> Self:
        check_writable(self._protocol, self._metadata)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None and self.new_paths:
            target = self._target
            location = target.snapshot.table.location
            table_files(location, target.storage_options).discard(self.new_paths)

    def own(self, paths: Iterable[str]) -> None:
        """Take over new files that another operation has written for this one."""
        self.new_paths += paths

    def commit_metadata(self, metadata: Metadata) -> None:
        """Commit `metadata`, which requires nothing else of the files."""
        self._metadata = metadata

    def write(self, rows: DataFrame) -> None:
        """Write `rows` as data files of the table."""
        self.adds += [file.add() for file in self._write(rows)]

    def write_changes(self, rows: DataFrame) -> None:
        """Write `rows`, each with its `_change_type`, for the change data feed."""
        self.cdc += [file.cdc() for file in self._write(rows, below=_CHANGES)]

    def _write(self, rows: DataFrame, below: str = "") -> list[NewFile]:
        location = self._target.snapshot.table.location
        options = self._target.storage_options
        files = write_files(
            rows, location, self._metadata, options, below=below, files=self._files
        )
        self.new_paths += [file.path for file in files]
        return files

    def mark(self, found: Sequence[FoundRows], settings: VectorSettings) -> None:
        """Mark the rows `found` as deleted, in deletion vectors of their files."""
        marks = marking(found, settings)
        target = self._target
        location = target.snapshot.table.location
        table_files(location, target.storage_options).put(marks.file)
        self.new_paths += marks.file
        self._marks = marks

    @property
    def num_rows(self) -> int:
        """The number of rows in the new data files."""
        return output_metrics(self.adds)["numOutputRows"]

    @property
    def size_bytes(self) -> int:
        """The size of the new data files in bytes."""
        return sum(add.size for add in self.adds)

    def work(
        self,
        result: T,
        info: CommitInfo,
        gone: Iterable[Add] = (),
        *,
        rearranged: bool = False,
    ) -> Work[T]:
        """Return the commit that adds the new files and removes the files `gone`.

        The commit also deletes the rows that were marked.
        With `rearranged`, the commit says that it changes no data.
        """
        removed_ms, before, marks = now_ms(), self._target.snapshot, self._marks
        files: list[Any] = [] if marks is None else marks.actions()
        files += [*(removed(add, removed_ms) for add in gone), *self.adds]
        if rearranged:
            files = [msgspec.structs.replace(a, data_change=False) for a in files]
        changed = changed_state(
            (before.protocol, before.metadata), (self._protocol, self._metadata)
        )
        actions = [info, *changed, *files, *self.cdc]
        rows_only = marks is not None
        return Work(result, [actions], self.new_paths, rows_only=rows_only)


@dataclass
class Timer:
    """The times of an operation's phases, in milliseconds."""

    start: float = field(default_factory=time.monotonic)
    scan_ms: int = 0

    def scanned(self) -> None:
        """Note the end of the scan for files to replace."""
        self.scan_ms = self._passed_ms

    def metrics(self) -> dict[str, int]:
        """Return the times under Delta's names."""
        passed_ms = self._passed_ms
        return {
            "executionTimeMs": passed_ms,
            "scanTimeMs": self.scan_ms,
            "rewriteTimeMs": passed_ms - self.scan_ms,
        }

    @property
    def _passed_ms(self) -> int:
        return int((time.monotonic() - self.start) * 1000)


def output_metrics(adds: Sequence[Add]) -> dict[str, int]:
    """Return the metrics that Delta has for the files of a write."""
    stats = (parse_stats(known(add.stats)) for add in adds)
    return {
        "numFiles": len(adds),
        "numOutputRows": sum(each.num_records or 0 for each in stats if each),
        "numOutputBytes": sum(add.size for add in adds),
    }


def commit_info(
    operation: str, parameters: Mapping[str, Any], metrics: Mapping[str, int]
) -> CommitInfo:
    """Return a commitInfo with the metrics as texts, as Delta Spark writes them."""
    texts = {name: str(number) for name, number in metrics.items()}
    return new_commit_info(operation, parameters, texts, engine_info=CLIENT)
