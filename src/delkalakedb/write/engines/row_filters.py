"""Filters of rows for pyarrow, made of predicates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate.predicate import (
    And,
    Anything,
    Comparison,
    In,
    IsNotNull,
    IsNull,
    Nothing,
    Op,
    Or,
    Predicate,
)
from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.values import FLOATING, INTEGRAL, Kind, Value, kind_of

_COMPARE = {Op.EQ: eq, Op.NE: ne, Op.LT: lt, Op.LE: le, Op.GT: gt, Op.GE: ge}
_TIMES = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

# values; finding which of 8 integers a row has takes half as long as a hash table
_FEW = 8


@dataclass(frozen=True)
class RowTest:
    """A test of rows: one of the values of each of `keys`, and then `condition`.

    Args:
        columns: the columns that the test reads.
        keys: values by column.
        condition: a pyarrow expression; None passes every row.
    """

    columns: frozenset[str]
    keys: Mapping[str, pa.Array]
    condition: pc.Expression | None

    def passing(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass."""
        for name, values in self.keys.items():
            rows = rows.filter(_is_one_of(rows[name], values))
        if self.condition is None or not rows.num_rows:
            return rows
        return rows.filter(self.condition)


def row_test(
    where: Predicate,
    keys: Mapping[str, pa.Array],
    others: Predicate | None,
    schema: pa.Schema,
) -> RowTest:
    """Return the test of rows that match `where` and have one of the values of `keys`.

    Args:
        where: a predicate that `widened` has returned.
        keys: values by column.
        others: a predicate that `widened` has returned; rows that match it pass, too.
        schema: the types of the columns.
    """
    keys = {
        name: values.cast(schema.field(name).type, safe=False)
        for name, values in keys.items()
    }
    predicates = where, others or Nothing()
    columns = {c.path[0] for one in predicates for c in columns_of(one)} | {*keys}
    if others is not None:
        parts = [pc.field(name).isin(values) for name, values in keys.items()]
        parts += [] if isinstance(where, Anything) else [row_filter(where)]
        vague = isinstance(others, Anything) or not parts
        either = None if vague else reduce(and_, parts) | row_filter(others)
        return RowTest(frozenset(columns), {}, either)
    rest = list[pc.Expression]()
    for part in where.parts if isinstance(where, And) else (where,):
        if isinstance(part, In) and part.values and part.column.path[0] not in keys:
            name = part.column.path[0]
            with suppress(pa.ArrowInvalid):
                values = _array(part.column, part.values)
                keys[name] = values.cast(schema.field(name).type)
                continue
        rest += [] if isinstance(part, Anything) else [row_filter(part)]
    return RowTest(frozenset(columns), keys, reduce(and_, rest) if rest else None)


def _is_one_of(column: pa.Array, values: pa.Array) -> pa.Array:
    """Return which rows of `column` have one of `values`."""
    if pa.types.is_primitive(column.type) and not pa.types.is_floating(column.type):
        # If rows are clustered by the column, a batch has few of the values.
        ends = pc.min_max(column)
        above = pc.greater_equal(values, ends["min"])
        values = values.filter(pc.and_(above, pc.less_equal(values, ends["max"])))
        if not len(values):
            return pa.repeat(pa.scalar(False), len(column))
        if len(values) <= _FEW:
            return reduce(pc.or_, (pc.equal(column, value) for value in values))
    return pc.is_in(column, values)


def row_filter(predicate: Predicate) -> pc.Expression:
    """Return the pyarrow expression that selects the rows matching `predicate`.

    Raises:
        PredicateError: `predicate` has a part that only Spark can evaluate.
    """
    match predicate:
        case And(parts) if parts:
            return reduce(and_, map(row_filter, parts))
        case Or(parts) if parts:
            return reduce(or_, map(row_filter, parts))
        case Comparison(column, op, value):
            return _compare(column, op, value)
        case In(column, values):
            if not values:
                return pc.scalar(False)
            return pc.field(*column.path).isin(_array(column, values))
        case IsNull(column):
            return pc.field(*column.path).is_null()
        case IsNotNull(column):
            return pc.field(*column.path).is_valid()
        case And():
            return pc.scalar(True)
        case Or() | Nothing():
            return pc.scalar(False)
        case _:
            raise PredicateError(
                "only Spark can evaluate a part of the filter; give the filter to the "
                "DataFrame's where(), or read with delkalakedb.spark.read(where=...)"
            )


