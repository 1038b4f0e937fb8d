"""`DeltaTable.merge(...)` as delta-spark has it."""

# ruff: noqa: N802 - delta-spark's names

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.spark.clauses import Clause, Clauses, When
from delkalakedb.spark.handles import Handle
from delkalakedb.spark.merge_range import source_range
from delkalakedb.spark.merging import Merge, MergePlan
from delkalakedb.spark.target import Condition, Target, kept
from delkalakedb.workspace import Operation

__all__ = ["DeltaMergeBuilder"]

_COUNTS = {
    "num_affected_rows": ("Updated", "Deleted", "Inserted"),
    "num_updated_rows": ("Updated",),
    "num_deleted_rows": ("Deleted",),
    "num_inserted_rows": ("Inserted",),
}


class DeltaMergeBuilder:
    """A merge, clause by clause; each call gives a builder with one more.

    Of the clauses of a kind, the first whose condition holds applies to a row.
    """

    def __init__(self, target: Target, handle: Handle, plan: MergePlan) -> None:
        self._target = target
        self._handle = handle
        self._plan = plan

    def whenMatchedUpdate(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> "DeltaMergeBuilder":
        """Update a row that matches."""
        given = _required(set, "set")
        return self._with(Clause(When.MATCHED, "update", condition, given))

    def whenMatchedUpdateAll(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Set all columns of a row that matches to the source's of the same name."""
        return self._with(Clause(When.MATCHED, "update", condition))

    def whenMatchedDelete(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Delete a row that matches."""
        return self._with(Clause(When.MATCHED, "delete", condition))

    def whenNotMatchedInsert(
        self,
        condition: Condition | None = None,
        values: Mapping[str, Condition] | None = None,
    ) -> "DeltaMergeBuilder":
        """Insert a row for one of the source that matches none."""
        given = _required(values, "values")
        return self._with(Clause(When.NOT_MATCHED, "insert", condition, given))

    def whenNotMatchedInsertAll(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Insert a row of the source that matches none."""
        return self._with(Clause(When.NOT_MATCHED, "insert", condition))

    def whenNotMatchedBySourceUpdate(
        self,
        condition: Condition | None = None,
        set: Mapping[str, Condition] | None = None,  # noqa: A002
    ) -> "DeltaMergeBuilder":
        """Update a row that nothing of the source matches."""
        given = _required(set, "set")
        clause = Clause(When.NOT_MATCHED_BY_SOURCE, "update", condition, given)
        return self._with(clause)

    def whenNotMatchedBySourceDelete(
        self, condition: Condition | None = None
    ) -> "DeltaMergeBuilder":
        """Delete a row that nothing of the source matches."""
        return self._with(Clause(When.NOT_MATCHED_BY_SOURCE, "delete", condition))

    def withSchemaEvolution(self) -> "DeltaMergeBuilder":
        """Add the source's new columns to the table."""
        plan = replace(self._plan, evolves=True)
        return DeltaMergeBuilder(self._target, self._handle, plan)

    def execute(self) -> DataFrame:
        """Do it; one row with the numbers of rows that it changed."""
        self._plan.clauses.check()
        with kept(self._plan.source):
            num_rows, where = source_range(self._plan, self._target)

            def run(snapshot: Snapshot) -> Any:
                target = replace(self._target, snapshot=snapshot)
                return Merge(self._plan, target, where).run(num_rows)

            metrics = self._handle.perform(Operation("merge", run, where))
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


def _required(
    given: Mapping[str, Condition] | None, name: str
) -> Mapping[str, Condition]:
    if not given:
        raise ValueError(f"{name!r} needs at least one column")
    return given
