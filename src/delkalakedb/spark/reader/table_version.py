"""A version of a table as Spark reads it, and as operations replace its files."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import DataType, IntegerType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from delkalakedb.catalog import Snapshot, open_catalog
from delkalakedb.catalog.read import ADD_COLUMNS, add_from_row, live_rows
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.actions import Add, Metadata
from delkalakedb.model.predicate.catalyst import Analysed
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import Schema, parse_schema
from delkalakedb.model.times import from_micros, to_ms
from delkalakedb.settings import VectorSettings, require_table
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.reader.change_feed import ChangeFeed, open_feed
from delkalakedb.spark.reader.frame import LIST_COLUMNS, changes_frame, frame
from delkalakedb.spark.reader.layout import partitions_in
from delkalakedb.spark.schemas import quoted, spark_schema
from delkalakedb.spark.session import check_spark, is_connect
from delkalakedb.spark.session_catalog import uri_of

Condition = str | Column
# the alias of a table without one
_ALIAS = "__dk_target"
_INDEX = "__dk_index"
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})


@dataclass(frozen=True)
class Files:
    """A list of data files, as `Snapshot.files` returns it."""

    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def only(self, paths: Collection[str]) -> "Files":
        """Return the files at `paths`."""
        wanted = pa.array(paths, pa.string())
        return Files(self.table.filter(pc.is_in(self.table["path"], wanted)))

    @cached_property
    def adds(self) -> list[Add]:
        """The add actions of the files."""
        columns = (self.table[name].to_pylist() for name in ADD_COLUMNS)
        return [add_from_row(row) for row in zip(*columns, strict=True)]

    @property
    def size_bytes(self) -> int:
        """The total size of the files."""
        return int(pc.sum(self.table["size_bytes"]).as_py() or 0)

    @property
    def num_vectors(self) -> int:
        """The number of files with a deletion vector."""
        return len(self) - int(self.table["deletion_vector"].null_count)

    @cached_property
    def rows(self) -> dict[str, int | None]:
        """The number of live rows by path, or None for a file without statistics."""
        paths, counts = self.table["path"], live_rows(self.table)
        return dict(zip(paths.to_pylist(), counts.to_pylist(), strict=True))


@dataclass(frozen=True)
class Target:
    """The version that an operation reads, and whose files it replaces.

    Args:
        spark: the Spark session.
        snapshot: the version.
        alias: what conditions call the table.
        storage_options: the options of the table's object store.
        vectors: when rows are marked in deletion vectors; None means never.
    """

    spark: SparkSession
    snapshot: Snapshot
    alias: str | None = None
    storage_options: Mapping[str, str] | None = None
    vectors: VectorSettings | None = None

    @property
    def metadata(self) -> Metadata:
        """The table's metadata."""
        return self.snapshot.metadata

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        return parse_schema(self.metadata.schema_string)

    @property
    def names(self) -> list[str]:
        """The names of the columns, quoted for Spark's expressions."""
        return [quoted(field.name) for field in self.schema.fields]

    @property
    def changes_wanted(self) -> bool:
        """Whether the table has a change data feed."""
        return parse_properties(self.metadata).enable_change_data_feed

    def check_removable(self) -> None:
        """Raise `DeltaError` if the table is append-only."""
        if parse_properties(self.metadata).append_only:
            raise DeltaError(
                f"{self.snapshot.table.name}: rows can't be updated or deleted: the "
                "table is append-only (delta.appendOnly)"
            )

    def files(self, where: Predicate) -> Files:
        """Return the files that may hold a row that matches `where`."""
        return Files(self.snapshot.files(where).read_all())

    def frame(self, files: Files, *, tagged: bool = False) -> DataFrame:
        """Return the rows of `files` under the table's alias."""
        rows = frame(
            self.spark,
            self.snapshot,
            files.table,
            tagged=tagged,
            storage_options=self.storage_options,
        )
        return rows.alias(self.alias or _ALIAS)

    def rows(self, where: Condition | None) -> DataFrame:
        """Return the rows of all files that may hold a row that matches `where`."""
        files = self.snapshot.files(pruning(where, self), columns=LIST_COLUMNS)
        return self.frame(Files(files.read_all()))

    def column(self, name: str) -> Column:
        """Return a column of the table, qualified by the table's alias."""
        return sf.col(f"{quoted(self.alias or _ALIAS)}.{quoted(name)}")

    @cached_property
    def empty(self) -> DataFrame:
        """No rows, in the columns of the table and under its alias."""
        rows = self.spark.createDataFrame([], spark_schema(self.metadata))
        return rows.alias(self.alias or _ALIAS)

    def analysed(
        self, condition: Condition, source: DataFrame | None = None
    ) -> Analysed | None:
        """Return a condition as Spark has analysed it, or None if that is hidden.

        The condition may also use the columns of `source`, with which the table is
        joined.
        """
        if is_connect(self.spark):
            return None
        try:
            if source is None:
                return self._analysed(self.empty.filter(column_of(condition)))
            joined = source.join(self.empty, column_of(condition))
            return self._analysed(joined, source)
        except Exception:  # of py4j, if this Spark lets no one see its plans
            return None

    def _analysed(self, rows: Any, source: DataFrame | None = None) -> Analysed:
        plan = rows._jdf.queryExecution().analyzed()
        if source is None:
            return Analysed(
                plan.condition().toJSON(), self.schema, _ids(plan.child()), {}
            )
        tree = plan.condition().get().toJSON()
        return Analysed(tree, self.schema, _ids(plan.right()), _ids(plan.left()))

    def type_of(self, other: DataFrame | None = None) -> Callable[[Column], DataType]:
        """Return a function that tells the type of an expression over the table.

        The expression may also use the columns of `other`.
        """
        rows = self.empty
        joined = rows if other is None else rows.crossJoin(other)
        return lambda column: joined.select(column).schema[0].dataType

    def decided(self, files: Files, condition: Condition) -> Files | None:
        """Return the files whose rows all match, or None if rows must be read.

        Partition values alone decide if `condition` uses only partition columns.
        """
        partitions = partitions_in(self.metadata)
        fields = [StructField(p.field.name, p.type) for p in partitions]
        if not fields or not self._is_over(fields, condition):
            return None
        texts = files.table["partition_values"]
        distinct = texts.unique().to_pylist()
        rows = [(i, *(p.value(t) for p in partitions)) for i, t in enumerate(distinct)]
        schema = StructType([StructField(_INDEX, IntegerType()), *fields])
        values = self.spark.createDataFrame(rows, schema).alias(self.alias or _ALIAS)
        found = values.filter(column_of(condition)).select(_INDEX).collect()
        wanted = pa.array([distinct[i] for (i,) in found], pa.string())
        return Files(files.table.filter(pc.is_in(texts, wanted)))

    def _is_over(self, fields: Sequence[StructField], condition: Condition) -> bool:
        """Return whether Spark can evaluate `condition` with `fields` alone."""
        names = [field.name for field in fields]
        if others(names, condition):
            return False
        # asked first, because some versions of Spark log the error below
        found = None if isinstance(condition, str) else self.analysed(condition)
        lower = {name.lower() for name in names}
        if found and not {name.lower() for name in found.names()} <= lower:
            return False
        empty = self.spark.createDataFrame([], StructType(list(fields)))
        try:
            _ = empty.alias(self.alias or _ALIAS).filter(column_of(condition)).schema
        except AnalysisException:
            return False
        return True


