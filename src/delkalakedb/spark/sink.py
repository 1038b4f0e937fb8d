"""The data source `deltasql` as a sink: executors write Arrow, SQL makes it true.

Spark commits in a process of its own; the catalog is opened there, by its URI. It also
aborts writes that SQL has ratified, when it lost sight of them: nothing goes then.
"""

import time
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Txn
from delkalakedb.model.partition import format_partition_value
from delkalakedb.model.paths import log_path
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import active_features
from delkalakedb.model.schema import parse_schema
from delkalakedb.model.stats import measured_columns
from delkalakedb.spark.evolving import plain_schema
from delkalakedb.spark.output import commit_info
from delkalakedb.spark.partition_overwrite import SETTING, is_dynamic, partitions_of
from delkalakedb.spark.partitions import places_of
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.spark.source import SourceOptions, arrow_schema
from delkalakedb.spark.uploads import Upload
from delkalakedb.storage import canonical_location
from delkalakedb.table.create import create_table
from delkalakedb.table.perform import perform
from delkalakedb.table.restore import removed
from delkalakedb.workspace import Operation
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.inplace import Work, stage

__all__ = ["BatchWriter", "StreamWriter"]

# Those for which nobody has to look into the rows, or to rename their columns.
_FEATURES = frozenset(
    {
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "checkpointProtection",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
_ELSEWHERE = "write with delkalakedb.spark.write"
_MODE_OPTION = "partitionOverwriteMode"
_QUERY_ID = "sql.streaming.queryId"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# So much is sorted by partition at once.
_SORTED_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that a task wrote, on which version, and for which query.

    The session's settings are known to tasks, but not where Spark commits.
    """

    files: list[dict[str, Any]]
    version: int
    query_id: str | None
    partition_overwrite_mode: str | None = None


@dataclass(frozen=True)
class TaskWriter:
    """What an executor gets: writes rows as files of a table, which it only adds."""

    upload: Upload
    target: pa.Schema
    required: frozenset[str]
    version: int

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of one task."""
        (rows,) = self.upload(self._prepared(batches))
        context = TaskContext.get()
        if context is None:
            return TaskFiles(rows.to_pylist(), self.version, None)
        query_id, mode = map(context.getLocalProperty, (_QUERY_ID, SETTING))
        return TaskFiles(rows.to_pylist(), self.version, query_id, mode)

    def _prepared(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows in the table's types, sorted by the texts of their partitions."""
        for table in _held(batches):
            rows = self._shaped(table)
            columns = self.upload.places.columns
            texts = [_texts(rows[name], kind) for name, _, kind in columns]
            names = self.upload.places.text_names
            rest = rows.drop_columns([name for name, _, _ in columns])
            whole = pa.table([*texts, *rest], [*names, *rest.column_names])
            if names:
                whole = whole.sort_by([(name, "ascending") for name in names])
            yield from whole.combine_chunks().to_batches()

    def _shaped(self, table: pa.Table) -> pa.Table:
        there = {name.lower(): name for name in table.column_names}
        arrays = []
        for wanted in self.target:
            name = there.get(wanted.name.lower())
            array = pa.nulls(len(table), wanted.type) if name is None else table[name]
            if wanted.name in self.required and array.null_count:
                raise SchemaMismatchError(f"column {wanted.name} is NOT NULL")
            arrays.append(array.cast(wanted.type))
        return pa.table(arrays, self.target)


class _Sink:
    """A write, as it is planned and committed."""

    operation = "WRITE"
    known: tuple[str, ...] = ("txnAppId", "txnVersion")

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool
    ) -> None:
        self._options = SourceOptions(dict(options), self.known)
        self._overwrite = overwrite
        with self._options.opened() as (catalog, name):
            snapshot = self._ensure_table(catalog, name, schema)
        _check_table(snapshot, overwrite)
        _check_columns(snapshot, schema)
        self._writer = self._task_writer(snapshot)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, on an executor."""
        return self._writer.write(iterator)

    def _ensure_table(
        self, catalog: Catalog, name: str, schema: StructType
    ) -> Snapshot:
        try:
            return catalog.snapshot(name)
        except TableNotFoundError:
            with suppress(TableExistsError):
                create_table(
                    catalog,
                    name,
                    plain_schema(schema).json(),
                    location=self._options.uri.location,
                    storage_options=self._options.storage_options,
                )
            return catalog.snapshot(name)

    def _task_writer(self, snapshot: Snapshot) -> TaskWriter:
        metadata = snapshot.metadata
        upload = Upload(
            canonical_location(snapshot.table.location),
            self._options.storage_options,
            places_of(metadata),
            measured_columns(metadata),
            None,
            str(uuid4()),
        )
        fields = parse_schema(metadata.schema_string).fields
        required = frozenset(field.name for field in fields if not field.nullable)
        target = arrow_schema(spark_schema(metadata))
        return TaskWriter(upload, target, required, snapshot.version)

    def _ratify(self, messages: Sequence[Any], txn: tuple[str, int] | None) -> None:
        """Make the files of all tasks one version."""
        tasks = [task for task in messages if isinstance(task, TaskFiles)]
        rows = [row for task in tasks for row in task.files]
        if not rows and not self._overwrite:
            return
        adds = [_add(row) for row in rows]
        txns = [] if txn is None else [Txn(app_id=txn[0], version=txn[1])]
        paths = [row["path"] for row in rows]
        version = min((task.version for task in tasks), default=None)
        with self._options.opened() as (catalog, name):
            snapshot = catalog.snapshot(name, version)
            some = self._overwrite and self._replaces_some(snapshot.metadata, tasks)
            info = self._info(rows, txn, dynamic=some)
            actions: list[Action] = [info, *adds, *txns]
            files = None
            if some:
                partitions = partitions_of(snapshot.metadata, adds)
                gone, now_ms = partitions.files(snapshot), int(time.time() * 1000)
                actions += [removed(add, now_ms) for add in gone.adds]
                files = partitions.predicate
            work = Work(None, [actions], paths)
            everything = self._overwrite and not some
            perform(
                catalog,
                snapshot,
                Operation("write", lambda _: work, files, remove_all=everything),
                # To write the files again isn't ours.
                retries=None if everything else 0,
                storage_options=self._options.storage_options,
                stage=stage,
            )

    def _replaces_some(self, metadata: Metadata, tasks: Sequence[TaskFiles]) -> bool:
        """Return whether an overwrite replaces only the partitions that get rows."""
        return False

    def _discard(self, messages: Sequence[Any]) -> None:
        """Remove the files of tasks that ended, where others failed."""
        tasks = [task for task in messages if isinstance(task, TaskFiles)]
        # Where none failed, SQL was asked to commit, and may have.
        if not tasks or len(tasks) == len(messages):
            return
        paths = {row["path"] for task in tasks for row in task.files}
        with self._options.opened() as (catalog, name):
            ratified = _added_since(catalog, name, min(t.version for t in tasks))
            location = catalog.snapshot(name).table.location
        unknown = [path for path in paths if log_path(path) not in ratified]
        table_files(
            canonical_location(location), self._options.storage_options
        ).discard(unknown)

    def _info(
        self,
        rows: Sequence[dict[str, Any]],
        txn: tuple[str, int] | None,
        *,
        dynamic: bool,
    ) -> CommitInfo:
        mode = "Overwrite" if self._overwrite else "Append"
        parameters: dict[str, Any] = {"mode": mode}
        if dynamic:
            parameters["isDynamicPartitionOverwrite"] = True
        if txn is not None and self.operation != _Sink.operation:
            parameters = {
                "outputMode": "Complete" if self._overwrite else "Append",
                "queryId": txn[0],
                "epochId": str(txn[1]),
            }
        counts = (msgspec.json.decode(row["stats"])["numRecords"] for row in rows)
        metrics = {
            "numFiles": len(rows),
            "numOutputRows": sum(counts),
            "numOutputBytes": sum(row["size"] for row in rows),
        }
        return commit_info(self.operation, parameters, metrics)


class BatchWriter(_Sink, DataSourceArrowWriter):
    """Appends rows, or puts them in the place of others: all, or their partitions'."""

    known = (*_Sink.known, _MODE_OPTION)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        is_dynamic(self._options.get(_MODE_OPTION), None)

    def _replaces_some(self, metadata: Metadata, tasks: Sequence[TaskFiles]) -> bool:
        settings = (task.partition_overwrite_mode for task in tasks)
        option = self._options.get(_MODE_OPTION)
        dynamic = is_dynamic(option, next(settings, None))
        return dynamic and bool(metadata.partition_columns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Ratify the files, in a process near the driver."""
        app_id, version = (
            self._options.get("txnAppId"),
            self._options.number("txnVersion"),
        )
        if (app_id is None) != (version is None):
            raise DeltaError("txnAppId and txnVersion are given together, or neither")
        txn = None if app_id is None or version is None else (app_id, version)
        self._ratify(messages, txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what no version will name."""
        self._discard(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """Adds the rows of each batch once, however often Spark commits it."""

    operation = "STREAMING UPDATE"
    known = ("checkpointLocation", "txnAppId")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Ratify the files with the query's id and the batch's."""
        given = self._options.get("txnAppId")
        ids = {task.query_id for task in messages if isinstance(task, TaskFiles)}
        app_id = given or next(iter(ids), None)
        if app_id is None and ids:
            raise DeltaError("Spark doesn't say which query this is; set txnAppId")
        self._ratify(messages, None if app_id is None else (app_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what no version will name."""
        self._discard(messages)


def _check_table(snapshot: Snapshot, overwrite: bool) -> None:
    snapshot.check_ours()
    name, metadata = snapshot.table.name, snapshot.metadata
    odd = sorted(active_features(snapshot.protocol, metadata) - _FEATURES)
    fields = parse_schema(metadata.schema_string).walk()
    within = (f for top in fields if top.type == "struct" for f in top.children)
    odd += [f"NOT NULL of {f.name}" for f in within if not f.nullable]
    if odd:
        raise ProtocolError(
            f"{name}: the data source can't honour {', '.join(odd)}; {_ELSEWHERE}"
        )
    if overwrite and parse_properties(metadata).append_only:
        raise DeltaError(
            f"{name}: rows can't be replaced: the table only takes appends "
            "(delta.appendOnly)"
        )


def _check_columns(snapshot: Snapshot, schema: StructType) -> None:
    there = {f.name.lower(): f for f in spark_schema(snapshot.metadata)}
    for given in schema:
        column = there.get(given.name.lower())
        if column is None:
            raise SchemaMismatchError(
                f"{snapshot.table.name} has no column {given.name}; to add it, "
                f"{_ELSEWHERE}(..., merge_schema=True)"
            )
        if column.dataType.simpleString() != given.dataType.simpleString():
            raise SchemaMismatchError(
                f"{snapshot.table.name}: column {column.simpleString()} can't take "
                f"{given.dataType.simpleString()}; cast it"
            )


def _added_since(catalog: Catalog, name: str, version: int) -> set[str]:
    log = catalog.log(name)
    commits = (log.commit(v) for v in range(version + 1, log.latest_version() + 1))
    return {a.path for actions in commits for a in actions if isinstance(a, Add)}


def _add(row: dict[str, Any]) -> Add:
    return Add(
        path=log_path(row["path"]),
        partition_values=msgspec.json.decode(row["partition_values"]),
        size=row["size"],
        modification_time=row["modified_ms"],
        data_change=True,
        stats=row["stats"],
    )


def _held(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches, some at a time."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= _SORTED_BYTES:
            yield pa.Table.from_batches(held)
            held, size_bytes = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _texts(column: pa.ChunkedArray, kind: str) -> pa.Array:
    """Partition values as `Places` has their texts."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = [_text(value, kind) for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices).fill_null("n")


def _text(value: Any, kind: str) -> str:
    if kind == "timestamp":
        return f"v{(value - _EPOCH) // _MICROSECOND}"
    if kind in ("string", "binary"):
        data = value.encode() if isinstance(value, str) else value
        return f"v{urlsafe_b64encode(data).decode().rstrip('=')}"
    return f"v{format_partition_value(value, kind)}"
