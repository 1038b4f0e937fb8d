"""Predicates as filters of Arrow rows, exact as Spark evaluates them."""

from collections.abc import Iterator
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate.predicate import (
    And,
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
from delkalakedb.model.stats.values import FLOATING, Kind, Value, kind_of

_COMPARE = {Op.EQ: eq, Op.NE: ne, Op.LT: lt, Op.LE: le, Op.GT: gt, Op.GE: ge}
_TIMES = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TRUE, _FALSE = pc.scalar(True), pc.scalar(False)


def row_filter(predicate: Predicate) -> pc.Expression:
    """Return the pyarrow expression that selects the rows matching `predicate`.

    Raises:
        PredicateError: `predicate` has a part that only Spark can evaluate.
    """
    match predicate:
        case And(parts):
            return reduce(and_, map(row_filter, parts), _TRUE)
        case Or(parts):
            return reduce(or_, map(row_filter, parts), _FALSE)
        case Comparison(column, op, value):
            return _compare(column, op, value)
        case In(column, values):
            same = (_compare(column, Op.EQ, value) for value in values)
            return reduce(or_, same, _FALSE)
        case IsNull(column):
            return pc.field(*column.path).is_null()
        case IsNotNull(column):
            return pc.field(*column.path).is_valid()
        case Nothing():
            return _FALSE
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
