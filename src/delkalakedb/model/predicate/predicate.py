"""Predicates over rows, as far as they can select files."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

from delkalakedb.errors import PredicateError, did_you_mean
from delkalakedb.model.schema.partition import parse_partition_value
from delkalakedb.model.schema.schema import Column, Schema
from delkalakedb.model.stats.values import (
    FLOATING,
    INTEGRAL,
    Kind,
    Value,
    coerce,
    exact,
    kind_of,
)
from delkalakedb.model.times import from_days


class Op(StrEnum):
    """The operator of a comparison."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


FLIPPED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}
"""The operators that change when the sides of a comparison are exchanged."""


@dataclass(frozen=True, slots=True)
class And:
    """A conjunction: all parts hold."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """A disjunction: at least one part holds."""

    parts: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of a column with an exact value of the column's type.

    `typed` says that no engine converts the value or the column to compare them.
    """

    column: Column
    op: Op
    value: Value
    typed: bool = False


@dataclass(frozen=True, slots=True)
class In:
    """A column that equals one of some exact values of the column's type."""

    column: Column
    values: tuple[Value, ...]
    typed: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """A column that is null."""

    column: Column


@dataclass(frozen=True, slots=True)
class IsNotNull:
    """A column that isn't null."""

    column: Column


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A necessary condition: the values of a text column start with a prefix."""

    column: Column
    prefix: str


@dataclass(frozen=True, slots=True)
class Anything:
    """An expression that may hold for any row."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """An expression that is null for every row."""


Predicate = (
    And | Or | Comparison | In | IsNull | IsNotNull | StartsWith | Anything | Nothing
)

_OPPOSITE = {
    Op.EQ: Op.NE,
    Op.NE: Op.EQ,
    Op.LT: Op.GE,
    Op.GE: Op.LT,
    Op.GT: Op.LE,
    Op.LE: Op.GT,
}
_TUPLE_OPS = {"==": Op.EQ, **{str(op): op for op in Op}}


def negate(predicate: Predicate) -> Predicate:
    """Return a predicate that holds where `predicate` is false, but not null."""
    match predicate:
        case And(parts):
            return Or(tuple(negate(part) for part in parts))
        case Or(parts):
            return And(tuple(negate(part) for part in parts))
        case Comparison(column, op, value, typed):
            return Comparison(column, _OPPOSITE[op], value, typed)
        case In(column, values, typed):
            return And(tuple(Comparison(column, Op.NE, v, typed) for v in values))
        case IsNull(column):
            return IsNotNull(column)
        case IsNotNull(column):
            return IsNull(column)
        case Nothing():
            return predicate
        case StartsWith() | Anything():
            return Anything()


def parse_predicate(
    filter: str | Sequence[Any] | None,  # noqa: A002
    schema: Schema,
    partition_columns: Sequence[str] = (),
) -> Predicate:
    """Parse a filter: SQL, or tuples as deltalake takes them.

    Args:
        filter: SQL; or a list of `(column, op, value)`, all of which must hold; or a
            list of such lists, one of which must hold. None and an empty list keep
            every row.
        schema: The table's schema.
        partition_columns: The names of the table's partition columns.

    Raises:
        PredicateError: The filter can't be parsed or names an unknown column.
    """
    if isinstance(filter, str):
        # Here, because sqlglot is slow to import.
        from delkalakedb.model.predicate.sql import parse_sql

        return parse_sql(filter, schema)
    if not filter:
        return Anything()
    tuples = _Tuples(schema, partition_columns)
    if all(_is_conjunction(item) for item in filter):
        return Or(tuple(tuples.conjunction(item) for item in filter))
    return tuples.conjunction(filter)


def find_column(path: Sequence[str], schema: Schema) -> Column | None:
    """Return the column at a path; None for one within a map, an array or a variant.

    Raises:
        PredicateError: The schema has no such column.
    """
    if (column := schema.column(path)) is not None:
        return column
    for depth in range(len(path) - 1, 0, -1):
        outer = schema.column(path[:depth])
        if outer is not None and outer.type in ("map", "array", "variant"):
            return None
    raise _unknown_column(".".join(path), schema)


def compare(column: Column, op: Op, literal: Any) -> Predicate:
    """Return the comparison of a column with a literal, where None is NULL."""
    if literal is None:
        return Nothing()
    value = coerce(literal, column.type) if kind_of(column.type) else None
    return Anything() if value is None else Comparison(column, op, value)


def is_in(column: Column, literals: Iterable[Any]) -> Predicate:
    """Return the membership of a column in literals, where None is NULL."""
    given = alike(literals)
    parts = [compare(column, Op.EQ, item) for item in given if item is not None]
    values = tuple(part.value for part in parts if isinstance(part, Comparison))
    if len(values) < len(parts):
        return Anything()
    found = In(column, values)
    return Or((found, Nothing())) if len(parts) < len(given) else found


def alike(literals: Iterable[Any]) -> list[Any]:
    """Return the literals as engines compare them: as doubles if one is a double."""
    given = list(literals)
    if any(isinstance(item, float | Decimal) for item in given):
        return [Decimal(item) if type(item) is int else item for item in given]
    return given


def _unknown_column(name: str, schema: Schema) -> PredicateError:
    there = [".".join(leaf.path) for leaf in schema.leaves()]
    near = did_you_mean(name, there)
    return PredicateError(f"no column {name}{near}; the table has {', '.join(there)}")


def _is_conjunction(item: Any) -> bool:
    return isinstance(item, list | tuple) and not (item and isinstance(item[0], str))


class _Tuples:
    """A parser of `(column, op, value)` tuples that follows deltalake.

    An empty text is null. In a text column that isn't a partition column, an empty text
    also matches empty values.
    """

    def __init__(self, schema: Schema, partition_columns: Sequence[str]) -> None:
        self._schema = schema
        self._partitions = {name.lower() for name in partition_columns}

    def conjunction(self, filters: Sequence[Any]) -> Predicate:
        if not filters:
            raise PredicateError("a list of filters is empty; pass None to keep all")
        return And(tuple(self._one(item) for item in filters))

    def _one(self, item: Any) -> Predicate:
        try:
            name, op, value = item
        except (TypeError, ValueError) as error:
            message = f"{item!r} is not a (column, op, value) tuple"
            raise PredicateError(message) from error
        column = self._schema.column(str(name))
        if column is None:
            raise _unknown_column(str(name), self._schema)
        divides = column.path[0].lower() in self._partitions
        if divides and column.type == "binary":
            # deltalake compares the text that the log has.
            column = replace(column, type="string")
        if divides and kind_of(column.type) is None:
            raise PredicateError(
                f"a partition filter can't use {column.path[0]} of type {column.type}"
            )
        found = self._parsed(column, op, value)
        rounded = column.type in FLOATING or column.type.startswith("decimal")
        return _typed(found) if divides and rounded else found

    def _parsed(self, column: Column, op: Any, value: Any) -> Predicate:
        if op in ("in", "not in"):
            found = is_in(column, self._literals(column, value))
            return found if op == "in" else negate(found)
        if op not in _TUPLE_OPS:
            allowed = ", ".join([*_TUPLE_OPS, "in", "not in"])
            raise PredicateError(f"unknown operator {op!r}; use one of {allowed}")
        return self._compare(column, _TUPLE_OPS[op], value)

    def _compare(self, column: Column, op: Op, value: Any) -> Predicate:
        literal = self._literal(column, value)
        if literal not in (None, "") or op not in (Op.EQ, Op.NE):
            return compare(column, op, literal)
        if op is Op.NE:
            return IsNotNull(column)
        found = IsNull(column)
        return found if literal is None else Or((found, compare(column, op, literal)))

    def _literals(self, column: Column, values: Any) -> list[Any]:
        if not isinstance(values, list | tuple | set | frozenset):
            raise PredicateError(f"{values!r} is not a list of values")
        return [self._literal(column, value) for value in values]

    def _literal(self, column: Column, value: Any) -> Any:
        kind = kind_of(column.type)
        text = kind is Kind.TEXT
        if value == "" and text and column.path[0].lower() not in self._partitions:
            return value
        if value is None or value == "":
            return None
        literal = _as_text(value) if text else value
        if kind is not None and coerce(literal, column.type) is None:
            raise PredicateError(f"{value!r} can't be compared with a {column.type}")
        return literal


def _typed(predicate: Predicate) -> Predicate:
    """Return the predicate with values of the column's type, as partitions have."""
    match predicate:
        case And(parts):
            return And(tuple(map(_typed, parts)))
        case Or(parts):
            return Or(tuple(map(_typed, parts)))
        case Comparison(column, op, value):
            return Comparison(column, op, _of_type(value, column.type), typed=True)
        case In(column, values):
            of_type = (_of_type(value, column.type) for value in values)
            return In(column, tuple(of_type), typed=True)
        case _:
            return predicate


