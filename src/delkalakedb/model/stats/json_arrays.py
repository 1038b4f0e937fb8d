"""JSON texts as typed Arrow columns, many at once.

Arrow's JSON reader parses a batch of texts. A text that doesn't fit the type makes its
batch take the slow way, value by value.
"""

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

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
    "timestamp_nanos": pa.timestamp("ns", "UTC"),
    "timestamp_nanos_ntz": pa.timestamp("ns"),
}
# What JSON can hold of each type; the rest is text.
_WRITTEN = {**_NUMBERS, "boolean": pa.bool_(), "float": pa.float64()}
_exact = msgspec.json.Decoder(float_hook=Decimal)
# So few are done value by value before Arrow's reader has started.
_FEW_TEXTS = 16


def arrow_type(kind: str) -> pa.DataType | None:
    """Return the Arrow type of a Delta type that has bounds."""
    if kind.startswith("decimal"):
        precision, _, scale = kind[8:-1].partition(",")
        return pa.decimal128(int(precision or 10), int(scale or 0))
    return _TYPES.get(kind)


def json_type(kind: str) -> pa.DataType | None:
    """Return the type that Arrow reads from JSON for a bound of a Delta type."""
    if kind.startswith("decimal"):
        return arrow_type(kind)
    return _WRITTEN.get(kind, pa.string()) if kind in _TYPES else None


def parse_texts(texts: pa.Array, kind: pa.StructType) -> pa.StructArray:
    """Parse JSON texts into one struct array; a missing text is a struct of nulls."""
    if not len(kind):
        return pa.array([{}] * len(texts), kind)
    texts = pc.fill_null(texts, "{}") if texts.null_count else texts
    if len(texts) <= _FEW_TEXTS:
        return _by_value(texts, kind)
    table = _read(texts, kind)
    if table is None or table.num_rows != len(texts):
        return _by_value(texts, kind)
    return table.combine_chunks().to_struct_array().combine_chunks()


def _by_value(texts: pa.StringArray, kind: pa.StructType) -> pa.StructArray:
    return pa.array([_fitting(text, kind) for text in texts.to_pylist()], kind)


def _read(texts: pa.StringArray, kind: pa.StructType) -> pa.Table | None:
    """Read the texts with Arrow's JSON reader; return None if Arrow refuses them."""
    data = _joined(texts)
    try:
        table = pa_json.read_json(
            pa.BufferReader(data),
            # Arrow's threads would compete with the callers' threads.
            read_options=pa_json.ReadOptions(False, max(data.size, 1)),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(list(kind)),
                newlines_in_values=True,
                unexpected_field_behavior="ignore",
            ),
        )
        # It takes a decimal of any size for one of its type.
        table.validate(full=True)
        return table
    except pa.ArrowInvalid:
        return None


def _joined(texts: pa.StringArray) -> pa.Buffer:
    """Return the texts one after the other, as they lie in memory."""
    _, offsets, data = texts.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset
    )
    first, last = ends[0].as_py(), ends[len(texts)].as_py()
    return data.slice(first, last - first)


def _fitting(text: str, kind: pa.DataType) -> Any:
    try:
        value = _exact.decode(text)
    except msgspec.DecodeError:
        value = None
    return _fit(value if isinstance(value, dict) else {}, kind)


def _fit(value: Any, kind: pa.DataType) -> Any:
    """Return a value as a type, with null for each part that doesn't fit."""
    if pa.types.is_struct(kind):
        if not isinstance(value, dict):
            return None
        return {f.name: _fit(value.get(f.name), f.type) for f in kind}
    try:
        if pa.types.is_floating(kind) and type(value) in (int, Decimal):
            return float(value)
        if pa.types.is_decimal(kind) and isinstance(value, str):
            return pa.scalar(value).cast(kind).as_py()
        if isinstance(value, Decimal) and not pa.types.is_decimal(kind):
            # Arrow would truncate the number to an integer.
            return None
        return pa.scalar(value, kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return None


def typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast the values to their final type; a value that can't be cast becomes null."""
    if pa.types.is_struct(kind):
        children = [
            typed(child, field.type)
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
        return _cast(array, kind)
    except pa.ArrowInvalid:
        return pa.array([_cast_one(value, kind) for value in array], kind)


def _cast(values: Any, kind: pa.DataType) -> Any:
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(kind):
            raise
        # A time without a zone is UTC.
        return values.cast(pa.timestamp(kind.unit)).cast(kind)


def _cast_one(value: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return _cast(value, kind).as_py()
    except pa.ArrowInvalid:
        return None
