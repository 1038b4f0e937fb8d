"""Pruning: which files a filter keeps, and what it looks up in the index."""

import json
import math
from typing import Any

import pytest

from delkalakedb.model.predicate.matcher import (
    HasNull,
    Range,
    drivers,
    is_of_partitions,
    matcher,
)
from delkalakedb.model.predicate.predicate import parse_predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import (
    class_reach,
    column_bounds,
    index_entry,
    parse_stats,
)
from delkalakedb.model.stats.values import Kind

TYPES = {
    "i": "long",
    "n": "integer",
    "f": "float",
    "d": "double",
    "c": "decimal(10,2)",
    "s": "string",
    "b": "boolean",
    "ts": "timestamp",
    "st": {"type": "struct", "fields": [{"name": "x", "type": "long"}]},
    "p": "string",
    "q": "long",
    "h": "double",
}
PARTITIONS = ("p", "q", "h")
FIELDS = [{"name": name, "type": kind} for name, kind in TYPES.items()]
SCHEMA = parse_schema(json.dumps({"type": "struct", "fields": FIELDS}))
COLUMNS = {leaf.path[-1]: leaf for leaf in SCHEMA.leaves()}
TOP = "\U0010ffff"


def _kept(filter_: str, stats: str | None, **partition: str | None) -> bool:
    predicate = parse_predicate(filter_, SCHEMA, PARTITIONS)
    return matcher(predicate, PARTITIONS)(partition, stats)


def _min_max(name: str, low: Any, high: Any, nulls: int = 0) -> str:
    return json.dumps(
        {
            "numRecords": 10,
            "minValues": {name: low},
            "maxValues": {name: high},
            "nullCount": {name: nulls},
        }
    )


WIDE = _min_max("i", 2**60 + 100, 2**60 + 100)
MIDNIGHT = _min_max("ts", "2024-01-01T00:00:00.000Z", "2024-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    ("filter_", "stats", "kept"),
    [
        ("i = 5", _min_max("i", 1, 9), True),
        ("i = 5", _min_max("i", 6, 9), False),
        ("i = 5", None, True),
        ("i < 6", _min_max("i", 6, 9), False),
        ("i <= 6", _min_max("i", 6, 9), True),
        ("i > 9", _min_max("i", 6, 9), False),
        ("i != 6", _min_max("i", 6, 6), False),
        ("i NOT IN (6, 7)", _min_max("i", 6, 6), False),
        ("i IN (1, 10)", _min_max("i", 6, 9), False),
        ("i IN (1, 10, 8)", _min_max("i", 6, 9), True),
        ("i IN (1152921504606846977, 1152921504606846976.5)", WIDE, True),
        ("i IN ()", _min_max("i", 6, 9), False),
        ("i = 9007199254740993", _min_max("i", 2**53, 2**53), False),
        ("i = 9007199254740993.0", _min_max("i", 2**53, 2**53), True),
        ("i <> 9007199254740993", _min_max("i", 2**53 + 1, 2**53 + 1), False),
        ("i <> 9007199254740993.0", _min_max("i", 2**53 + 1, 2**53 + 1), True),
        ("i = CAST(10 AS DOUBLE)", _min_max("i", 11, 11), False),
        ("i >= CAST(9007199254740994 AS DOUBLE)", _min_max("i", 1, 2**53 + 1), True),
        ("i IN (9007199254740993, 5e-1)", _min_max("i", 2**53, 2**53), True),
        ("i IN (9007199254740993, 5)", _min_max("i", 2**53, 2**53), False),
        ("i BETWEEN 9007199254740993 AND 9e18", _min_max("i", 1, 2**53), True),
        ("c = 9.504", _min_max("c", 9.5, 9.5), True),
        ("c = 9.496", _min_max("c", 9.5, 9.5), True),
        ("c = 9.511", _min_max("c", 9.5, 9.5), False),
        ("c <> 9.504", _min_max("c", 9.5, 9.5), True),
        ("c = -9.504", _min_max("c", -9.5, -9.5), True),
        ("i > 5 AND i < 3", _min_max("i", 1, 9), False),
        ("i = 1 OR i = 20", _min_max("i", 6, 9), False),
        ("i IS NULL", _min_max("i", 6, 9), False),
        ("i IS NULL", _min_max("i", 6, 9, 1), True),
        ("i IS NOT NULL", _min_max("i", None, None, 10), False),
        ("i = 5", _min_max("i", None, None, 10), False),
        ("NOT (i IS NOT NULL AND i < 100)", _min_max("i", 6, 9), False),
        ("i = NULL", _min_max("i", 6, 9), False),
        ("NOT (i = NULL)", _min_max("i", 6, 9), False),
        ("i NOT IN (1, NULL)", _min_max("i", 6, 9), False),
        ("FALSE", None, False),
        ("abs(i) = 1", _min_max("i", 6, 9), True),
        ("s LIKE 'ab%'", _min_max("s", "aa", "az"), True),
        ("s LIKE 'ab%'", _min_max("s", "ac", "az"), False),
        ("s LIKE 'ab%'", _min_max("s", "aa", "aazz"), False),
        ("d > 9", _min_max("d", 1, 5), True),
        ("d != 5", _min_max("d", 5.0, 5.0), True),
        ("d > 9 AND d < 12", _min_max("d", 1, 5), False),
        ("d BETWEEN 9 AND 12", _min_max("d", 1, 5), False),
        ("d = 9", _min_max("d", 1, 5), False),
        ("d < 1", _min_max("d", 1, 5), True),
        ("d < 0.9", _min_max("d", 1, 5), False),
        ("b", _min_max("b", False, False), False),
        ("NOT b", _min_max("b", True, True), False),
        ("st.x = 5", json.dumps({"minValues": {"st": {"x": 6}}}), False),
        ("ts > '2024-01-01T00:00:00.0009Z'", MIDNIGHT, True),
        ("ts > '2024-01-01T00:00:00.001Z'", MIDNIGHT, False),
    ],
)
def test_statistics_decide(filter_: str, stats: str | None, kept: bool) -> None:
    assert _kept(filter_, stats) is kept


