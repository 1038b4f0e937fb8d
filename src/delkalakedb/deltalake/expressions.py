"""Filters of pyarrow datasets as predicates.

pyarrow writes an expression as a Substrait message (https://substrait.io), which is
parsed here; comments name the messages and the numbers of their fields. An expression
that Substrait can't hold, or that has an unknown part, keeps every file.
"""

import re
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.model.predicate.predicate import (
    FLIPPED,
    And,
    Anything,
    IsNotNull,
    IsNull,
    Op,
    Or,
    Predicate,
    compare,
    is_in,
    negate,
)
from delkalakedb.model.schema.schema import Column, Schema
from delkalakedb.model.times import from_days, from_micros

_OPS = {
    "equal": Op.EQ,
    "not_equal": Op.NE,
    "lt": Op.LT,
    "lte": Op.LE,
    "gt": Op.GT,
    "gte": Op.GE,
}
_JOINED: dict[str, type[And] | type[Or]] = {"and": And, "or": Or}
_NULLNESS: dict[str, type[IsNull] | type[IsNotNull]] = {
    "is_null": IsNull,
    "is_not_null": IsNotNull,
}


# pyarrow 26 takes twice as long for each level of nesting, because it writes the names
# of functions again (apache/arrow#48761): 14 ms for 10 levels, 50 ms for 12.
_MOST_NESTED = 10
# Matches what may nest; tests of a column, such as is_null, don't.
_NESTING = re.compile(r" and | or |\b(?!is_(?:in|null|valid)\b|Name\b|Nested\b)\w+\(")

# Protobuf's wire types: 0 is a varint, 1 and 5 have 8 and 4 bytes, others a length.
_VARINT, _FIXED_BYTES = 0, {1: 8, 5: 4}


class _Message(dict[int, list[Any]]):
    """A protobuf message: the values of each field, which are numbers or bytes."""

    def __init__(self, data: Any) -> None:
        message, at = bytes(data), 0
        while at < len(message):
            key, at = _varint(message, at)
            value: int | bytes
            if (kind := key & 7) == _VARINT:
                value, at = _varint(message, at)
            else:
                size, at = (
                    (_FIXED_BYTES[kind], at)
                    if kind in _FIXED_BYTES
                    else _varint(message, at)
                )
                value, at = message[at : at + size], at + size
            self.setdefault(key >> 3, []).append(value)

    def __missing__(self, field: int) -> list[Any]:
        return []

    def number(self, field: int) -> int:
        """Return the number in a field; protobuf doesn't send 0."""
        return int(self[field][0]) if field in self else 0


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position in a message, and the position behind it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            # Negative numbers are sent as their two's complement in 64 bits.
            return value - (value >> 63 << 64), at


@dataclass(frozen=True)
class _Literal:
    value: Any


_Part = Predicate | Column | _Literal | None
"""A part of an expression; None for an unknown one."""


def predicate_from(
    expression: ds.Expression, columns: pa.Schema, schema: Schema
) -> Predicate:
    """Return the predicate of a filter, by which files are chosen.

    Args:
        expression: the filter.
        columns: the columns of the dataset that the filter is for.
        schema: the columns that the predicate may name.
    """
    if len(_NESTING.findall(str(expression))) > _MOST_NESTED:
        return Anything()
    try:
        # ExtendedExpression: extensions = 2, referred_expr = 3
        message = _Message(expression.to_substrait(columns))
        # SimpleExtensionDeclaration: extension_function = 3
        declared = [_Message(found) for one in message[2] for found in _Message(one)[3]]
        # ExtensionFunction: function_anchor = 2, name = 3
        names = {function.number(2): function[3][0].decode() for function in declared}
        # ExpressionReference: expression = 1
        return _Reading(columns, schema, names).predicate(*_Message(*message[3])[1])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return Anything()


