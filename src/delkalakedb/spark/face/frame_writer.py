"""Write a DataFrame to a table, and create the table if it doesn't exist."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, functions as sf

from delkalakedb.catalog import Catalog, Snapshot, open_catalog
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, TableExistsError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Txn,
)
from delkalakedb.model.new_actions import merged_commit_info
from delkalakedb.model.predicate.predicate import Anything
from delkalakedb.model.rules.clusters import (
    CLUSTERING_DOMAIN,
    clustering_columns,
    clustering_domain,
)
from delkalakedb.model.rules.features import CLUSTERING
from delkalakedb.model.schema.identity import check_not_inserted, identity_columns
from delkalakedb.settings import require_table
from delkalakedb.spark.dml import delete
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.face.definition import Definition
from delkalakedb.spark.reader import Target, kept, pruning
from delkalakedb.spark.schemas import (
    find_field,
    table_schema,
)
from delkalakedb.spark.session import check_spark, is_connect
from delkalakedb.spark.session_catalog import uri_of
from delkalakedb.spark.writer import (
    CHANGE_TYPE,
    ENABLED,
    SETTING,
    FileOptions,
    Output,
    commit_info,
    evolved_metadata,
    finished,
    fitted,
    is_dynamic,
    merges_schemas,
    numbered,
    output_metrics,
    partitions_of,
    plain_schema,
    replaced_metadata,
    required,
    write_files,
)
from delkalakedb.write import (
    Operation,
    Together,
    make_table,
    perform,
)
from delkalakedb.write.engines import InPlace, Work

_MODES = {
    "append": "Append",
    "overwrite": "Overwrite",
    "error": "ErrorIfExists",
    "errorifexists": "ErrorIfExists",
    "default": "ErrorIfExists",
    "ignore": "Ignore",
}


def write(
    df: DataFrame,
    uri: str,
    mode: str = "append",
    *,
    partition_by: Sequence[str] | str | None = None,
    cluster_by: Sequence[str] | str | None = None,
    merge_schema: bool | None = None,
    overwrite_schema: bool = False,
    replace_where: str | None = None,
    partition_overwrite_mode: str | None = None,
    txn: tuple[str, int] | None = None,
    location: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    description: str | None = None,
    user_metadata: str | None = None,
    max_records_per_file: int | None = None,
    compression: str | None = None,
    target_file_size: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> None:
    """Write rows to a table, and create the table if it doesn't exist.

    Args:
        df: the rows; columns of the table that `df` lacks become null.
        uri: the table's `deltasql://` URI, or its name in the session's catalog.
        mode: for an existing table, "append" adds the rows, "overwrite" replaces all
            rows, "ignore" does nothing, and "error" (or "errorifexists") raises an
            error.
        partition_by: the partition columns of a new table.
        cluster_by: the columns by which `optimize` clusters a new table.
        merge_schema: whether to add new columns to the table; by default the session's
            `spark.databricks.delta.schema.autoMerge.enabled`.
        overwrite_schema: whether "overwrite" also replaces the schema.
        replace_where: with "overwrite", a condition in Spark's SQL: only rows that
            match are replaced, and all new rows must match.
        partition_overwrite_mode: with "overwrite" of a partitioned table, "dynamic"
            replaces only the partitions that get rows, and "static" replaces all; by
            default the session's `spark.sql.sources.partitionOverwriteMode`.
        txn: an application's id and version. A version that the application has written
            already isn't written again.
        location: the folder of a new table's files.
        configuration: the properties of a new table.
        description: the description of a new table.
        user_metadata: a text for the table's history.
        max_records_per_file: the most rows of a data file; by default the session's
            `spark.sql.files.maxRecordsPerFile`.
        compression: the codec of the data files by Spark's name; by default the
            session's `spark.sql.parquet.compression.codec`.
        target_file_size: the size in bytes at which a data file ends; on an object
            store, `delta.targetFileSize` by default.
        storage_options: the options of the table's object store, as deltalake takes
            them.

    Raises:
        TableExistsError: The table exists, and the mode is `error`.
        DeltaError: Options contradict each other, or the rows don't match the table.
        CommitFailedError: Other commits conflict with the write even after retries.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> more = spark.createDataFrame([(4, "Bern")], "id BIGINT, city STRING")
        >>> dks.write(more, uri)
        >>> dks.read(spark, uri).count()
        4
    """
    check_spark(df.sparkSession)
    parsed = uri_of(df.sparkSession, uri)
    name, catalog = require_table(parsed), open_catalog(parsed)
    plan = Write(
        df,
        name,
        mode,
        partition_by=partition_by,
        cluster_by=cluster_by,
        merge_schema=merge_schema,
        overwrite_schema=overwrite_schema,
        replace_where=replace_where,
        partition_overwrite_mode=partition_overwrite_mode,
        txn=txn,
        configuration=configuration,
        description=description,
        user_metadata=user_metadata,
        max_records_per_file=max_records_per_file,
        compression=compression,
        target_file_size=target_file_size,
        storage_options=storage_options,
    )
    with delta_spark_errors():
        if not _write_again(catalog, plan):
            make_table(
                catalog,
                name,
                location or parsed.location,
                plan.creation(),
                storage_options,
                lambda made: _write_again(catalog, plan),
            )


def _write_again(catalog: Catalog, plan: "Write") -> bool:
    """Write to an existing table; return whether the table exists."""
    if (snapshot := catalog.find(plan.name)) is None:
        return False
    if (operation := plan.operation(snapshot)) is not None:
        options = plan.storage_options
        perform(catalog, snapshot, operation, storage_options=options)
    return True


@dataclass(frozen=True)
class Write:
    """One call of `write`, which may be run on several versions."""

    df: DataFrame
    name: str
    mode: str
    _: KW_ONLY
    partition_by: Sequence[str] | str | None = None
    cluster_by: Sequence[str] | str | None = None
    merge_schema: bool | None = None
    overwrite_schema: bool = False
    replace_where: str | None = None
    partition_overwrite_mode: str | None = None
    txn: tuple[str, int] | None = None
    configuration: Mapping[str, str | None] | None = None
    description: str | None = None
    user_metadata: str | None = None
    max_records_per_file: int | None = None
    compression: str | None = None
    target_file_size: int | None = None
    storage_options: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if self.mode.lower() not in _MODES:
            known = ", ".join(_MODES)
            raise DeltaError(f"{self.name}: mode {self.mode!r} isn't one of {known}")
        is_dynamic(self.partition_overwrite_mode, None)
        _ = self._files
        for option in ("overwrite_schema", "replace_where"):
            if getattr(self, option) and not self._overwrites:
                raise DeltaError(f"{self.name}: {option} needs mode='overwrite'")
        if self.overwrite_schema and self.replace_where is not None:
            raise DeltaError(
                f"{self.name}: overwrite_schema can't be used with replace_where, "
                "which keeps rows of the old schema"
            )

    def creation(self) -> Operation[None]:
        """Return the operation that creates the table."""
        return Operation("write", InPlace(lambda target: self._create(target.location)))

    def operation(self, snapshot: Snapshot) -> Operation[None] | None:
        """Return the operation on `snapshot`, or None if there is nothing to do."""
        said = _MODES[self.mode.lower()]
        if said == "Ignore" or self._repeats(snapshot):
            return None
        if said == "ErrorIfExists":
            raise TableExistsError(
                f"{self.name}: A table already exists at {snapshot.table.location}"
            )
        if self.replace_where is not None:
            files = pruning(self.replace_where, self._target(snapshot))
            self._is_dynamic(self._metadata(snapshot))
            engine = InPlace(lambda target: self._replace(target.base))
            return Operation("overwrite", engine, files)
        if self._overwrites and self._is_dynamic(self._metadata(snapshot)):
            engine = InPlace(lambda target: self._replace_partitions(target.base))
            return Operation("overwrite", engine, Anything())
        engine = InPlace(lambda target: self._run(target.base))
        return Operation(said.lower(), engine, remove_all=self._overwrites)

    @property
    def _overwrites(self) -> bool:
        return self.mode.lower() == "overwrite"

    @property
    def _files(self) -> FileOptions:
        return FileOptions(
            self.max_records_per_file, self.compression, self.target_file_size
        )

    @property
    def _partitions(self) -> list[str] | None:
        return _names(self.partition_by)

    @property
    def _clusters(self) -> list[str] | None:
        return _names(self.cluster_by)

    def _is_dynamic(self, metadata: Metadata) -> bool:
        """Return whether an overwrite replaces only the partitions that get rows.

        Raise `DeltaError` for contradictory options, as Delta Spark does.
        """
        given = self.partition_overwrite_mode
        conf = self.df.sparkSession.conf
        settings = conf.get(SETTING, "static"), conf.get(ENABLED, "true")
        if not metadata.partition_columns or not is_dynamic(given, *settings):
            return False
        if self.replace_where is not None:
            if given is not None:
                raise DeltaError(
                    f"{self.name}: replace_where and partition_overwrite_mode="
                    "'dynamic' contradict each other; give one of them"
                )
            return False
        if self.overwrite_schema:
            raise DeltaError(
                f"{self.name}: overwrite_schema can't be used if only partitions "
                "are replaced; give partition_overwrite_mode='static', too"
            )
        return True

    def _repeats(self, snapshot: Snapshot) -> bool:
        if self.txn is None:
            return False
        written = snapshot.txn_version(self.txn[0])
        return written is not None and written >= self.txn[1]

    def _target(self, snapshot: Snapshot) -> Target:
        options = self.storage_options
        return Target(self.df.sparkSession, snapshot, storage_options=options)

    # ---- runs of operations

    def _create(self, location: str) -> Work[None]:
        definition = Definition(
            self.name,
            plain_schema(self.df.schema),
            self._partitions or (),
            self._clusters,
            self.configuration,
            self.description,
        )
        _, protocol, metadata, domains = definition.new_table(location)
        if self._overwrites:
            self._is_dynamic(metadata)
        options = self.storage_options
        with self._rows(metadata) as (rows, metadata):
            files = write_files(rows, location, metadata, options, files=self._files)
        adds = [file.add() for file in files]
        info = self._info(adds)
        actions: list[Action] = [info, protocol, metadata, *domains, *adds]
        actions += self._txns
        return Work(None, [actions], [file.path for file in files])

    def _run(self, snapshot: Snapshot) -> Work[None]:
        """Append rows, or overwrite the whole table."""
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        domains, removed = self._domains(snapshot, metadata), {}
        if self._overwrites:
            target.check_removable()
            removed = {"numRemovedFiles": snapshot.table.num_files}
        features = {CLUSTERING} if domains else ()
        with (
            self._rows(metadata) as (rows, metadata),
            Output(target, metadata, features, self._files) as out,
        ):
            out.write(rows)
            return self._finish(out, domains, removed)

    def _replace_partitions(self, snapshot: Snapshot) -> Work[None]:
        """Overwrite the partitions that get rows."""
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        target.check_removable()
        with (
            self._rows(metadata) as (rows, metadata),
            Output(target, metadata, files=self._files) as out,
        ):
            out.write(rows)
            partitions = partitions_of(metadata, out.adds)
            gone = partitions.files(snapshot)
            work = self._finish(out, (), {"numRemovedFiles": len(gone)}, gone.adds)
            return replace(work, looked_at=partitions.predicate)

    def _replace(self, snapshot: Snapshot) -> Work[None]:
        """Overwrite the rows that match `replace_where`."""
        condition = self.replace_where
        assert condition is not None
        target, metadata = self._target(snapshot), self._metadata(snapshot)
        rule = (sf.expr(condition), f"replace_where ({condition})")
        files = pruning(condition, target)
        with (
            self._rows(metadata) as (rows, metadata),
            Output(target, metadata, files=self._files) as out,
        ):
            rows = required(rows, [rule], metadata)
            gone = delete(self._target, condition, files, snapshot)
            out.own(gone.new_paths)
            actions = [a for c in gone.commits for a in c if type(a) is not CommitInfo]
            if any(isinstance(action, Cdc) for action in actions):
                with kept(rows):
                    out.write(rows)
                    out.write_changes(rows.withColumn(CHANGE_TYPE, sf.lit("insert")))
            else:
                out.write(rows)
            return self._finish(out, actions, {})

    def _finish(
        self,
        out: Output,
        more: Sequence[Action],
        metrics: Mapping[str, int],
        gone: Sequence[Add] | None = None,
    ) -> Work[None]:
        """Return the commit; a write that changes nothing makes no version."""
        info = self._info(out.adds, metrics, dynamic=gone is not None)
        work = out.work(None, info, gone or ())
        (actions,) = work.commits
        actions = [*actions, *more, *self._txns]
        if actions == [info] and not metrics.get("numRemovedFiles"):
            return Work(None)
        return replace(work, commits=[actions])

    # ---- parts of the commit

    def _metadata(self, snapshot: Snapshot) -> Metadata:
        """Return the metadata of the new version."""
        snapshot._check_ours()
        metadata = snapshot.metadata
        if self.overwrite_schema:
            given = self._partitions
            if given is None and self._clusters:
                given = []
            return replaced_metadata(metadata, self.df.schema, given, self.name)
        given, there = self._partitions, metadata.partition_columns
        if given is not None and given != there:
            raise DeltaError(
                f"{self.name}: the table is partitioned by {there}, not by {given}; "
                "overwrite_schema=True changes that"
            )
        given = self._clusters
        if given is not None and given != (there := snapshot.clustering_columns()):
            raise DeltaError(
                f"{self.name}: the table is clustered by {there}, not by {given}; "
                "overwrite_schema=True changes that"
            )
        merges = self.merge_schema
        if not (merges_schemas(self.df.sparkSession) if merges is None else merges):
            return metadata
        return evolved_metadata(metadata, self.df.schema)

    def _domains(self, snapshot: Snapshot, metadata: Metadata) -> list[DomainMetadata]:
        """Return the columns by which a table with a new schema is clustered."""
        if not self.overwrite_schema:
            return []
        names = self._clusters
        if names is None:
            domains = snapshot.domains()
            if CLUSTERING_DOMAIN not in domains:
                return []
            names = clustering_columns(domains, metadata)
        return [clustering_domain(metadata, names)]

    @contextmanager
    def _rows(self, metadata: Metadata) -> Iterator[tuple[DataFrame, Metadata]]:
        """Yield the rows to write, and the metadata of a version with these rows."""
        schema = table_schema(metadata)
        given = [f.name for f in schema if find_field(self.df.schema, f.name)]
        wanted = {}
        for column in identity_columns(metadata):
            if column.name in given:
                check_not_inserted(column)
            else:
                wanted[column.name] = sf.lit(True)
        rows = fitted(self.df, schema, self.name)
        with numbered(rows, metadata, wanted) as (filled, metadata):
            yield finished(filled, metadata, given), metadata

    @property
    def _txns(self) -> list[Txn]:
        if self.txn is None:
            return []
        app_id, version = self.txn
        return [Txn(app_id=app_id, version=version, last_updated=now_ms())]

    def _info(
        self,
        adds: Sequence[Add],
        more: Mapping[str, int] = {},
        *,
        dynamic: bool = False,
    ) -> CommitInfo:
        parameters: dict[str, Any] = {
            "mode": _MODES[self.mode.lower()],
            "partitionBy": json.dumps(self._partitions or []),
        }
        if self.replace_where is not None:
            parameters["predicate"] = json.dumps([self.replace_where])
        if dynamic:
            parameters["isDynamicPartitionOverwrite"] = True
        info = commit_info("WRITE", parameters, {**output_metrics(adds), **more})
        if self.user_metadata is None:
            return info
        return merged_commit_info([info], {"userMetadata": self.user_metadata})


def _names(given: Sequence[str] | str | None) -> list[str] | None:
    if given is None:
        return None
    return [given] if isinstance(given, str) else list(given)


def write_in(
    tables: Together,
    name: str,
    df: DataFrame,
    mode: str = "error",
    *,
    location: str | None = None,
    **options: Any,
) -> None:
    """Stage a write of `df` in a transaction; `write` describes the options."""
    check_spark(df.sparkSession)
    plan = Write(df, name, mode, storage_options=tables.storage_options, **options)
    if not tables.has(name):
        tables.stage_new(name, plan.creation(), location)
    elif (operation := plan.operation(tables.snapshot(name))) is not None:
        tables.stage(name, operation)


def foreach_batch(
    uri: str, *, app_id: str | None = None, **options: Any
) -> Callable[[DataFrame, int], None]:
    """Return a function for `writeStream.foreachBatch` that writes each batch once.

    Args:
        uri: the table's `deltasql://` URI; the first batch creates the table.
        app_id: the application id of the batch numbers; by default the query's id. A
            query with a new checkpoint needs a new id.
        options: options of `write`, such as `mode`, `partition_by` or `merge_schema`.

    Returns:
        The function, which takes a batch and the number of the batch.

    Raises:
        DeltaError: When the function runs, if Spark has no id for the query.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=numbers"
        >>> write_batch = dks.foreach_batch(uri, app_id="loader")
        >>> for batch_id in (0, 0):
        ...     write_batch(spark.range(3), batch_id)
        >>> dks.read(spark, uri).count()
        3
    """

    def write_batch(rows: DataFrame, batch_id: int) -> None:
        write(rows, uri, txn=(app_id or _query_id(rows), batch_id), **options)

    return write_batch


def _query_id(rows: DataFrame) -> str:
    spark = rows.sparkSession
    found = None
    if not is_connect(spark):
        found = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise DeltaError("the id of the query is unknown; give an app_id")
    return found
