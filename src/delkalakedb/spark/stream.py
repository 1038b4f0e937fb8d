"""Tables as sources of Spark streams."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Remove
from delkalakedb.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
    need,
)
from delkalakedb.spark.reader import (
    FILE_COLUMNS,
    READ_OPTIONS,
    DataFile,
    FilesPartition,
    SourceOptions,
    data_file,
    data_files,
    table_reader,
    tasks_of,
)
from delkalakedb.spark.schemas import spark_schema

# files; Delta Spark's default
_MAX_FILES = 1000
# oldest files first
_ORDER = [("modification_time_ms", "ascending"), ("path", "ascending")]
_NOT_OF_STREAMS = ("versionAsOf", "timestampAsOf", "where")


@dataclass(frozen=True)
class Offset:
    """The position of a stream: the next file to read, by version and index.

    With `snapshot`, the index counts all files of the version, otherwise only the files
    that the version added.
    """

    version: int
    index: int = 0
    snapshot: bool = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of the files that each version adds, in order.

    A new query starts with all files of the latest version, unless it has the option
    startingVersion.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, version: int | None
    ) -> None:
        self._options = SourceOptions(dict(options), READ_OPTIONS)
        for name in _NOT_OF_STREAMS:
            if self._options.get(name) is not None:
                raise DeltaError(f"a stream takes no {name}; use startingVersion")
        if self._options.get("maxFilesPerTrigger") is not None:
            need(
                ReadMaxFiles,
                "option maxFilesPerTrigger",
                "without it, a batch reads all new files",
            )
        self._names = schema.names
        with self._options.snapshot(version) as snapshot:
            self._schema_version = snapshot.version
            self._schema = spark_schema(snapshot.metadata)
            self._reader = table_reader(
                snapshot, schema, None, self._options.storage_options
            )
        self._last: int | None = None

    # The method names are pyspark's.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset at which a new query starts."""
        start = self._options.get("startingVersion")
        if start is not None and start != "latest":
            return asdict(Offset(self._options.number("startingVersion") or 0))
        newest = self._newest()
        offset = Offset(newest + 1) if start else Offset(newest, snapshot=True)
        return asdict(offset)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the number of files in a batch."""
        most = self._options.number("maxFilesPerTrigger")
        if most == 0:
            raise DeltaError("option maxFilesPerTrigger must be at least 1")
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
        if not isinstance(limit, ReadMaxFiles | ReadAllAvailable):
            raise DeltaError(f"a stream can't limit batches by {limit}")
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        end = Offset(**start)
        with self._options.opened() as (catalog, name):
            last = catalog.snapshot(name).version if self._last is None else self._last
            steps = self._steps(catalog, name, end, last)
            for step, file in steps:
                end = step
                if file is not None and most is not None and (most := most - 1) == 0:
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
            files = []
            for step, file in self._steps(catalog, name, first, last.version):
                if file is not None:
                    files.append(file)
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
    ) -> Iterator[tuple[Offset, DataFile | None]]:
        """Yield each file, or None at a version's end, with the offset after it."""
        at = start
        while at.version <= last:
            files = (
                _snapshot_files(catalog, name, at.version)
                if at.snapshot
                else self._added(catalog, name, at.version)
            )
            behind = Offset(at.version + 1)
            for index, file in islice(enumerate(files, 1), at.index, None):
                more = index < len(files)
                yield replace(at, index=index) if more else behind, file
            if at.index >= len(files):
                yield behind, None
            at = behind

    def _added(self, catalog: Catalog, name: str, version: int) -> list[DataFile]:
        actions = catalog.log(name).commit(version)
        self._check_schema(name, version, actions)
        adds = [a for a in actions if isinstance(a, Add) and a.data_change]
        if any(isinstance(a, Remove) and a.data_change for a in actions):
            if self._options.flag("skipChangeCommits"):
                return []
            if adds or not self._options.flag("ignoreDeletes"):
                raise _changed(name, version, actions, bool(adds))
        return sorted(map(data_file, adds), key=lambda file: file.path)

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


def _snapshot_files(catalog: Catalog, name: str, version: int) -> list[DataFile]:
    columns = [*FILE_COLUMNS, _ORDER[0][0]]
    files = catalog.snapshot(name, version).files(columns=columns).read_all()
    return data_files(files.sort_by(_ORDER))


def _changed(
    name: str, version: int, actions: Sequence[Action], updated: bool
) -> DeltaError:
    infos = (a.fields.get("operation") for a in actions if isinstance(a, CommitInfo))
    operation = next(infos, None) or "a commit"
    options = "skipChangeCommits to skip such versions"
    if not updated:
        options = f"ignoreDeletes or {options}"
    return DeltaError(
        f"{name}: version {version} ({operation}) removed rows that the stream has "
        f"read; set {options}, or start a new query"
    )
