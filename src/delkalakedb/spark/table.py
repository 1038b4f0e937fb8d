"""`DeltaTable` for Spark, in the shape of delta-spark's own."""

# ruff: noqa: N802, N803 - delta-spark's names

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StringType, StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import TableNotFoundError
from delkalakedb.model.predicate import Anything
from delkalakedb.spark.clauses import Clauses
from delkalakedb.spark.creating import DeltaTableBuilder
from delkalakedb.spark.describing import detail_of, history_of
from delkalakedb.spark.handles import Handle, InCatalog, InTransaction
from delkalakedb.spark.merge_builder import DeltaMergeBuilder
from delkalakedb.spark.merging import MergePlan
from delkalakedb.spark.optimizing import DeltaOptimizeBuilder
from delkalakedb.spark.reading import read_snapshot
from delkalakedb.spark.rewriting import deletion, update
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.target import Condition, Target, pruning
from delkalakedb.uri import is_deltasql, parse_uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from delkalakedb.table.multi import Transaction

__all__ = ["DeltaTable"]

_CHECK_RETENTION = "spark.databricks.delta.retentionDurationCheck.enabled"
_RESTORED = (
    "table_size_after_restore",
    "num_of_files_after_restore",
    "num_removed_files",
    "num_restored_files",
    "removed_files_size",
    "restored_files_size",
)


