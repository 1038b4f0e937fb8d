"""The sink of the data source `deltasql`: executors write files, SQL commits them.

Spark commits in a process of its own, which opens the catalog by its URI. Spark may
abort a write that SQL has committed, if Spark lost contact with that process; the files
of such a write stay.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Txn
from delkalakedb.model.paths import log_path
from delkalakedb.model.rules.features import Use, features_for
from delkalakedb.model.rules.protocol import active_features
from delkalakedb.model.schema.partition import format_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.model.times import to_micros
from delkalakedb.spark.pyspark_api import DataSourceStreamArrowWriter, need
from delkalakedb.spark.reader import SourceOptions
from delkalakedb.spark.schemas import arrow_schema, find_field, spark_schema
from delkalakedb.spark.writer.data_files import (
    Upload,
    commit_info,
    grouped,
    new_file,
    output_metrics,
)
from delkalakedb.spark.writer.evolution import plain_schema
from delkalakedb.spark.writer.placement import (
    SETTING,
    is_dynamic,
    partitions_of,
    places_of,
)
from delkalakedb.storage import canonical_location
from delkalakedb.write import Operation, create_table, perform, removed, table_files
from delkalakedb.write.engines import InPlace, Work

_ELSEWHERE = "write with delkalakedb.spark.write"
_MODE_OPTION = "partitionOverwriteMode"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that a task wrote, with the table's version and the query's id.

    The session's setting is included, because only tasks can read it.
    """

    files: list[dict[str, Any]]
    version: int
    query_id: str | None
    partition_overwrite_mode: str | None = None


@dataclass(frozen=True)
class TaskWriter:
    """The writer of one task, which runs on an executor."""

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
        """Yield the rows in the table's types, sorted by partition."""
        for table in grouped(batches):
            rows = self._shaped(table)
            columns = self.upload.places.columns
            texts = [_texts(rows[c.path[0]], c.type) for c in columns]
            names = self.upload.places.text_names
            rest = rows.drop_columns([column.path[0] for column in columns])
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
                raise SchemaMismatchError(
                    f"null in the column {wanted.name}, which is NOT NULL"
                )
            arrays.append(array.cast(wanted.type))
        return pa.table(arrays, self.target)


class _Sink:
    """One write, which plans on the driver, writes on executors and commits."""

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

    def _commit_tasks(
        self, messages: Sequence[Any], txn: tuple[str, int] | None
    ) -> None:
        """Commit the files of all tasks as one version."""
        tasks = [task for task in messages if isinstance(task, TaskFiles)]
        rows = [row for task in tasks for row in task.files]
        if not rows and not self._overwrite:
            return
        adds = [new_file(**row).add() for row in rows]
        txns = [] if txn is None else [Txn(app_id=txn[0], version=txn[1])]
        paths = [row["path"] for row in rows]
        version = min((task.version for task in tasks), default=None)
        with self._options.opened() as (catalog, name):
            snapshot = catalog.snapshot(name, version)
            some = self._overwrite and self._replaces_some(snapshot.metadata, tasks)
            info = self._info(adds, txn, dynamic=some)
            actions: list[Action] = [info, *adds, *txns]
            files = None
            if some:
                partitions = partitions_of(snapshot.metadata, adds)
                gone, removed_ms = partitions.files(snapshot), now_ms()
                actions += [removed(add, removed_ms) for add in gone.adds]
                files = partitions.predicate
            work = Work(None, [actions], paths)
            everything = self._overwrite and not some
            engine = InPlace(lambda _: work)
            perform(
                catalog,
                snapshot,
                Operation("write", engine, files, remove_all=everything),
                # no retries, because only Spark can write the files again
                retries=None if everything else 0,
                storage_options=self._options.storage_options,
            )

    def _replaces_some(self, metadata: Metadata, tasks: Sequence[TaskFiles]) -> bool:
        """Return whether an overwrite replaces only partitions that get rows."""
        return False

    def _discard(self, messages: Sequence[Any]) -> None:
        """Delete the files of successful tasks after another task failed."""
        tasks = [task for task in messages if isinstance(task, TaskFiles)]
        # If no task failed, SQL may have committed the files.
        if not tasks or len(tasks) == len(messages):
            return
        paths = {row["path"] for task in tasks for row in task.files}
        with self._options.opened() as (catalog, name):
            ratified = _added_since(catalog, name, min(t.version for t in tasks))
            location = canonical_location(catalog.snapshot(name).table.location)
        unknown = [path for path in paths if log_path(path) not in ratified]
        table_files(location, self._options.storage_options).discard(unknown)

    def _info(
        self,
        adds: Sequence[Add],
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
        return commit_info(self.operation, parameters, output_metrics(adds))


class BatchWriter(_Sink, DataSourceArrowWriter):
    """The sink of a batch, which appends or overwrites rows."""

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
        """Commit the files, in a process beside the driver."""
        app_id = self._options.get("txnAppId")
        version = self._options.number("txnVersion")
        if (app_id is None) != (version is None):
            raise DeltaError("give both txnAppId and txnVersion, or neither")
        txn = None if app_id is None or version is None else (app_id, version)
        self._commit_tasks(messages, txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed write."""
        self._discard(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """The sink of a stream, which adds the rows of each batch once."""

    operation = "STREAMING UPDATE"
    known = ("checkpointLocation", "txnAppId")

    def __init__(self, *args: Any) -> None:
        need(
            DataSourceStreamArrowWriter,
            'writing a stream with format("deltasql")',
            "use foreachBatch with delkalakedb.spark.foreach_batch",
        )
        super().__init__(*args)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit the files with the query's id and the batch's number."""
        given = self._options.get("txnAppId")
        ids = {task.query_id for task in messages if isinstance(task, TaskFiles)}
        app_id = given or next(iter(ids), None)
        if app_id is None and ids:
            raise DeltaError("the id of the query is unknown; set txnAppId")
        self._commit_tasks(messages, None if app_id is None else (app_id, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the files of a failed batch."""
        self._discard(messages)


def _check_table(snapshot: Snapshot, overwrite: bool) -> None:
    snapshot.check_ours()
    name, metadata = snapshot.table.name, snapshot.metadata
    active = active_features(snapshot.protocol, metadata)
    odd = sorted(active - features_for(Use.SPARK_SINK))
    fields = parse_schema(metadata.schema_string).walk()
    within = (f for top in fields if top.type == "struct" for f in top.children)
    odd += [f"NOT NULL of {f.name}" for f in within if not f.nullable]
    if odd:
        raise ProtocolError(
            f"{name}: the data source doesn't support {', '.join(odd)}; {_ELSEWHERE}"
        )
    if overwrite and parse_properties(metadata).append_only:
        raise DeltaError(
            f"{name}: rows can't be replaced: the table is append-only "
            "(delta.appendOnly)"
        )


def _check_columns(snapshot: Snapshot, schema: StructType) -> None:
    there = spark_schema(snapshot.metadata)
    for given in schema:
        column = find_field(there, given.name)
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


def _texts(column: pa.ChunkedArray, kind: str) -> pa.Array:
    """Return partition values in the encoding of `Places.texts`."""
    encoded = column.combine_chunks().dictionary_encode()
    texts = [_text(value, kind) for value in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices).fill_null("n")


def _text(value: Any, kind: str) -> str:
    if kind == "timestamp":
        return f"v{to_micros(value)}"
    if kind in ("string", "binary"):
        data = value.encode() if isinstance(value, str) else value
        return f"v{urlsafe_b64encode(data).decode().rstrip('=')}"
    return f"v{format_partition_value(value, kind)}"
