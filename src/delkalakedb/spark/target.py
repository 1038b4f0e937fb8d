"""A version of a table as an operation sees it that replaces some of its files."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, IntegerType, StructField, StructType
from pyspark.storagelevel import StorageLevel

from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.rows import ADD_COLUMNS, add_from_row
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.partition import parse_partition_value
from delkalakedb.model.predicate import Anything, Predicate
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import Schema, parse_schema
from delkalakedb.spark.frames import frame
from delkalakedb.spark.schemas import quoted, spark_schema

__all__ = [
    "Condition",
    "Files",
    "Target",
    "column_of",
    "is_plain",
    "is_utc",
    "kept",
    "pruning",
    "text_of",
]

Condition = str | Column
# What a table without an alias of its own is called.
_ALIAS = "__dk_target"
_INDEX = "__dk_index"
_UTC = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})


@dataclass(frozen=True)
class Files:
    """Files of a table, as `Snapshot.files` gives them."""

    table: pa.Table

    def __len__(self) -> int:
        return len(self.table)

    def only(self, paths: Collection[str]) -> "Files":
        """Those at some paths."""
        wanted = pa.array(paths, pa.string())
        return Files(self.table.filter(pc.is_in(self.table["path"], wanted)))

    def without(self, paths: Collection[str]) -> "Files":
        """Those at other paths."""
        others = pc.invert(pc.is_in(self.table["path"], pa.array(paths, pa.string())))
        return Files(self.table.filter(others))

    @cached_property
    def adds(self) -> list[Add]:
        """The actions that added them."""
        columns = (self.table[name].to_pylist() for name in ADD_COLUMNS)
        return [add_from_row(row) for row in zip(*columns, strict=True)]

    @property
    def size_bytes(self) -> int:
        """The bytes of all of them."""
        return int(pc.sum(self.table["size_bytes"]).as_py() or 0)

    @property
    def num_vectors(self) -> int:
        """How many have a deletion vector."""
        return len(self) - int(self.table["deletion_vector"].null_count)

    @cached_property
    def rows(self) -> dict[str, int | None]:
        """The live rows of each, by path; None where no statistics tell."""
        counts = self.table["num_records"].to_pylist()
        return {
            add.path: None if count is None else count - _deleted(add)
            for add, count in zip(self.adds, counts, strict=True)
        }


@dataclass(frozen=True)
class Target:
    """A version of a table, and how Spark gets at its rows."""

    spark: SparkSession
    snapshot: Snapshot
    alias: str | None = None
    storage_options: Mapping[str, str] | None = None

    @property
    def metadata(self) -> Metadata:
        """The table's metadata."""
        return self.snapshot.metadata

    @property
    def schema(self) -> Schema:
        """The table's columns."""
        return parse_schema(self.metadata.schema_string)

    @property
    def names(self) -> list[str]:
        """The columns' names, as Spark's expressions take them."""
        return [quoted(field.name) for field in self.schema.fields]

    @property
    def changes_wanted(self) -> bool:
        """Whether the table has a change data feed."""
        return parse_properties(self.metadata).enable_change_data_feed

    def check_removable(self) -> None:
        """Refuse to change rows of a table that only grows."""
        if parse_properties(self.metadata).append_only:
            raise DeltaError(
                f"{self.snapshot.table.name}: rows can't be updated or deleted: the "
                "table only takes appends (delta.appendOnly)"
            )

    def files(self, where: Predicate) -> Files:
        """The files that may hold a row that matches."""
        return Files(self.snapshot.files(where).read_all())

    def frame(self, files: Files, *, tagged: bool = False) -> DataFrame:
        """The rows of files under the table's alias."""
        rows = frame(
            self.spark,
            self.snapshot,
            files.table,
            tagged=tagged,
            storage_options=self.storage_options,
        )
        return rows.alias(self.alias or _ALIAS)

    def column(self, name: str) -> Column:
        """A column of the frame, whatever else it is joined with."""
        return sf.col(f"{quoted(self.alias or _ALIAS)}.{quoted(name)}")

    def type_of(self, other: DataFrame | None = None) -> Callable[[Column], DataType]:
        """Says the type of an expression over the table, and maybe another frame."""
        rows = self.spark.createDataFrame([], spark_schema(self.metadata))
        rows = rows.alias(self.alias or _ALIAS)
        joined = rows if other is None else rows.crossJoin(other)
        return lambda column: joined.select(column).schema[0].dataType

    def decided(self, files: Files, condition: Condition) -> Files | None:
        """The files all of whose rows match, where partition values alone decide."""
        fields = self._partition_fields
        if not fields or not self._is_over(fields, condition):
            return None
        texts = files.table["partition_values"]
        distinct = texts.unique().to_pylist()
        rows = [
            (i, *self._partition_row(text, fields)) for i, text in enumerate(distinct)
        ]
        schema = StructType([StructField(_INDEX, IntegerType()), *fields])
        values = self.spark.createDataFrame(rows, schema).alias(self.alias or _ALIAS)
        found = values.filter(column_of(condition)).select(_INDEX).collect()
        wanted = pa.array([distinct[i] for (i,) in found], pa.string())
        return Files(files.table.filter(pc.is_in(texts, wanted)))

    @property
    def _partition_fields(self) -> list[StructField]:
        names = self.metadata.partition_columns
        return spark_schema(self.metadata, names).fields

    def _is_over(self, fields: Sequence[StructField], condition: Condition) -> bool:
        """Whether a condition needs no other columns: Spark is asked to analyse it."""
        if _names_others({field.name.lower() for field in fields}, condition):
            return False
        empty = self.spark.createDataFrame([], StructType(list(fields)))
        try:
            _ = empty.alias(self.alias or _ALIAS).filter(column_of(condition)).schema
        except AnalysisException:
            return False
        return True

    def _partition_row(self, text: str, fields: Sequence[StructField]) -> Iterator[Any]:
        values = msgspec.json.decode(text)
        for field in fields:
            column = self.schema.column((field.name,))
            assert column is not None
            yield parse_partition_value(values.get(column.physical[0]), column.type)


