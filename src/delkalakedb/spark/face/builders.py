"""Builders of tables, merges and optimizations, with delta-spark's signatures."""

# ruff: noqa: N802, N803 - delta-spark's names
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, LongType, StructField, StructType

from delkalakedb.catalog import open_catalog
from delkalakedb.errors import (
    DeltaError,
    TableExistsError,
)
from delkalakedb.settings import Uri, format_uri, is_deltasql, parse_uri, require_table
from delkalakedb.spark.dml import (
    Clause,
    Clauses,
    Merge,
    MergePlan,
    Targeted,
    When,
    check_z_order,
    optimization,
    purge,
    purge_metrics,
    source_range,
)
from delkalakedb.spark.exceptions import delta_spark_errors
from delkalakedb.spark.face.arguments import (
    assignments,
    check_condition,
    check_type,
    column_names,
)
from delkalakedb.spark.face.definition import Definition
from delkalakedb.spark.face.generation import IdentityGenerator, generation
from delkalakedb.spark.pyspark_api import parse_type
from delkalakedb.spark.reader import Condition, Target, kept, pruning
from delkalakedb.spark.session_catalog import (
    catalog_of,
    new_uri_at,
    uri_of,
)
from delkalakedb.spark.writer import check_defaults, merges_schemas
from delkalakedb.write import (
    Operation,
    Staging,
    Target as NewTarget,
    make_table,
    perform,
)
from delkalakedb.write.engines import InPlace, Work

if TYPE_CHECKING:
    from delkalakedb.spark.face.table import Handle


T = TypeVar("T")


