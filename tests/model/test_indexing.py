"""The short way must give what the long way gives."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delkalakedb.model.indexing import index_entries, partition_entries
from delkalakedb.model.schema import Column
from delkalakedb.model.stats import (
    Bounds,
    Stats,
    column_bounds,
    index_entry,
    parse_stats,
    partition_bounds,
)
from delkalakedb.model.values import kind_of

TYPES = ["long", "integer", "double", "float", "string", "date", "timestamp", "boolean"]

texts = st.text(max_size=4) | st.sampled_from(["a" * 64, "a" * 65, "\U0010ffff", "\0"])
numbers = (
    st.integers(-3, 3)
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from([2**53, 2**53 + 1, -(2**53) - 1, -0.0, 0.0, 1.7e308])
)
values = (
    texts
    | numbers
    | st.booleans()
    | st.none()
    | st.sampled_from(["2026-01-02", "2026-01-02T03:04:05.678Z"])
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


@pytest.mark.parametrize("type_name", TYPES)
@given(given_stats=st.lists(st.none() | statistics(), max_size=4))
@settings(max_examples=150)
def test_entries_of_many_files_equal_those_of_each(
    type_name: str, given_stats: list[Stats | None]
) -> None:
    column = Column(("x",), ("x",), type_name, True, {})
    kind = kind_of(type_name)
    assert kind is not None
    expected = []
    for stats in given_stats:
        bounds = column_bounds(column, kind, stats)
        expected.append((*index_entry(bounds, kind), bounds.has_null))
    assert list(index_entries(column, given_stats)) == expected


def test_entries_of_partitions_equal_those_of_each() -> None:
    column = Column(("p",), ("p",), "integer", True, {})
    kind = kind_of("integer")
    assert kind is not None
    files = [{"p": "1"}, {"p": None}, {"p": "x"}, {}, {"p": "1"}]
    expected = []
    for values in files:
        known = "p" in values
        bounds = partition_bounds(column, values["p"]) if known else Bounds()
        expected.append((*index_entry(bounds, kind), bounds.has_null))
    assert list(partition_entries(column, files)) == expected