def column_of(condition: Condition) -> Column:
    """A condition or an expression as Spark's."""
    return sf.expr(condition) if isinstance(condition, str) else condition


def text_of(condition: Condition) -> str:
    """A condition as the history shows it."""
    if isinstance(condition, str):
        return condition
    return str(condition).removeprefix("Column<'").removesuffix("'>")


def pruning(condition: Condition | None, target: Target) -> Predicate:
    """Holds for each row for which the condition does, as far as it is understood.

    A Column can't be looked into, nor is text that Spark reads in its own way: to it
    double quotes enclose literals, and backslashes escape.
    """
    if not isinstance(condition, str) or not is_plain(condition):
        return Anything()
    # sqlglot takes long to import: only where it is needed.
    from delkalakedb.model.merge_keys import without_alias
    from delkalakedb.model.sql_predicate import parse_condition, predicate_of

    try:
        tree = without_alias(parse_condition(condition), target.alias)
        found = predicate_of(tree, target.schema)
    except (PredicateError, RecursionError):
        return Anything()
    return found if is_utc(target) else Anything()


def is_plain(condition: str) -> bool:
    """Whether the catalog reads a text like Spark does."""
    return not set('"\\') & set(condition)


def _names_others(names: set[str], condition: Condition) -> bool:
    """Whether a text surely needs other columns: Spark needn't fail to analyse it."""
    if not isinstance(condition, str) or not is_plain(condition):
        return False
    from delkalakedb.model.merge_keys import named_columns

    try:
        return any(name.lower() not in names for name in named_columns(condition))
    except PredicateError:
        return False


@contextmanager
def kept(rows: DataFrame) -> Iterator[None]:
    """Compute rows once for all that is done with them; a cached frame stays so."""
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
    """Whether times without a zone mean the same to Spark and to the catalog."""
    if all(leaf.type != "timestamp" for leaf in target.schema.leaves()):
        return True
    return target.spark.conf.get("spark.sql.session.timeZone") in _UTC


def _deleted(add: Add) -> int:
    vector = known(add.deletion_vector)
    return vector.cardinality if vector else 0
