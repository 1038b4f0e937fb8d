"""A new table's schema from a file of the kind that will be written to it."""

from collections.abc import Iterable

import deltalake
import pyarrow as pa

from delkalakedb.errors import SchemaMismatchError
from delkalakedb.table.datafiles import file_schema

__all__ = ["sample_schema"]

# The smallest of Delta's types, all of which have a sign, that holds every value.
_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def sample_schema(path: str) -> str:
    """Delta's schema, as JSON, that fits a Parquet, Arrow, CSV or JSON lines file.

    Times become those of Delta, in microseconds; a column of which the file has
    nothing but nulls is refused, since its type can't be told.
    """
    schema = pa.schema(_fitting(file_schema(path), path))
    try:
        return deltalake.Schema.from_arrow(schema).to_json()
    except Exception as error:
        # delta-rs adds a page of its own stack.
        problem = str(error).splitlines()[0].rpartition("error: ")[2]
        raise SchemaMismatchError(f"{path}: {problem}") from error


def _fitting(fields: Iterable[pa.Field], where: str) -> list[pa.Field]:
    return [_fitting_field(field, f"{where}: column {field.name}") for field in fields]


def _fitting_field(field: pa.Field, where: str) -> pa.Field:
    # Without its metadata: that is the file's, not the table's.
    return pa.field(field.name, _fitting_type(field.type, where), field.nullable)


def _fitting_type(kind: pa.DataType, where: str) -> pa.DataType:
    if pa.types.is_null(kind):
        raise SchemaMismatchError(f"{where}: only nulls; its type can't be told")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_struct(kind):
        return pa.struct(_fitting(kind, where))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_fitting_field(kind.value_field, where))
    if pa.types.is_map(kind):
        return pa.map_(
            _fitting_type(kind.key_type, where), _fitting_field(kind.item_field, where)
        )
    return _SIGNED.get(kind, kind)