def columns_of(predicate: Predicate) -> Iterator[Column]:
    """Yield the columns that `predicate` compares."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from columns_of(part)
    elif isinstance(predicate, Comparison | In | IsNull | IsNotNull):
        yield predicate.column


def _compare(column: Column, op: Op, value: Value) -> pc.Expression:
    found = pc.field(*column.path)
    compared: pc.Expression = _COMPARE[op](found, _scalar(column, value))
    # Spark sorts NaN above all other values.
    above = column.type in FLOATING and op in (Op.GT, Op.GE)
    return compared | pc.is_nan(found) if above else compared


def _array(column: Column, values: Sequence[Value]) -> pa.Array:
    """Return values as an array, at once if they are integers, because it is faster."""
    if column.type in INTEGRAL and all(type(value) is int for value in values):
        with suppress(OverflowError):
            return pa.array(values, pa.int64())
    scalars = [_scalar(column, value) for value in values]
    return pa.array([one.as_py() for one in scalars], scalars[0].type)


def _scalar(column: Column, value: Any) -> pa.Scalar:
    if column.type in _TIMES and isinstance(value, int):
        days = column.type == "date"
        number = pa.scalar(value, pa.int32() if days else pa.int64())
        return number.cast(_TIMES[column.type])
    if column.type == "boolean":
        return pa.scalar(bool(value))
    if kind_of(column.type) is Kind.TEXT:
        return pa.scalar(str(value))
    if column.type in FLOATING:
        return pa.scalar(float(value))
    if column.type.startswith("decimal"):
        return pa.scalar(Decimal(value))
    if isinstance(value, int) and value.bit_length() < 64:
        return pa.scalar(value)
    raise PredicateError(
        f"column {'.'.join(column.path)} can't be compared with {value!r}"
    )


# Types whose values every engine compares alike with a value of the given class.
_ALIKE: dict[str, type] = {
    **dict.fromkeys((*INTEGRAL, "date", "timestamp", "timestamp_ntz"), int),
    "boolean": bool,
    "string": str,
}
_MOST_BITS = 64


def widened(predicate: Predicate, present: frozenset[str]) -> Predicate:
    """Return a predicate for `row_filter` that holds wherever the given one does.

    The parts that engines may evaluate in different ways are replaced by `Anything`,
    which is either the whole predicate or in no part of it.

    Args:
        predicate: the predicate.
        present: the columns that can be evaluated.
    """
    match predicate:
        case And(parts):
            kept = [widened(part, present) for part in parts]
            kept = [part for part in kept if not isinstance(part, Anything)]
            return And(tuple(kept)) if kept else Anything()
        case Or(parts):
            kept = [widened(part, present) for part in parts]
            vague = any(isinstance(part, Anything) for part in kept)
            return Anything() if vague else Or(tuple(kept))
        case Comparison(column, _, value) if _is_alike(column, value):
            return predicate if _is_top(column, present) else Anything()
        case In(column, values) if all(_is_alike(column, value) for value in values):
            return predicate if _is_top(column, present) else Anything()
        case IsNull(column) | IsNotNull(column):
            return predicate if _is_top(column, present) else Anything()
        case Nothing():
            return predicate
        case _:
            return Anything()


def _is_alike(column: Column, value: Value) -> bool:
    """Return whether every engine compares a column with a value alike."""
    if column.type == "double":
        # Some engines tell 0.0 from -0.0.
        return value != 0
    kind = _ALIKE.get(column.type)
    if kind is int and isinstance(value, int) and value.bit_length() >= _MOST_BITS:
        return False
    return kind is not None and type(value) is kind


def _is_top(column: Column, present: frozenset[str]) -> bool:
    return len(column.path) == 1 and column.path[0] in present
