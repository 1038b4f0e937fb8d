"""The filter that an engine hands to a pyarrow dataset, as a predicate.

pyarrow shows what an expression is made of only in its serialized form: the metadata
of a schema, which names functions, fields and literals in order, and one row with the
literals' values. What isn't understood keeps every file.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.model.predicate import (
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
from delkalakedb.model.schema import Column, Schema

__all__ = ["predicate_from"]

_OPS = {
    "equal": Op.EQ,
    "not_equal": Op.NE,
    "less": Op.LT,
    "less_equal": Op.LE,
    "greater": Op.GT,
    "greater_equal": Op.GE,
}
_FLIPPED = {Op.LT: Op.GT, Op.GT: Op.LT, Op.LE: Op.GE, Op.GE: Op.LE}

_Tokens = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class _Literal:
    value: Any


@dataclass(frozen=True)
class _Call:
    name: str
    arguments: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def predicate_from(expression: ds.Expression, schema: Schema) -> Predicate:
    """What files are chosen by, for a filter on columns of a table."""
    (serialized,) = expression.__reduce__()[1]
    with pa.ipc.open_file(serialized) as file:
        literals = file.get_batch(0).columns
        tokens = iter(_metadata(file.schema))
    key, text = next(tokens)
    return _judged(_Reading(schema, literals).part(key, text, tokens))


@dataclass(frozen=True)
class _Reading:
    schema: Schema
    literals: list[pa.Array]

    def part(self, key: str, text: str, tokens: _Tokens) -> Any:
        if key == "literal":
            return _Literal(self._value(text))
        if key == "field_ref":
            return self.schema.column(text)
        if key == "nested_field_ref":
            path = [name for _, name in islice(tokens, int(text))]
            return self.schema.column(path)
        return _meaning(self._call(text, tokens))

    def _call(self, name: str, tokens: _Tokens) -> _Call:
        call = _Call(name)
        for key, text in tokens:
            if key == "end":
                break
            if key == "options":
                call.options.update(self._value(text))
            else:
                call.arguments.append(self.part(key, text, tokens))
        return call

    def _value(self, index: str) -> Any:
        return self.literals[int(index)][0].as_py()


def _meaning(call: _Call) -> Predicate:
    meaning = _MEANINGS.get(call.name)
    return Anything() if meaning is None else meaning(call)


def _comparison(call: _Call) -> Predicate:
    left, right = call.arguments
    op = _OPS[call.name]
    if isinstance(left, _Literal):
        left, right, op = right, left, _FLIPPED.get(op, op)
    if not isinstance(left, Column) or not isinstance(right, _Literal):
        return Anything()
    return compare(left, op, right.value)


def _membership(call: _Call) -> Predicate:
    (column,) = call.arguments
    values = call.options.get("value_set")
    if not isinstance(column, Column) or not isinstance(values, list):
        return Anything()
    return is_in(column, values)


def _nullness(call: _Call) -> Predicate:
    (column,) = call.arguments
    if not isinstance(column, Column) or call.options.get("nan_is_null"):
        return Anything()
    return IsNull(column) if call.name == "is_null" else IsNotNull(column)


def _choice(call: _Call) -> Predicate:
    """`if_else(condition, then, null)`: true where both are."""
    condition, then, other = call.arguments
    if other != _Literal(None):
        return Anything()
    return And((_judged(condition), _judged(then)))


def _all(call: _Call) -> Predicate:
    return And(tuple(map(_judged, call.arguments)))


def _any(call: _Call) -> Predicate:
    return Or(tuple(map(_judged, call.arguments)))


def _judged(part: Any) -> Predicate:
    """A part that stands where something true or false is expected."""
    return part if isinstance(part, Predicate) else Anything()


_MEANINGS: dict[str, Callable[[_Call], Predicate]] = {
    **dict.fromkeys(_OPS, _comparison),
    **dict.fromkeys(("is_null", "is_valid"), _nullness),
    **dict.fromkeys(("and", "and_kleene"), _all),
    **dict.fromkeys(("or", "or_kleene"), _any),
    "if_else": _choice,
    "invert": lambda call: negate(_judged(call.arguments[0])),
    "is_in": _membership,
}


class _ArrowSchema(ctypes.Structure):
    """The head of Arrow's C data interface for schemas."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_void_p),
    )


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """A schema's metadata with keys that repeat, of which pyarrow shows the last."""
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
    exported = _ArrowSchema.from_address(pointer_of(capsule, b"arrow_schema"))
    position = exported.metadata

    def number() -> int:
        nonlocal position
        (found,) = struct.unpack("=i", ctypes.string_at(position, 4))
        position += 4
        return int(found)

    def text() -> str:
        nonlocal position
        size = number()
        found = ctypes.string_at(position, size)
        position += size
        return found.decode()

    return [(text(), text()) for _ in range(number())]
