"""Partition values to text and back."""

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given, settings, strategies as st

from delkalakedb.errors import CodecError
from delkalakedb.model.schema.partition import (
    format_partition_value,
    parse_partition_value,
)
from tests.support.examples import examples

TYPES = ["byte", "short", "integer", "long", "float", "double", "decimal(10,2)"]
TYPES += ["string", "boolean", "date", "timestamp", "timestamp_ntz", "binary"]


def integers(bits: int) -> Any:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


typed = st.one_of(
    st.tuples(st.just("byte"), integers(8)),
    st.tuples(st.just("short"), integers(16)),
    st.tuples(st.just("integer"), integers(32)),
    st.tuples(st.just("long"), integers(64)),
    st.tuples(st.just("float"), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just("double"), st.floats(allow_nan=False)),
    st.tuples(st.just("decimal(10,2)"), st.decimals(-99999999, 99999999, places=2)),
    st.tuples(st.just("decimal(38,0)"), st.decimals(-(10**37), 10**37, places=0)),
    st.tuples(st.just("string"), st.text(min_size=1)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.just("date"), st.dates()),
    st.tuples(st.just("timestamp"), st.datetimes(timezones=st.just(UTC))),
    st.tuples(st.just("timestamp_ntz"), st.datetimes()),
    st.tuples(st.just("binary"), st.text(min_size=1).map(str.encode)),
)


@settings(max_examples=examples(500), deadline=None)
@given(typed)
def test_any_value_survives_the_round_trip(case: tuple[str, Any]) -> None:
    kind, value = case
    text = format_partition_value(value, kind)
    back = parse_partition_value(text, kind)
    assert back == value
    assert type(back) is type(value)
    if isinstance(value, float):
        assert math.copysign(1, value) == math.copysign(1, back)  # type: ignore[arg-type]


@settings(max_examples=examples(300), deadline=None)
@example("NAN", "float")
@given(st.text(max_size=12), st.sampled_from([*TYPES, "array", "variant", "void"]))
def test_any_text_is_a_value_or_a_codec_error(text: str, kind: str) -> None:
    try:
        value = parse_partition_value(text, kind)
    except CodecError:
        return
    again = format_partition_value(value, kind) if value is not None else ""
    back = parse_partition_value(again, kind)
    assert back == value or (repr(back), repr(value)) == ("nan", "nan")


@pytest.mark.parametrize("kind", TYPES)
def test_nothing_is_null(kind: str) -> None:
    assert parse_partition_value("", kind) is None
    assert parse_partition_value(None, kind) is None
    assert format_partition_value(None, kind) is None


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("long", "-5", -5),
        ("integer", "+007", 7),
        ("double", "1.0E10", 1e10),
        ("double", "-Infinity", -math.inf),
        ("double", "inf", math.inf),
        ("float", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]),
        ("float", "1e40", math.inf),
        ("decimal(10,2)", "1.5", Decimal("1.5")),
        ("decimal(38,10)", "-1E-3", Decimal("-0.001")),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("date", "2020-1-5", date(2020, 1, 5)),
        ("timestamp", "1970-01-01 00:00:00", datetime(1970, 1, 1, tzinfo=UTC)),
        (
            "timestamp",
            "1970-01-01T00:00:00.123456Z",
            datetime(1970, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        ),
        (
            "timestamp",
            "1970-01-01T02:30:00+02:30",
            datetime(1970, 1, 1, tzinfo=UTC),
        ),
        (
            "timestamp",
            "1969-12-31 19:00:00.5-0500",
            datetime(1970, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
        ),
        ("timestamp", "2020-02-29", datetime(2020, 2, 29, tzinfo=UTC)),
        (
            "timestamp_ntz",
            "1970-01-01 00:00:00.12",
            datetime(1970, 1, 1, 0, 0, 0, 120000),
        ),
        ("binary", "\x01\x02", b"\x01\x02"),
        ("binary", "é", b"\xc3\xa9"),
        ("string", " x ", " x "),
    ],
)
def test_text_as_writers_leave_it_is_understood(
    kind: str, text: str, value: Any
) -> None:
    assert parse_partition_value(text, kind) == value


