"""The rows that a merge writes: one expression for each column of the table."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from delkalakedb.errors import SchemaMismatchError
from delkalakedb.model.actions import Metadata
from delkalakedb.spark.assigning import assigned_columns, by_name, find_field
from delkalakedb.spark.checking import finished, generated_columns
from delkalakedb.spark.clauses import CLAUSE, Clause, When
from delkalakedb.spark.evolving import evolved_metadata
from delkalakedb.spark.schemas import quoted, spark_schema
from delkalakedb.spark.target import Target, column_of

if TYPE_CHECKING:
    from delkalakedb.spark.merging import MergePlan

__all__ = ["OLD", "MergedRow"]

OLD = "__dk_old"


class MergedRow:
    """What the clauses of a merge make of the table's columns."""

    def __init__(self, plan: "MergePlan", target: Target) -> None:
        self._plan = plan
        self._target = target

    @cached_property
    def changed_metadata(self) -> Metadata | None:
        """The table's metadata, where the source brings new columns."""
        if not self._plan.evolves:
            return None
        fields = self._plan.source.schema.fields
        new = StructType([field for field in fields if self._is_used(field.name)])
        evolved = evolved_metadata(self._target.metadata, new)
        return None if evolved == self._target.metadata else evolved

    @cached_property
    def schema(self) -> StructType:
        """The columns to write."""
        return spark_schema(self._metadata)

    @property
    def names(self) -> list[str]:
        """Their names, as Spark's expressions take them."""
        return [quoted(name) for name in self.schema.names]

    def merged(self, joined: DataFrame, more: Sequence[str] = ()) -> DataFrame:
        """The rows of both sides as they will be, and in `OLD` as they were."""
        values = self._values(self._plan.clauses.all, self._now)
        old = sf.struct(*(self._now(name).alias(name) for name in self.schema.names))
        return joined.select(*values, CLAUSE, old.alias(OLD), *more)

    def inserted(self, chosen: DataFrame) -> DataFrame:
        """The rows of the source alone as they will be."""
        inserts = [c for _, c in self._plan.clauses.of(When.NOT_MATCHED)]
        values = self._values(inserts, self._nothing)
        return chosen.select(*values, CLAUSE)

    def finished(self, rows: DataFrame) -> DataFrame:
        """The rows as the table takes them; to write one that breaks a rule fails.

        A generated column is computed where no clause gave it a value.
        """
        given = {name: self._giving(name) for name in self._generated}
        given = {name: clauses for name, clauses in given.items() if clauses}
        for name, clauses in given.items():
            stated = sf.when(self._applies(*clauses), sf.col(quoted(name)))
            rows = rows.withColumn(name, stated.otherwise(self._generated[name]))
        return finished(rows, self._metadata, given).select(*self.names)

    @cached_property
    def _generated(self) -> dict[str, Column]:
        return generated_columns(self._metadata)

    def _giving(self, name: str) -> list[Clause]:
        clauses = [c for c in self._plan.clauses.all if c.action != "delete"]
        return [clause for clause in clauses if name in self._assigned(clause)]

    @property
    def _metadata(self) -> Metadata:
        return self.changed_metadata or self._target.metadata

    def _is_used(self, name: str) -> bool:
        """Whether a column of the source is assigned under its own name."""
        clauses = [c for c in self._plan.clauses.all if c.action != "delete"]
        return any(
            c.assigned is None or name.lower() in {key.lower() for key in c.assigned}
            for c in clauses
        )

    def _values(
        self, clauses: Sequence[Clause], otherwise: Callable[[str], Column]
    ) -> list[Column]:
        given = [(c, self._assigned(c)) for c in clauses if c.action != "delete"]
        values = []
        for name in self.schema.names:
            value = otherwise(name)
            for clause, assigned in given:
                if name in assigned:
                    value = sf.when(self._applies(clause), assigned[name]).otherwise(
                        value
                    )
            values.append(value.alias(name))
        return values

    def _applies(self, *clauses: Clause) -> Column:
        numbers = [self._plan.clauses.all.index(clause) for clause in clauses]
        return sf.col(CLAUSE).isin(numbers)

    def _assigned(self, clause: Clause) -> dict[str, Column]:
        if clause.assigned is None:
            return self._all_assigned(clause)
        given = {key: column_of(value) for key, value in clause.assigned.items()}
        inserts = clause.when is When.NOT_MATCHED
        current = self._nothing if inserts else self._now
        type_of = self._target.type_of(self._plan.source)
        return assigned_columns(
            self.schema, given, current, type_of, self._target.alias
        )

    def _all_assigned(self, clause: Clause) -> dict[str, Column]:
        source = self._plan.source
        found = {f.name: find_field(source.schema, f.name) for f in self.schema.fields}
        missing = [name for name, field in found.items() if field is None]
        missing = [name for name in missing if name not in self._generated]
        if missing and not self._plan.evolves:
            raise SchemaMismatchError(
                f"{self._target.snapshot.table.name}: the source of the merge has no "
                f"column {', '.join(missing)}, which {clause.action} of all columns "
                f"needs; it has {', '.join(source.schema.names)}"
            )
        kinds = {field.name: field.dataType for field in self.schema.fields}
        return {
            name: by_name(source[quoted(field.name)], field.dataType, kinds[name])
            for name, field in found.items()
            if field is not None
        }

    def _now(self, name: str) -> Column:
        """A column as the table has it."""
        there = find_field(spark_schema(self._target.metadata), name)
        if there is None:
            return self._nothing(name)
        now, wanted = self._target.column(name), self.schema[name].dataType
        if there.dataType == wanted:
            return now
        return by_name(now, there.dataType, wanted)

    def _nothing(self, name: str) -> Column:
        return sf.lit(None).cast(self.schema[name].dataType)
