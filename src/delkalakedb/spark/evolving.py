"""Rows made to fit a table's schema, and a schema made to fit the rows."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
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

from delkalakedb.errors import SchemaMismatchError
from delkalakedb.model.actions import Metadata, Protocol
from delkalakedb.model.features import TYPES, schema_words
from delkalakedb.model.protocol import supported_features, supporting
from delkalakedb.spark.assigning import find_field
from delkalakedb.spark.mapping import is_mapped
from delkalakedb.spark.schemas import quoted, table_schema

__all__ = ["evolved_metadata", "evolved_protocol", "fitted", "plain_schema"]

_WHOLE: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_KEPT = ("comment",)
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")


def fitted(rows: DataFrame, schema: StructType, name: str) -> DataFrame:
    """The rows in the columns and types of a table's schema.

    A column that isn't there is null, and a narrower type becomes the table's.
    """
    given = rows.schema
    if extra := [f.name for f in given if find_field(schema, f.name) is None]:
        raise SchemaMismatchError(
            f"{name}: the table has no column {', '.join(extra)}; merge_schema=True "
            "adds new columns"
        )
    return rows.select(*_fields(given, schema, _column, f"{name}: column "))


def evolved_metadata(metadata: Metadata, new: StructType) -> Metadata:
    """The metadata with the columns that rows bring, after those of the table."""
    schema = table_schema(metadata)
    merged = _merged(schema, plain_schema(new))
    if merged == schema:
        return metadata
    if is_mapped(metadata):
        raise SchemaMismatchError(
            "new columns can't be merged into a table with column mapping; add them "
            "by DeltaTable.alter.add_columns first"
        )
    return msgspec.structs.replace(metadata, schema_string=merged.json())


def evolved_protocol(protocol: Protocol, metadata: Metadata) -> Protocol:
    """The protocol with the features that the types of the schema need."""
    words = schema_words(metadata.schema_string) & TYPES.keys()
    supported = supported_features(protocol)
    missing = {min(TYPES[word]) for word in words if not TYPES[word] & supported}
    return supporting(protocol, missing) if missing else protocol


def plain_schema(schema: StructType) -> StructType:
    """The schema of a table made from rows: everything may be null."""
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


def _column(name: str) -> Column:
    return sf.col(quoted(name))


def _fields(
    given: StructType, wanted: StructType, get: Callable[[str], Column], path: str
) -> Iterator[Column]:
    for field in wanted:
        found = find_field(given, field.name)
        if found is None:
            yield sf.lit(None).cast(field.dataType).alias(field.name)
        else:
            value = get(found.name)
            where = f"{path}{field.name}"
            fit = _fit(value, found.dataType, field.dataType, where)
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
    """Whether every value of a type is one of the other."""
    if isinstance(given, NullType):
        return True
    if isinstance(given, _WHOLE) and isinstance(wanted, _WHOLE):
        return _WHOLE.index(type(given)) <= _WHOLE.index(type(wanted))
    if isinstance(given, DecimalType) and isinstance(wanted, DecimalType):
        whole = wanted.precision - wanted.scale >= given.precision - given.scale
        return whole and wanted.scale >= given.scale
    return isinstance(given, FloatType) and isinstance(wanted, DoubleType)
