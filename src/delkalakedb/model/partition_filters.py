"""Conditions on partition columns, as deltalake's filters say them."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate import And, Comparison, In, Predicate
from delkalakedb.model.schema import Column
from delkalakedb.model.values import INTEGRAL, Kind, Value, kind_of

__all__ = ["PartitionFilter", "partition_filters"]

PartitionFilter = tuple[str, str, str | list[str]]
_EPOCH = date(1970, 1, 1)


def partition_filters(
    predicate: Predicate, partition_columns: Sequence[str]
) -> list[PartitionFilter]:
    """The `(column, op, value)` tuples that choose the same whole partitions."""
    return list(_filters(predicate, partition_columns))


def _filters(
    predicate: Predicate, partition_columns: Sequence[str]
) -> Iterator[PartitionFilter]:
    match predicate:
        case And(parts) if parts:
            for part in parts:
                yield from _filters(part, partition_columns)
        case Comparison(column, op, value) if column.path[0] in partition_columns:
            yield column.path[0], str(op), _text(column, value)
        case In(column, values) if column.path[0] in partition_columns:
            yield column.path[0], "in", [_text(column, value) for value in values]
        case _:
            raise _not_partitions(partition_columns)


def _text(column: Column, value: Value) -> str:
    """A value as the log writes that of a partition."""
    if column.type == "date" and isinstance(value, int):
        return (_EPOCH + timedelta(days=value)).isoformat()
    if column.type == "boolean":
        return "true" if value else "false"
    exact = column.type in INTEGRAL or column.type.startswith("decimal")
    if exact or kind_of(column.type) is Kind.TEXT:
        return str(value)
    raise PredicateError(f"partitions can't be chosen by a {column.type} column")


def _not_partitions(partition_columns: Sequence[str]) -> PredicateError:
    there = ", ".join(partition_columns)
    columns = f"; they are {there}" if there else ", and the table has none"
    return PredicateError(
        "whole partitions are chosen: compare partition columns with values, joined "
        f"by AND{columns}"
    )
