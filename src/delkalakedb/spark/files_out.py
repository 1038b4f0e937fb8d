"""Rows of Spark as files of a table, before any version names them.

On a local disk Spark writes Parquet in a hidden folder, from which the files are
renamed to their places. On an object store there is no rename: each executor writes to
its own disk and uploads files under their last names.

Either way a task that runs twice adds nothing twice: only files of attempts that Spark
accepted count. What others left on a store is vacuum's.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import msgspec
import pyarrow.parquet as pq

from delkalakedb.errors import StorageError
from delkalakedb.model.actions import Add, Cdc, Metadata, Protocol
from delkalakedb.model.footers import file_stats
from delkalakedb.model.paths import Values, log_path
from delkalakedb.model.stats import measured_columns
from delkalakedb.spark.checking import violations_explained
from delkalakedb.spark.mapping import is_mapped, physical_columns, physical_schema
from delkalakedb.spark.partitions import places_of
from delkalakedb.spark.uploads import UPLOADED, Upload
from delkalakedb.storage import open_store
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.folder import private_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CHANGE_TYPE", "Changes", "Written", "write_changes", "write_files"]

_Options = Mapping[str, str] | None

_CHANGES = "_change_data"
_AT_ONCE = 8
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
CHANGE_TYPE = "_change_type"

_lock = Lock()
# Of each session: how many write now, and the setting before the first of them.
_settings: dict[int, tuple[int, str]] = {}


@dataclass(frozen=True)
class Written:
    """The files of a write: their adds, and their names below the location."""

    adds: list[Add]
    new_paths: list[str]


@dataclass(frozen=True)
class Changes:
    """The files of a version's change data feed, and their names."""

    cdc: list[Cdc]
    new_paths: list[str]


@dataclass(frozen=True)
class _File:
    path: str
    partition_values: Values
    size_bytes: int
    modified_ms: int
    stats: str


def write_files(
    df: "DataFrame",
    location: str,
    metadata: Metadata,
    protocol: Protocol,
    *,
    storage_options: _Options = None,
) -> Written:
    """Write rows as files of a table; where that fails, none of them stays.

    Args:
        df: the rows, in the columns and types of the table's schema.
        location: of the table.
        metadata: of the version that the files are for.
        protocol: of that version.
        storage_options: of the table's store; executors get them.
    """
    files = _Writing(df, location, metadata, storage_options).files()
    adds = [
        Add(
            path=log_path(file.path),
            partition_values=file.partition_values,
            size=file.size_bytes,
            modification_time=file.modified_ms,
            data_change=True,
            stats=file.stats,
        )
        for file in files
    ]
    return Written(adds, [file.path for file in files])


def write_changes(
    df: "DataFrame",
    location: str,
    metadata: Metadata,
    protocol: Protocol,
    *,
    storage_options: _Options = None,
) -> Changes:
    """Write changed rows for the change data feed.

    Args:
        df: the rows as for `write_files`, and a column `_change_type`.
        location: of the table.
        metadata: of the version that the changes are of.
        protocol: of that version.
        storage_options: of the table's store; executors get them.
    """
    files = _Writing(df, location, metadata, storage_options, _CHANGES).files()
    cdc = [
        Cdc(
            path=log_path(file.path),
            size=file.size_bytes,
            partition_values=file.partition_values,
            data_change=False,
        )
        for file in files
    ]
    return Changes(cdc, [file.path for file in files])


class _Writing:
    """One write; `below` is the folder that its files go to."""

    def __init__(
        self,
        df: "DataFrame",
        location: str,
        metadata: Metadata,
        storage_options: _Options,
        below: str = "",
    ) -> None:
        self._location, self._options = location, storage_options
        self._metadata = metadata
        self._places = places_of(metadata, below)
        self._measured = [] if below else measured_columns(metadata)
        self._session = df.sparkSession
        columns = physical_columns(df.columns, metadata)
        self._rows = df.select(*self._places.texts(), *columns)

    def files(self) -> list[_File]:
        """Write them."""
        parts = urlsplit(self._location)
        with violations_explained():
            if parts.scheme == "file":
                return self._rename(Path(unquote(parts.path)))
            return self._upload()

    def _rename(self, root: Path) -> list[_File]:
        with private_folder(table_files(self._location).ensure_work()) as folder:
            out = folder / "out"
            with _timestamps_in_micros(self._session):
                writer = self._rows.write.partitionBy(*self._places.text_names)
                # Not as a URL: Spark takes percent signs for what they are.
                writer.parquet(f"file:{out}")
            paths = [path for path in out.rglob("part-*") if path.is_file()]
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                files = list(pool.map(partial(self._describe, out), paths, count()))
            described = zip(paths, files, strict=True)
            moves = [(path, file) for path, file in described if file]
            _move(moves, root)
        return [file for _, file in moves]

    def _describe(self, out: Path, path: Path, number: int) -> _File | None:
        footer = pq.read_metadata(path)
        if not footer.num_rows:
            return None
        folders = path.relative_to(out).parts[:-1]
        texts = [folder.partition("=")[2] for folder in folders]
        # A name of its own: several of Spark's folders may become one of the table's.
        name = re.sub(r"^part-\d+", f"part-{number:05d}", path.name)
        final, values = self._places.place(name, texts)
        stat, stats = path.stat(), file_stats(footer, self._measured)
        modified_ms = stat.st_mtime_ns // 1_000_000
        return _File(final, values, stat.st_size, modified_ms, stats)

    def _upload(self) -> list[_File]:
        schema = physical_schema(self._metadata) if is_mapped(self._metadata) else None
        options = dict(self._options or {})
        write_id = str(uuid4())
        upload = Upload(
            self._location, options, self._places, self._measured, schema, write_id
        )
        rows = self._rows
        if names := self._places.text_names:
            rows = rows.sortWithinPartitions(*names)
        try:
            found = rows.mapInArrow(upload, UPLOADED).collect()
        except BaseException:
            self._discard(write_id)
            raise
        return [_uploaded(*row) for row in found]

    def _discard(self, write_id: str) -> None:
        """Remove what tasks uploaded that ended before another one failed."""
        with suppress(StorageError):
            store = open_store(self._location, self._options)
            files = store.list(self._places.below)
            store.delete_many(file.path for file in files if write_id in file.path)


def _uploaded(
    path: str, values: str, size_bytes: int, modified_ms: int, stats: str
) -> _File:
    return _File(path, msgspec.json.decode(values), size_bytes, modified_ms, stats)


def _move(moves: Sequence[tuple[Path, _File]], root: Path) -> None:
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
def _timestamps_in_micros(session: "SparkSession") -> Iterator[None]:
    """Spark's own default has no statistics, and is deprecated in Parquet.

    It is the session's setting, and several threads may write: the last one to leave
    puts it back.
    """
    key = id(session)
    with _lock:
        writers, before = _settings.get(key) or (0, session.conf.get(_TIMESTAMPS) or "")
        session.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
        _settings[key] = (writers + 1, before)
    try:
        yield
    finally:
        with _lock:
            writers, before = _settings.pop(key)
            if writers > 1:
                _settings[key] = (writers - 1, before)
            else:
                session.conf.set(_TIMESTAMPS, before)
