"""Builders of tables, merges and optimizations, with delta-spark's signatures."""

# ruff: noqa: N802, N803 - delta-spark's names
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, LongType, StructField, StructType

from delkalakedb.catalog import open_catalog
from delkalakedb.deltalake import DeltaTable as Face
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.settings import format_uri, is_deltasql, parse_uri, require_table
from delkalakedb.spark.dml import (
    Clause,
    Clauses,
    Merge,
    MergePlan,
    Targeted,
    When,
    check_z_order,
    optimization,
    source_range,
)
from delkalakedb.spark.reader import Condition, Target, kept, pruning
from delkalakedb.write import Operation, Target as NewTarget
from delkalakedb.write.engines import InPlace, Work
from delkalakedb.write.engines.deltars import parse_new_schema

if TYPE_CHECKING:
    from delkalakedb.spark.face.table import Handle


T = TypeVar("T")
_GENERATED = "delta.generationExpression"


class DeltaTableBuilder(Generic[T]):
    """A description of a new table; `execute` creates the table.

    Args:
        mode: what to do if the table exists: error, ignore, replace or overwrite.
        uri: the URI of the table or of its catalog.
        opened: opens the new table.
        storage_options: the options of the table's object store.
    """

    def __init__(
        self,
        mode: str,
        uri: str | None,
        opened: Callable[[str, Mapping[str, str] | None], T],
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._mode = mode
        self._uri = None if uri is None else parse_uri(uri)
        self._opened = opened
        self._storage_options = storage_options
        self._location: str | None = None
        self._comment: str | None = None
        self._fields: list[StructField] = []
        self._partitions: list[str] = []
        self._properties: dict[str, str | None] = {}

    def tableName(self, identifier: str) -> Self:
        """Set the table's name in the catalog, or its `deltasql://` URI."""
        if is_deltasql(identifier):
            self._uri = parse_uri(identifier)
        elif self._uri is None:
            raise DeltaError(
                f"{identifier}: no catalog; give the catalog's URI to create(), or the "
                "table's deltasql:// URI to tableName()"
            )
        else:
            self._uri = self._uri.with_table(identifier)
        return self

    def location(self, location: str) -> Self:
        """Set the folder of the table's files."""
        self._location = location
        return self

    def comment(self, comment: str) -> Self:
        """Set the table's description."""
        self._comment = comment
        return self

    def addColumn(
        self,
        colName: str,
        dataType: str | DataType,
        nullable: bool = True,
        generatedAlwaysAs: str | None = None,
        generatedByDefaultAs: Any = None,
        comment: str | None = None,
    ) -> Self:
        """Add a column; `generatedAlwaysAs` is its generation expression."""
        if generatedByDefaultAs is not None or not isinstance(
            generatedAlwaysAs, str | None
        ):
            raise ProtocolError(f"{colName}: identity columns aren't supported")
        kind = DataType.fromDDL(dataType) if isinstance(dataType, str) else dataType
        said = {"comment": comment, _GENERATED: generatedAlwaysAs}
        metadata = {key: value for key, value in said.items() if value is not None}
        self._fields.append(StructField(colName, kind, nullable, metadata))
        return self

    def addColumns(self, cols: StructType | Sequence[StructField]) -> Self:
        """Add several columns."""
        self._fields += list(cols)
        return self

    def partitionedBy(self, *cols: str | Sequence[str]) -> Self:
        """Set the partition columns."""
        self._partitions = _names(cols)
        return self

    def clusterBy(self, *cols: str | Sequence[str]) -> Self:
        """Raise `ProtocolError`, because clustered tables aren't supported."""
        raise ProtocolError(
            "clusterBy: clustered tables aren't supported; use partitionedBy(), or "
            "optimize().executeZOrderBy() regularly"
        )

    def property(self, key: str, value: str) -> Self:
        """Set a table property."""
        self._properties[key] = value
        return self

    def execute(self) -> T:
        """Create the table and return it."""
        if self._uri is None:
            raise DeltaError("no table name; call tableName() before execute()")
        name = require_table(self._uri)
        if self._mode == "replace":
            # raises TableNotFoundError if there is no table to replace
            open_catalog(self._uri).snapshot(name)
        mode: Any = "overwrite" if self._mode == "replace" else self._mode
        uri = self._uri
        if self._location is not None:
            others = [option for option in uri.options if option[0] != "location"]
            uri = replace(uri, options=(*others, ("location", self._location)))
        Face.create(
            format_uri(uri),
            parse_new_schema(StructType(self._fields).json()),
            mode=mode,
            partition_by=self._partitions,
            description=self._comment,
            configuration=self._properties,
            storage_options=dict(self._storage_options or {}) or None,
        )
        return self._opened(format_uri(self._uri), self._storage_options)


def _names(cols: Sequence[str | Sequence[str]]) -> list[str]:
    return [n for col in cols for n in ([col] if isinstance(col, str) else col)]


_SIZES = """STRUCT<min: BIGINT, max: BIGINT, avg: DOUBLE, totalFiles: BIGINT,
    totalSize: BIGINT>"""
_OPTIMIZED = f"""
    path STRING, metrics STRUCT<
        numFilesAdded: BIGINT, numFilesRemoved: BIGINT,
        filesAdded: {_SIZES}, filesRemoved: {_SIZES},
        partitionsOptimized: BIGINT, totalConsideredFiles: BIGINT,
        totalFilesSkipped: BIGINT>
"""
_COUNTS = {
    "num_affected_rows": ("Updated", "Deleted", "Inserted"),
    "num_updated_rows": ("Updated",),
    "num_deleted_rows": ("Deleted",),
    "num_inserted_rows": ("Inserted",),
}


class DeltaMergeBuilder:
    """A merge; each method returns a builder with one more clause.

    For each row, the first clause of its kind whose condition holds applies.
    """

    def __init__(self, target: Target, handle: "Handle", plan: MergePlan) -> None:
        self._target = target
        self._handle = handle
        self._plan = plan

    def whenMatchedUpdate(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> "DeltaMergeBuilder":
        """Update rows that match a source row."""
        given = required(set, "set")
        return self._with(Clause(When.MATCHED, "update", condition, given))

    def whenMatchedUpdateAll(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Set all columns of a matched row to the source's columns."""
        return self._with(Clause(When.MATCHED, "update", condition))

    def whenMatchedDelete(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Delete rows that match a source row."""
        return self._with(Clause(When.MATCHED, "delete", condition))

    def whenNotMatchedInsert(
        self,
        condition: Condition | None = None,
        values: Mapping[str, Condition] | None = None,
    ) -> "DeltaMergeBuilder":
        """Insert a row for each source row without a match."""
        given = required(values, "values")
        return self._with(Clause(When.NOT_MATCHED, "insert", condition, given))

    def whenNotMatchedInsertAll(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Insert source rows without a match."""
        return self._with(Clause(When.NOT_MATCHED, "insert", condition))

    def whenNotMatchedBySourceUpdate(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> "DeltaMergeBuilder":
        """Update rows that match no source row."""
        given = required(set, "set")
        clause = Clause(When.NOT_MATCHED_BY_SOURCE, "update", condition, given)
        return self._with(clause)

    def whenNotMatchedBySourceDelete(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Delete rows that match no source row."""
        return self._with(Clause(When.NOT_MATCHED_BY_SOURCE, "delete", condition))

    def withSchemaEvolution(self) -> "DeltaMergeBuilder":
        """Add new columns of the source to the table."""
        plan = replace(self._plan, evolves=True)
        return DeltaMergeBuilder(self._target, self._handle, plan)

    def execute(self) -> DataFrame:
        """Merge, and return one row with the numbers of changed rows."""
        self._plan.clauses.check()
        with kept(self._plan.source):
            num_rows, where = source_range(self._plan, self._target)

            def run(to: NewTarget) -> Work[dict[str, int]]:
                target = replace(self._target, snapshot=to.base)
                return Merge(self._plan, target, where).run(num_rows)

            metrics = self._handle.perform(Operation("merge", InPlace(run), where))
        counts = [
            sum(metrics[f"numTargetRows{part}"] for part in parts)
            for parts in _COUNTS.values()
        ]
        schema = StructType([StructField(name, LongType()) for name in _COUNTS])
        return self._target.spark.createDataFrame([tuple(counts)], schema)

    def _with(self, clause: Clause) -> "DeltaMergeBuilder":
        clauses = Clauses([*self._plan.clauses.all, clause])
        plan = replace(self._plan, clauses=clauses)
        return DeltaMergeBuilder(self._target, self._handle, plan)


def required(
    given: Mapping[str, Condition] | None, name: str
) -> Mapping[str, Condition]:
    """Return `given`, or raise `ValueError` if it assigns no column."""
    if not given:
        raise ValueError(f"{name!r} needs at least one column")
    return given


class DeltaOptimizeBuilder:
    """The selection of files to optimize; `execute...` rewrites them."""

    def __init__(
        self, targeted: Targeted, handle: "Handle", where: str | None = None
    ) -> None:
        self._targeted = targeted
        self._handle = handle
        self._where = where

    def where(self, partitionFilter: str) -> "DeltaOptimizeBuilder":
        """Return a builder that optimizes only partitions that match a condition."""
        return DeltaOptimizeBuilder(self._targeted, self._handle, partitionFilter)

    def executeCompaction(self) -> DataFrame:
        """Rewrite small files as larger ones, and return one row with metrics."""
        return self._execute([])

    def executeZOrderBy(self, *cols: str | Sequence[str]) -> DataFrame:
        """Rewrite files in the Z order of columns, and return one row with metrics."""
        names = _names(cols)
        check_z_order(self._handle.snapshot().metadata, names)
        return self._execute(names)

    def _execute(self, z_order_by: list[str]) -> DataFrame:
        target = self._targeted(self._handle.snapshot())
        where = pruning(self._where, target)
        operation = optimization(self._targeted, self._where, z_order_by, where)
        row = (target.snapshot.table.location, self._handle.perform(operation))
        return target.spark.createDataFrame([row], _OPTIMIZED)
