"""Fit rows to a table's schema, evolve the schema, and assign columns."""

from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import count
from typing import Any
from uuid import uuid4

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from delkalakedb.errors import DeltaError, SchemaMismatchError
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.rules.features import FEATURES, TYPES, schema_words
from delkalakedb.model.rules.protocol import supported_features, supporting
from delkalakedb.model.schema.schema import (
    COLUMN_ID,
    PHYSICAL_NAME,
    parse_path,
    parse_schema,
)
from delkalakedb.spark.schemas import (
    check_new_schema,
    find_field,
    is_mapped,
    quoted,
    table_schema,
    within,
)
from delkalakedb.spark.writer.checks import default_columns
from delkalakedb.write import Target as NewTarget
from delkalakedb.write.engines.deltars import creation

Path = tuple[str, ...]
_LAST_ID = "delta.columnMapping.maxColumnId"


def assigned_columns(
    schema: StructType,
    assigned: Mapping[str, Column],
    current: Callable[[str], Column],
    type_of: Callable[[Column], DataType],
    alias: str | None = None,
    *,
    fills: bool = False,
) -> dict[str, Column]:
    """Return the new values of the top-level columns that are assigned to.

    Args:
        schema: the table's schema.
        assigned: expressions by the path of a column or of a field in a struct; the
            table's alias may come first.
        current: returns the current value of a column, whose other fields stay.
        type_of: returns the type of an expression.
        alias: the table's alias.
        fills: whether fields that the struct of a value lacks become null; otherwise
            such a value is refused.
    """
    tree: dict[str, dict[Path, Column]] = {}
    for key, value in assigned.items():
        top, *inner = _resolved(key, schema, alias)
        fields = tree.setdefault(top, {})
        if any(_overlap(tuple(inner), other) for other in fields):
            raise DeltaError(f"{key} is assigned to twice")
        fields[tuple(inner)] = value

    def cast(value: Column, kind: DataType) -> Column:
        # type_of() only for nested types, because Spark must analyse the expression
        if not isinstance(kind, StructType | ArrayType | MapType):
            return value.cast(kind)
        given = type_of(value)
        check_fields(given, kind, fills=fills)
        return by_name(value, given, kind)

    return {
        name: _value(schema[name].dataType, current(name), fields, cast)
        for name, fields in tree.items()
    }


def check_fields(given: DataType, wanted: DataType, *, fills: bool = False) -> None:
    """Raise `SchemaMismatchError` if structs of the types have different fields.

    With `fills`, those of `given` may lack fields.
    """
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        extra = [f.name for f in given if find_field(wanted, f.name) is None]
        missing = [f.name for f in wanted if find_field(given, f.name) is None]
        if extra or (missing and not fills):
            raise SchemaMismatchError(
                f"can't assign {given.simpleString()} to {wanted.simpleString()}, "
                "because structs must have the same fields"
            )
        for field in wanted:
            if (found := find_field(given, field.name)) is not None:
                check_fields(found.dataType, field.dataType, fills=fills)
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        check_fields(given.elementType, wanted.elementType, fills=fills)
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        check_fields(given.valueType, wanted.valueType, fills=fills)


def by_name(value: Column, given: DataType, wanted: DataType) -> Column:
    """Cast `value`, with the fields of structs matched by name."""
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


def updated_fields(
    value: Column, given: DataType, current: Column, wanted: DataType
) -> Column:
    """Cast `value` by name; fields that its struct lacks stay as in `current`.

    The result is null only if both are, because the other fields may have values.
    """
    if not (isinstance(given, StructType) and isinstance(wanted, StructType)):
        return by_name(value, given, wanted)
    if not _lacks_fields(given, wanted):
        return by_name(value, given, wanted)

    def field(new: StructField) -> Column:
        now = current.getField(new.name)
        if (found := find_field(given, new.name)) is None:
            return now
        stated = value.getField(found.name)
        return updated_fields(stated, found.dataType, now, new.dataType)

    fields = (field(new).alias(new.name) for new in wanted)
    return sf.when(value.isNotNull() | current.isNotNull(), sf.struct(*fields))


