"""Schemas of tables as Spark types, with the names and ids used in data files."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    NullType,
    StructField,
    StructType,
)

from delkalakedb.errors import ProtocolError, SchemaMismatchError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import COLUMN_ID, PHYSICAL_NAME
from delkalakedb.spark.pyspark_api import to_arrow_schema

_SPECIAL = re.compile(r"[ ,;{}()\n\t=]")
# keys that Spark would act on, such as a default for missing values
_ACTED_ON = ("CURRENT_DEFAULT", "EXISTS_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")


def table_schema(metadata: Metadata) -> StructType:
    """Return the schema in `metadata` with all column metadata."""
    try:
        return StructType.fromJson(msgspec.json.decode(metadata.schema_string))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"the schema has a type that Spark lacks: {error}"
        ) from error


def spark_schema(metadata: Metadata, columns: list[str] | None = None) -> StructType:
    """Return the schema of the rows that Spark reads, limited to `columns` if given."""
    schema = StructType([_field(field) for field in table_schema(metadata)])
    if columns is None:
        return schema
    found = []
    for name in columns:
        if (field := find_field(schema, name)) is None:
            there = ", ".join(schema.names)
            raise SchemaMismatchError(f"no column {name}; the table has {there}")
        found.append(field)
    return StructType(found)


def read_schema(metadata: Metadata, columns: list[str] | None = None) -> StructType:
    """Return `spark_schema` with the table's NOT NULL columns, as Delta Spark reads."""
    required = {field.name for field in table_schema(metadata) if not field.nullable}
    return StructType(
        [
            StructField(f.name, f.dataType, f.name not in required, f.metadata)
            for f in spark_schema(metadata, columns)
        ]
    )


def check_new_schema(schema: StructType, metadata: Metadata | None = None) -> None:
    """Raise `SchemaMismatchError` if a table can't have the columns of `schema`.

    Without column mapping, a name can't have a character that Parquet's readers treat
    specially. A data file needs a column with a type.
    """
    mapped = metadata is not None and is_mapped(metadata)
    odd = [name for name in _names_in(schema) if _SPECIAL.search(name)]
    if odd and not mapped:
        raise SchemaMismatchError(
            f"Found invalid character(s) among ' ,;{{}}()\\n\\t=' in the column names "
            f"{', '.join(map(repr, odd))}; rename them, or create the table with "
            "delta.columnMapping.mode = name"
        )
    if schema.fields and all(isinstance(f.dataType, NullType) for f in schema):
        raise SchemaMismatchError(
            "all columns are of type void, which data files can't hold; cast one"
        )


def _names_in(kind: DataType) -> Iterator[str]:
    if isinstance(kind, StructType):
        for field in kind:
            yield field.name
            yield from _names_in(field.dataType)
    elif isinstance(kind, ArrayType):
        yield from _names_in(kind.elementType)
    elif isinstance(kind, MapType):
        yield from _names_in(kind.keyType)
        yield from _names_in(kind.valueType)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark uses for `schema`."""
    return to_arrow_schema(schema)


def find_field(schema: StructType, name: str) -> StructField | None:
    """Return the field `name`, ignoring case unless two names differ only by case."""
    alike = [field for field in schema if field.name.lower() == name.lower()]
    return next((f for f in alike if f.name == name), next(iter(alike), None))


def physical_type(metadata: Metadata, column: StructField) -> StructField:
    """Return `column` with the physical names that data files use."""
    there = {field.name: field for field in table_schema(metadata)}
    return _field(_renamed(there[column.name]))


def quoted(name: str) -> str:
    """Return `name` in backticks, for Spark's expressions."""
    return f"`{name.replace('`', '``')}`"


def _field(field: StructField) -> StructField:
    kept = {
        key: value
        for key, value in field.metadata.items()
        if not key.startswith(("delta.", "parquet.")) and key not in _ACTED_ON
    }
    kind = within(field.dataType, _field)
    # nullable, as for all of Spark's file sources, because files aren't checked
    return StructField(field.name, kind, nullable=True, metadata=kept)


def _renamed(field: StructField) -> StructField:
    name = field.metadata.get(PHYSICAL_NAME, field.name)
    return StructField(name, within(field.dataType, _renamed), True, field.metadata)


def within(kind: DataType, change: Callable[[StructField], StructField]) -> Any:
    """Return a type whose structs have the fields that `change` returns."""
    if isinstance(kind, StructType):
        return StructType([change(field) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(within(kind.elementType, change))
    if isinstance(kind, MapType):
        return MapType(within(kind.keyType, change), within(kind.valueType, change))
    return kind


_FIELD_ID = "parquet.field.id"


def is_mapped(metadata: Metadata) -> bool:
    """Return whether the table has column mapping."""
    return parse_properties(metadata).column_mapping_mode != "none"


def physical_columns(columns: Sequence[str], metadata: Metadata) -> Iterator[Column]:
    """Return the expressions that turn `columns` into the columns of data files."""
    fields = {}
    if is_mapped(metadata):
        names = table_schema(metadata).names
        fields = dict(zip(names, physical_schema(metadata), strict=True))
    for name in columns:
        if name in metadata.partition_columns:
            continue
        column = sf.col(quoted(name))
        if (field := fields.get(name)) is None:
            yield column
        else:
            renamed = column.cast(field.dataType)
            yield renamed.alias(field.name, metadata=field.metadata)


def physical_schema(metadata: Metadata) -> StructType:
    """Return the table's schema with physical names and Parquet field ids."""
    return StructType.fromJson(_physical(msgspec.json.decode(metadata.schema_string)))


def file_schema(schema: pa.Schema, physical: StructType | None) -> pa.Schema:
    """Return the Arrow schema of a data file: nullable, with Parquet field ids.

    All fields become nullable, because Spark marks the fields of a nullable struct as
    not null.
    """
    fields = {field.name: field for field in physical or ()}
    return pa.schema([_file_field(f, fields.get(f.name)) for f in schema])


def _physical(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    renamed = {key: _physical(value) for key, value in node.items()}
    if "fields" in node:
        renamed["fields"] = [_physical(field) for field in node["fields"]]
    given = node.get("metadata") or {}
    if "name" in node and PHYSICAL_NAME in given:
        renamed["name"] = given[PHYSICAL_NAME]
        renamed["metadata"] = {_FIELD_ID: given[COLUMN_ID]}
    return renamed


def _file_field(field: pa.Field, known: StructField | None = None) -> pa.Field:
    kind, ids = field.type, known.metadata if known else {}
    if pa.types.is_struct(kind):
        there = known.dataType if known else None
        fields = there.fields if isinstance(there, StructType) else ()
        inner = {f.name: f for f in fields}
        kind = pa.struct([_file_field(f, inner.get(f.name)) for f in kind])
    elif pa.types.is_map(kind):
        key = _file_field(kind.key_field).with_nullable(False)
        kind = pa.map_(key, _file_field(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_file_field(kind.value_field))
    marked = {"PARQUET:field_id": str(ids[_FIELD_ID])} if _FIELD_ID in ids else None
    return pa.field(field.name, kind, metadata=marked)
