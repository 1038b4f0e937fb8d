"""Tables as sources of Spark streams."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.read import LoggedCommit
from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Remove
from delkalakedb.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    need,
)
from delkalakedb.spark.reader import (
    READ_OPTIONS,
    FilesPartition,
    SourceOptions,
    check_recorded,
    table_reader,
    tasks_of,
    version_since,
)
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.write.engines import (
    FILE_COLUMNS,
    DataFile,
    data_file,
    data_files,
    feed_files,
)

# files; Delta Spark's default
_MAX_FILES = 1000
_UNLIMITED = 2**62
# oldest files first
_ORDER = [("modification_time_ms", "ascending"), ("path", "ascending")]
_NOT_OF_STREAMS = (
    "versionAsOf",
    "timestampAsOf",
    "endingVersion",
    "endingTimestamp",
    "where",
)


@dataclass(frozen=True)
class Offset:
    """The position of a stream: the next file to read, by version and index.

    With `snapshot`, the index counts all files of the version, otherwise only the files
    that the version added.
    """

    version: int
    index: int = 0
    snapshot: bool = False


_Step = tuple[Offset, list[DataFile]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the files that each version adds or, of a feed, changes, in order.

    A new query starts with all files of the latest version, unless it has the option
    startingVersion or startingTimestamp.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, version: int | None
    ) -> None:
        self._options = SourceOptions(dict(options), READ_OPTIONS)
        for name in _NOT_OF_STREAMS:
            if self._options.get(name) is not None:
                raise DeltaError(f"a stream takes no {name}; use startingVersion")
        for name in ("maxFilesPerTrigger", "maxBytesPerTrigger"):
            if self._options.get(name) is not None:
                reads_all = "without it, a batch reads all new files"
                need(ReadMaxFiles, f"option {name}", reads_all)
        self._names = schema.names
        self._changes = self._options.changes
        self._max_bytes = self._options.size_bytes("maxBytesPerTrigger")
        with self._options.snapshot(version) as snapshot:
            self._schema_version = snapshot.version
            self._schema = spark_schema(snapshot.metadata)
            self._reader = table_reader(
                snapshot,
                schema,
                None,
                self._options.storage_options,
                changes=self._changes,
            )
        self._last: int | None = None

    # The method names are pyspark's.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which a new query starts."""
        options = self._options
        options.either("startingVersion", "startingTimestamp")
        with options.opened() as (catalog, name):
            newest = catalog.snapshot(name)
            if (options.get("startingVersion") or "").lower() == "latest":
                return asdict(Offset(newest.version + 1))
            since = options.since
            if isinstance(since, datetime):
                since = version_since(catalog, newest, since)
            elif since is not None and since > newest.version:
                catalog.snapshot(name, since)  # raises VersionNotFoundError
        if since is None:
            return asdict(Offset(newest.version, snapshot=True))
        return asdict(Offset(since))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the number of files in a batch."""
        most = self._options.number("maxFilesPerTrigger")
        if most == 0:
            raise DeltaError("option maxFilesPerTrigger must be at least 1")
        # Spark has no limit by files and bytes, so latestOffset() heeds the bytes.
        if most is None and self._max_bytes is not None:
            return ReadMaxBytes(self._max_bytes)
        return ReadMaxFiles(most or _MAX_FILES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Set the latest version as the end of the stream."""
        self._last = self._newest()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return the offset at which the next batch ends.

        pyspark 4.0 and 4.1 give no arguments, and a batch then ends at the newest file.
        """
        if start is None:
            first = Offset(**self.initialOffset())
            return asdict(Offset(max(first.version, self._newest() + 1)))
        if not isinstance(limit, ReadMaxFiles | ReadMaxBytes | ReadAllAvailable):
            raise DeltaError(f"a stream can't limit batches by {limit}")
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else _UNLIMITED
        bytes_ = self._max_bytes or _UNLIMITED
        if isinstance(limit, ReadAllAvailable):
            bytes_ = _UNLIMITED
        end = Offset(**start)
        with self._options.opened() as (catalog, name):
            last = catalog.snapshot(name).version if self._last is None else self._last
            for step, files in self._steps(catalog, name, end, last):
                end = step
                most -= len(files)
                bytes_ -= sum(file.size_bytes for file in files)
                if most <= 0 or bytes_ <= 0:
                    break
        return asdict(end)

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the files between two offsets, grouped by task."""
        first, last = Offset(**start), Offset(**end)
        if first == last:
            return []
        with self._options.opened() as (catalog, name):
            files: list[DataFile] = []
            for step, found in self._steps(catalog, name, first, last.version):
                files += found
                if step == last:
                    break
        return tasks_of(files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files."""
        assert isinstance(partition, FilesPartition)
        for batch in self._reader.read(partition.files):
            yield batch.select(self._names)

    def _newest(self) -> int:
        with self._options.opened() as (catalog, name):
            return catalog.snapshot(name).version

    def _steps(
        self, catalog: Catalog, name: str, start: Offset, last: int
    ) -> Iterator[_Step]:
        """Yield each group of files of a batch, with the offset after the group.

        A version without more files ends with an empty group.
        """
        at = start
        if at.snapshot and at.version <= last:
            files = self._snapshot_files(catalog, name, at.version)
            yield from _split(at, [[file] for file in files])
            at = Offset(at.version + 1)
        at = self._kept(catalog, name, at)
        for commit in catalog.log(name).commits(at.version, last):
            yield from _split(at, self._files(catalog, name, commit))
            at = Offset(at.version + 1)

    def _kept(self, catalog: Catalog, name: str, at: Offset) -> Offset:
        """Return `at`, or the offset of the first commit that is kept."""
        first = catalog.log(name).head().first_version
        lost = 0 < first >= at.version
        if lost and not self._options.flag("failOnDataLoss", "true"):
            return Offset(first + 1)
        if lost:
            raise VersionNotFoundError(
                f"{name}: the changes of version {at.version} aren't kept any more; "
                f"start a new query, or set failOnDataLoss to false to go on with "
                f"version {first + 1}"
            )
        return at

    def _files(
        self, catalog: Catalog, name: str, commit: LoggedCommit
    ) -> list[list[DataFile]]:
        """Return the files to read of a commit, in groups that belong in one batch."""
        version = commit.head.version
        self._check_schema(name, version, commit.actions)
        if not self._changes:
            return [[file] for file in self._added(name, version, commit.actions)]
        check_recorded(name, commit.head.metadata, version, version, version)
        files = feed_files(catalog, name, commit)
        # Both images of an updated row belong in one batch.
        whole = all(file.change_type and not file.only_rows for file in files)
        return [[file] for file in files] if whole else [files]

    def _added(
        self, name: str, version: int, actions: Sequence[Action]
    ) -> list[DataFile]:
        adds = [a for a in actions if isinstance(a, Add) and a.data_change]
        if any(isinstance(a, Remove) and a.data_change for a in actions):
            if self._options.flag("skipChangeCommits"):
                return []
            changes = self._options.flag("ignoreChanges")
            deletes = changes or self._options.flag("ignoreDeletes")
            if not (changes if adds else deletes):
                raise _changed(name, version, actions, bool(adds))
        return sorted(map(data_file, adds), key=lambda file: file.path)

    def _snapshot_files(
        self, catalog: Catalog, name: str, version: int
    ) -> list[DataFile]:
        columns = [*FILE_COLUMNS, _ORDER[0][0]]
        snapshot = catalog.snapshot(name, version)
        files = data_files(snapshot.files(columns=columns).read_all().sort_by(_ORDER))
        if not self._changes:
            return files
        check_recorded(name, snapshot.metadata, version, version, version)
        commit = {"commit_version": version, "commit_ms": snapshot.table.timestamp_ms}
        return [
            replace(file, change_type="insert", **commit)  # type: ignore[arg-type]
            for file in files
        ]

    def _check_schema(self, name: str, version: int, actions: Sequence[Action]) -> None:
        """Raise `DeltaError` if `version` changed the schema of the query."""
        for action in actions:
            if (
                isinstance(action, Metadata)
                and version > self._schema_version
                and spark_schema(action) != self._schema
            ):
                raise DeltaError(
                    f"{name}: version {version} changed the schema; restart the query "
                    "to read with the new schema"
                )


def _split(at: Offset, groups: Sequence[list[DataFile]]) -> Iterator[_Step]:
    """Yield the groups of a version's files from `at` on, with the offsets after."""
    behind = Offset(at.version + 1)
    for index, files in islice(enumerate(groups, 1), at.index, None):
        yield replace(at, index=index) if index < len(groups) else behind, files
    if at.index >= len(groups):
        yield behind, []


def _changed(
    name: str, version: int, actions: Sequence[Action], updated: bool
) -> DeltaError:
    infos = (a.fields.get("operation") for a in actions if isinstance(a, CommitInfo))
    operation = next(infos, None) or "a commit"
    options = "skipChangeCommits to skip such versions"
    if updated:
        options += ", ignoreChanges to read all rows of rewritten files again"
    else:
        options = f"ignoreDeletes or {options}"
    return DeltaError(
        f"{name}: version {version} ({operation}) removed rows that the stream has "
        f"read; set {options}, or start a new query, maybe with readChangeFeed"
    )
