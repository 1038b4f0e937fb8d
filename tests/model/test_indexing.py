"""The short way must give what the long way gives."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.catalog.engine.backend import listed
from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.index import (
    Entries,
    FileStats,
    index_entries,
    partition_entries,
)
from delkalakedb.model.stats.stats import (
    Bounds,
    Stats,
    column_bounds,
    index_entry,
    parse_stats,
    partition_bounds,
)
from delkalakedb.model.stats.values import kind_of
from tests.support.examples import examples

TYPES = [
    "long",
    "integer",
    "double",
    "float",
    "string",
    "date",
    "timestamp",
    "timestamp_ntz",
    "boolean",
    "decimal(10,2)",
]

MOMENTS = [
    "2026-01-02",
    "2026-01-02T03:04:05.678Z",
    "2026-01-02T03:04:05.6Z",
    "2026-01-02T03:04:05.678901",
    "2026-01-02T03:04:05.6789012Z",
    "2026-01-02 03:04:05Z",
    "1960-01-02T03:04:05.678901Z",
    "1960-01-02T03:04:05.678+01:00",
    "0001-01-01T00:00:00Z",
    "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z",
    "2026-01-02T24:00:00Z",
    "2026-01-02T03:04:60Z",
    "2026-01-02T03:04:05ZZ",
    "2026-01-02T03:04:05Z\n",
    "\u0662\u0660\u0662\u0666-01-02T03:04:05Z",
]
texts = st.text(max_size=4) | st.sampled_from(["a" * 64, "a" * 65, "\U0010ffff", "\0"])
numbers = (
    st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, -0.0, 0.0, 1.7e308])
)
values = texts | numbers | st.booleans() | st.none() | st.sampled_from(MOMENTS)
shared = st.builds(
    lambda head, tail: head + tail,
    st.sampled_from(["", "a", "ab", "a" * 62, "a" * 63, "a" * 64]),
    st.text("ab", max_size=3),
)
counts = st.none() | st.integers(-1, 3) | st.booleans() | st.just("x")


@st.composite
def statistics(draw: st.DrawFn) -> Stats | None:
    """What a writer, good or bad, may have written."""
    document: dict[str, Any] = {}
    for key, strategy in (
        ("minValues", values),
        ("maxValues", values),
        ("nullCount", counts),
    ):
        if draw(st.integers(0, 9)):
            document[key] = {"x": draw(strategy)} if draw(st.integers(0, 9)) else {}
    if draw(st.integers(0, 9)):
        document["numRecords"] = draw(st.none() | st.integers(0, 3))
    try:
        return parse_stats(json.dumps(document))
    except UnicodeEncodeError:
        return None


def entry(column: Column, bounds: Bounds) -> tuple[Any, ...]:
    kind = kind_of(column.type)
    assert kind is not None
    return (*index_entry(bounds, kind), bounds.has_null)


def entry_of(column: Column, stats: Stats | None) -> tuple[Any, ...]:
    return entry(column, column_bounds(column, kind_of(column.type), stats))


def rows_of(entries: Entries) -> list[tuple[Any, ...]]:
    return list(zip(*map(listed, entries), strict=True))


def spelled(rows: list[tuple[Any, ...]]) -> str:
    """Tells 0.0 from -0.0, and 1 from True."""
    return repr(rows)


PLAIN = {
    "long": (-5, 2**40),
    "integer": (0, 0),
    "double": (-0.0, 1.5),
    "string": ("city-1", "city-2"),
    "timestamp": ("2026-01-02T03:04:05.678Z", "2026-01-02T03:04:05.6789Z"),
    "timestamp_ntz": ("1969-12-31T23:59:59", "1969-12-31T23:59:59.9"),
}


def plain_stats(type_name: str, count: int) -> list[Stats | None]:
    """Files that are done together, as long as no other is among them."""
    lo, hi = PLAIN.get(type_name, (None, None))
    return [Stats(9, {"x": lo}, {"x": hi}, {"x": i % 2}) for i in range(count)]


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("plain", [0, 200])
@given(given_stats=st.lists(st.none() | statistics(), min_size=1, max_size=4))
@settings(max_examples=examples(100))
def test_entries_of_many_files_equal_those_of_each(
    type_name: str, plain: int, given_stats: list[Stats | None]
) -> None:
    column = Column(("x",), ("x",), type_name, True, {})
    stats = given_stats + plain_stats(type_name, plain)
    expected = [entry_of(column, one) for one in stats]
    found = index_entries(column, FileStats(stats))
    assert spelled(rows_of(found)) == spelled(expected)


@pytest.mark.parametrize("type_name", PLAIN)
def test_plain_statistics_of_many_files_stay_in_columns(type_name: str) -> None:
    column = Column(("x",), ("x",), type_name, True, {})
    stats = plain_stats(type_name, 1000)
    found = index_entries(column, FileStats(stats))
    assert all(isinstance(values, pa.Array) for values in found)
    assert spelled(rows_of(found)) == spelled([entry_of(column, s) for s in stats])


@pytest.mark.parametrize("odd", [2**70, "\ud800", "2026-02-30T00:00:00Z"])
@pytest.mark.parametrize("type_name", PLAIN)
def test_a_bound_that_no_array_holds_is_looked_at_by_itself(
    type_name: str, odd: Any
) -> None:
    column = Column(("x",), ("x",), type_name, True, {})
    stats = plain_stats(type_name, 300)
    stats[7] = Stats(9, {"x": odd}, {"x": odd}, {"x": 0})
    stats[8] = Stats(2**70, {"x": odd}, {"x": odd}, {"x": 0})
    found = index_entries(column, FileStats(stats))
    assert spelled(rows_of(found)) == spelled([entry_of(column, s) for s in stats])


@given(pairs=st.lists(st.tuples(shared, shared), min_size=200, max_size=260))
@settings(max_examples=examples(25))
def test_classes_of_many_texts_equal_those_of_each(
    pairs: list[tuple[str, str]],
) -> None:
    column = Column(("x",), ("x",), "string", True, {})
    stats: list[Stats | None] = [
        Stats(9, {"x": min(pair)}, {"x": max(pair)}, {"x": 0}) for pair in pairs
    ]
    found = index_entries(column, FileStats(stats))
    assert rows_of(found) == [entry_of(column, one) for one in stats]


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("odd", [[], [{}], [{"p": "\ud800"}]])
@pytest.mark.parametrize("times", [1, 100])
def test_entries_of_partitions_equal_those_of_each(
    type_name: str, odd: list[dict[str, str | None]], times: int
) -> None:
    column = Column(("p",), ("p",), type_name, True, {})
    some: list[str | None] = ["1", None, "x", "", "2026-01-02", "true", "-0.0"]
    files = [{"p": text} for text in some] * times + odd
    expected = [
        entry(column, partition_bounds(column, values["p"]) if values else Bounds())
        for values in files
    ]
    assert spelled(rows_of(partition_entries(column, files))) == spelled(expected)
