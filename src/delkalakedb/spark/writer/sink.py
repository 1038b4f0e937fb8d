"""The sink of the data source `deltasql`: executors write files, SQL commits them.

Spark commits in a process of its own, which opens the catalog by its URI. Spark may
abort a write that SQL has committed, if Spark lost contact with that process; the files
of such a write stay.
"""

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
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
)
from delkalakedb.model.actions import Action, Add, CommitInfo, Metadata, Txn
from delkalakedb.model.new_actions import changed_state, merged_commit_info, removed
from delkalakedb.model.paths import log_path
from delkalakedb.model.predicate.predicate import Predicate, parse_predicate
from delkalakedb.model.rules.features import Use, features_for
from delkalakedb.model.rules.protocol import active_features, check_writable
from delkalakedb.model.schema.partition import format_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.model.times import to_micros
from delkalakedb.spark.pyspark_api import DataSourceStreamArrowWriter, need
from delkalakedb.spark.reader import SourceOptions
from delkalakedb.spark.schemas import (
    arrow_schema,
    check_new_schema,
    find_field,
    spark_schema,
)
from delkalakedb.spark.writer.data_files import (
    Upload,
    commit_info,
    grouped,
    new_file,
    output_metrics,
)
from delkalakedb.spark.writer.evolution import (
    evolved_metadata,
    evolved_protocol,
    plain_schema,
    replaced_metadata,
)
from delkalakedb.spark.writer.file_options import FileOptions
from delkalakedb.spark.writer.placement import (
    ENABLED,
    SETTING,
    files_where,
    is_dynamic,
    partitions_of,
    places_of,
)
from delkalakedb.storage import canonical_location
from delkalakedb.write import Operation, create_table, perform, table_files
from delkalakedb.write.engines import InPlace, Work, columns_of, row_filter