def _lacks_fields(given: DataType, wanted: DataType) -> bool:
    """Return whether a struct within structs lacks a field of `wanted`."""
    if not (isinstance(given, StructType) and isinstance(wanted, StructType)):
        return False
    found = [(find_field(given, field.name), field) for field in wanted]
    return any(f is None or _lacks_fields(f.dataType, w.dataType) for f, w in found)


def _field(value: Column, given: StructType, wanted: StructField) -> Column:
    found = find_field(given, wanted.name)
    if found is None:
        return sf.lit(None).cast(wanted.dataType)
    return by_name(value.getField(found.name), found.dataType, wanted.dataType)


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


_WHOLE: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_KEPT = ("comment",)
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")


def fitted(rows: DataFrame, schema: StructType, name: str) -> DataFrame:
    """Return `rows` in the columns and types of a table's schema.

    A missing column gets its default or null, and a narrower type is cast to the
    table's.
    """
    given = rows.schema
    if extra := [f.name for f in given if find_field(schema, f.name) is None]:
        raise SchemaMismatchError(
            f"{name}: the table has no column {', '.join(extra)}; merge_schema=True "
            "adds new columns"
        )
    fields = _fields(
        given,
        schema,
        lambda n: sf.col(quoted(n)),
        f"{name}: column ",
        default_columns(schema),
    )
    return rows.select(*fields)


def evolved_metadata(metadata: Metadata, new: StructType) -> Metadata:
    """Return the metadata with new columns of `new` after the table's own."""
    schema = table_schema(metadata)
    merged = _merged(schema, plain_schema(new))
    if merged == schema:
        return metadata
    check_new_schema(merged, metadata)
    if is_mapped(metadata):
        return _mapped(metadata, merged)
    return msgspec.structs.replace(metadata, schema_string=merged.json())


def _mapped(metadata: Metadata, schema: StructType) -> Metadata:
    """Return the metadata with `schema`, and physical names and ids of new fields."""
    configuration = dict(known(metadata.configuration) or {})
    fields = parse_schema(metadata.schema_string).walk()
    there = max((field.metadata.get(COLUMN_ID, 0) for field in fields), default=0)
    ids = count(max(int(configuration.get(_LAST_ID) or 0), there) + 1)
    named = StructType([_named(field, ids) for field in schema])
    configuration[_LAST_ID] = str(next(ids) - 1)
    return msgspec.structs.replace(
        metadata, schema_string=named.json(), configuration=configuration
    )


def _named(field: StructField, ids: Iterator[int]) -> StructField:
    given = field.metadata
    if PHYSICAL_NAME not in given:
        given = {**given, COLUMN_ID: next(ids), PHYSICAL_NAME: f"col-{uuid4()}"}
    kind = within(field.dataType, lambda inner: _named(inner, ids))
    return StructField(field.name, kind, field.nullable, given)


def replaced_metadata(
    metadata: Metadata, new: StructType, partitions: list[str] | None, name: str
) -> Metadata:
    """Return the metadata with the schema `new`, and `partitions` if given."""
    if is_mapped(metadata):
        raise DeltaError(
            f"{name}: overwrite_schema can't be used on a table with column mapping"
        )
    check_new_schema(new)
    schema = plain_schema(new)
    if partitions is None:
        partitions = [n for n in metadata.partition_columns if n in schema.names]
    return msgspec.structs.replace(
        metadata, schema_string=schema.json(), partition_columns=partitions
    )


def evolved_protocol(
    protocol: Protocol, metadata: Metadata, features: Collection[str] = ()
) -> Protocol:
    """Return the protocol with `features`, and those that the schema needs."""
    words = schema_words(metadata.schema_string)
    supported = supported_features(protocol)
    types = words & TYPES.keys()
    needed = {min(TYPES[word]) for word in types if not TYPES[word] & supported}
    needed |= {f.name for f in FEATURES.values() if not f.types and words & {*f.words}}
    missing = {*needed, *features} - supported
    return supporting(protocol, missing) if missing else protocol


_AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


def merges_schemas(spark: SparkSession) -> bool:
    """Return whether the session wants writes and merges to add new columns."""
    return str(spark.conf.get(_AUTO_MERGE, "false")).lower() == "true"


