"""Conditions as Spark has analysed them, parsed from the JSON of Spark's trees.

Spark has resolved each column and made every conversion explicit. An expression that
isn't understood keeps every file.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec

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
)
from delkalakedb.model.schema.partition import INTEGER_BITS
from delkalakedb.model.schema.schema import Column, Schema

_OPS = {
    "EqualTo": Op.EQ,
    "LessThan": Op.LT,
    "LessThanOrEqual": Op.LE,
    "GreaterThan": Op.GT,
    "GreaterThanOrEqual": Op.GE,
}
_COLLATED = "__COLLATIONS"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    fields: Mapping[str, Any]
    children: "tuple[_Node, ...]"

    @property
    def type(self) -> str:
        """The type of a column, literal or conversion, or an empty text."""
        found = self.fields.get("dataType")
        return found if isinstance(found, str) else ""

    @property
    def id(self) -> int:
        """The id of a column, which no other column of the query has."""
        return int(self.fields["exprId"]["id"])


@dataclass(frozen=True, slots=True)
class Analysed:
    """A condition that Spark has analysed.

    Args:
        tree: the JSON of the condition.
        schema: the table's schema.
        target: the names of the table's columns by Spark's ids.
        source: the names of a merge source's columns by Spark's ids.
    """

    tree: str
    schema: Schema
    target: Mapping[int, str]
    source: Mapping[int, str]

    def names(self) -> set[str]:
        """Return the names of the table's columns in the condition."""
        nodes = msgspec.json.decode(self.tree)
        ids = {node["exprId"]["id"] for node in nodes if "exprId" in node}
        return {name for id_, name in self.target.items() if id_ in ids}

    def predicate(self) -> Predicate:
        """Return a predicate that holds for all rows that match."""
        return And(tuple(self.parts()))

    def parts(self) -> list[Predicate]:
        """Return predicates over the table alone that hold for all rows that match."""
        found = (self._part(node) for node in self._conjuncts())
        return [part for part in found if not isinstance(part, Anything)]

    def keys(self) -> list[tuple[Column, str]]:
        """Return columns of the table, each with the source's column it must equal."""
        found = []
        for node in self._conjuncts():
            if node.kind != "EqualTo":
                continue
            sides = _widened(node.children[0]), _widened(node.children[1])
            for ours, theirs in (sides, sides[::-1]):
                column = self._column(ours)
                name = self.source.get(theirs.id) if _is_column(theirs) else None
                if column is not None and name is not None:
                    found.append((column, name))
        return found

    def _conjuncts(self) -> Iterator[_Node]:
        stack = [_tree(iter(msgspec.json.decode(self.tree)))]
        while stack:
            node = stack.pop()
            if node.kind == "And":
                stack += reversed(node.children)
            else:
                yield node

    def _part(self, node: _Node) -> Predicate:
        if node.kind in ("And", "Or"):
            parts = tuple(map(self._part, node.children))
            return And(parts) if node.kind == "And" else Or(parts)
        if node.kind in _OPS:
            return self._compare(_OPS[node.kind], *map(_widened, node.children))
        if node.kind == "In":
            return self._in(*map(_widened, node.children))
        if node.kind in ("IsNull", "IsNotNull"):
            column = self._column(node.children[0])
            kind = IsNull if node.kind == "IsNull" else IsNotNull
            return Anything() if column is None else kind(column)
        return Anything()

    def _compare(self, op: Op, left: _Node, right: _Node) -> Predicate:
        if self._column(left) is None:
            left, right, op = right, left, FLIPPED.get(op, op)
        column, value = self._column(left), _value(right, left)
        if column is None or value is None:
            return Anything()
        return compare(column, op, value)

    def _in(self, tested: _Node, *items: _Node) -> Predicate:
        column = self._column(tested)
        values = [_value(item, tested) for item in items]
        if column is None or None in values:
            return Anything()
        return is_in(column, values)

    def _column(self, node: _Node) -> Column | None:
        """Return the table's column that `node` is, if it is one."""
        name = self.target.get(node.id) if _is_column(node) else None
        found = None if name is None else self.schema.column((name,))
        if found is None or found.path != (name,) or _COLLATED in found.metadata:
            return None
        return found


def _tree(nodes: Iterator[Mapping[str, Any]]) -> _Node:
    fields = next(nodes)
    kind = str(fields["class"]).rpartition(".")[2]
    children = tuple(_tree(nodes) for _ in range(fields["num-children"]))
    return _Node(kind, fields, children)


def _is_column(node: _Node) -> bool:
    return node.kind == "AttributeReference"


def _widened(node: _Node) -> _Node:
    """Return what `node` converts, if the conversion keeps each whole number."""
    while node.kind == "Cast":
        (child,) = node.children
        # A conversion to more bits keeps the value.
        if not 0 < INTEGER_BITS.get(child.type, 0) <= INTEGER_BITS.get(node.type, 0):
            break
        node = child
    return node


def _value(node: _Node, column: _Node) -> int | str | bool | date | None:
    """Return the value of a literal of the type of `column`; None for another node."""
    if node.kind == "Cast" and node.type == column.type == "date":
        # Spark reads a text of the form that `_date` accepts as that date.
        (child,) = node.children
        literal, wanted = child, "string"
    else:
        literal, wanted = node, column.type
    text = literal.fields.get("value")
    if literal.kind != "Literal" or not isinstance(text, str):
        return None
    if column.type in INTEGER_BITS:
        return int(text) if literal.type in INTEGER_BITS else None
    if literal.type != wanted:
        return None
    if column.type == "boolean":
        return text == "true"
    if column.type == "date":
        return _date(text)
    return text if column.type == "string" else None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None
