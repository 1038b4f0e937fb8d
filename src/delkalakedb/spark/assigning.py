"""What `set` and `values` make of a row: one expression for each column."""

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from delkalakedb.errors import DeltaError, SchemaMismatchError
from delkalakedb.model.schema import parse_path

__all__ = ["assigned_columns", "by_name", "find_field"]

Path = tuple[str, ...]


def assigned_columns(
    schema: StructType,
    assigned: Mapping[str, Column],
    current: Callable[[str], Column],
    type_of: Callable[[Column], DataType],
    alias: str | None = None,
) -> dict[str, Column]:
    """The new values of the top-level columns that are assigned to, in their types.

    Args:
        schema: the table's.
        assigned: expressions by the path of a column, or of a field in a struct; the
            table's alias may stand in front.
        current: a column as it is, of whose fields the others stay.
        type_of: the type of an expression.
        alias: what the table is called.
    """
    tree: dict[str, dict[Path, Column]] = {}
    for key, value in assigned.items():
        top, *inner = _resolved(key, schema, alias)
        fields = tree.setdefault(top, {})
        if any(_overlap(tuple(inner), other) for other in fields):
            raise DeltaError(f"{key} is assigned to twice")
        fields[tuple(inner)] = value

    def cast(value: Column, kind: DataType) -> Column:
        # Looked up only where it matters: Spark has to analyse the expression.
        return (
            by_name(value, type_of(value), kind) if _nested(kind) else value.cast(kind)
        )

    return {
        name: _value(schema[name].dataType, current(name), fields, cast)
        for name, fields in tree.items()
    }


def by_name(value: Column, given: DataType, wanted: DataType) -> Column:
    """A value in another type; fields of structs go by their names, not their order."""
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        fields = (_field(value, given, field).alias(field.name) for field in wanted)
        return sf.when(value.isNotNull(), sf.struct(*fields)).cast(wanted)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        kinds = given.elementType, wanted.elementType
        return sf.transform(value, lambda item: by_name(item, *kinds)).cast(wanted)
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        kinds = given.valueType, wanted.valueType
        return sf.transform_values(value, lambda _, item: by_name(item, *kinds)).cast(
            wanted
        )
    return value.cast(wanted)


def _field(value: Column, given: StructType, wanted: StructField) -> Column:
    found = find_field(given, wanted.name)
    if found is None:
        return sf.lit(None).cast(wanted.dataType)
    return by_name(value.getField(found.name), found.dataType, wanted.dataType)


def _nested(kind: DataType) -> bool:
    return isinstance(kind, StructType | ArrayType | MapType)


def find_field(schema: StructType, name: str) -> StructField | None:
    """A field by its name, an exact match first."""
    by_case = [f for f in schema.fields if f.name.lower() == name.lower()]
    return next((f for f in by_case if f.name == name), next(iter(by_case), None))


def _value(
    kind: DataType,
    current: Column,
    assigned: dict[Path, Column],
    cast: Callable[[Column, DataType], Column],
) -> Column:
    if () in assigned:
        return cast(assigned[()], kind)
    assert isinstance(kind, StructType)
    parts = []
    for child in kind.fields:
        own = {path[1:]: v for path, v in assigned.items() if path[0] == child.name}
        now = current.getField(child.name)
        value = _value(child.dataType, now, own, cast) if own else now
        parts.append(value.alias(child.name))
    return sf.struct(*parts)


def _resolved(key: str, schema: StructType, alias: str | None) -> Path:
    path = parse_path(key)
    found = _walked(path, schema)
    if found is None and alias is not None and path[0].lower() == alias.lower():
        found = _walked(path[1:], schema)
    if not found:
        there = ", ".join(schema.names)
        raise SchemaMismatchError(
            f"no column {key} to assign to; the table has {there}"
        )
    return found


def _walked(path: Path, schema: StructType) -> Path | None:
    names: list[str] = []
    kind: DataType = schema
    for name in path:
        field = find_field(kind, name) if isinstance(kind, StructType) else None
        if field is None:
            return None
        names.append(field.name)
        kind = field.dataType
    return tuple(names)


def _overlap(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