_ELSEWHERE = "write with delkalakedb.spark.write"
_MODE_OPTION = "partitionOverwriteMode"
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that a task wrote, with the table's version and the query's id.

    The session's settings are included, because only tasks can read them.
    """

    files: list[dict[str, Any]]
    version: int
    query_id: str | None
    partition_overwrite_mode: str | None = None
    dynamic_enabled: str | None = None


@dataclass(frozen=True)
class TaskWriter:
    """The writer of one task, which runs on an executor.

    Args:
        upload: writes the files.
        target: the table's columns.
        required: the columns that are NOT NULL.
        version: the table's version.
        condition: the text of replaceWhere, and the filter that all rows must pass.
    """

    upload: Upload
    target: pa.Schema
    required: frozenset[str]
    version: int
    condition: tuple[str, pc.Expression] | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskFiles:
        """Write the rows of one task."""
        (rows,) = self.upload(self._prepared(batches))
        context = TaskContext.get()
        if context is None:
            return TaskFiles(rows.to_pylist(), self.version, None)
        asked = (_QUERY_ID, SETTING, ENABLED)
        said = map(context.getLocalProperty, asked)
        return TaskFiles(rows.to_pylist(), self.version, *said)

    def _prepared(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in the table's types, sorted by partition."""
        for table in grouped(batches):
            rows = self._shaped(table)
            self._check_condition(rows)
            columns = self.upload.places.columns
            texts = [_texts(rows[c.path[0]], c.type) for c in columns]
            names = self.upload.places.text_names
            rest = rows.drop_columns([column.path[0] for column in columns])
            whole = pa.table([*texts, *rest], [*names, *rest.column_names])
            if names:
                whole = whole.sort_by([(name, "ascending") for name in names])
            yield from whole.combine_chunks().to_batches()

    def _check_condition(self, rows: pa.Table) -> None:
        if self.condition is None:
            return
        text, condition = self.condition
        if rows.filter(condition).num_rows != rows.num_rows:
            raise DeltaError(f"a row doesn't match replaceWhere ({text})")

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
    known: tuple[str, ...] = (
        "compression",
        "maxRecordsPerFile",
        "mergeSchema",
        "txnAppId",
        "userMetadata",
    )

    def __init__(
        self, options: Mapping[str, str], schema: StructType, overwrite: bool
    ) -> None:
        self._options = SourceOptions(dict(options), self.known)
        self._overwrite = overwrite
        records, codec = map(self._options.get, ("maxRecordsPerFile", "compression"))
        # Spark's default, which means no limit
        most = self._options.number("maxRecordsPerFile") if records else None
        self._files = FileOptions(most or None, codec)
        merges = self._options.flag("mergeSchema")
        self._check_options()
        with self._options.opened() as (catalog, name):
            snapshot = self._ensure_table(catalog, name, schema)
            _check_table(snapshot, overwrite)
            if merges:
                snapshot = self._merge_schema(catalog, snapshot, schema)
            self._metadata = self._changed(snapshot, schema)
        self._version = snapshot.version
        _check_columns(snapshot.table.name, self._metadata, schema)
        self._writer = self._task_writer(snapshot)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task, on an executor."""
        return self._writer.write(iterator)

    def _ensure_table(
        self, catalog: Catalog, name: str, schema: StructType
    ) -> Snapshot:
        if (found := catalog.find(name)) is not None:
            return found
        check_new_schema(schema)
        with suppress(TableExistsError):
            create_table(
                catalog,
                name,
                plain_schema(schema).json(),
                location=self._options.uri.location,
                storage_options=self._options.storage_options,
            )
        return catalog.snapshot(name)

    def _merge_schema(
        self, catalog: Catalog, snapshot: Snapshot, schema: StructType
    ) -> Snapshot:
        """Add new columns in a version of their own, because tasks may run again."""
        if evolved_metadata(snapshot.metadata, schema) == snapshot.metadata:
            return snapshot

        def evolve(base: Snapshot) -> Work[None]:
            metadata = evolved_metadata(base.metadata, schema)
            if metadata == base.metadata:
                return Work(None)
            actions = _metadata_actions(base, metadata)
            return Work(None, [[commit_info("ADD COLUMNS", {}, {}), *actions]])

        operation = Operation("write", InPlace(lambda target: evolve(target.base)))
        options = self._options.storage_options
        perform(catalog, snapshot, operation, storage_options=options)
        return catalog.snapshot(snapshot.table.name)

    def _check_options(self) -> None:
        """Raise `DeltaError` for options that contradict each other."""

    def _changed(self, snapshot: Snapshot, schema: StructType) -> Metadata:
        """Return the metadata of the version with the rows."""
        return snapshot.metadata

    def _condition(self, metadata: Metadata) -> Predicate | None:
        """Return the condition of the rows to replace."""
        return None

    def _task_writer(self, snapshot: Snapshot) -> TaskWriter:
        metadata = self._metadata
        condition = self._condition(metadata)
        given = self._options.get("replaceWhere")
        upload = Upload(
            canonical_location(snapshot.table.location),
            self._options.storage_options,
            places_of(metadata),
            measured_columns(metadata),
            None,
            str(uuid4()),
            self._files.completed(None, metadata),
        )
        fields = parse_schema(metadata.schema_string).fields
        required = frozenset(field.name for field in fields if not field.nullable)
        target = arrow_schema(spark_schema(metadata))
        rule = (given, row_filter(condition)) if given and condition else None
        return TaskWriter(upload, target, required, snapshot.version, rule)

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
        with self._options.opened() as (catalog, name):
            snapshot = catalog.snapshot(name, self._version)
            where = self._condition(self._metadata)
            with _discarding(snapshot, self._options, paths):
                some = self._overwrite and self._replaces_some(self._metadata, tasks)
            info = self._info(adds, txn, dynamic=some)
            actions: list[Action] = [info, *adds, *txns]
            if self._metadata != snapshot.metadata:
                actions[1:1] = _metadata_actions(snapshot, self._metadata)
            files = where
            if some:
                partitions = partitions_of(snapshot.metadata, adds)
                gone, files = partitions.files(snapshot), partitions.predicate
            elif where is not None:
                gone = files_where(snapshot, where)
            if files is not None:
                removed_ms = now_ms()
                actions += [removed(add, removed_ms) for add in gone.adds]
            work = Work(None, [actions], paths)
            everything = self._overwrite and files is None
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
        if (where := self._options.get("replaceWhere")) is not None:
            parameters["predicate"] = json.dumps([where])
        info = commit_info(self.operation, parameters, output_metrics(adds))
        if (text := self._options.get("userMetadata")) is None:
            return info
        return merged_commit_info([info], {"userMetadata": text})


class BatchWriter(_Sink, DataSourceArrowWriter):
    """The sink of a batch, which appends or overwrites rows."""

    known = (
        *_Sink.known,
        "overwriteSchema",
        "partitionOverwriteMode",
        "replaceWhere",
        "txnVersion",
    )

    def _check_options(self) -> None:
        options = self._options
        replaced = [
            name
            for name in ("replaceWhere", "overwriteSchema")
            if options.get(name) and (name == "replaceWhere" or options.flag(name))
        ]
        if replaced and not self._overwrite:
            raise DeltaError(f"{replaced[0]} needs the mode overwrite")
        if is_dynamic(options.get(_MODE_OPTION), None):
            replaced.append(_MODE_OPTION)
        if options.flag("overwriteSchema") and options.flag("mergeSchema"):
            replaced.append("mergeSchema")
        if len(replaced) > 1:
            raise DeltaError(f"{' and '.join(replaced)} contradict each other")
        if (options.get("txnAppId") is None) != (options.number("txnVersion") is None):
            raise DeltaError("give both txnAppId and txnVersion, or neither")

    def _changed(self, snapshot: Snapshot, schema: StructType) -> Metadata:
        if not self._options.flag("overwriteSchema"):
            return snapshot.metadata
        name = snapshot.table.name
        if snapshot.domains():
            raise DeltaError(
                f"{name}: the table is clustered, or has other metadata domains, which "
                f"the new schema may not fit; {_ELSEWHERE}(..., overwrite_schema=True)"
            )
        return replaced_metadata(snapshot.metadata, schema, None, name)

    def _condition(self, metadata: Metadata) -> Predicate | None:
        text = self._options.get("replaceWhere")
        if text is None:
            return None
        where = parse_predicate(text, parse_schema(metadata.schema_string))
        others = {column.path[0] for column in columns_of(where)}
        if others := others - {*metadata.partition_columns}:
            raise DeltaError(
                f"replaceWhere ({text}) uses {', '.join(sorted(others))}, which isn't "
                f"a partition column; {_ELSEWHERE}(..., replace_where=...)"
            )
        row_filter(where)
        return where

    def _replaces_some(self, metadata: Metadata, tasks: Sequence[TaskFiles]) -> bool:
        if self._options.get("replaceWhere") is not None:
            return False
        mode, enabled = next(
            ((t.partition_overwrite_mode, t.dynamic_enabled) for t in tasks),
            (None, None),
        )
        if not metadata.partition_columns:
            return False
        dynamic = is_dynamic(self._options.get(_MODE_OPTION), mode, enabled)
        if dynamic and self._options.flag("overwriteSchema"):
            raise DeltaError(
                "overwriteSchema can't be used if only partitions are replaced; set "
                "partitionOverwriteMode to static, too"
            )
        return dynamic

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files, in a process beside the driver."""
        app_id = self._options.get("txnAppId")
        version = self._options.number("txnVersion")
        txn = None if app_id is None or version is None else (app_id, version)
        self._commit_tasks(messages, txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed write."""
        self._discard(messages)


class StreamWriter(_Sink, DataSourceStreamArrowWriter):
    """The sink of a stream, which adds the rows of each batch once."""

    operation = "STREAMING UPDATE"
    known = (*_Sink.known, "checkpointLocation")

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


def _metadata_actions(before: Snapshot, metadata: Metadata) -> list[Action]:
    """Return the actions that give a table new metadata."""
    protocol = evolved_protocol(before.protocol, metadata)
    check_writable(protocol, metadata)
    return [*changed_state((before.protocol, before.metadata), (protocol, metadata))]


@contextmanager
def _discarding(
    snapshot: Snapshot, options: SourceOptions, paths: Sequence[str]
) -> Iterator[None]:
    """Delete the files `paths` if the block raises an error."""
    try:
        yield
    except DeltaError:
        location = canonical_location(snapshot.table.location)
        table_files(location, options.storage_options).discard(paths)
        raise


def _check_table(snapshot: Snapshot, overwrite: bool) -> None:
    snapshot._check_ours()
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


def _check_columns(name: str, metadata: Metadata, schema: StructType) -> None:
    there = spark_schema(metadata)
    for given in schema:
        column = find_field(there, given.name)
        if column is None:
            raise SchemaMismatchError(
                f"{name} has no column {given.name}; mergeSchema=true adds it"
            )
        if column.dataType.simpleString() != given.dataType.simpleString():
            raise SchemaMismatchError(
                f"{name}: column {column.simpleString()} can't take "
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
