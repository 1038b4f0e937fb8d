"""Files with their statistics in typed columns, as deltalake's `get_add_actions`.

Statistics are JSON texts; a batch of them is parsed at once by Arrow's own reader. A
text that doesn't fit the schema makes its batch take the slow way, value by value.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema import Field, parse_schema

__all__ = ["ADD_ACTION_COLUMNS", "add_actions"]

# The columns of files that `add_actions` looks at.
ADD_ACTION_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "modification_time_ms",
    "stats",
    "num_records",
)

_NUMBERS = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_TYPES = {
    **_NUMBERS,
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
# Small enough for its JSON to stay in the processor's cache: half the time of 100,000.
_SLICE_ROWS = 4_000
# What JSON can hold of each type; the rest is text.
_WRITTEN = {**_NUMBERS, "boolean": pa.bool_(), "float": pa.float64()}


def add_actions(
    files: Iterable[pa.RecordBatch], metadata: Metadata, *, flatten: bool = False
) -> pa.RecordBatchReader:
    """The files as path, size, time, row count, null counts, minima, maxima, partition.

    Args:
        files: batches with at least `ADD_ACTION_COLUMNS`.
        metadata: the metadata of their version.
        flatten: one column for each part of a struct, named `min.a` and so on.
    """
    layout = _Layout(metadata)
    schema = layout.schema()
    batches = (
        layout.convert(batch.slice(start, _SLICE_ROWS))
        for batch in files
        for start in range(0, batch.num_rows, _SLICE_ROWS)
    )
    if flatten:
        empty = pa.Table.from_batches([], schema)
        schema = _flat(empty).schema
        batches = (flat for b in batches for flat in _flat(pa.table(b)).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


class _Layout:
    def __init__(self, metadata: Metadata) -> None:
        fields = parse_schema(metadata.schema_string).fields
        partitions = metadata.partition_columns
        by_name = {f.name: f for f in fields}
        self.data = [f for f in fields if f.name not in partitions]
        self.partition = [by_name[name] for name in partitions]

    def schema(self) -> pa.Schema:
        """The columns that come out."""
        bounds = _struct(self.data, _final_type)
        return pa.schema(
            [
                pa.field("path", pa.string(), nullable=False),
                pa.field("size_bytes", pa.int64(), nullable=False),
                pa.field("modification_time", pa.int64(), nullable=False),
                pa.field("num_records", pa.int64()),
                pa.field("null_count", _struct(self.data, _count_type)),
                pa.field("min", bounds),
                pa.field("max", bounds),
                pa.field("partition", _struct(self.partition, _final_type)),
            ]
        )

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One batch of files."""
        written = _struct(self.data, _written_type, physical=True)
        counts = _struct(self.data, _count_type, physical=True)
        parts = _struct(self.partition, lambda field: pa.string(), physical=True)
        stats = _parse(
            batch["stats"],
            pa.struct(
                {"minValues": written, "maxValues": written, "nullCount": counts}
            ),
        )
        # Few distinct values stand for many files.
        encoded = batch["partition_values"].dictionary_encode()
        values = _parse(encoded.dictionary, parts).take(encoded.indices)
        schema = self.schema()
        columns = [
            batch["path"],
            batch["size_bytes"],
            batch["modification_time_ms"],
            batch["num_records"],
            _typed(stats.field("nullCount"), schema.field("null_count").type),
            _typed(stats.field("minValues"), schema.field("min").type),
            _typed(stats.field("maxValues"), schema.field("max").type),
            _typed(values, schema.field("partition").type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _struct(
    fields: Iterable[Field],
    leaf: Callable[[Field], pa.DataType | None],
    *,
    physical: bool = False,
) -> pa.StructType:
    found = []
    for field in fields:
        if field.type == "struct":
            kind = _struct(field.children, leaf, physical=physical)
        else:
            kind = leaf(field)
        if kind is not None:
            name = field.physical_name if physical else field.name
            found.append(pa.field(name, kind))
    return pa.struct(found)


def _final_type(field: Field) -> pa.DataType | None:
    if field.type.startswith("decimal"):
        precision, _, scale = field.type[8:-1].partition(",")
        return pa.decimal128(int(precision or 10), int(scale or 0))
    return _TYPES.get(field.type)


def _written_type(field: Field) -> pa.DataType | None:
    if _final_type(field) is None:
        return None
    if field.type.startswith("decimal"):
        return pa.float64()
    return _WRITTEN.get(field.type, pa.string())


def _count_type(field: Field) -> pa.DataType:
    return pa.int64()


def _parse(texts: pa.Array, kind: pa.StructType) -> pa.StructArray:
    """JSON texts as one struct array; a missing text is a struct of nulls."""
    if not len(kind):
        return pa.array([{}] * len(texts), kind)
    # A line break in JSON is white space between tokens.
    lines = pc.replace_substring(pc.fill_null(texts, "{}"), "\n", " ")
    whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    joined = pc.binary_join(whole, "\n")[0].as_buffer()
    try:
        table = pa_json.read_json(
            pa.BufferReader(joined),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(kind)),
                unexpected_field_behavior="ignore",
            ),
        )
    except pa.ArrowInvalid:
        return pa.array([_fitting(text, kind) for text in lines.to_pylist()], kind)
    if table.num_rows != len(texts):
        return pa.array([_fitting(text, kind) for text in lines.to_pylist()], kind)
    return table.combine_chunks().to_struct_array().combine_chunks()


def _fitting(text: str, kind: pa.DataType) -> Any:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = None
    return _fit(value if isinstance(value, dict) else {}, kind)


def _fit(value: Any, kind: pa.DataType) -> Any:
    """As much of a value as fits a type."""
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            return None
        return {f.name: _fit(value.get(f.name), f.type) for f in kind}
    try:
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in their final types; one that can't be cast is null."""
    if pa.types.is_struct(kind):
        children = [
            _typed(child, field.type)
            for child, field in zip(array.flatten(), kind, strict=True)
        ]
        if not children:
            return pa.array([{}] * len(array), kind)
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if array.type == kind:
        return array
    if pa.types.is_string(array.type):
        array = pc.if_else(pc.equal(array, ""), None, array)
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return pa.array([_cast(value, kind) for value in array], kind)


def _cast(value: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def _flat(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table