def _of_type(value: Value, type_name: str) -> Value:
    if type_name not in FLOATING:
        return value
    number = exact(parse_partition_value(str(value), type_name))
    assert number is not None
    return number


def _as_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, str | int | float) else None


PartitionFilter = tuple[str, str, str | list[str]]


def partition_filters(
    predicate: Predicate, partition_columns: Sequence[str]
) -> list[PartitionFilter]:
    """Return the `(column, op, value)` tuples of a predicate over partition columns.

    Raises:
        PredicateError: The predicate doesn't select whole partitions.
    """
    match predicate:
        case And(parts) if parts:
            nested = (partition_filters(part, partition_columns) for part in parts)
            return [found for filters in nested for found in filters]
        case Comparison(column, op, value) if column.path[0] in partition_columns:
            return [(column.path[0], str(op), _text(column, value))]
        case In(column, values) if column.path[0] in partition_columns:
            return [(column.path[0], "in", [_text(column, v) for v in values])]
    there = ", ".join(partition_columns)
    columns = f"; they are {there}" if there else ", and the table has none"
    raise PredicateError(
        "the filter must select whole partitions: compare partition columns with "
        f"values, joined by AND{columns}"
    )


def _text(column: Column, value: Value) -> str:
    """Return a value as the text of a partition value in the log."""
    if column.type == "date" and isinstance(value, int):
        return from_days(value).isoformat()
    if column.type == "boolean":
        return "true" if value else "false"
    exact = column.type in INTEGRAL or column.type.startswith("decimal")
    if exact or kind_of(column.type) is Kind.TEXT:
        return str(value)
    raise PredicateError(f"a partition filter can't use a column of type {column.type}")


EVERY_FILE = Anything()