def _ids(plan: Any) -> dict[int, str]:
    """Return the names of a plan's columns by Spark's ids."""
    output = plan.output()
    columns = (output.apply(i) for i in range(output.size()))
    return {column.exprId().id(): column.name() for column in columns}


def column_of(condition: Condition) -> Column:
    """Return `condition`, which may be SQL, as a Column."""
    return sf.expr(condition) if isinstance(condition, str) else condition


def text_of(condition: Condition) -> str:
    """Return `condition` as the table's history shows it."""
    if isinstance(condition, str):
        return condition
    return str(condition).removeprefix("Column<'").removesuffix("'>")


def pruning(condition: Condition | None, target: Target) -> Predicate:
    """Return a predicate that holds for all rows that match `condition`.

    The predicate is `Anything` if neither the catalog nor a classic session tells what
    the condition means.
    """
    if condition is None or not is_utc(target):
        return Anything()
    found = _parsed(condition, target)
    if not isinstance(found, Anything):
        return found
    analysed = target.analysed(condition)
    try:
        return Anything() if analysed is None else analysed.predicate()
    except RecursionError:
        return Anything()


def _parsed(condition: Condition, target: Target) -> Predicate:
    """Return the predicate of a text, or `Anything`.

    Spark's SQL reads some texts differently: double quotes enclose literals there, and
    backslashes escape.
    """
    if not isinstance(condition, str) or not is_plain(condition):
        return Anything()
    # imported here, because sqlglot is slow to import
    from delkalakedb.model.predicate.merge_condition import without_alias
    from delkalakedb.model.predicate.sql import parse_condition, predicate_of

    try:
        tree = without_alias(parse_condition(condition), target.alias)
        return predicate_of(tree, target.schema)
    except (PredicateError, RecursionError):
        return Anything()


def is_plain(condition: str) -> bool:
    """Return whether the catalog and Spark parse the text `condition` alike."""
    return not set('"\\') & set(condition)


def others(names: Iterable[str], condition: Condition) -> list[str]:
    """Return the columns that `condition` surely uses besides `names`."""
    if not isinstance(condition, str) or not is_plain(condition):
        return []
    from delkalakedb.model.predicate.merge_condition import named_columns

    known = {name.lower() for name in names}
    try:
        named = named_columns(condition)
    except PredicateError:
        return []
    return sorted(name for name in named if name.lower() not in known)