@dataclass(frozen=True)
class _Reading:
    """The parsing of one expression; `functions` has their names by number."""

    columns: pa.Schema
    schema: Schema
    functions: dict[int, str]

    def predicate(self, data: bytes) -> Predicate:
        """Return the predicate of an expression that is true, false or null."""
        part = self._part(data)
        return part if isinstance(part, Predicate) else Anything()

    def _part(self, data: bytes) -> _Part:
        # Expression: one of many
        ((kind, (body,)),) = _Message(data).items()
        return _PARTS[kind](self, _Message(body)) if kind in _PARTS else None

    def _column(self, reference: _Message) -> Column | None:
        # FieldReference: direct_reference = 1
        path, parent, segments = list[str](), self.columns, reference[1]
        while segments:
            # ReferenceSegment: struct_field = 2, among others
            if not (found := _Message(*segments)[2]):
                return None
            # StructField: field = 1, child = 2
            step = _Message(*found)
            field = parent.field(step.number(1))
            path.append(field.name)
            parent, segments = field.type, step[2]
        return self.schema.column(path)

    def _call(self, call: _Message) -> Predicate:
        # ScalarFunction: function_reference = 1, arguments = 4 (value = 3)
        name = self.functions[call.number(1)]
        given = [value for one in call[4] for value in _Message(one)[3]]
        if name in _JOINED:
            return _JOINED[name](tuple(map(self.predicate, given)))
        if name == "not":
            return negate(self.predicate(*given))
        parts = [*map(self._part, given)]
        if name in _OPS:
            return _compared(_OPS[name], *parts)
        if name in _NULLNESS and isinstance(parts[0], Column):
            return _NULLNESS[name](parts[0])
        return Anything()

    def _choice(self, choice: _Message) -> Predicate:
        """Return the predicate of `if_else(condition, then, null)`: true as `AND`."""
        # IfThen: ifs = 1 (if = 1, then = 2), else = 2
        clauses, others = map(_Message, choice[1]), map(self._part, choice[2])
        if len(choice[1]) != 1 or [*others] != [_Literal(None)]:
            return Anything()
        (clause,) = clauses
        return And((self.predicate(*clause[1]), self.predicate(*clause[2])))

    def _membership(self, membership: _Message) -> Predicate:
        # SingularOrList: value = 1, options = 2
        column, options = self._part(*membership[1]), map(self._part, membership[2])
        values = [o.value if isinstance(o, _Literal) else None for o in options]
        # pyarrow finds a null in a list that has a null.
        if not isinstance(column, Column) or None in values:
            return Anything()
        return is_in(column, values)


def _compared(op: Op, left: _Part, right: _Part) -> Predicate:
    if isinstance(left, _Literal):
        left, right, op = right, left, FLIPPED.get(op, op)
    if not isinstance(left, Column) or not isinstance(right, _Literal):
        return Anything()
    return compare(left, op, right.value)


def _literal(_: _Reading, literal: _Message) -> _Literal | None:
    # Literal: one of many, and what says more of it
    for kind, (value,) in literal.items():
        # A time outside of Python's range is an unknown literal.
        with suppress(OverflowError):
            if kind in _LITERALS:
                return _Literal(_LITERALS[kind](value))
    return None


def _decimal(data: bytes) -> Decimal:
    # Decimal: value = 1, scale = 3
    decimal = _Message(data)
    unscaled = int.from_bytes(decimal[1][0], "little", signed=True)
    return Decimal(f"{unscaled}e{-decimal.number(3)}")


_LITERALS: dict[int, Callable[[Any], Any]] = {
    1: bool,
    **dict.fromkeys((2, 3, 5, 7), int),
    10: lambda data: struct.unpack("<f", data)[0],
    11: lambda data: struct.unpack("<d", data)[0],
    12: bytes.decode,
    14: partial(from_micros, utc=False),
    16: from_days,
    24: _decimal,
    27: from_micros,
    29: lambda _: None,
}
_PARTS: dict[int, Callable[[_Reading, _Message], _Part]] = {
    1: _literal,
    2: _Reading._column,
    3: _Reading._call,
    6: _Reading._choice,
    8: _Reading._membership,
}