@pytest.mark.parametrize(
    ("filter_", "partition", "kept"),
    [
        ("p = 'a'", {"p": "a"}, True),
        ("p = 'a'", {"p": "b"}, False),
        ("p != 'a'", {"p": "a"}, False),
        ("p != 'a'", {"p": None}, False),
        ("p IS NULL", {"p": None}, True),
        ("p IS NULL", {"p": ""}, True),
        ("p = ''", {"p": ""}, True),
        ("p IS NULL", {"p": "a"}, False),
        ("p = 'a'", {}, True),
        ("q = 9007199254740993", {"q": "9007199254740992"}, False),
        ("q > 5", {"q": "5"}, False),
        ("h > 5", {"h": "5.0"}, True),
        ("h > 5.5", {"h": "5.0"}, False),
        ("h > 5.5", {"h": "NaN"}, True),
        (f"p = '{'k' * 70}'", {"p": "k" * 71}, False),
        (f"p NOT LIKE '{'k' * 70}'", {"p": "k" * 70}, False),
    ],
)
def test_partition_values_decide(filter_: str, partition: Any, kept: bool) -> None:
    assert _kept(filter_, None, **partition) is kept


def _found(filter_: str) -> Any:
    return drivers(parse_predicate(filter_, SCHEMA, PARTITIONS), PARTITIONS)


def test_drivers_are_ranges_best_first() -> None:
    i, n, s, q = (COLUMNS[name] for name in "insq")
    assert _found("n > 5 AND i BETWEEN 1 AND 9 AND q = 3 AND s IS NULL") == (
        (Range(q, 3.0, 3.0),),
        (Range(i, 1.0, 9.0),),
        (Range(n, 5.0, None),),
        (HasNull(s),),
    )


def test_a_disjunction_is_one_driver() -> None:
    i, n, s = (COLUMNS[name] for name in "ins")
    assert _found("i = 1 AND (n = 2 OR s IS NULL)") == (
        (Range(i, 1.0, 1.0),),
        (Range(n, 2.0, 2.0), HasNull(s)),
    )


def test_a_list_is_one_term_each_until_there_are_too_many() -> None:
    i = COLUMNS["i"]
    assert _found("i IN (1, 5, NULL)") == ((Range(i, 1.0, 1.0), Range(i, 5.0, 5.0)),)
    many = ", ".join(map(str, range(101)))
    assert _found(f"i IN ({many})") == ((Range(i, 0.0, 100.0),),)


def test_a_prefix_is_a_range() -> None:
    s = COLUMNS["s"]
    assert _found("s LIKE 'ab%'") == ((Range(s, "ab", "ac"),),)
    assert _found(f"s LIKE 'a{TOP}%'") == ((Range(s, f"a{TOP}", "b"),),)


@pytest.mark.parametrize(
    "filter_",
    ["d > 5", "i != 5", "i = 1 OR abs(i) = 1", "i IS NOT NULL", "TRUE", "s LIKE '%x'"],
)
def test_what_bounds_nothing_drives_nothing(filter_: str) -> None:
    assert _found(filter_) in ((), ((Range(COLUMNS["s"], "", None),),))


@pytest.mark.parametrize("filter_", ["FALSE", "i = NULL", "i > 5 AND i < 3", "i IN ()"])
def test_what_never_holds_has_a_driver_without_terms(filter_: str) -> None:
    assert _found(filter_)[0] == ()


def test_limits_of_drivers_can_be_added_to() -> None:
    low, high = _found("d = CAST('-inf' AS DOUBLE) AND f = CAST('inf' AS DOUBLE)")
    for (term,) in (low, high):
        assert not math.isnan(term.hi + math.inf)


def _scan_finds(term: Range, stats: str) -> bool:
    bounds = column_bounds(term.column, Kind.NUMBER, parse_stats(stats))
    lo, hi, number = index_entry(bounds, Kind.NUMBER)
    below = term.hi is None or (lo <= term.hi and hi <= class_reach(number, term.hi))
    return below and (term.lo is None or hi >= term.lo)


@pytest.mark.parametrize(
    ("filter_", "expected"),
    [("i = 4242", 1), ("i BETWEEN 4200 AND 4350", 2), ("i >= 9900", 1), ("i < -1", 0)],
)
def test_clustered_numbers_are_pruned(filter_: str, expected: int) -> None:
    files = [_min_max("i", 100 * k, 100 * k + 99) for k in range(100)]
    assert sum(_kept(filter_, stats) for stats in files) == expected
    ((term,),) = _found(filter_)
    assert sum(_scan_finds(term, stats) for stats in files) == expected


@pytest.mark.parametrize(
    ("filter_", "alone"),
    [
        ("p = 'a'", True),
        ("p = 'a' OR q IN (1, 2)", True),
        ("NOT (p IS NULL)", True),
        ("p = 'a' AND i = 1", False),
        ("p = 'a' OR upper(p) = 'B'", False),
        ("abs(i) = 1", False),
        ("i = 1", False),
    ],
)
def test_only_what_names_partitions_alone_needs_no_rows(
    filter_: str, alone: bool
) -> None:
    predicate = parse_predicate(filter_, SCHEMA, PARTITIONS)
    assert is_of_partitions(predicate, PARTITIONS) is alone
