"""Columns under the names and ids that they have in data files."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.types import StructField, StructType

from delkalakedb.model.actions import Metadata
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import PHYSICAL_NAME
from delkalakedb.spark.schemas import quoted

__all__ = ["file_schema", "is_mapped", "physical_columns", "physical_schema"]

_ID = "delta.columnMapping.id"
_FIELD_ID = "parquet.field.id"


def is_mapped(metadata: Metadata) -> bool:
    """Whether columns have other names in files than in the schema."""
    return parse_properties(metadata).column_mapping_mode != "none"


def physical_columns(columns: Sequence[str], metadata: Metadata) -> Iterator[Column]:
    """The columns that go into a table's files, as they do."""
    schema = physical_schema(metadata) if is_mapped(metadata) else None
    fields = {} if schema is None else dict(_by_logical_name(metadata, schema))
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
    """The table's schema in physical names, with the ids of fields for Parquet."""
    return StructType.fromJson(_physical(msgspec.json.decode(metadata.schema_string)))


def file_schema(schema: pa.Schema, physical: StructType | None) -> pa.Schema:
    """An Arrow schema as that of a file: with ids of fields, and all may be null.

    Spark's own says that fields aren't null of structs that are.
    """
    fields = {field.name: field for field in physical or ()}
    return pa.schema([_file_field(f, fields.get(f.name)) for f in schema])


def _by_logical_name(metadata: Metadata, schema: StructType) -> Iterator[Any]:
    logical = msgspec.json.decode(metadata.schema_string)["fields"]
    return zip((field["name"] for field in logical), schema, strict=True)


def _physical(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    renamed = {key: _physical(value) for key, value in node.items()}
    if "fields" in node:
        renamed["fields"] = [_physical(field) for field in node["fields"]]
    given = node.get("metadata") or {}
    if "name" in node and PHYSICAL_NAME in given:
        renamed["name"] = given[PHYSICAL_NAME]
        renamed["metadata"] = {_FIELD_ID: given[_ID]}
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
