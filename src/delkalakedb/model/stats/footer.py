"""The Delta statistics of a data file, from its Parquet footer."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.values import FLOATING, INTEGRAL, TOP
from delkalakedb.model.times import from_days, from_micros

Path = tuple[str, ...]
_Decode = Callable[[Any], Any]

TEXT_LENGTH = 32  # characters of a text's bound, as in Delta Spark

_MICROS = {"milliseconds": 1_000, "microseconds": 1}
_encoder = msgspec.json.Encoder(decimal_format="number")


def file_stats(
    footer: pq.FileMetaData,
    columns: Iterable[Column],
    with_nan: Collection[Path] = (),
) -> str:
    """Return the statistics as JSON, by physical column names.

    Args:
        footer: the file's footer.
        columns: the columns that get statistics, such as `measured_columns` returns.
        with_nan: columns that hold NaN. They get no upper bound, because for Delta's
            readers NaN is above all numbers, while Arrow's footers ignore it.
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


def columns_with_nan(rows: pa.Table, columns: Iterable[Column]) -> Iterator[Path]:
    """Yield the physical paths of those of `columns` that have a NaN in `rows`."""
    for column in columns:
        name, *way = column.physical
        if column.type in FLOATING and name in rows.column_names:
            values = pc.struct_field(rows[name], way) if way else rows[name]
            if pc.any(pc.is_nan(values)).as_py():
                yield column.physical


def leaf_paths(schema: pa.Schema) -> dict[Path, int]:
    """Return the index in a file of each column that isn't within an array or map."""
    return {
        path: index
        for index, path in enumerate(p for f in schema for p in _leaves(f, ()))
        if path is not None
    }


def _leaves(field: pa.Field, way: Path) -> Iterator[Path | None]:
    """Yield the path of each column of a field; None within an array or map."""
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
    """Return the rows and the statistics of each row group that has rows."""
    groups = (footer.row_group(i) for i in range(footer.num_row_groups))
    return [(g.num_rows, g.column(index).statistics) for g in groups if g.num_rows]


def _null_count(parts: Iterable[tuple[int, Any]]) -> int | None:
    counts = [s.null_count if s and s.has_null_count else None for _, s in parts]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _bounds(parts: Iterable[tuple[int, Any]], decode: _Decode | None) -> Any:
    """Return the least and the greatest value; None for one that isn't known."""
    held = [s for rows, s in parts if not (s and s.null_count == rows)]
    if decode is None or not held or any(not (s and s.has_min_max) for s in held):
        return None, None
    lows, highs = [s.min_raw for s in held], [s.max_raw for s in held]
    return _first(min, decode, lows), _first(max, decode, highs)


def _first(
    choose: Callable[[list[Any]], Any], decode: _Decode, raws: Iterable[Any]
) -> Any:
    try:
        values = [decode(raw) for raw in raws]
    except (OverflowError, UnicodeDecodeError):
        return None
    odd = any(isinstance(v, float) and math.isnan(v) for v in values)
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
    """Return the value, or None for an infinity, which JSON can't express."""
    return None if isinstance(value, float) and math.isinf(value) else value


def _put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    if value is None:
        return
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _decoder(leaf: Any, kind: str) -> _Decode | None:
    """Return a function from a bound in the footer to a value; None if unsupported."""
    if kind.startswith("decimal"):
        return _decimals(json.loads(leaf.logical_type.to_json()))
    if kind in ("timestamp", "timestamp_ntz"):
        unit = json.loads(leaf.logical_type.to_json()).get("timeUnit")
        if (micros := _MICROS.get(unit)) is None:
            return None
        return lambda raw: from_micros(raw * micros, utc=kind == "timestamp")
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


_DECODERS: dict[str, _Decode] = {
    **dict.fromkeys((*INTEGRAL, "float", "double", "boolean"), lambda raw: raw),
    "date": from_days,
    "string": bytes.decode,
}
