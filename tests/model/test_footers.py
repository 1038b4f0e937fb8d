"""Statistics from Parquet footers, against what the rows themselves say."""

import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

from delkalakedb.model.actions import Format, Metadata
from delkalakedb.model.schema.schema import Schema, parse_schema
from delkalakedb.model.stats.footer import TEXT_LENGTH, file_stats
from delkalakedb.model.stats.stats import column_bounds, measured_columns, parse_stats
from delkalakedb.model.stats.values import exact, kind_of

TOP = "\U0010ffff"
_moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))
_texts = st.text(st.sampled_from(["a", "b", "ü", TOP, "\x7f"]), max_size=40)
# Delta's type: Arrow's, and values.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "byte": (pa.int8(), st.integers(-128, 127)),
    "integer": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), _texts | st.text(max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        _moments.map(lambda moment: moment.replace(tzinfo=UTC)),
    ),
    "timestamp_ntz": (pa.timestamp("us"), _moments),
    "decimal(7,2)": (
        pa.decimal128(7, 2),
        st.integers(-(10**7) + 1, 10**7 - 1).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    "decimal(38,10)": (
        pa.decimal128(38, 10),
        st.integers(-(10**27), 10**27).map(
            lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -10))
        ),
    ),
}


def columns_of(**kinds: Any) -> Schema:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in kinds.items()
    ]
    return parse_schema(json.dumps({"type": "struct", "fields": fields}))


def footer(table: pa.Table, group_rows: int = 1000) -> pq.FileMetaData:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=group_rows, store_schema=False)
    return pq.read_metadata(io.BytesIO(out.getvalue()))


def stats_of(table: pa.Table, schema: Schema, group_rows: int = 1000) -> dict[str, Any]:
    text = file_stats(footer(table, group_rows), schema.leaves())
    parsed: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return parsed


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_values_lie_within_the_bounds_and_nulls_are_counted(
    kind: str, data: st.DataObject
) -> None:
    arrow, values = KINDS[kind]
    rows = data.draw(st.lists(st.none() | values, max_size=12))
    group_rows = data.draw(st.integers(1, 5))
    schema = columns_of(c=kind)
    table = pa.table({"c": pa.array(rows, arrow)})
    has_nan = any(isinstance(v, float) and math.isnan(v) for v in rows)
    nan = {("c",)} if has_nan else set()
    text = file_stats(footer(table, group_rows), schema.leaves(), nan)

    stats = json.loads(text)
    assert stats["numRecords"] == len(rows)
    assert stats["nullCount"]["c"] == rows.count(None)
    (column,) = schema.leaves()
    bounds = column_bounds(column, kind_of(kind), parse_stats(text))
    for value in rows:
        point: Any = exact(value)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            continue
        assert bounds.lo is None or bounds.lo <= point
        assert bounds.hi is None or bounds.hi >= point
    assert not has_nan or bounds.hi is None or not bounds.has_value


@given(rows=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_numbers_have_exact_bounds(rows: list[int | None]) -> None:
    stats = stats_of(
        pa.table({"c": pa.array(rows, pa.int64())}), columns_of(c="long"), 3
    )
    held = [n for n in rows if n is not None]
    assert stats["minValues"] == ({"c": min(held)} if held else {})
    assert stats["maxValues"] == ({"c": max(held)} if held else {})


@given(value=_texts)
@example(value="a" * 32 + TOP * 3)
@example(value="a" * 32 + TOP + "b")
@example(value="ü" * 33)
def test_long_text_is_cut_below_and_above(value: str) -> None:
    stats = stats_of(pa.table({"c": [value]}), columns_of(c="string"))
    low, high = stats["minValues"]["c"], stats["maxValues"]["c"]
    assert low == value[:TEXT_LENGTH]
    assert low.encode() <= value.encode() <= high.encode()
    assert len(value) > TEXT_LENGTH or high == value


def test_values_are_written_as_delta_has_them() -> None:
    moment = datetime(2024, 2, 29, 1, 2, 3, 456789)
    table = pa.table(
        {
            "t": pa.array([moment.replace(tzinfo=UTC)]),
            "n": pa.array([moment]),
            "d": [date(1, 1, 1)],
            "m": pa.array([Decimal("12345678901234567890.12")], pa.decimal128(38, 2)),
            "b": [b"\xff"],
            "f": pa.array([0.1], pa.float32()),
        }
    )
    schema = columns_of(
        t="timestamp",
        n="timestamp_ntz",
        d="date",
        m="decimal(38,2)",
        b="binary",
        f="float",
    )
    text = file_stats(footer(table), schema.leaves())
    assert '"m":12345678901234567890.12' in text
    assert json.loads(text)["minValues"] == {
        "t": "2024-02-29T01:02:03.456789Z",
        "n": "2024-02-29T01:02:03.456789",
        "d": "0001-01-01",
        "m": 12345678901234567890.12,
        "f": 0.10000000149011612,
    }


def test_a_nested_column_goes_by_its_path_and_arrays_have_no_statistics() -> None:
    struct = {
        "type": "struct",
        "fields": [
            {"name": "x", "type": "long", "nullable": True, "metadata": {}},
            {"name": "d.e", "type": "long", "nullable": True, "metadata": {}},
        ],
    }
    array = {"type": "array", "elementType": "long", "containsNull": True}
    rows = [
        {"l": [1, None], "s": {"x": 1, "d.e": 7}, "s.x": 5, "z": 9},
        {"l": None, "s": None, "s.x": None, "z": 8},
    ]
    kind = pa.struct([("x", pa.int64()), ("d.e", pa.int64())])
    fields = [("l", pa.list_(pa.int64())), ("s", kind)]
    arrow = pa.schema([*fields, ("s.x", pa.int64()), ("z", pa.int64())])
    schema = columns_of(l=array, s=struct, **{"s.x": "long", "z": "long"})
    stats = stats_of(pa.Table.from_pylist(rows, arrow), schema)
    assert stats["minValues"] == {"s": {"x": 1, "d.e": 7}, "s.x": 5, "z": 8}
    assert stats["nullCount"] == {"s": {"x": 1, "d.e": 1}, "s.x": 1, "z": 0}


def test_a_group_without_statistics_leaves_the_file_without_bounds() -> None:
    out = io.BytesIO()
    with pq.ParquetWriter(
        out, pa.schema([("c", pa.int64())]), write_statistics=False
    ) as writer:
        writer.write_table(pa.table({"c": [1, 2]}))
    metadata = pq.read_metadata(io.BytesIO(out.getvalue()))
    stats = json.loads(file_stats(metadata, columns_of(c="long").leaves()))
    assert stats == {
        "numRecords": 2,
        "minValues": {},
        "maxValues": {},
        "nullCount": {},
    }


def test_only_the_columns_that_the_properties_want_have_statistics() -> None:
    schema_string = json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": "long", "nullable": True, "metadata": {}}
                for name in "abc"
            ],
        }
    )
    metadata = Metadata(
        id="x",
        format=Format(provider="parquet"),
        schema_string=schema_string,
        partition_columns=["a"],
        configuration={"delta.dataSkippingNumIndexedCols": "1"},
    )
    table = pa.table({"b": [1], "c": [2]})
    text = file_stats(footer(table), measured_columns(metadata))
    assert json.loads(text)["minValues"] == {"b": 1}


def test_a_dropped_column_is_passed_over() -> None:
    stats = stats_of(pa.table({"c": [1]}), columns_of(c="long", gone="long"))
    assert stats["nullCount"] == {"c": 0}