def test_nan_is_a_value() -> None:
    for text in ("NaN", "nan"):
        value = parse_partition_value(text, "double")
        assert isinstance(value, float)
        assert math.isnan(value)
    assert format_partition_value(math.nan, "float") == "NaN"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("long", "1_000"),
        ("long", " 1"),
        ("long", "1.0"),
        ("long", "٣"),
        ("long", "9223372036854775808"),
        ("byte", "128"),
        ("double", "1_0.0"),
        ("double", "0x10"),
        ("decimal(10,2)", "0.-5"),
        ("decimal(10,2)", "NaN"),
        ("boolean", "1"),
        ("date", "20200105"),
        ("date", "2020-02-30"),
        ("date", "10000-01-01"),
        ("timestamp", "2020-01-01 25:00:00"),
        ("timestamp", "0001-01-01T00:00:00+01:00"),
        ("timestamp_ntz", "2020-01-01T00:00:00Z"),
        ("void", "x"),
        ("array", "x"),
    ],
)
def test_other_text_is_refused_with_type_and_text(kind: str, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        parse_partition_value(text, kind)
    assert isinstance(caught.value, ValueError)
    assert kind in str(caught.value)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("byte", 128),
        ("long", True),
        ("long", 1.0),
        ("double", 1),
        ("decimal(4,2)", Decimal("100")),
        ("decimal(10,2)", Decimal("0.001")),
        ("decimal(10,2)", Decimal("NaN")),
        ("decimal(10,2)", Decimal("1E+900")),
        ("date", datetime(2020, 1, 1)),
        ("timestamp", datetime(2020, 1, 1)),
        ("timestamp_ntz", datetime(2020, 1, 1, tzinfo=UTC)),
        ("binary", b"\xff"),
        ("string", 3),
        ("map", "x"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: str, value: Any) -> None:
    with pytest.raises(CodecError):
        format_partition_value(value, kind)


def test_timestamps_are_written_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    value = datetime(2020, 1, 1, 1, 0, tzinfo=east)
    text = format_partition_value(value, "timestamp")
    assert text == "2019-12-31T23:00:00.000000Z"


def test_floats_are_written_short() -> None:
    single = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert format_partition_value(single, "float") == "0.1"
    assert format_partition_value(0.1, "double") == "0.1"


def test_values_of_delta_rs_are_read_as_it_reads_them(tmp_path: Path) -> None:
    data = {
        "long": pa.array([1, -2, None]),
        "float": pa.array([0.1, -2.5, None], pa.float32()),
        "decimal(10,2)": pa.array([Decimal("1.50"), Decimal("7.25"), None]).cast(
            pa.decimal128(10, 2)
        ),
        "boolean": pa.array([True, False, None]),
        "date": pa.array([date(2020, 1, 5), date(1969, 12, 31), None]),
        "timestamp": pa.array(
            [datetime(2020, 1, 1, 1, 2, 3, 456), datetime(1900, 1, 1), None],
            pa.timestamp("us", "UTC"),
        ),
        "timestamp_ntz": pa.array([datetime(2020, 1, 1), datetime(1, 1, 1), None]),
        "string": pa.array(["a b/%", "é", ""]),
    }
    for kind, column in data.items():
        path = tmp_path / kind
        write_deltalake(path, pa.table({"p": column, "i": [0, 1, 2]}), partition_by="p")
        read = set(DeltaTable(path).to_pyarrow_table().column("p").to_pylist())
        texts = _partition_texts(path)
        assert len(texts) == 3
        assert {parse_partition_value(text, kind) for text in texts} == read


def _partition_texts(path: Path) -> list[str | None]:
    entry = (path / "_delta_log" / f"{0:020}.json").read_text()
    lines = [json.loads(line) for line in entry.split("\n") if line]
    return [line["add"]["partitionValues"]["p"] for line in lines if "add" in line]