@contextmanager
def kept(rows: DataFrame) -> Iterator[None]:
    """Cache `rows` while the context lasts, unless `rows` are cached already."""
    level = rows.storageLevel
    if level.useMemory or level.useDisk:
        yield
        return
    rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield
    finally:
        rows.unpersist()


def is_utc(target: Target) -> bool:
    """Return whether Spark and the catalog read times without a zone alike."""
    if all(leaf.type != "timestamp" for leaf in target.schema.leaves()):
        return True
    return target.spark.conf.get("spark.sql.session.timeZone") in _UTC


def read(
    spark: SparkSession,
    uri: str,
    where: str | Column | None = None,
    version: int | None = None,
    timestamp: str | datetime | date | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    *,
    changes_from: int | str | datetime | date | None = None,
    changes_to: int | str | datetime | date | None = None,
) -> DataFrame:
    """Return the rows of a table at one version, at which the DataFrame stays.

    With `changes_from`, return the rows of the change data feed instead.

    Args:
        spark: the Spark session.
        uri: the table's `deltasql://` URI, or its name in the session's catalog.
        where: a condition, as a text in Spark's SQL or as a Column. The catalog skips
            files by a text and, in a classic session, by a Column.
        version: the version; by default the latest.
        timestamp: selects the newest version up to this time, which is in the session's
            time zone unless it names a zone.
        columns: the columns to return, in this order.
        storage_options: the options of the object store, for files that Spark can't
            reach.
        changes_from: the first version whose changes are returned, or a time: the first
            version that isn't older.
        changes_to: the last version whose changes are returned, or a time: the newest
            version that isn't newer. By default the latest version.

    Returns:
        The rows; with `changes_from`, also the columns of the change data feed.

    Raises:
        TableNotFoundError: The catalog has no such table.
        VersionNotFoundError: The table has no such version, or none as old as the time.
        DeltaError: The time can't be parsed, or changes are asked for at one version.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> [row.city for row in dks.read(spark, uri, where="id > 2").collect()]
        ['Kyiv']
        >>> dks.read(spark, uri, version=0).count()
        2
    """
    check_spark(spark)
    parsed = uri_of(spark, uri)
    if changes_from is not None or changes_to is not None:
        if version is not None or timestamp is not None:
            raise DeltaError(
                f"{uri}: changes are read between two versions; give changes_to "
                "instead of version or timestamp"
            )
        bounds = _bound(spark, changes_from), _bound(spark, changes_to)
        with delta_spark_errors():
            feed = open_feed(open_catalog(parsed), require_table(parsed), *bounds)
            return read_changes(spark, feed, where, columns, storage_options)
    at_ms = None if timestamp is None else to_ms(moment_of(spark, timestamp))
    with delta_spark_errors():
        snapshot = open_catalog(parsed).snapshot(
            require_table(parsed), version, timestamp_ms=at_ms
        )
    return read_snapshot(spark, snapshot, where, columns, storage_options)


def read_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    where: str | Column | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of `snapshot` that match `where`."""
    predicate = None if where is None else pruning(where, Target(spark, snapshot))
    files = snapshot.files(predicate, columns=LIST_COLUMNS).read_all()
    if where is None:
        return frame(
            spark, snapshot, files, columns=columns, storage_options=storage_options
        )
    rows = frame(spark, snapshot, files, storage_options=storage_options)
    # again, because a file may also hold rows that don't match
    matching = rows.filter(where)
    return matching if columns is None else matching.select(*map(quoted, columns))


def read_changes(
    spark: SparkSession,
    feed: ChangeFeed,
    where: str | Column | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the changed rows of `feed` that match `where`."""
    rows = changes_frame(spark, feed.snapshot, feed.table, storage_options)
    if where is not None:
        rows = rows.filter(where)
    return rows if columns is None else rows.select(*map(quoted, columns))


def _bound(
    spark: SparkSession, given: int | str | datetime | date | None
) -> int | datetime | None:
    if given is None or (isinstance(given, int) and given >= 0):
        return given
    if isinstance(given, int):
        raise DeltaError(f"a version must be at least 0, not {given}")
    return moment_of(spark, given)


def moment_of(spark: SparkSession, timestamp: str | datetime | date) -> datetime:
    """Return a time; without a zone, it is in the session's time zone.

    Raises:
        DeltaError: Spark can't read the text as a time.
    """
    if isinstance(timestamp, datetime) and timestamp.tzinfo is not None:
        return timestamp
    query = "SELECT unix_micros(try_to_timestamp(:text))"
    ((micros,),) = spark.sql(query, args={"text": str(timestamp)}).collect()
    if micros is None:
        raise DeltaError(
            f"The provided timestamp ('{timestamp}') cannot be converted to a valid "
            "timestamp; write it like 2026-01-31 12:30:00"
        )
    return from_micros(micros)