class DeltaTableBuilder(Generic[T]):
    """A description of a new table; `execute` creates the table.

    Args:
        mode: what to do if the table exists: error, ignore, replace or overwrite.
        spark: the Spark session, in whose catalog names are looked up.
        uri: the URI of the table or of its catalog.
        opened: opens the new table.
        storage_options: the options of the table's object store.
    """

    def __init__(
        self,
        mode: str,
        spark: SparkSession,
        uri: str | None,
        opened: Callable[[str, Mapping[str, str] | None], T],
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._mode = mode
        self._spark = spark
        self._uri = None if uri is None else parse_uri(uri)
        self._opened = opened
        self._storage_options = storage_options
        self._location: str | None = None
        self._comment: str | None = None
        self._fields: list[StructField] = []
        self._partitions: list[str] = []
        self._clusters: list[str] | None = None
        self._properties: dict[str, str | None] = {}

    def tableName(self, identifier: str) -> Self:
        """Set the table's name in the catalog, or its `deltasql://` URI."""
        check_type(identifier, str, "Identifier must be str.")
        if self._uri is None or is_deltasql(identifier):
            self._uri = uri_of(self._spark, identifier)
        else:
            self._uri = self._uri.with_table(identifier)
        return self

    def location(self, location: str) -> Self:
        """Set the folder of the table's files.

        A table without a name is found by its location, or gets the folder's name.
        """
        check_type(location, str, "Location must be str.")
        self._location = location
        return self

    def comment(self, comment: str) -> Self:
        """Set the table's description."""
        check_type(comment, str, "Table comment must be str.")
        self._comment = comment
        return self

    def addColumn(
        self,
        colName: str,
        dataType: str | DataType,
        nullable: bool = True,
        generatedAlwaysAs: str | IdentityGenerator | None = None,
        generatedByDefaultAs: IdentityGenerator | None = None,
        comment: str | None = None,
    ) -> Self:
        """Add a column.

        Args:
            colName: the name.
            dataType: the type.
            nullable: whether the column may be null.
            generatedAlwaysAs: the expression of a generated column, or the values of an
                identity column.
            generatedByDefaultAs: the values of an identity column for rows without a
                value of their own.
            comment: the description.
        """
        check_type(colName, str, "Column name must be str.")
        check_type(
            dataType, (str, DataType), "Column data type must be str or DataType."
        )
        check_type(nullable, bool, "Column nullable must be bool.")
        check_type(comment, (str, NoneType), "Column comment must be str.")
        kind = parse_type(dataType) if isinstance(dataType, str) else dataType
        metadata = generation(colName, kind, generatedAlwaysAs, generatedByDefaultAs)
        if comment is not None:
            metadata["comment"] = comment
        self._fields.append(StructField(colName, kind, nullable, metadata))
        return self

    def addColumns(self, cols: StructType | Sequence[StructField]) -> Self:
        """Add several columns."""
        what = "Schema must be StructType or a list of StructField."
        check_type(cols, (list, StructType), what)
        for field in cols:
            inner = "Column in existing schema must be StructField."
            check_type(field, StructField, inner)
        self._fields += list(cols)
        return self

    def partitionedBy(self, *cols: str | Sequence[str]) -> Self:
        """Set the partition columns."""
        self._partitions = column_names(cols, "Partitioning column must be str.")
        return self

    def clusterBy(self, *cols: str | Sequence[str]) -> Self:
        """Set the columns that `optimize` clusters the table by."""
        self._clusters = column_names(cols, "Clustering column must be str.")
        return self

    def property(self, key: str, value: str) -> Self:
        """Set a table property."""
        for given in (key, value):
            check_type(given, str, "Key and value of property must be string.")
        self._properties[key] = value
        return self

    def execute(self) -> T:
        """Create the table and return it."""
        with delta_spark_errors():
            return self._execute()

    def _execute(self) -> T:
        uri = self._uri or self._found_by_location()
        name, catalog = require_table(uri), open_catalog(uri)
        check_defaults(self._spark, StructType(self._fields))
        definition = Definition(
            name,
            StructType(self._fields),
            self._partitions,
            self._clusters,
            self._properties,
            self._comment,
        )
        options = self._storage_options

        def exists(made: Staging[None] | None = None) -> bool:
            """Return whether the table exists, and replace it if the mode says so."""
            if (snapshot := catalog.find(name)) is None:
                return False
            if self._mode == "error":
                raise TableExistsError(f"{name}: a table of this name already exists")
            if self._mode != "ignore":
                operation = definition.replacement()
                perform(catalog, snapshot, operation, storage_options=options)
            return True

        if not exists():
            if self._mode == "replace":
                # Raises the error that suggests near names.
                catalog.snapshot(name)
            place = self._location or uri.location
            new = definition.creation()
            make_table(catalog, name, place, new, options, exists)
        return self._opened(format_uri(uri), options)

    def _found_by_location(self) -> Uri:
        """Return the URI of the table at the location, or of a new one named by it."""
        if self._location is None:
            raise DeltaError(
                "no table; call tableName() or location() before execute()"
            )
        return new_uri_at(catalog_of(self._spark), self._location)


_SIZES = """STRUCT<min: BIGINT, max: BIGINT, avg: DOUBLE, totalFiles: BIGINT,
    totalSize: BIGINT>"""
_FILES = "STRUCT<num: BIGINT, size: BIGINT>"
_OPTIMIZED = f"""
    path STRING, metrics STRUCT<
        numFilesAdded: BIGINT, numFilesRemoved: BIGINT,
        filesAdded: {_SIZES}, filesRemoved: {_SIZES},
        partitionsOptimized: BIGINT,
        zOrderStats: STRUCT<strategyName: STRING, inputCubeFiles: {_FILES},
            inputOtherFiles: {_FILES}, inputNumCubes: BIGINT, mergedFiles: {_FILES},
            numOutputCubes: BIGINT, mergedNumCubes: BIGINT>,
        clusteringStats: STRUCT<inputZCubeFiles: {_FILES}, inputOtherFiles: {_FILES},
            inputNumZCubes: BIGINT, mergedFiles: {_FILES}, numOutputZCubes: BIGINT>,
        numBins: BIGINT, numBatches: BIGINT, totalConsideredFiles: BIGINT,
        totalFilesSkipped: BIGINT, preserveInsertionOrder: BOOLEAN,
        numFilesSkippedToReduceWriteAmplification: BIGINT,
        numBytesSkippedToReduceWriteAmplification: BIGINT,
        startTimeMs: BIGINT, endTimeMs: BIGINT, totalClusterParallelism: BIGINT,
        totalScheduledTasks: BIGINT,
        autoCompactParallelismStats: STRUCT<
            maxClusterActiveParallelism: BIGINT, minClusterActiveParallelism: BIGINT,
            maxSessionActiveParallelism: BIGINT, minSessionActiveParallelism: BIGINT>,
        deletionVectorStats: STRUCT<
            numDeletionVectorsRemoved: BIGINT, numDeletionVectorRowsRemoved: BIGINT>,
        numTableColumns: BIGINT, numTableColumnsWithStats: BIGINT>
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
        given = assignments(set, "'set' in whenMatchedUpdate", condition)
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
        given = assignments(values, "'values' in whenNotMatchedInsert", condition)
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
        given = assignments(set, "'set' in whenNotMatchedBySourceUpdate", condition)
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
        evolves = self._plan.evolves or merges_schemas(self._target.spark)
        plan = replace(self._plan, evolves=evolves)
        with kept(plan.source):
            num_rows, where = source_range(plan, self._target)

            def run(to: NewTarget) -> Work[dict[str, int]]:
                target = replace(self._target, snapshot=to.base)
                return Merge(plan, target, where).run(num_rows)

            metrics = self._handle.perform(Operation("merge", InPlace(run), where))
        counts = [
            sum(metrics[f"numTargetRows{part}"] for part in parts)
            for parts in _COUNTS.values()
        ]
        schema = StructType([StructField(name, LongType()) for name in _COUNTS])
        return self._target.spark.createDataFrame([tuple(counts)], schema)

    def _with(self, clause: Clause) -> "DeltaMergeBuilder":
        check_condition(clause.condition)
        clauses = Clauses([*self._plan.clauses.all, clause])
        plan = replace(self._plan, clauses=clauses)
        return DeltaMergeBuilder(self._target, self._handle, plan)


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
        names = column_names(cols, "Z-order column must be str.")
        check_z_order(self._handle.snapshot().metadata, names)
        return self._execute(names)

    def executePurge(self) -> DataFrame:
        """Rewrite files without their deleted rows, and return one row with metrics.

        Delta Spark has only SQL for a purge: `REORG TABLE … APPLY (PURGE)`.
        """
        target = self._targeted(self._handle.snapshot())
        where = pruning(self._where, target)
        operation = purge(self._targeted, self._where, where, target)
        metrics = purge_metrics(self._handle.perform(operation))
        row = (target.snapshot.table.location, metrics)
        return target.spark.createDataFrame([row], _OPTIMIZED)

    def _execute(self, z_order_by: list[str]) -> DataFrame:
        target = self._targeted(self._handle.snapshot())
        where = pruning(self._where, target)
        operation = optimization(self._targeted, self._where, z_order_by, where)
        row = (target.snapshot.table.location, self._handle.perform(operation))
        return target.spark.createDataFrame([row], _OPTIMIZED)
