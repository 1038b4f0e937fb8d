"""Which of a table's rows the source of a merge may match."""

from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate import Anything, Predicate
from delkalakedb.spark.assigning import find_field
from delkalakedb.spark.merging import MergePlan
from delkalakedb.spark.schemas import quoted, spark_schema
from delkalakedb.spark.target import Target, is_plain, is_utc

if TYPE_CHECKING:
    from delkalakedb.model.merge_keys import MergeCondition

__all__ = ["source_range"]

_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
# Types whose values the catalog and Spark compare alike.
_COMPARABLE = frozenset({"string", "date", "timestamp", "timestamp_ntz"})


def source_range(plan: MergePlan, target: Target) -> tuple[int, Predicate]:
    """How many rows the source has, and which of the table's these may change."""
    understood = None if plan.clauses.by_source else _understood(plan, target)
    if understood is None:
        return plan.source.count(), Anything()
    condition, alias = understood
    names = [
        name
        for column, name in condition.keys
        if _comparable(target, plan, column.path[0], name)
    ]
    try:
        num_rows, bounds = _bounds(plan, alias, names)
    except (AnalysisException, OverflowError, ValueError):
        # A name that isn't of the source, or a time that Python doesn't have.
        return plan.source.count(), Anything()
    if not names and not condition.parts:
        return num_rows, Anything()
    return num_rows, condition.matching(bounds)


def _understood(plan: MergePlan, target: Target) -> "tuple[MergeCondition, str] | None":
    """The condition, as far as it can be used, and what the source is called in it."""
    text, alias = plan.condition, target.alias
    if not isinstance(text, str) or alias is None or not is_plain(text):
        return None
    # sqlglot takes long to import: only where it is needed.
    from delkalakedb.model.merge_keys import other_aliases, parse_merge

    try:
        others = other_aliases(text, alias)
    except PredicateError:
        return None
    if len(others) != 1 or not is_utc(target):
        return None
    (source,) = others
    condition = parse_merge(
        text,
        target.schema,
        plan.source.columns,
        target_alias=alias,
        source_alias=source,
    )
    return condition, source


def _bounds(
    plan: MergePlan, alias: str, names: list[str]
) -> tuple[int, dict[str, tuple[Any, Any]]]:
    ends = [
        end(sf.col(f"{quoted(alias)}.{quoted(name)}")).alias(f"{end.__name__}{i}")
        for i, name in enumerate(names)
        for end in (sf.min, sf.max)
    ]
    rows = plan.source.agg(sf.count("*").alias("rows"), *ends).toArrow()
    num_rows, *found = (column[0].as_py() for column in rows.columns)
    return num_rows, {
        name: (found[2 * i], found[2 * i + 1]) for i, name in enumerate(names)
    }


def _comparable(target: Target, plan: MergePlan, column: str, name: str) -> bool:
    ours = spark_schema(target.metadata)[column].dataType
    theirs = find_field(plan.source.schema, name)
    return theirs is not None and _alike(ours, theirs.dataType)


def _alike(one: DataType, other: DataType) -> bool:
    kinds = {one.simpleString(), other.simpleString()}
    return kinds <= _INTEGERS or (len(kinds) == 1 and kinds <= _COMPARABLE)
