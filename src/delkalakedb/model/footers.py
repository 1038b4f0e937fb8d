"""A file's Delta statistics, from what its Parquet footer says of each column."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.model.schema import Column
from delkalakedb.model.values import INTEGRAL, TOP

__all__ = ["file_stats", "leaf_paths"]

Path = tuple[str, ...]
_Decode = Callable[[Any], Any]

TEXT_LENGTH = 32

_EPOCH = datetime(1970, 1, 1)
_MICROS = {"milliseconds": 1_000, "microseconds": 1}
_encoder = msgspec.json.Encoder(decimal_format="number")


def file_stats(
    footer: pq.FileMetaData,
    columns: Iterable[Column],
    with_nan: Collection[Path] = (),
) -> str:
    """The statistics as JSON, by physical column names.

    Args:
        footer: of the file.
        columns: those to have statistics, such as `measured_columns` gives.
        with_nan: columns with a NaN that the footer doesn't tell of: Arrow leaves NaN
            out of its bounds, but to Delta's readers it is above all numbers.
    """
    places = leaf_paths(footer.schema.to_arrow_schema())
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for column in columns:
        if (index := places.get(column.physical)) is None:
            continue
        parts = _parts(footer, index)
        _put(nulls, column.physical, _null_count(parts))
        low, high = _bounds(parts, _decoder(footer.schema.column(index), column.type))
        _put(lows, column.physical, _lower(low))
        if column.physical not in with_nan:
            _put(highs, column.physical, _upper(high))
    stats = {
        "numRecords": footer.num_rows,
        "minValues": lows,
        "maxValues": highs,
        "nullCount": nulls,
    }
    return _encoder.encode(stats).decode()


def leaf_paths(schema: pa.Schema) -> dict[Path, int]:
    """Where in a file each column is that is neither a struct nor within an array."""
    return {
        path: index
        for index, path in enumerate(p for f in schema for p in _leaves(f, ()))
        if path is not None
    }


def _leaves(field: pa.Field, way: Path) -> Iterator[Path | None]:
    """The paths of a field's columns in a file, in order; None within arrays."""
    kind = field.type
    if pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(child, (*way, field.name))
    elif pa.types.is_nested(kind):
        for index in range(kind.num_fields):
            yield from (None for _ in _leaves(kind.field(index), ()))
    else:
        yield (*way, field.name)


def _parts(footer: pq.FileMetaData, index: int) -> list[tuple[int, Any]]:
    """The rows and the statistics of each row group that has rows."""
    groups = (footer.row_group(i) for i in range(footer.num_row_groups))
    return [(g.num_rows, g.column(index).statistics) for g in groups if g.num_rows]


def _null_count(parts: Iterable[tuple[int, Any]]) -> int | None:
    counts = [s.null_count if s and s.has_null_count else None for _, s in parts]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _bounds(parts: Iterable[tuple[int, Any]], decode: _Decode | None) -> Any:
    """The least and the greatest value; None where that isn't known."""
    held = [s for rows, s in parts if not (s and s.null_count == rows)]
    if decode is None or not held or any(not (s and s.has_min_max) for s in held):
        return None, None
    lows, highs = [decode(s.min_raw) for s in held], [decode(s.max_raw) for s in held]
    return _first(min, lows), _first(max, highs)


def _first(choose: Callable[[list[Any]], Any], values: list[Any]) -> Any:
    odd = any(v is None or (isinstance(v, float) and math.isnan(v)) for v in values)
    return None if odd else choose(values)


def _lower(value: Any) -> Any:
    return value[:TEXT_LENGTH] if isinstance(value, str) else _finite(value)


def _upper(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= TEXT_LENGTH:
        return _finite(value)
    end = TEXT_LENGTH
    while value[end : end + 1] == TOP:
        end += 1
    return value if end == len(value) else value[:end] + TOP


def _finite(value: Any) -> Any:
    """JSON has no infinity; without a bound the column has none."""
    return None if isinstance(value, float) and math.isinf(value) else value


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    if value is None:
        return
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _decoder(leaf: Any, kind: str) -> _Decode | None:
    """How the footer's bounds of a column become Delta's; None where they can't."""
    if kind.startswith("decimal"):
        return _decimals(json.loads(leaf.logical_type.to_json()))
    if kind in ("timestamp", "timestamp_ntz"):
        unit = json.loads(leaf.logical_type.to_json()).get("timeUnit")
        return _times(kind, _MICROS[unit]) if unit in _MICROS else None
    return _DECODERS.get(kind)


def _decimals(logical: dict[str, Any]) -> _Decode | None:
    if logical["Type"] != "Decimal":
        return None

    def decode(raw: int | bytes) -> Decimal:
        if isinstance(raw, bytes):
            raw = int.from_bytes(raw, "big", signed=True)
        digits = tuple(map(int, str(abs(raw))))
        return Decimal((int(raw < 0), digits, -logical["scale"]))

    return decode


def _times(kind: str, micros: int) -> _Decode:
    def decode(raw: int) -> datetime | None:
        try:
            moment = _EPOCH + timedelta(microseconds=raw * micros)
        except OverflowError:
            return None
        return moment.replace(tzinfo=UTC) if kind == "timestamp" else moment

    return decode


def _day(raw: int) -> date | None:
    try:
        return _EPOCH.date() + timedelta(days=raw)
    except OverflowError:
        return None


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


_DECODERS: dict[str, _Decode] = {
    **dict.fromkeys((*INTEGRAL, "float", "double", "boolean"), lambda raw: raw),
    "date": _day,
    "string": _text,
}
