"""`DeltaTable` for Spark, with delta-spark's methods."""

# ruff: noqa: N802, N803 - delta-spark's names
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.deltalake import DeltaTable as Face
from delkalakedb.errors import (
    DeltaError,
    TableExistsError,
    TableNotFoundError,
    TransactionError,
)
from delkalakedb.model.actions import Protocol, encode_struct
from delkalakedb.model.paths import key_inside, log_path
from delkalakedb.model.records import Commit
from delkalakedb.model.rules.protocol import (
    DROP_FEATURE,
    supported_features,
    upgraded,
    with_feature,
    without_feature,
)
from delkalakedb.model.times import from_ms, to_ms
from delkalakedb.settings import (
    Uri,
    VectorSettings,
    format_uri,
    is_deltasql,
    parse_uri,
    require_table,
)
from delkalakedb.spark.dml import (
    Clauses,
    Clone,
    Conversion,
    MergePlan,
    deletion,
    update,
)
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.face.arguments import (
    assignments,
    check_condition,
    check_type,
    need,
    need_clone,
    need_version,
)
from delkalakedb.spark.face.builders import (
    DeltaMergeBuilder,
    DeltaOptimizeBuilder,
    DeltaTableBuilder,
)
from delkalakedb.spark.pyspark_api import from_arrow, parse_type, to_arrow_schema
from delkalakedb.spark.reader import (
    Condition,
    Target,
    moment_of,
    pruning,
    read_snapshot,
)
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.session_catalog import (
    catalog_of,
    new_uri_at,
    placed,
    session_of,
    tables_of,
    uri_at,
    uri_of,
)
from delkalakedb.spark.writer import commit_info
from delkalakedb.storage import ObjectMeta
from delkalakedb.write import (
    Operation,
    Target as NewTarget,
    Together,
    make_table,
    perform,
)
from delkalakedb.write.engines import InPlace, Work

if TYPE_CHECKING:
    from delkalakedb.deltalake import Transaction

T = TypeVar("T")


_HISTORY = """
    version BIGINT, timestamp TIMESTAMP, userId STRING, userName STRING,
    operation STRING, operationParameters MAP<STRING, STRING>,
    job STRUCT<jobId: STRING, jobName: STRING, jobRunId: STRING, runId: STRING,
        jobOwnerId: STRING, triggerType: STRING>,
    notebook STRUCT<notebookId: STRING>, clusterId STRING, readVersion BIGINT,
    isolationLevel STRING, isBlindAppend BOOLEAN,
    operationMetrics MAP<STRING, STRING>, userMetadata STRING, engineInfo STRING
"""
_DETAIL = """
    format STRING, id STRING, name STRING, description STRING, location STRING,
    createdAt TIMESTAMP, lastModified TIMESTAMP, partitionColumns ARRAY<STRING>,
    clusteringColumns ARRAY<STRING>, numFiles BIGINT, sizeInBytes BIGINT,
    properties MAP<STRING, STRING>, minReaderVersion INT, minWriterVersion INT,
    tableFeatures ARRAY<STRING>
"""


# commits that are Python objects at a time
_PAGE_COMMITS = 1000


def _history_pages(snapshot: Snapshot, limit: int | None) -> Iterator[list[Commit]]:
    """Yield the newest commits, newest first."""
    left, before = limit, None
    while left is None or left > 0:
        most = _PAGE_COMMITS if left is None else min(left, _PAGE_COMMITS)
        page = snapshot.history(most, before=before)
        if page:
            yield page
            before = page[-1].version
        if len(page) < most:
            return
        left = None if left is None else left - most


def _commit(commit: Commit) -> dict[str, Any]:
    return {
        "version": commit.version,
        "timestamp": _moment(commit.timestamp_ms),
        "userName": commit.os_user,
        "operation": commit.operation,
        "operationParameters": _texts(commit.operation_parameters),
        "readVersion": commit.read_version,
        "isolationLevel": commit.isolation_level,
        "isBlindAppend": commit.is_blind_append,
        "operationMetrics": _texts(commit.operation_metrics),
        "userMetadata": commit.user_metadata,
        "engineInfo": commit.engine_info,
    }


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        key: value if isinstance(value, str | None) else json.dumps(value)
        for key, value in values.items()
    }


