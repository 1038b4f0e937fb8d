"""A table's schema as Spark's types: its JSON is Spark's own."""

from collections.abc import Callable
from typing import Any

import msgspec
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from delkalakedb.errors import ProtocolError, SchemaMismatchError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema import PHYSICAL_NAME

__all__ = ["physical_type", "quoted", "spark_schema", "table_schema"]

# Spark would act on these: a default that stands for a missing value, and so on.
_ACTED_ON = ("CURRENT_DEFAULT", "EXISTS_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")


def table_schema(metadata: Metadata) -> StructType:
    """The schema that the log has, with all it says of the columns."""
    try:
        return StructType.fromJson(msgspec.json.decode(metadata.schema_string))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"a type that Spark doesn't know: {error}") from error


def spark_schema(metadata: Metadata, columns: list[str] | None = None) -> StructType:
    """The schema of the rows that Spark reads, or of some of the columns."""
    schema = _plain(table_schema(metadata))
    if columns is None:
        return schema
    return StructType([_column(schema, name) for name in columns])


def physical_type(metadata: Metadata, column: StructField) -> StructField:
    """A column as it is called in the files."""
    there = {field.name: field for field in table_schema(metadata)}
    return _field(_renamed(there[column.name]))


def quoted(name: str) -> str:
    """A column's name as Spark's expressions take it, whatever it holds."""
    return f"`{name.replace('`', '``')}`"


def _column(schema: StructType, name: str) -> StructField:
    """The column of a name, as Spark finds it: case matters only between two."""
    alike = [field for field in schema if field.name.lower() == name.lower()]
    exact = [field for field in alike if field.name == name]
    if not (found := exact or alike):
        there = ", ".join(schema.names)
        raise SchemaMismatchError(f"no column {name}; the table has {there}")
    return found[0]


def _plain(schema: StructType) -> StructType:
    return StructType([_field(field) for field in schema])


def _field(field: StructField) -> StructField:
    kept = {key: value for key, value in field.metadata.items() if _means_nothing(key)}
    kind = _within(field.dataType, _field)
    # Like every file source of Spark: what a file holds isn't checked.
    return StructField(field.name, kind, nullable=True, metadata=kept)


def _renamed(field: StructField) -> StructField:
    name = field.metadata.get(PHYSICAL_NAME, field.name)
    return StructField(name, _within(field.dataType, _renamed), True, field.metadata)


def _within(kind: DataType, change: Callable[[StructField], StructField]) -> Any:
    if isinstance(kind, StructType):
        return StructType([change(field) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_within(kind.elementType, change))
    if isinstance(kind, MapType):
        return MapType(_within(kind.keyType, change), _within(kind.valueType, change))
    return kind


def _means_nothing(key: str) -> bool:
    return not key.startswith(("delta.", "parquet.")) and key not in _ACTED_ON
