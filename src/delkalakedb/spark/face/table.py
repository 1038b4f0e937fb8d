"""`DeltaTable` for Spark, with delta-spark's methods."""

# ruff: noqa: N802, N803 - delta-spark's names
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.deltalake import DeltaTable as Face
from delkalakedb.errors import TableNotFoundError, TransactionError
from delkalakedb.model.records import Commit
from delkalakedb.model.rules.protocol import supported_features
from delkalakedb.model.times import from_ms
from delkalakedb.settings import (
    Uri,
    format_uri,
    is_deltasql,
    parse_uri,
    require_table,
)
from delkalakedb.spark.dml import Clauses, MergePlan, deletion, update
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.face.arguments import (
    assignments,
    check_condition,
    check_type,
    need,
)
from delkalakedb.spark.face.builders import (
    DeltaMergeBuilder,
    DeltaOptimizeBuilder,
    DeltaTableBuilder,
)
from delkalakedb.spark.reader import (
    Condition,
    Target,
    moment_of,
    pruning,
    read_snapshot,
)
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.session_catalog import session_of, uri_at, uri_of
from delkalakedb.write import Operation, Together, perform

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
        return self.tables.snapshot(self.name)

    def perform(self, operation: Operation[T]) -> T:
        """Stage `operation` in the transaction."""
        return self.tables.stage(self.name, operation)

    def face(self) -> Face:
        """Raise `TransactionError`, because deltalake's table would commit at once."""
        raise TransactionError(
            "restore, vacuum and generate can't be part of a transaction"
        )


Handle = InCatalog | InTransaction


class DeltaTable:
    """A table of a catalog that Spark reads and changes.

    `forUri` and `inTransaction` create one. Each method works on the latest version.
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
        """
        spark = session_of(sparkSession)
        handle = InCatalog(parse_uri(uri), storage_options)
        handle.snapshot()
        return cls(spark, handle)

    @classmethod
    def inTransaction(
        cls, sparkSession: SparkSession, transaction: "Transaction", name: str
    ) -> "DeltaTable":
        """Return a table whose operations are staged in a `dk.transaction`."""
        check_spark(sparkSession)
        handle = InTransaction(transaction.tables, name)
        handle.snapshot()
        return cls(sparkSession, handle)

    @classmethod
    def forName(cls, sparkSession: SparkSession, tableOrViewName: str) -> "DeltaTable":
        """Return the table with a name in the session's catalog.

        `use` and the setting `spark.delkalakedb.catalog` choose the catalog.
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
        """
        spark = session_of(sparkSession)
        need(path, str, "path")
        given = {} if hadoopConf is None else hadoopConf
        need(given, dict, "hadoopConf")
        options = {k: v for k, v in given.items() if not k.startswith(("fs.", "dfs."))}
        return cls.forUri(spark, format_uri(uri_at(spark, path)), options or None)

    @classmethod
    def isDeltaTable(cls, sparkSession: SparkSession, identifier: str) -> bool:
        """Return whether `identifier` is the location or the URI of a table."""
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
    def create(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table, and fails if the table exists.

        `uri` is the URI of the table or of its catalog.
        """
        return cls._builder(sparkSession, uri, storage_options, "error")

    @classmethod
    def createIfNotExists(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table unless it exists."""
        return cls._builder(sparkSession, uri, storage_options, "ignore")

    @classmethod
    def replace(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that replaces a table, and fails if there is none."""
        return cls._builder(sparkSession, uri, storage_options, "replace")

    @classmethod
    def createOrReplace(
        cls,
        sparkSession: SparkSession | None = None,
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Return a builder that creates a table or replaces it."""
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
        """Return the table's rows."""
        snapshot, options = self._handle.snapshot(), self._handle.storage_options
        rows = read_snapshot(self._spark, snapshot, storage_options=options)
        return rows if self._alias is None else rows.alias(self._alias)

    def alias(self, aliasName: str) -> "DeltaTable":
        """Return the table with an alias for expressions."""
        return DeltaTable(self._spark, self._handle, aliasName)

    def delete(self, condition: Condition | None = None) -> None:
        """Delete the rows that match `condition`, by default all rows."""
        check_condition(condition)
        where = pruning(condition, self._target(self._handle.snapshot()))
        self._handle.perform(deletion(self._target, condition, where))

    def update(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> None:
        """Set columns of the rows that match `condition`, by default of all rows."""
        assigned = assignments(set, "'set'", condition)
        where = pruning(condition, self._target(self._handle.snapshot()))
        self._handle.perform(update(self._target, condition, assigned, where))

    def merge(self, source: DataFrame, condition: Condition) -> DeltaMergeBuilder:
        """Return a builder for a merge of `source` into the table."""
        for name, given in (("source", source), ("condition", condition)):
            if given is None:
                raise ValueError(f"'{name}' in merge cannot be None")
        check_type(source, DataFrame, "Type of 'source' in merge must be DataFrame.")
        check_condition(condition, "'condition' in merge")
        target = self._target(self._handle.snapshot())
        plan = MergePlan(source, condition, Clauses([]))
        return DeltaMergeBuilder(target, self._handle, plan)

    def optimize(self) -> DeltaOptimizeBuilder:
        """Return a builder that compacts or reorders the table's files."""
        return DeltaOptimizeBuilder(self._target, self._handle)

    def vacuum(self, retentionHours: float | None = None) -> DataFrame:
        """Delete files that no version within the retention needs.

        Like delta-spark's, the method returns an empty DataFrame.
        """
        checks = str(self._spark.conf.get(_CHECK_RETENTION, "true")).lower() == "true"
        # deltalake's signature wants whole hours, but passes any number on
        hours: Any = retentionHours
        self._handle.face().vacuum(
            hours, dry_run=False, enforce_retention_duration=checks, full=True
        )
        schema = StructType([StructField("path", StringType())])
        return self._spark.createDataFrame([], schema)

    def history(self, limit: int | None = None) -> DataFrame:
        """Return the table's commits, newest first."""
        commits = self._handle.snapshot().history(limit)
        return self._spark.createDataFrame(list(map(_commit, commits)), _HISTORY)

    def detail(self) -> DataFrame:
        """Return one row with the table's location, size, properties and so on."""
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
            "clusteringColumns": [],
            "numFiles": table.num_files,
            "sizeInBytes": table.size_bytes,
            "properties": dict(table.configuration),
            "minReaderVersion": table.min_reader_version,
            "minWriterVersion": table.min_writer_version,
            "tableFeatures": sorted(supported_features(snapshot.protocol)),
        }
        return self._spark.createDataFrame([row], _DETAIL)

    def generate(self, mode: str) -> None:
        """Write manifests of the data files for readers without Delta support."""
        if mode.lower() != "symlink_format_manifest":
            raise ValueError(f"mode {mode!r} isn't symlink_format_manifest")
        self._handle.face().generate()

    def restoreToVersion(self, version: int) -> DataFrame:
        """Restore the table to `version`, and return one row with metrics."""
        need(version, int, "version")
        return self._restore(version)

    def restoreToTimestamp(self, timestamp: str) -> DataFrame:
        """Restore the table to a time, given in the session's time zone."""
        need(timestamp, str, "timestamp")
        return self._restore(moment_of(self._spark, timestamp))

    def _restore(self, target: int | datetime) -> DataFrame:
        raw: Any = self._handle.face()._table
        given = target if isinstance(target, int) else target.isoformat()
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

    def _target(self, snapshot: Snapshot) -> Target:
        options = self._handle.storage_options
        return Target(self._spark, snapshot, self._alias, options)