class DeltaTable:
    """A table of a catalog, read and changed by Spark.

    `forUri` and `inTransaction` make one. Each call sees the newest version.
    """

    def __init__(
        self, spark: "SparkSession", handle: Handle, alias: str | None = None
    ) -> None:
        self._spark = spark
        self._handle = handle
        self._alias = alias

    @classmethod
    def forUri(
        cls,
        sparkSession: "SparkSession",
        uri: str,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTable":
        """The table that a `deltasql://` URI names.

        Args:
            sparkSession: the session.
            uri: a URI with a table.
            storage_options: of the table's store.
        """
        check_spark(sparkSession)
        handle = InCatalog(parse_uri(uri), storage_options)
        handle.snapshot()
        return cls(sparkSession, handle)

    @classmethod
    def inTransaction(
        cls, sparkSession: "SparkSession", transaction: "Transaction", name: str
    ) -> "DeltaTable":
        """A table as a `dk.transaction` sees it; what is done to it is staged there."""
        check_spark(sparkSession)
        handle = InTransaction(transaction.tables, name)
        handle.snapshot()
        return cls(sparkSession, handle)

    @classmethod
    def isDeltaTable(cls, sparkSession: "SparkSession", identifier: str) -> bool:
        """Whether there is a table at a `deltasql://` URI."""
        check_spark(sparkSession)
        if not is_deltasql(identifier):
            return False
        try:
            InCatalog(parse_uri(identifier)).snapshot()
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def create(
        cls,
        sparkSession: "SparkSession",
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Create a table; an error where there is one. `uri` may name its catalog."""
        return cls._builder(sparkSession, uri, storage_options, "error")

    @classmethod
    def createIfNotExists(
        cls,
        sparkSession: "SparkSession",
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Create a table unless there is one already."""
        return cls._builder(sparkSession, uri, storage_options, "ignore")

    @classmethod
    def replace(
        cls,
        sparkSession: "SparkSession",
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Replace a table by an empty one; an error where there is none."""
        return cls._builder(sparkSession, uri, storage_options, "replace")

    @classmethod
    def createOrReplace(
        cls,
        sparkSession: "SparkSession",
        uri: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "DeltaTableBuilder[DeltaTable]":
        """Create a table, or replace it by an empty one."""
        return cls._builder(sparkSession, uri, storage_options, "overwrite")

    @classmethod
    def _builder(
        cls,
        spark: "SparkSession",
        uri: str | None,
        storage_options: Mapping[str, str] | None,
        mode: str,
    ) -> "DeltaTableBuilder[DeltaTable]":
        check_spark(spark)
        opened = partial(cls.forUri, spark)
        return DeltaTableBuilder(mode, uri, opened, storage_options)

    def toDF(self) -> "DataFrame":
        """The table's rows."""
        options = self._handle.storage_options
        rows = read_snapshot(
            self._spark, self._handle.snapshot(), storage_options=options
        )
        return rows if self._alias is None else rows.alias(self._alias)

    def alias(self, aliasName: str) -> "DeltaTable":
        """The same table under a name for expressions."""
        return DeltaTable(self._spark, self._handle, aliasName)

    def delete(self, condition: Condition | None = None) -> None:
        """Delete the rows for which a condition holds; all of them without one."""
        target = self._target(self._handle.snapshot())
        where = Anything() if condition is None else pruning(condition, target)
        self._handle.perform(deletion(self._target, condition, where))

    def update(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> None:
        """Set columns of the rows for which a condition holds."""
        if not set:
            raise ValueError("'set' needs at least one column")
        target = self._target(self._handle.snapshot())
        where = Anything() if condition is None else pruning(condition, target)
        self._handle.perform(update(self._target, condition, set, where))

    def merge(self, source: "DataFrame", condition: Condition) -> DeltaMergeBuilder:
        """Merge rows into the table by clauses that the builder takes."""
        target = self._target(self._handle.snapshot())
        plan = MergePlan(source, condition, Clauses([]))
        return DeltaMergeBuilder(target, self._handle, plan)

    def optimize(self) -> DeltaOptimizeBuilder:
        """Write files anew that are small, or in an order that is read faster."""
        return DeltaOptimizeBuilder(self._target, self._handle)

    def vacuum(self, retentionHours: float | None = None) -> "DataFrame":
        """Delete files that no version within the retention needs; an empty frame."""
        checks = str(self._spark.conf.get(_CHECK_RETENTION, "true")).lower() == "true"
        # deltalake's signature has whole hours, and hands on what it is given
        hours: Any = retentionHours
        self._handle.face().vacuum(
            hours, dry_run=False, enforce_retention_duration=checks, full=True
        )
        schema = StructType([StructField("path", StringType())])
        return self._spark.createDataFrame([], schema)

    def history(self, limit: int | None = None) -> "DataFrame":
        """The commits, newest first."""
        return history_of(self._spark, self._handle.snapshot(), limit)

    def detail(self) -> "DataFrame":
        """One row about the table: its location, size, properties and so on."""
        return detail_of(self._spark, self._handle.snapshot())

    def generate(self, mode: str) -> None:
        """Write manifests of the files for readers that know no Delta."""
        if mode.lower() != "symlink_format_manifest":
            raise ValueError(f"{mode!r} isn't known; symlink_format_manifest is")
        self._handle.face().generate()

    def restoreToVersion(self, version: int) -> "DataFrame":
        """Make the table what it was at a version; one row with what that took."""
        return self._restore(version)

    def restoreToTimestamp(self, timestamp: str) -> "DataFrame":
        """Make the table what it was at a time, in the session's time zone."""
        moment = sf.unix_micros(sf.lit(timestamp).cast("timestamp"))
        (micros,) = self._spark.range(1).select(moment).collect()[0]
        return self._restore(datetime.fromtimestamp(micros / 1_000_000, UTC))

    def _restore(self, target: int | datetime) -> "DataFrame":
        self._handle.face().restore(target)
        snapshot = self._handle.snapshot()
        (done,) = snapshot.history(1)
        values = (
            snapshot.table.size_bytes,
            snapshot.table.num_files,
            done.num_removed_files,
            done.num_added_files,
            done.removed_bytes,
            done.added_bytes,
        )
        schema = StructType([StructField(name, LongType()) for name in _RESTORED])
        return self._spark.createDataFrame([values], schema)

    def _target(self, snapshot: Snapshot) -> Target:
        options = self._handle.storage_options
        return Target(self._spark, snapshot, self._alias, options)
