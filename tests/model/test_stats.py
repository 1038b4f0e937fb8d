"""Statistics: what they say of a file, and how the catalog indexes it."""

import math
import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.stats import (
    ALL_NULL,
    EXACT,
    UNBOUNDED,
    Bounds,
    class_reach,
    class_width,
    column_bounds,
    index_entry,
    parse_stats,
    partition_bounds,
)
from delkalakedb.model.stats.values import (
    Kind,
    kind_of,
    lower,
    round_down,
    round_up,
    upper,
)
from tests.support.examples import examples

TOP = "\U0010ffff"
LARGEST = 1.7976931348623157e308


def column(kind: str, *path: str, **metadata: Any) -> Column:
    return Column(path or ("c",), path or ("c",), kind, True, metadata)


def bounds(kind: str, text: str | None, *path: str, **metadata: Any) -> Bounds:
    return column_bounds(
        column(kind, *path, **metadata), kind_of(kind), parse_stats(text)
    )


def micros(*moment: int) -> int:
    since = datetime(*moment) - datetime(1970, 1, 1)
    return int(since.total_seconds()) * 10**6


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "null",
        '{"numRecords": "many"}',
        '{"minValues": 3}',
        '{"numRecords": 1e400}',
        '{"numRecords": 9223372036854775808}',
        "\ud800",
        pytest.param('{"minValues": ' * 5000, id="deep"),
    ],
)
def test_unreadable_statistics_are_none(text: str | None) -> None:
    assert parse_stats(text) is None
    assert bounds("long", text) == Bounds(None, None, True, True)


def test_statistics_of_a_nested_column_are_found_by_physical_path() -> None:
    text = (
        '{"numRecords":2,"minValues":{"a":{"b":1}},'
        '"maxValues":{"a":{"b":5}},"nullCount":{"a":{"b":0}}}'
    )
    nested = Column(("s", "x"), ("a", "b"), "long", True, {})
    found = column_bounds(nested, Kind.NUMBER, parse_stats(text))
    assert found == Bounds(1, 5, False, True)


def test_statistics_of_another_shape_than_the_schema_bound_nothing() -> None:
    text = (
        '{"numRecords":2,"minValues":{"a":3},"maxValues":{"a":[1]},"nullCount":{"a":1}}'
    )
    assert bounds("long", text, "a", "b") == Bounds()
    assert bounds("string", text, "a") == Bounds()


@pytest.mark.parametrize(
    ("text", "has_null", "has_value"),
    [
        ('{"numRecords":3,"nullCount":{"c":0}}', False, True),
        ('{"numRecords":3,"nullCount":{"c":1}}', True, True),
        ('{"numRecords":3,"nullCount":{"c":3}}', True, False),
        ('{"numRecords":3,"nullCount":{"c":3},"tightBounds":false}', True, False),
        ('{"numRecords":3,"nullCount":{"c":0},"tightBounds":false}', False, True),
        ('{"numRecords":3,"nullCount":{"c":2},"tightBounds":false}', True, True),
        ('{"numRecords":3}', True, True),
        ('{"nullCount":{"c":0}}', False, True),
        ('{"numRecords":0}', False, False),
        ('{"numRecords":3,"nullCount":{"c":false}}', True, True),
    ],
)
def test_null_counts_say_what_is_certain(
    text: str, has_null: bool, has_value: bool
) -> None:
    found = bounds("long", text)
    assert (found.has_null, found.has_value) == (has_null, has_value)


def test_columns_without_an_order_have_null_counts_only() -> None:
    text = '{"numRecords":3,"minValues":{"c":"a"},"nullCount":{"c":0}}'
    assert bounds("binary", text) == Bounds(None, None, False, True)


def test_one_missing_side_is_unbounded() -> None:
    assert bounds("long", '{"minValues":{"c":4}}') == Bounds(4, None)
    assert bounds("long", '{"maxValues":{"c":4}}') == Bounds(None, 4)


def test_a_minimum_above_the_maximum_bounds_nothing() -> None:
    assert bounds("long", '{"minValues":{"c":4},"maxValues":{"c":3}}') == Bounds()