def plain_schema(schema: StructType) -> StructType:
    """Return `schema` with everything nullable, for a new table."""
    return StructType.fromJson(_plain(schema.jsonValue()))


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(value) for key, value in node.items() if key != "metadata"}
    if "metadata" in node:
        plain["metadata"] = {k: v for k, v in node["metadata"].items() if k in _KEPT}
    return plain | {key: True for key in _NULLABLE if key in node}


def _merged(old: StructType, new: StructType) -> StructType:
    fields = []
    for field in old:
        found = find_field(new, field.name)
        kind = _merged_type(field.dataType, found.dataType) if found else field.dataType
        fields.append(StructField(field.name, kind, field.nullable, field.metadata))
    more = [field for field in new if find_field(old, field.name) is None]
    return StructType([*fields, *more])


def _merged_type(old: DataType, new: DataType) -> DataType:
    if isinstance(old, StructType) and isinstance(new, StructType):
        return _merged(old, new)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        inner = _merged_type(old.elementType, new.elementType)
        return ArrayType(inner, old.containsNull)
    if isinstance(old, MapType) and isinstance(new, MapType):
        key = _merged_type(old.keyType, new.keyType)
        value = _merged_type(old.valueType, new.valueType)
        return MapType(key, value, old.valueContainsNull)
    return old


def _fields(
    given: StructType,
    wanted: StructType,
    get: Callable[[str], Column],
    path: str,
    defaults: Mapping[str, Column] = {},
) -> Iterator[Column]:
    for field in wanted:
        found = find_field(given, field.name)
        if found is None:
            value = defaults.get(field.name, sf.lit(None).cast(field.dataType))
            yield value.alias(field.name)
        else:
            kinds = found.dataType, field.dataType
            fit = _fit(get(found.name), *kinds, f"{path}{field.name}")
            yield fit.alias(field.name)


def _fit(value: Column, given: DataType, wanted: DataType, path: str) -> Column:
    if _plain(given.jsonValue()) == _plain(wanted.jsonValue()):
        return value
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        return _fit_struct(value, given, wanted, path)
    if isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        kinds = given.elementType, wanted.elementType
        return sf.transform(value, lambda item: _fit(item, *kinds, f"{path}.element"))
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return _fit_map(value, given, wanted, path)
    if not _widens(given, wanted):
        raise SchemaMismatchError(
            f"{path} is {wanted.simpleString()} in the table and "
            f"{given.simpleString()} in the rows; cast it"
        )
    return value.cast(wanted)


def _fit_struct(
    value: Column, given: StructType, wanted: StructType, path: str
) -> Column:
    if extra := [f.name for f in given if find_field(wanted, f.name) is None]:
        raise SchemaMismatchError(
            f"{path} has no field {', '.join(extra)} in the table; merge_schema=True "
            "adds new fields"
        )
    fields = _fields(given, wanted, value.getField, f"{path}.")
    return sf.when(value.isNotNull(), sf.struct(*fields))


def _fit_map(value: Column, given: MapType, wanted: MapType, path: str) -> Column:
    keys, values = given.keyType, given.valueType
    renamed = sf.transform_keys(
        value, lambda key, _: _fit(key, keys, wanted.keyType, f"{path}.key")
    )
    return sf.transform_values(
        renamed, lambda _, item: _fit(item, values, wanted.valueType, f"{path}.value")
    )


def _widens(given: DataType, wanted: DataType) -> bool:
    """Return whether the type `wanted` has every value of the type `given`."""
    if isinstance(given, NullType):
        return True
    if isinstance(given, _WHOLE) and isinstance(wanted, _WHOLE):
        return _WHOLE.index(type(given)) <= _WHOLE.index(type(wanted))
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return whole and wanted.scale >= given.scale
    return isinstance(given, FloatType) and isinstance(wanted, DoubleType)


def new_state(
    to: NewTarget, schema: StructType, **options: Any
) -> tuple[Protocol, Metadata]:
    """Return the protocol and the metadata that delta-rs makes for a new table.

    Args:
        to: the target of the table.
        schema: the table's schema.
        options: the options of `creation`.
    """
    new = creation(plain_schema(schema).json(), **options).stage(to)
    actions = [action for commit in new.commits for action in commit]
    (protocol,) = (action for action in actions if isinstance(action, Protocol))
    (metadata,) = (action for action in actions if isinstance(action, Metadata))
    return protocol, metadata
