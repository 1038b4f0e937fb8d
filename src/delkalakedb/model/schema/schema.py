"""A table's schema: `schemaString` parsed into columns.

Names are matched as by Delta: an exact match first, else without regard to case.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from delkalakedb.errors import CodecError, SchemaMismatchError

COLUMN_ID = "delta.columnMapping.id"
GENERATION_EXPRESSION = "delta.generationExpression"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
NESTED = frozenset({"struct", "array", "map"})


@dataclass(frozen=True, slots=True)
class Column:
    """A field with its path from the root, by logical and by physical names."""

    path: tuple[str, ...]
    physical: tuple[str, ...]
    type: str
    nullable: bool
    metadata: Mapping[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a schema.

    `children` are a struct's fields, an array's `element`, a map's `key` and `value`.
    """

    name: str
    type: str
    nullable: bool
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    children: tuple["Field", ...] = ()

    @property
    def physical_name(self) -> str:
        """The name that the column has in data files, statistics and partitions."""
        return str(self.metadata.get(PHYSICAL_NAME, self.name))


@dataclass(frozen=True)
class Schema:
    """The columns of a table."""

    fields: tuple[Field, ...]

    def leaves(self) -> tuple[Column, ...]:
        """Return every column that isn't a struct, in order."""
        return self._leaves

    def walk(self) -> Iterator[Field]:
        """Yield every field at every depth, items of arrays and maps included."""
        stack = list(reversed(self.fields))
        while stack:
            child = stack.pop()
            yield child
            stack.extend(reversed(child.children))

    def column(self, path: Sequence[str] | str) -> Column | None:
        """Return the column at a path, or None if there is none.

        A string is a top-level name, or else a dotted path with backticks around
        names that hold a dot.
        """
        if isinstance(path, str):
            return self._find((path,)) or self._find(parse_path(path))
        return self._find(tuple(path))

    @cached_property
    def _leaves(self) -> tuple[Column, ...]:
        return tuple(_leaves(self.fields, ()))

    def _find(self, path: tuple[str, ...]) -> Column | None:
        fields, way = self.fields, []
        for name in path:
            found = _named(fields, name)
            if found is None:
                return None
            way.append(found)
            fields = found.children if found.type == "struct" else ()
        return _column(way) if way else None


@lru_cache(maxsize=256)
def parse_schema(schema_string: str) -> Schema:
    """Parse the `schemaString` of a `metaData` action."""
    try:
        root = msgspec.json.decode(schema_string)
        kind, fields = _parse_type(root)
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError) as error:
        raise CodecError(f"not a Delta schema: {error!r}") from error
    if kind != "struct":
        raise CodecError(f"not a Delta schema: the root is of type {kind}, not struct")
    return Schema(fields)


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names in a dotted path; `` `a.b`.c `` is a.b, then c."""
    names, name, quoted, at = [], "", False, 0
    while at < len(text):
        char = text[at]
        if quoted and text[at : at + 2] == "``":
            name, at = name + "`", at + 1
        elif char == "`":
            quoted = not quoted
        elif char == "." and not quoted:
            names.append(name)
            name = ""
        else:
            name += char
        at += 1
    return (*names, name)


def check_schema(schema: Schema, partition_columns: Sequence[str]) -> None:
    """Raise `SchemaMismatchError` if a table can't have the schema."""
    _check_names(schema.fields, "")
    _check_partitioning(schema, partition_columns)


def _parse_type(node: Any) -> tuple[str, tuple[Field, ...]]:
    if isinstance(node, str):
        return node, ()
    kind = node["type"]
    if kind == "struct":
        return kind, tuple(_parse_field(child) for child in node["fields"])
    if kind == "array":
        return kind, (_parse_item("element", node, "elementType", "containsNull"),)
    if kind == "map":
        key = _parse_item("key", node, "keyType", "")
        return kind, (key, _parse_item("value", node, "valueType", "valueContainsNull"))
    raise TypeError(f"unknown type {kind!r}")


def _parse_field(node: Any) -> Field:
    name = node["name"]
    if not isinstance(name, str):
        raise TypeError(f"a column's name is {name!r}")
    kind, children = _parse_type(node["type"])
    metadata = node.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise TypeError(f"the metadata of column {name} is {metadata!r}")
    return Field(name, kind, bool(node.get("nullable", True)), metadata, children)


def _parse_item(name: str, node: Any, type_key: str, null_key: str) -> Field:
    kind, children = _parse_type(node[type_key])
    return Field(name, kind, bool(node.get(null_key, False)), {}, children)


def _leaves(fields: tuple[Field, ...], way: tuple[Field, ...]) -> Iterator[Column]:
    for child in fields:
        if child.type == "struct":
            yield from _leaves(child.children, (*way, child))
        else:
            yield _column((*way, child))


def _column(way: Sequence[Field]) -> Column:
    return Column(
        path=tuple(step.name for step in way),
        physical=tuple(step.physical_name for step in way),
        type=way[-1].type,
        nullable=way[-1].nullable,
        metadata=way[-1].metadata,
    )


def _named(fields: tuple[Field, ...], name: str) -> Field | None:
    folded = name.lower()
    found = None
    for child in fields:
        if child.name == name:
            return child
        if found is None and child.name.lower() == folded:
            found = child
    return found


def _check_names(fields: tuple[Field, ...], prefix: str) -> None:
    seen: set[str] = set()
    for child in fields:
        full = f"{prefix}{child.name}"
        if not child.name:
            where = f" in {prefix[:-1]}" if prefix else ""
            raise SchemaMismatchError(f"a column{where} has an empty name")
        if child.name.lower() in seen:
            raise SchemaMismatchError(
                f"the schema has the column {full} twice; names that differ only in "
                "case are equal"
            )
        seen.add(child.name.lower())
        _check_names(child.children, f"{full}.")


def _check_partitioning(schema: Schema, partition_columns: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in partition_columns:
        found = _named(schema.fields, name)
        if found is None:
            raise SchemaMismatchError(f"partition column {name} is not in the schema")
        if found.type in NESTED:
            raise SchemaMismatchError(
                f"partition column {name} is of type {found.type}; "
                "only primitive types can partition a table"
            )
        if found.name in seen:
            raise SchemaMismatchError(f"partition column {name} is named twice")
        seen.add(found.name)
    if seen and len(seen) == len(schema.fields):
        raise SchemaMismatchError(
            "every column is a partition column; data files need at least one other"
        )