@pytest.mark.parametrize(
    ("kind", "value", "lo", "hi"),
    [
        ("long", 5, 5, 5),
        ("long", "5", None, None),
        ("long", True, None, None),
        ("boolean", True, 1, 1),
        ("boolean", 1, None, None),
        ("double", -0.0, 0.0, 0.0),
        ("double", 7, 7.0, 7.0),
        ("double", "NaN", None, None),
        ("double", "Infinity", math.inf, math.inf),
        ("double", "-Infinity", -math.inf, -math.inf),
        ("date", "1970-01-02", 1, 1),
        ("date", "12024-01-02", None, None),
        ("string", "abc", "abc", "abc"),
        ("string", 5, None, None),
        ("decimal(38,0)", 2**63 - 1, pytest.approx(2.0**63), None),
        ("decimal(38,0)", -(2**63), None, pytest.approx(-(2.0**63))),
        ("binary", "abc", None, None),
    ],
)
def test_statistics_give_bounds(kind: str, value: Any, lo: Any, hi: Any) -> None:
    assert lower(value, kind) == lo
    assert upper(value, kind) == hi


@pytest.mark.parametrize(
    "text",
    [
        "2024-01-01T00:00:00.123Z",
        "2024-01-01 00:00:00.123",
        "2024-01-01T00:00:00.123456Z",
        "2024-01-01T00:00:00.123456789Z",
        "2023-12-31T16:00:00.123-08:00",
    ],
)
def test_timestamps_reach_to_the_end_of_their_millisecond(text: str) -> None:
    start = micros(2024, 1, 1) + 123_000
    assert start <= lower(text, "timestamp") <= start + 456
    assert upper(text, "timestamp") == start + 999


def test_timestamps_that_python_has_no_year_for_bound_nothing() -> None:
    for text in ("+12024-01-01T00:00:00Z", "-0044-03-15T00:00:00Z", "0000-01-01"):
        assert lower(text, "timestamp") is None
        assert upper(text, "timestamp") is None


def test_offsets_of_old_times_may_lack_their_seconds() -> None:
    text, true = "1880-01-01T00:00:00.000-07:52", micros(1880, 1, 1, 7, 52, 58)
    assert lower(text, "timestamp") <= true <= upper(text, "timestamp")


@settings(max_examples=examples(300))
@given(st.floats(width=32, allow_nan=False), st.integers(1, 9))
def test_any_text_of_a_single_bounds_it(value: float, digits: int) -> None:
    text = float(f"{value:.{digits}g}")
    try:
        same = struct.unpack("f", struct.pack("f", text))[0] == value
    except OverflowError:
        same = False
    if same:
        assert lower(text, "float") <= value <= upper(text, "float")


def test_a_double_that_was_a_float_is_read_as_one() -> None:
    change = {"fromType": "float", "toType": "double"}
    text = '{"minValues":{"c":0.1},"maxValues":{"c":0.1}}'
    found = bounds("double", text, **{"delta.typeChanges": [change]})
    single = struct.unpack("f", struct.pack("f", 0.1))[0]
    assert found.lo < single < found.hi


@settings(max_examples=examples(200))
@given(st.decimals(-(10**28), 10**28, places=10), st.sampled_from([-4, 0, 4]))
def test_decimals_written_some_ulps_off_are_within_bounds(
    value: Decimal, ulps: int
) -> None:
    written = float(value) * (1 + ulps * 2**-52)
    assert lower(written, "decimal(38,10)") <= value <= upper(written, "decimal(38,10)")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("long", "9223372036854775807", 2**63 - 1),
        ("decimal(38,10)", "1234567890123456789.01", Decimal("1234567890123456789.01")),
        ("boolean", "true", 1),
        ("date", "1970-01-03", 2),
        ("timestamp", "1970-01-01 00:00:01", 1_000_000),
        ("timestamp_ntz", "1970-01-01 00:00:01.5", 1_500_000),
        ("string", "x" * 100, "x" * 100),
    ],
)
def test_a_partition_value_is_exact(kind: str, text: str, value: Any) -> None:
    assert partition_bounds(column(kind), text) == Bounds(value, value, False, True)


def test_a_null_partition_has_no_value() -> None:
    assert partition_bounds(column("string"), None) == Bounds(None, None, True, False)
    assert partition_bounds(column("long"), "") == Bounds(None, None, True, False)


def test_an_empty_text_partition_may_be_null_or_empty() -> None:
    assert partition_bounds(column("string"), "") == Bounds("", "", True, True)


def test_a_partition_of_nan_or_of_no_sense_is_unbounded() -> None:
    for text in ("NaN", "what"):
        found = partition_bounds(column("double"), text)
        assert (found.lo, found.hi, found.has_value) == (None, None, True)