def _moment(time_ms: int | None) -> datetime | None:
    return None if time_ms is None else from_ms(time_ms)


_PARQUET = re.compile(r"parquet\.`(?P<path>[^`]+)`", re.IGNORECASE)
_CHECK_RETENTION = "spark.databricks.delta.retentionDurationCheck.enabled"


@dataclass(frozen=True)
class InCatalog:
    """A table whose operations are committed at once."""

    uri: Uri
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def snapshot(self) -> Snapshot:
        """Return the table at its latest version."""
        with delta_spark_errors():
            return open_catalog(self.uri).snapshot(require_table(self.uri))

    def at(
        self, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> Snapshot:
        """Return the table at a version or a time."""
        with delta_spark_errors():
            return open_catalog(self.uri).snapshot(
                require_table(self.uri), version, timestamp_ms=timestamp_ms
            )

    def catalog_uri(self) -> Uri:
        """Return the URI of the table's catalog."""
        return self.uri.catalog

    def perform(self, operation: Operation[T]) -> T:
        """Commit `operation`, and run it again after a conflict."""
        with delta_spark_errors():
            result, _ = perform(
                open_catalog(self.uri),
                self.snapshot(),
                operation,
                storage_options=self.storage_options,
            )
        return result

    def vectors(self) -> VectorSettings:
        """Return when operations write deletion vectors."""
        return open_catalog(self.uri).settings.vectors

    def face(self) -> Face:
        """Return the deltalake table, for operations that need no Spark."""
        options = None if self.storage_options is None else dict(self.storage_options)
        return Face(format_uri(self.uri), storage_options=options)


@dataclass(frozen=True)
class InTransaction:
    """A table whose operations are committed at the end of a transaction."""

    tables: Together
    name: str

    @property
    def storage_options(self) -> Mapping[str, str] | None:
        """The options of the table's object store."""
        return self.tables.storage_options

    def snapshot(self) -> Snapshot:
        """Return the table with the changes that the transaction has staged."""
        with delta_spark_errors():
            return self.tables.snapshot(self.name)

    def perform(self, operation: Operation[T]) -> T:
        """Stage `operation` in the transaction."""
        with delta_spark_errors():
            return self.tables.stage(self.name, operation)

    def at(
        self, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> Snapshot:
        """Raise `TransactionError`, because a clone would be committed at once."""
        raise self._refused()

    def catalog_uri(self) -> Uri:
        """Raise `TransactionError`, because a clone would be committed at once."""
        raise self._refused()

    def vectors(self) -> VectorSettings:
        """Return when operations write deletion vectors."""
        return self.tables.catalog.settings.vectors

    def face(self) -> Face:
        """Raise `TransactionError`, because deltalake's table would commit at once."""
        raise self._refused()

    def _refused(self) -> TransactionError:
        return TransactionError(
            "restore, vacuum, generate and clone can't be part of a transaction"
        )


Handle = InCatalog | InTransaction


class DeltaTable:
    """A table of a catalog that Spark reads and changes, with delta-spark's methods.

    `forUri`, `forName` and `inTransaction` open one. Each method works on the latest
    version.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> table = dks.DeltaTable.forUri(spark, uri)
        >>> deleted = table.delete("id > 1")
        >>> [row.city for row in table.toDF().collect()]
        ['Oslo']
    """

    def __init__(
        self, spark: SparkSession, handle: Handle, alias: str | None = None
    ) -> None:
        self._spark = spark
        self._handle = handle
        self._alias = alias

    @classmethod
    def forUri(
        cls,
        sparkSession: SparkSession,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTable":
        """Return the table with a `deltasql://` URI.

        Args:
            sparkSession: the Spark session.
            uri: the table's URI.
            storage_options: the options of the table's object store.

        Returns:
            The table.

        Raises:
            TableNotFoundError: The catalog has no such table.
            UriError: The URI can't be parsed, or names no table.
        """
        spark = session_of(sparkSession)
        handle = InCatalog(parse_uri(uri), storage_options)
        handle.snapshot()
        return cls(spark, handle)

    @classmethod
    def inTransaction(
        cls, sparkSession: SparkSession, transaction: "Transaction", name: str
    ) -> "DeltaTable":
        """Return a table whose operations are staged in a `dk.transaction`.

        Args:
            sparkSession: the Spark session.
            transaction: the transaction, inside its `with` block.
            name: the table's name.

        Returns:
            The table, with the transaction's own changes.

        Raises:
            TableNotFoundError: Neither the catalog nor the transaction has such a
                table.
            TransactionError: The transaction has ended, or hasn't begun.
        """
        check_spark(sparkSession)
        handle = InTransaction(transaction.tables, name)
        handle.snapshot()
        return cls(sparkSession, handle)

    @classmethod
    def forName(cls, sparkSession: SparkSession, tableOrViewName: str) -> "DeltaTable":
        """Return the table with a name in the session's catalog.

        `use` and the setting `spark.delkalakedb.catalog` choose the catalog.

        Args:
            sparkSession: the Spark session.
            tableOrViewName: the table's name, its `deltasql://` URI, or delta.`path`.

        Returns:
            The table.

        Raises:
            TableNotFoundError: The catalog has no such table.
            DeltaError: The session has no catalog.
        """
        spark = session_of(sparkSession)
        need(tableOrViewName, str, "tableOrViewName")
        return cls.forUri(spark, format_uri(uri_of(spark, tableOrViewName)))

    @classmethod
    def forPath(
        cls,
        sparkSession: SparkSession,
        path: str,
        hadoopConf: Mapping[str, str] | None = None,
    ) -> "DeltaTable":
        """Return the table of the session's catalog whose location is `path`.

        Args:
            sparkSession: the Spark session.
            path: the folder or URL of the table.
            hadoopConf: the options of the table's object store, as deltalake takes
                them. Options that begin with `fs.` and `dfs.` are Spark's own, and
                belong into the session's configuration.

        Returns:
            The table.

        Raises:
            TableNotFoundError: No table of the catalog is at the location.
            DeltaError: The session has no catalog.
        """
        spark = session_of(sparkSession)
        need(path, str, "path")
        given = {} if hadoopConf is None else hadoopConf
        need(given, dict, "hadoopConf")
        options = {k: v for k, v in given.items() if not k.startswith(("fs.", "dfs."))}
        return cls.forUri(spark, format_uri(uri_at(spark, path)), options or None)

    @classmethod
    def isDeltaTable(cls, sparkSession: SparkSession, identifier: str) -> bool:
        """Return whether a location or a URI is that of a table.

        Args:
            sparkSession: the Spark session.
            identifier: a folder or URL, or a `deltasql://` URI.

        Returns:
            Whether the catalog has the table.

        Raises:
            DeltaError: The session has no catalog, which a location needs.
        """
        spark = session_of(sparkSession)
        need(identifier, str, "identifier")
        try:
            known = is_deltasql(identifier)
            uri = parse_uri(identifier) if known else uri_at(spark, identifier)
            InCatalog(uri).snapshot()
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def convertToDelta(
        cls,
        sparkSession: SparkSession,
        identifier: str,
        partitionSchema: str | StructType | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTable":
        """Make a table of the session's catalog from a folder of Parquet files.

        The files stay where they are, and the table gets the folder's name.

        Args:
            sparkSession: the Spark session.
            identifier: the folder, as parquet.`path`.
            partitionSchema: the partition columns of folders such as `day=tue`, as DDL
                or as a schema.
            storage_options: the options of the folder's object store, which executors
                get, too.

        Returns:
            The new table.

        Raises:
            TableExistsError: The folder is a table already.
            DeltaError: The identifier isn't a folder, or the session has no catalog.
        """
        spark = session_of(sparkSession)
        need(identifier, str, "identifier")
        found = _PARQUET.fullmatch(identifier.strip())
        if found is None:
            raise DeltaError(f"{identifier!r} isn't a folder; write parquet.`path`")
        schema: Any = partitionSchema or StructType([])
        if isinstance(schema, str):
            schema = parse_type(schema)
        uri = new_uri_at(catalog_of(spark), found["path"])
        catalog, name = open_catalog(uri), require_table(uri)
        with delta_spark_errors():
            if any(table.name == name for table in tables_of(uri)):
                raise TableExistsError(f"{name}: the folder is a table already")
            plan = Conversion(spark, schema, storage_options).operation()
            make_table(catalog, name, found["path"], plan, storage_options)
        return cls.forUri(spark, format_uri(uri), storage_options)

    @classmethod
    def create(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table, and fails if the table exists.

        Args:
            sparkSession: the Spark session; the active one by default.
            uri: the URI of the table or of its catalog; the session's catalog by
                default.
            storage_options: the options of the table's object store.

        Returns:
            The builder, whose `execute` creates the table.
        """
        return cls._builder(sparkSession, uri, storage_options, "error")

    @classmethod
    def createIfNotExists(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table unless the table exists.

        Args:
            sparkSession: the Spark session; the active one by default.
            uri: the URI of the table or of its catalog; the session's catalog by
                default.
            storage_options: the options of the table's object store.

        Returns:
            The builder, whose `execute` creates the table.
        """
        return cls._builder(sparkSession, uri, storage_options, "ignore")

    @classmethod
    def replace(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that replaces a table, and fails if there is none.

        Args:
            sparkSession: the Spark session; the active one by default.
            uri: the URI of the table or of its catalog; the session's catalog by
                default.
            storage_options: the options of the table's object store.

        Returns:
            The builder, whose `execute` replaces the table.
        """
        return cls._builder(sparkSession, uri, storage_options, "replace")

    @classmethod
    def createOrReplace(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table, or replaces an existing one.

        Args:
            sparkSession: the Spark session; the active one by default.
            uri: the URI of the table or of its catalog; the session's catalog by
                default.
            storage_options: the options of the table's object store.

        Returns:
            The builder, whose `execute` creates or replaces the table.
        """
        return cls._builder(sparkSession, uri, storage_options, "overwrite")

    @classmethod
    def _builder(
        cls,
        spark: SparkSession | None,
        uri: str | None,
        storage_options: Mapping[str, str] | None,
        mode: str,
    ) -> "DeltaTableBuilder[DeltaTable]":
        spark = session_of(spark)
        return DeltaTableBuilder(
            mode, spark, uri, partial(cls.forUri, spark), storage_options
        )

    def toDF(self) -> DataFrame:
        """Return the table's rows.

        Returns:
            A DataFrame that stays at the version which is the latest now.
        """
        snapshot, options = self._handle.snapshot(), self._handle.storage_options
        rows = read_snapshot(self._spark, snapshot, storage_options=options)
        return rows if self._alias is None else rows.alias(self._alias)

    def alias(self, aliasName: str) -> "DeltaTable":
        """Return the table with an alias for expressions.

        Args:
            aliasName: the alias.

        Returns:
            The table; this object keeps its own alias.
        """
        return DeltaTable(self._spark, self._handle, aliasName)

    def delete(self, condition: Condition | None = None) -> DataFrame:
        """Delete the rows that match a condition.

        Args:
            condition: a condition in Spark's SQL, or a Column; all rows by default.

        Returns:
            One row with the number of deleted rows, or -1 if the number is unknown.
        """
        check_condition(condition)
        where = pruning(condition, self._target(self._handle.snapshot()))
        operation = deletion(self._target, condition, where)
        return self._affected(self._handle.perform(operation))

    def update(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> DataFrame:
        """Set columns of the rows that match a condition.

        Args:
            condition: a condition in Spark's SQL, or a Column; all rows by default.
            set: an expression for each column to set, in Spark's SQL or as a Column.

        Returns:
            One row with the number of updated rows.
        """
        assigned = assignments(set, "'set'", condition)
        where = pruning(condition, self._target(self._handle.snapshot()))
        operation = update(self._target, condition, assigned, where)
        return self._affected(self._handle.perform(operation))

    def merge(self, source: DataFrame, condition: Condition) -> DeltaMergeBuilder:
        """Return a builder for a merge of a DataFrame into the table.

        Args:
            source: the rows to merge.
            condition: when a row of the source matches a row of the table, in Spark's
                SQL or as a Column.

        Returns:
            The builder, whose `execute` merges.

        Raises:
            ValueError: The source or the condition is None.
        """
        for name, given in (("source", source), ("condition", condition)):
            if given is None:
                raise ValueError(f"'{name}' in merge cannot be None")
        check_type(source, DataFrame, "Type of 'source' in merge must be DataFrame.")
        check_condition(condition, "'condition' in merge")
        target = self._target(self._handle.snapshot())
        plan = MergePlan(source, condition, Clauses([]))
        return DeltaMergeBuilder(target, self._handle, plan)

    def optimize(self) -> DeltaOptimizeBuilder:
        """Return a builder that compacts or reorders the table's files.

        Returns:
            The builder, whose `execute...` methods rewrite the files.
        """
        return DeltaOptimizeBuilder(self._target, self._handle)

    def vacuum(
        self,
        retentionHours: float | None = None,
        *,
        lite: bool = False,
        inventory: DataFrame | None = None,
        dryRun: bool = False,
    ) -> DataFrame:
        """Delete files that no version within the retention needs.

        Args:
            retentionHours: how long unneeded files are kept.
            lite: delete only files that a version has removed, without a listing of the
                table's location.
            inventory: the files at the table's location, which are then not listed: the
                columns `path`, `length`, `isDir` and `modificationTime` (milliseconds).
            dryRun: delete nothing, and return the paths of the files instead.

        Returns:
            An empty DataFrame, as from delta-spark, or the paths of a dry run.
        """
        checks = str(self._spark.conf.get(_CHECK_RETENTION, "true")).lower() == "true"
        found = None if inventory is None else self._files_in(inventory)
        with delta_spark_errors():
            raw: Any = self._handle.face()._table
            paths = raw.vacuum(
                dryRun, retentionHours, checks, full=not lite, inventory=found
            )
        schema = StructType([StructField("path", StringType())])
        rows = [(path,) for path in paths] if dryRun else []
        return self._spark.createDataFrame(rows, schema)

    def _files_in(self, inventory: DataFrame) -> list[ObjectMeta]:
        location = self._handle.snapshot().location
        files = inventory.select("path", "length", "modificationTime").where(
            "NOT isDir"
        )
        return [
            ObjectMeta(path, size_bytes, modified_ms)
            for text, size_bytes, modified_ms in files.collect()
            if (path := key_inside(log_path(text), location)) is not None
        ]

    def history(self, limit: int | None = None) -> DataFrame:
        """Return the table's commits, newest first.

        Args:
            limit: at most so many; all by default.

        Returns:
            One row for each commit, with delta-spark's columns.
        """
        kind = parse_type(_HISTORY)
        assert isinstance(kind, StructType)
        pages = _history_pages(self._handle.snapshot(), limit)
        schema = to_arrow_schema(kind)
        batches = [
            pa.RecordBatch.from_pylist(list(map(_commit, page)), schema)
            for page in pages
        ]
        # one batch at least, because pyspark can't take a column without one
        batches = batches or [pa.RecordBatch.from_pylist([], schema)]
        return from_arrow(self._spark, pa.Table.from_batches(batches, schema), kind)

    def detail(self) -> DataFrame:
        """Return the table's location, size, properties and so on.

        Returns:
            One row, with delta-spark's columns.
        """
        snapshot = self._handle.snapshot()
        table = snapshot.table
        row = {
            "format": "delta",
            "id": table.id,
            "name": table.name,
            "description": table.description,
            "location": table.location,
            "createdAt": _moment(table.created_time_ms),
            "lastModified": _moment(table.timestamp_ms),
            "partitionColumns": list(table.partition_columns),
            "clusteringColumns": snapshot.clustering_columns(),
            "numFiles": table.num_files,
            "sizeInBytes": table.size_bytes,
            "properties": dict(table.configuration),
            "minReaderVersion": table.min_reader_version,
            "minWriterVersion": table.min_writer_version,
            "tableFeatures": sorted(supported_features(snapshot.protocol)),
        }
        return self._spark.createDataFrame([row], _DETAIL)

    def generate(self, mode: str) -> None:
        """Write manifests of the data files for readers without Delta support.

        Args:
            mode: `symlink_format_manifest`.

        Raises:
            ValueError: The mode is another one.
        """
        if mode.lower() != "symlink_format_manifest":
            raise ValueError(f"mode {mode!r} isn't symlink_format_manifest")
        with delta_spark_errors():
            self._handle.face().generate()

    def restoreToVersion(self, version: int) -> DataFrame:
        """Restore the table to a version.

        Args:
            version: the version.

        Returns:
            One row with metrics.
        """
        need(version, int, "version")
        return self._restore(version)

    def restoreToTimestamp(self, timestamp: str) -> DataFrame:
        """Restore the table to a time.

        Args:
            timestamp: the time, in the session's time zone unless it names a zone.

        Returns:
            One row with metrics.

        Raises:
            DeltaError: Spark can't read the text as a time.
        """
        need(timestamp, str, "timestamp")
        return self._restore(moment_of(self._spark, timestamp))

    def _affected(self, num_rows: int | None) -> DataFrame:
        schema = StructType([StructField("num_affected_rows", LongType())])
        row = (-1 if num_rows is None else num_rows,)
        return self._spark.createDataFrame([row], schema)

    def _restore(self, target: int | datetime) -> DataFrame:
        given = target if isinstance(target, int) else target.isoformat()
        with delta_spark_errors():
            raw: Any = self._handle.face()._table
            raw.restore(given, may_stay=True)
        snapshot = self._handle.snapshot()
        (done,) = snapshot.history(1)
        row = {
            "table_size_after_restore": snapshot.table.size_bytes,
            "num_of_files_after_restore": snapshot.table.num_files,
            "num_removed_files": done.num_removed_files,
            "num_restored_files": done.num_added_files,
            "removed_files_size": done.removed_bytes,
            "restored_files_size": done.added_bytes,
        }
        schema = StructType([StructField(name, LongType()) for name in row])
        return self._spark.createDataFrame([tuple(row.values())], schema)

    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Raise the versions of the table's protocol; they are never lowered.

        Args:
            readerVersion: the version for readers.
            writerVersion: the version for writers.
        """
        need_version(readerVersion, "readerVersion")
        need_version(writerVersion, "writerVersion")
        self._change_protocol(
            "UPGRADE PROTOCOL",
            lambda base: upgraded(base.protocol, readerVersion, writerVersion),
        )

    def addFeatureSupport(self, featureName: str) -> None:
        """Add a feature to the table's protocol.

        Args:
            featureName: the name of the feature.
        """
        need(featureName, str, "featureName")
        said = json.dumps({f"delta.feature.{featureName}": "supported"})
        self._change_protocol(
            "SET TBLPROPERTIES",
            lambda base: with_feature(base.protocol, featureName),
            {"properties": said},
        )

    def dropFeatureSupport(
        self, featureName: str, truncateHistory: bool | None = None
    ) -> None:
        """Remove a feature that the table doesn't use from the table's protocol.

        Args:
            featureName: the name of the feature.
            truncateHistory: whether versions that used the feature may be dropped.
        """
        need(featureName, str, "featureName")
        if truncateHistory is not None:
            need(truncateHistory, bool, "truncateHistory")
        self._change_protocol(
            DROP_FEATURE,
            lambda base: without_feature(
                base.protocol,
                base.metadata,
                featureName,
                base.domains(),
                truncate_history=bool(truncateHistory),
            ),
            {"featureName": featureName, "truncateHistory": bool(truncateHistory)},
        )

    def _change_protocol(
        self,
        operation: str,
        change: Callable[[Snapshot], Protocol],
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        def run(to: NewTarget) -> Work[None]:
            protocol = change(to.base)
            if protocol == to.base.protocol:
                return Work(None)
            said = {"newProtocol": encode_struct(protocol).decode()}
            return Work(
                None, [[commit_info(operation, parameters or said, {}), protocol]]
            )

        self._handle.perform(Operation(operation, InPlace(run)))

    def clone(
        self,
        target: str,
        isShallow: bool = False,
        replace: bool = False,
        properties: dict[str, str] | None = None,
    ) -> "DeltaTable":
        """Clone the table's latest version into another table of the catalog.

        Args:
            target: the clone's location, or its name.
            isShallow: let the clone name the files of this table instead of copies.
                This table's vacuum may delete such a file once this table doesn't need
                it; the clone's vacuum never does.
            replace: replace the target if there is one.
            properties: table properties that replace those of this table.

        Returns:
            The clone.

        Raises:
            TableExistsError: The target exists, and `replace` isn't set.
        """
        need_clone(target, isShallow, replace, properties)
        source = self._handle.snapshot()
        return self._clone(source, target, isShallow, replace, properties)

    def cloneAtVersion(
        self,
        version: int,
        target: str,
        isShallow: bool = False,
        replace: bool = False,
        properties: dict[str, str] | None = None,
    ) -> "DeltaTable":
        """Clone a version of the table into another table of the catalog.

        Args:
            version: the version.
            target: the clone's location, or its name.
            isShallow: let the clone name the files of this table instead of copies, as
                `clone` does.
            replace: replace the target if there is one.
            properties: table properties that replace those of this table.

        Returns:
            The clone.

        Raises:
            TableExistsError: The target exists, and `replace` isn't set.
            VersionNotFoundError: The table has no such version.
        """
        need(version, int, "version")
        need_clone(target, isShallow, replace, properties)
        source = self._handle.at(version)
        return self._clone(source, target, isShallow, replace, properties)

    def cloneAtTimestamp(
        self,
        timestamp: str,
        target: str,
        isShallow: bool = False,
        replace: bool = False,
        properties: dict[str, str] | None = None,
    ) -> "DeltaTable":
        """Clone the table as it was at a time into another table of the catalog.

        Args:
            timestamp: the time, in the session's time zone unless it names a zone.
            target: the clone's location, or its name.
            isShallow: let the clone name the files of this table instead of copies, as
                `clone` does.
            replace: replace the target if there is one.
            properties: table properties that replace those of this table.

        Returns:
            The clone.

        Raises:
            TableExistsError: The target exists, and `replace` isn't set.
            VersionNotFoundError: The table has no version as old as the time.
        """
        need(timestamp, str, "timestamp")
        need_clone(target, isShallow, replace, properties)
        source = self._handle.at(timestamp_ms=to_ms(moment_of(self._spark, timestamp)))
        return self._clone(source, target, isShallow, replace, properties)

    def _clone(
        self,
        source: Snapshot,
        target: str,
        shallow: bool,
        replace: bool,
        properties: Mapping[str, str] | None,
    ) -> "DeltaTable":
        uri, location = placed(self._handle.catalog_uri(), target)
        options = self._handle.storage_options
        plan = Clone(source, shallow, properties or {}, options)
        catalog, name = open_catalog(uri), require_table(uri)
        with delta_spark_errors():
            if not any(table.name == name for table in catalog.tables()):
                make_table(catalog, name, location, plan.operation(), options)
            elif replace:
                InCatalog(uri, options).perform(plan.operation())
            else:
                raise TableExistsError(
                    f"{name}: a table of this name already exists; pass replace=True"
                )
        return DeltaTable.forUri(self._spark, format_uri(uri), options)

    def _target(self, snapshot: Snapshot) -> Target:
        handle = self._handle
        vectors, options = handle.vectors(), handle.storage_options
        return Target(self._spark, snapshot, self._alias, options, vectors)
