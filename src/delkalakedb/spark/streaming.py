"""Tables as sources of Spark's streams, and as what `foreachBatch` writes to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Remove
from delkalakedb.spark.arrow_files import (
    FILE_COLUMNS,
    DataFile,
    data_file,
    data_files,
)
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.spark.session import is_connect
from delkalakedb.spark.source import (
    READ_OPTIONS,
    FilesPartition,
    SourceOptions,
    partitions_of,
    table_reader,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["StreamReader", "foreach_batch"]

# Delta's.
_MAX_FILES = 1000
# Oldest rows first, as far as files tell.
_ORDER = [("modification_time_ms", "ascending"), ("path", "ascending")]
_NOT_OF_STREAMS = ("versionAsOf", "timestampAsOf", "where")


def foreach_batch(
    uri: str, *, app_id: str | None = None, **options: Any
) -> Callable[["DataFrame", int], None]:
    """What `writeStream.foreachBatch` takes to write each batch to a table, once.

    Args:
        uri: the table's `deltasql://` URI; the first batch creates it.
        app_id: what the batches' numbers belong to; the query's id by default. A
            query with a new checkpoint needs a new one.
        options: of `write`, such as `mode`, `partition_by` or `merge_schema`.
    """

    def write_batch(rows: "DataFrame", batch_id: int) -> None:
        from delkalakedb.spark.writing import write

        write(rows, uri, txn=(app_id or _query_id(rows), batch_id), **options)

    return write_batch


def _query_id(rows: "DataFrame") -> str:
    spark = rows.sparkSession
    found = None
    if not is_connect(spark):
        found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise DeltaError("Spark doesn't say which query this is; give an app_id")
    return found


@dataclass(frozen=True)
class Offset:
    """How far a stream has read: before a version's file of this number.

    With `snapshot` the files are all that the version has, else those that it added.
    """

    version: int
    index: int = 0
    snapshot: bool = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what each version adds, in order; a new query may start with all it has."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, version: int | None
    ) -> None:
        self._options = SourceOptions(dict(options), READ_OPTIONS)
        for name in _NOT_OF_STREAMS:
            if self._options.get(name) is not None:
                raise DeltaError(f"a stream takes no {name}; it has startingVersion")
        self._names = schema.names
        with self._options.snapshot(version) as snapshot:
            self._schema_version = snapshot.version
            self._schema = spark_schema(snapshot.metadata)
            self._reader = table_reader(
                snapshot, schema, None, self._options.storage_options
            )
        self._last: int | None = None

    # pyspark's names.
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts: the whole newest version, or a version's adds."""
        start = self._options.get("startingVersion")
        if start is not None and start != "latest":
            return asdict(Offset(self._options.number("startingVersion") or 0))
        newest = self._newest()
        offset = Offset(newest + 1) if start else Offset(newest, snapshot=True)
        return asdict(offset)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many files a batch has."""
        most = self._options.number("maxFilesPerTrigger")
        if most == 0:
            raise DeltaError("option maxFilesPerTrigger is at least 1")
        return ReadMaxFiles(most or _MAX_FILES)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the version that is the newest now."""
        self._last = self._newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        if not isinstance(limit, ReadMaxFiles | ReadAllAvailable):
            raise DeltaError(f"a stream of a table can't limit batches by {limit}")
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
        """The files between two offsets, some for each task."""
        first, last = Offset(**start), Offset(**end)
        if first == last:
            return []
        with self._options.opened() as (catalog, name):
            steps = self._steps(catalog, name, first, last.version)
            files = [file for step, file in _until(steps, last) if file is not None]
        return partitions_of(files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files."""
        assert isinstance(partition, FilesPartition)
        for batch in self._reader.read(partition.files):
            yield batch.select(self._names)

    def _newest(self) -> int:
        with self._options.opened() as (catalog, name):
            return catalog.snapshot(name).version

    def _steps(
        self, catalog: Catalog, name: str, start: Offset, last: int
    ) -> Iterator[tuple[Offset, DataFile | None]]:
        """Each file from an offset on, or a version's end, and the offset behind it."""
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
        """Versions up to the schema's own are read as that one has them."""
        for action in actions:
            if (
                isinstance(action, Metadata)
                and version > self._schema_version
                and spark_schema(action) != self._schema
            ):
                raise DeltaError(
                    f"{name}: version {version} changed the schema; start the query "
                    "again to read on with it"
                )


def _snapshot_files(catalog: Catalog, name: str, version: int) -> list[DataFile]:
    columns = [*FILE_COLUMNS, _ORDER[0][0]]
    files = catalog.snapshot(name, version).files(columns=columns).read_all()
    return data_files(files.sort_by(_ORDER))


def _until(
    steps: Iterator[tuple[Offset, DataFile | None]], end: Offset
) -> Iterator[tuple[Offset, DataFile | None]]:
    for step in steps:
        yield step
        if step[0] == end:
            return


def _changed(
    name: str, version: int, actions: Sequence[Action], updated: bool
) -> DeltaError:
    infos = (a.fields.get("operation") for a in actions if isinstance(a, CommitInfo))
    operation = next(infos, None) or "a commit"
    options = "skipChangeCommits to leave such versions out"
    if not updated:
        options = f"ignoreDeletes or {options}"
    return DeltaError(
        f"{name}: version {version} ({operation}) took rows away, which a stream has "
        f"read; set {options}, or start a new query"
    )