TEXTS = st.text(st.sampled_from(["a", "b", "\0", "\1", "é", TOP, "\ud7ff"]), max_size=3)
LONG_TEXTS = st.builds(
    lambda length, tail: "k" * length + tail, st.sampled_from([0, 62, 63, 64]), TEXTS
)
DOUBLES = st.floats(allow_nan=False) | st.sampled_from(
    [0.0, -0.0, 5e-324, -5e-324, LARGEST, -LARGEST, math.inf, -math.inf, 1.0, 2.0**53]
)
INTEGERS = st.integers(2**53 - 4, 2**53 + 4) | st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=examples(500))
@given(LONG_TEXTS | INTEGERS | st.decimals(allow_nan=False, allow_infinity=False))
def test_rounding_goes_outwards(value: Any) -> None:
    low, high = round_down(value), round_up(value)
    assert low is None or low <= value
    assert high is None or high >= value
    for bound in (low, high):
        assert not isinstance(bound, str) or (len(bound) <= 65 and "\0" not in bound)


def test_a_lone_surrogate_bounds_nothing() -> None:
    assert round_down("a\ud800") is None
    assert round_up("a\ud800") is None


def scan_finds(entry: tuple[Any, Any, int], low: Any | None, high: Any | None) -> bool:
    lo, hi, number = entry
    below = high is None or (lo <= high and hi <= class_reach(number, high))
    return below and (low is None or hi >= low)


@settings(max_examples=examples(1000))
@given(*[st.none() | DOUBLES | INTEGERS] * 2, *[DOUBLES | INTEGERS] * 2)
@example(-LARGEST, LARGEST, 0.0, 0.0)
@example(5e-324, 1e-323, 0.0, 5e-324)
@example(2**53, 2**53 + 1, 2**53 + 1, 2**53 + 1)
def test_numbers_that_overlap_are_found_in_their_class(
    lo: Any, hi: Any, a: Any, b: Any
) -> None:
    if lo is not None and hi is not None:
        lo, hi = min(lo, hi), max(lo, hi)
    a, b = min(a, b), max(a, b)
    entry = index_entry(Bounds(lo, hi), Kind.NUMBER)
    assert not any(math.isnan(bound) or str(bound) == "-0.0" for bound in entry[:2])
    if math.isfinite(entry[0]) and math.isfinite(entry[1]):
        assert Decimal(entry[1]) - Decimal(entry[0]) <= Decimal(class_width(entry[2]))
    if (lo is None or lo <= b) and (hi is None or hi >= a) and b > -math.inf:
        assert scan_finds(entry, round_down(a), round_up(b))


@settings(max_examples=examples(1000))
@given(*[st.none() | LONG_TEXTS] * 2, *[LONG_TEXTS] * 2)
@example("a", "b", "a" + TOP + TOP, "b")
@example(None, None, TOP + TOP, TOP + TOP + TOP)
@example("a" + TOP + "b", "a" + TOP + "b", "a" + TOP, "b")
def test_texts_that_overlap_are_found_in_their_class(
    lo: Any, hi: Any, a: str, b: str
) -> None:
    if lo is not None and hi is not None:
        lo, hi = min(lo, hi), max(lo, hi)
    a, b = min(a, b), max(a, b)
    if (lo is None or lo <= b) and (hi is None or hi >= a):
        entry = index_entry(Bounds(lo, hi), Kind.TEXT)
        assert scan_finds(entry, round_down(a), round_up(b))


def test_classes_tell_widths_apart() -> None:
    def number(lo: Any, hi: Any) -> int:
        return index_entry(Bounds(lo, hi), Kind.NUMBER)[2]

    assert class_width(number(7, 7)) == 0.0
    assert class_width(number(0, 3)) == 4.0
    assert class_width(number(0, 1000)) == 1024.0
    assert number(None, 3) == number(3, None) == number(None, None) == UNBOUNDED
    assert number(math.inf, math.inf) == UNBOUNDED


def test_classes_tell_prefixes_apart() -> None:
    def text(lo: Any, hi: Any) -> int:
        return index_entry(Bounds(lo, hi), Kind.TEXT)[2]

    assert text("abc", "abd") == 2
    assert text("abc", "abc") == EXACT
    assert text("x" * 90, "x" * 99) == 64
    assert text(None, "abc") == text("abc", None) == 0
    assert index_entry(Bounds(None, None), Kind.TEXT) == ("", TOP, 0)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_file_of_nulls_has_a_class_of_its_own(kind: Kind) -> None:
    assert index_entry(Bounds(has_value=False), kind)[2] == ALL_NULL
